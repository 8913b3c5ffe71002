//! Converts the text of a knob to a value, and predicts the value that the kernel will store.

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::machine::cpuset::CpuSet;

use crate::transaction::kernel::Kernel;
use crate::transaction::knob::error::KnobError;

/// The value that the text of a knob means.
pub fn parse(target: &Target, raw: &str) -> Result<Value, KnobError> {
    target.parse(raw).map_err(|why| KnobError::Unreadable {
        target: Box::new(target.clone()),
        raw: raw.to_owned(),
        why,
    })
}

/// The value that the kernel will store: it rounds flow counts up, and removes CPUs isolated at
/// boot from RPS sets.
///
/// Undo needs this if netsilo died between a write and its record. It shows whether the value is
/// netsilo's.
pub fn settles_as(kernel: &dyn Kernel, change: &Change) -> Value {
    // `netdev_rx_queue_set_rps_mask` ANDs with HK_TYPE_DOMAIN (isolcpus) and HK_TYPE_WQ
    // (nohz_full).
    let list = |name: &str| {
        let text = kernel.read(&format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
        CpuSet::parse_list(&text).unwrap_or_default()
    };
    change.settles_as(&|| list("isolated").or(&list("nohz_full")))
}
