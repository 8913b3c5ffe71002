//! Which other program likely writes a knob.

use netsilo_model::change::Target;
use netsilo_model::snapshot::host::KnobOwner;

/// The programs on this machine that write a knob of this kind.
pub(super) fn owners_of<'o>(
    owners: &'o [KnobOwner],
    target: &Target,
) -> impl Iterator<Item = &'o KnobOwner> {
    owners.iter().filter(|owner| target.is_owned_by(owner))
}

/// The program on this machine that likely wrote a knob of this kind.
pub(super) fn likely_owner(owners: &[KnobOwner], target: &Target) -> String {
    let names: Vec<&str> = owners_of(owners, target).map(|owner| owner.name.as_str()).collect();
    if names.is_empty() { "unknown".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::host::OwnedKnob;

    #[test]
    fn the_likely_owner_is_the_program_that_writes_this_kind_of_knob() {
        let owner =
            |name: &str, writes| KnobOwner { name: name.into(), pid: 1, writes, bans: None };
        let owners = [
            owner("irqbalance", vec![OwnedKnob::IrqAffinity]),
            owner("script", vec![OwnedKnob::Rps, OwnedKnob::IrqAffinity]),
        ];
        let irq = knobs::IrqAffinity { irq: Irq(30), action: "eth0-0".into(), netdev: None };
        let cases: [(Target, &str); 3] = [
            (irq.into(), "irqbalance, script"),
            (knobs::RpsSockFlowEntries.into(), "script"),
            (knobs::Sysctl { name: "net.core.netdev_budget".into() }.into(), "unknown"),
        ];
        for (target, expected) in cases {
            assert_eq!(likely_owner(&owners, &target), expected);
        }
    }
}
