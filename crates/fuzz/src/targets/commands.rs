//! Outputs of commands in reports of other collectors: no text panics, and a text that was cut
//! within a line is refused where a number could be cut.

use netsilo_model::collection::names::{EthtoolPart, Item, item};
use netsilo_model::collection::{
    cpus, ethtool, grepped, links, processes, qdiscs, sysctls, uname, whole_lines,
};
use netsilo_model::snapshot::ethtool::Ethtool;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget::text(holds);

fn holds(text: &str) {
    let (path, text) = text.split_once('\n').unwrap_or((text, ""));
    if let Some(Item::Kernel(kernel)) = item(path) {
        assert!(!kernel.starts_with('/'));
    }
    let is_cut = !text.is_empty() && !text.ends_with('\n');
    for part in EthtoolPart::ALL {
        let added = ethtool::add(&mut Ethtool::unavailable(""), part, text);
        assert!(added.is_err() || !is_cut, "{part:?}");
    }
    let parsed = [
        links::links(text).is_ok(),
        qdiscs::qdiscs(text, |_| Some(1)).is_ok(),
        whole_lines(text).is_ok(),
    ];
    assert!(!is_cut || parsed == [false; 3]);
    for (path, _) in cpus::lscpu(text).iter().chain(&cpus::numactl(text)) {
        assert!(path.starts_with("sys/devices/system/"));
    }
    let _ = (uname(text), processes(text), sysctls(text).len(), grepped(text));
    for link in links::links(text).unwrap_or_default() {
        assert!(link.files().iter().all(|(_, value)| value.ends_with('\n')));
    }
}
