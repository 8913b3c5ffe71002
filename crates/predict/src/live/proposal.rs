//! A setting of an observed machine, and which of its knobs the model knows.

use netsilo_model::change::{Change, Target, apply_to};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NetdevIdentity;

/// What a machine would be set to.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its name.
    pub name: String,
    /// The machine with it.
    pub after: Snapshot,
    /// Knobs that it changes and the model does not know.
    pub not_modeled: Vec<String>,
}

impl Proposal {
    /// The setting that these changes make of a machine.
    pub fn new(name: impl Into<String>, before: &Snapshot, changes: &[Change]) -> Self {
        let after = apply_to(before, changes);
        let unknown = changes.iter().filter(|change| !knows(&change.target, before, &after));
        let not_modeled = unknown.map(|change| change.target.to_string()).collect();
        Self { name: name.into(), not_modeled, after }
    }
}

/// Whether the model knows what a change of this knob does.
fn knows(target: &Target, before: &Snapshot, after: &Snapshot) -> bool {
    match target {
        Target::IrqAffinity(_)
        | Target::RpsCpus(_)
        | Target::RpsFlowCnt(_)
        | Target::RpsSockFlowEntries(_)
        | Target::Threaded(_)
        | Target::NapiThread(_) => true,
        Target::Coalesce(knob) => {
            let fixed = |it: &Snapshot| fixed_coalescing(it, &knob.netdev).is_some();
            fixed(before) && fixed(after)
        }
        _ => false,
    }
}

/// How a netdev holds back its interrupts; `None` if that is unknown, or the driver adapts it.
pub(crate) fn fixed_coalescing<'a>(
    snapshot: &'a Snapshot,
    netdev: &NetdevIdentity,
) -> Option<&'a Coalesce> {
    let netdev = snapshot.netdevs.iter().find(|it| netdev.is(it))?;
    let coalesce = netdev.ethtool.as_ref()?.coalesce.value()?;
    (!coalesce.use_adaptive_rx_coalesce).then_some(coalesce)
}

/// The CPU on which the scheduler finds room for a new kthread: the idlest ones in turn.
pub(crate) fn room_for_kthread(idlest: &[CpuId], turn: usize) -> Option<CpuId> {
    idlest.get(turn % idlest.len().max(1)).copied()
}
