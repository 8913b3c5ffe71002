//! Exports a plan in the formats of other programs: a shell script, irqbalance's policy, systemd's
//! `.link` files, a tuned profile.
//!
//! This module only builds text, and only with settings that the other program really has; a
//! comment names what it cannot express. Interrupts come from the plan's placements, moved or not;
//! everything else comes from its changes.

mod irqbalance;
mod script;
mod systemd_link;
mod tuned;

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::Plan;

pub use irqbalance::{irqbalance_policy, irqbalance_suggest};
pub use script::script;
pub use systemd_link::systemd_link;
pub use tuned::tuned;

/// A file for another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// File name, without folder.
    pub name: String,
    /// Content.
    pub text: String,
    /// Whether the file is executable.
    pub executable: bool,
}

/// An interrupt and its planned CPUs.
struct Interrupt<'a> {
    irq: Irq,
    action: &'a str,
    netdev: Option<&'a NetdevIdentity>,
    cpus: &'a CpuSet,
    why: &'a str,
}

/// All interrupts with a place in the plan, by number.
fn interrupts(plan: &Plan) -> Vec<Interrupt<'_>> {
    let mut all = BTreeMap::new();
    for placement in &plan.placements {
        if let Some(irq) = placement.irq {
            let (action, netdev) = (placement.action.as_str(), Some(&placement.netdev));
            all.insert(
                irq,
                Interrupt { irq, action, netdev, cpus: &placement.cpus, why: &placement.basis },
            );
        }
    }
    // Plans written by hand or by an earlier netsilo have only changes.
    for change in &plan.changes {
        if let (Target::IrqAffinity { irq, action, netdev }, Value::Cpus(cpus)) =
            (&change.target, &change.new)
        {
            let known =
                Interrupt { irq: *irq, action, netdev: netdev.as_ref(), cpus, why: &change.reason };
            all.entry(*irq).or_insert(known);
        }
    }
    all.into_values().collect()
}

/// The count as the kernel stores it: flow counts are rounded up to a power of two, 0 stays 0.
fn rounded(count: u32) -> u32 {
    if count == 0 { 0 } else { count.checked_next_power_of_two().unwrap_or(count) }
}

/// The new value in the format of its file.
fn text_of(change: &Change) -> String {
    match (&change.target, &change.new) {
        (_, Value::Cpus(cpus)) => cpus.to_mask(1),
        (Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries, Value::Count(count)) => {
            rounded(*count).to_string()
        }
        (_, other) => other.to_string(),
    }
}

/// Joins a text into one line, for a comment.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Quotes any text as one shell word.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::NTUPLE_FILTER;

    #[test]
    fn any_name_becomes_one_shell_word() {
        assert_eq!(quoted("virtio0-input.1"), "'virtio0-input.1'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(one_line("a\nb\t c"), "a b c");
    }

    #[test]
    fn each_format_switches_flow_steering_and_none_pins_a_consumer() {
        let change =
            |target, new| Change { target, old: Value::Count(0), new, reason: "because".into() };
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let pinned = Target::CgroupCpuset { path: "/web.slice".into() };
        let changes = vec![
            change(Target::Offload { netdev, feature: NTUPLE_FILTER.into() }, Value::Switch(true)),
            change(pinned, Value::Cpus(CpuSet::first(2))),
        ];
        let plan = Plan { changes, ..Plan::default() };
        let texts = [script(&plan).text, systemd_link(&plan).0[0].text.clone(), tuned(&plan).text];
        for (text, wanted) in texts.iter().zip([
            "\ndevice 'eth0' '' 'eth0 rx-ntuple-filter' -K 'rx-ntuple-filter' on\n",
            "\nNTupleFilter=yes\n",
            "\nfeatures=rx-ntuple-filter on\n",
        ]) {
            assert!(text.contains(wanted) && !text.contains("web.slice"), "{text}");
        }
    }

    #[test]
    fn counts_are_rounded_as_the_kernel_rounds_them() {
        assert_eq!([0, 1000, 1024, u32::MAX].map(rounded), [0, 1024, 1024, u32::MAX]);
    }
}
