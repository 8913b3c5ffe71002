//! Small files of sysfs, procfs and debugfs: sets, numbers, words, addresses; no text panics a
//! parser.

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::ParseError;
use netsilo_model::parse::cpuset_partition::is_isolated;
use netsilo_model::parse::node_distance::node_distance;
use netsilo_model::parse::per_cpu_count::per_cpu_count;
use netsilo_model::parse::sanitize::{escaped, is_control};
use netsilo_model::parse::uevent::uevent;
use netsilo_model::parse::{cpu_lists, irq_debugfs, netdev};
use netsilo_model::parse::{pcie, scalar};

use crate::properties::is_one_line;
use crate::target::{FuzzTarget, fixtures};

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    for read in [cpu_lists::list(text), cpu_lists::mask(text)] {
        crate::properties::points_into(text, &read);
        let _ = read.map(|set| assert_eq!(cpu_lists::list(&format!("{set}\n")), Ok(set)));
    }
    for possible in
        ["", "0", "0-3,8", "1,8191"].map(|list| CpuSet::parse_list(list).unwrap_or_default())
    {
        let read = per_cpu_count(text, &possible);
        points_into(text, &read);
        let Ok(counts) = read else { continue };
        let cells: Vec<String> =
            possible.iter().map(|cpu| counts.get(&cpu).unwrap_or(&0).to_string()).collect();
        assert_eq!(per_cpu_count(&cells.join(","), &possible), Ok(counts));
    }
    crate::properties::points_into(text, &irq_debugfs::writable(text));
    crate::properties::points_into(text, &irq_debugfs::free_vectors(text));
    points_into(text, &node_distance(text));
    numbers(text);
    let address = netdev::address(text);
    points_into(text, &address);
    if let Ok(Some(address)) = address {
        assert_eq!(netdev::address(&address), Ok(Some(address)));
    }
    let pairs = uevent(text);
    let again: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    assert_eq!(uevent(&again.concat()), pairs);
    assert_eq!(scalar::word(text).as_deref(), Ok(text.trim()));
    pcie_links(text);
    assert!(!is_isolated(text) || text.contains("isolated"));
    let shown = escaped(text);
    assert!(!shown.contains(is_control) && escaped(&shown) == shown);
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = fixtures(|path| path.contains("/proc/irq/") || path.contains("/sys/"));
    seeds.retain(|file| file.len() <= 2048);
    seeds
}

fn pcie_links(text: &str) {
    let (speed, width) = (pcie::link_speed(text), pcie::link_width(text));
    points_into(text, &speed);
    points_into(text, &width);
    if let Ok(Some(mtps)) = speed {
        assert_eq!(
            pcie::link_speed(&format!("{}.{} GT/s PCIe\n", mtps / 1000, mtps % 1000 / 100)),
            Ok(Some(mtps))
        );
    }
    assert!(!matches!(width, Ok(Some(0 | 255..))));
    let features = pcie::virtio_features(text);
    points_into(text, &features);
    if let Ok(bits) = features {
        assert_eq!(bits.len(), text.bytes().filter(|byte| *byte == b'1').count());
    }
}

/// Checks the error position, only for one line without leading white space: elsewhere it is not
/// exact.
fn points_into<T>(text: &str, result: &Result<T, ParseError>) {
    if is_one_line(text) && !text.starts_with(char::is_whitespace) {
        crate::properties::points_into(text, result);
    }
}

fn numbers(text: &str) {
    let (small, large) = (scalar::number::<u32>(text), scalar::number::<u64>(text));
    points_into(text, &small);
    points_into(text, &large);
    if let Ok(small) = small {
        assert_eq!(large, Ok(small.into()));
        assert_eq!(scalar::number_or_none(text), Ok(Some(small)));
        assert_eq!(scalar::number(&format!("{small}\n")), Ok(small));
    }
    if let Ok(number) = scalar::hexadecimal(text) {
        assert_eq!(scalar::hexadecimal(&format!("{number:#x}\n")), Ok(number));
    }
    if let Ok(Some(speed)) = netdev::speed(text) {
        assert!(speed != 0 && speed != u32::MAX);
    }
}
