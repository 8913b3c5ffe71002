//! Exports a plan in the formats of other programs: a shell script, irqbalance's policy, systemd's
//! `.link` files, a tuned profile.
//!
//! This module only builds text, and only with settings that the other program really has; a
//! comment names what it cannot express. Interrupts come from the plan's placements, moved or not;
//! everything else comes from its changes.

mod file;
mod interrupts;
mod irqbalance;
mod script;
mod systemd_link;
mod tuned;

pub use file::ExportedFile;
pub use irqbalance::{irqbalance_policy, irqbalance_suggest};
pub use script::script;
pub use systemd_link::systemd_link;
pub use tuned::tuned;

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::Change;
    use netsilo_model::change::NTUPLE_FILTER;
    use netsilo_model::change::knobs;
    use netsilo_model::change::quoted;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::snapshot::netdev::NetdevIdentity;

    use crate::plan::contents::Plan;
    use crate::plan::export::file::one_line;

    #[test]
    fn any_name_becomes_one_shell_word() {
        assert_eq!(quoted("virtio0-input.1"), "'virtio0-input.1'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(one_line("a\nb\t c"), "a b c");
    }

    #[test]
    fn each_format_switches_flow_steering_and_none_pins_a_consumer() {
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
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
