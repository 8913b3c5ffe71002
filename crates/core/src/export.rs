//! A plan in the words of other programs: a shell script, irqbalance's policy, systemd's `.link`
//! files, a tuned profile.
//!
//! Only text is made here, and only with settings that the other program really has; what it cannot
//! express is named in a comment. Interrupts come from the plan's placements, moved or not; all
//! else from its changes.

mod irqbalance;
mod script;
mod systemd_link;
mod tuned;

pub use irqbalance::{irqbalance_policy, irqbalance_suggest};
pub use script::script;
pub use systemd_link::systemd_link;
pub use tuned::tuned;

use std::collections::BTreeMap;

use crate::change::{NetdevIdentity, Target, Value};
use crate::cpuset::CpuSet;
use crate::host::Irq;
use crate::plan::Plan;

/// A file for another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, without folder.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Whether it is a program.
    pub executable: bool,
}

/// An interrupt and where it shall be.
struct Interrupt<'a> {
    irq: Irq,
    action: &'a str,
    netdev: Option<&'a NetdevIdentity>,
    cpus: &'a CpuSet,
    why: &'a str,
}

/// All interrupts that the plan has a place for, by number.
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
    // A plan that was made by hand, or by an earlier netsilo, has changes only.
    for change in &plan.changes {
        if let (Target::IrqAffinity(knob), Value::Cpus(cpus)) = (&change.target, &change.new) {
            let (irq, action, netdev) = (knob.irq, &knob.action, knob.netdev.as_ref());
            let known = Interrupt { irq, action, netdev, cpus, why: &change.reason };
            all.entry(irq).or_insert(known);
        }
    }
    all.into_values().collect()
}

/// A text on one line, for a comment.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Change, NTUPLE_FILTER, knobs, quoted};

    #[test]
    fn a_name_with_anything_in_it_is_one_word_of_the_shell() {
        assert_eq!(quoted("virtio0-input.1"), "'virtio0-input.1'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(one_line("a\nb\t c"), "a b c");
    }

    #[test]
    fn steering_by_the_driver_is_switched_in_each_format_and_a_consumer_in_none() {
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
