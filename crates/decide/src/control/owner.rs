//! Which other program likely writes a knob.

use netsilo_model::change::Target;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};

/// The program on this machine that likely wrote such a knob.
pub(super) fn likely_owner(owners: &[KnobOwner], target: &Target) -> String {
    let kind = match target {
        Target::IrqAffinity(_) | Target::DefaultSmpAffinity(_) => Some(OwnedKnob::IrqAffinity),
        Target::RpsCpus(_) | Target::RpsFlowCnt(_) => Some(OwnedKnob::Rps),
        Target::RpsSockFlowEntries(_) | Target::RpsDefaultMask(_) => Some(OwnedKnob::Rps),
        Target::XpsCpus(_) => Some(OwnedKnob::Xps),
        Target::Sysctl(_) => Some(OwnedKnob::Sysctls),
        _ => None,
    };
    let owners =
        owners.iter().filter(|owner| kind.is_some_and(|kind| owner.writes.contains(&kind)));
    let names: Vec<&str> = owners.map(|owner| owner.name.as_str()).collect();
    if names.is_empty() { "unknown".into() } else { names.join(", ") }
}
