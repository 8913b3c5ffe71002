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

use netsilo_model::change::{Target, Value};
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
        if let (Target::IrqAffinity(knob), Value::Cpus(cpus)) = (&change.target, &change.new) {
            let (irq, action, netdev) = (knob.irq, &knob.action, knob.netdev.as_ref());
            let known = Interrupt { irq, action, netdev, cpus, why: &change.reason };
            all.entry(irq).or_insert(known);
        }
    }
    all.into_values().collect()
}

/// Joins a text into one line, for a comment.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::{Change, NTUPLE_FILTER, knobs, quoted};

    #[test]
    fn any_name_becomes_one_shell_word() {
        assert_eq!(quoted("virtio0-input.1"), "'virtio0-input.1'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(one_line("a\nb\t c"), "a b c");
    }

    #[test]
    fn each_format_switches_flow_steering_and_none_pins_a_consumer() {
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let ntuple = knobs::Offload { netdev, feature: NTUPLE_FILTER.into() };
        let pinned = knobs::CgroupCpuset { path: "/web.slice".into() };
        let changes = vec![
            Change::new(ntuple, false, true, "because"),
            Change::new(pinned, CpuSet::new(), CpuSet::first(2), "because"),
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
}
