//! A setting of an observed machine, and which of its knobs the model knows.

use netsilo_model::change::{Change, NTUPLE_FILTER, Target, Value, apply_to, knobs};
use netsilo_model::derive::flow_steering::arfs_is_on;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::live::resplit::hashes_udp_ports;
use crate::live::supposed::{CannotSuppose, Supposed};
use crate::live::work::Work;

/// What a machine would be set to.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its name.
    pub name: String,
    /// The machine with it.
    pub(crate) after: Snapshot,
    /// Knobs that it changes and the model does not know.
    pub not_modeled: Vec<String>,
    /// What it changes; `None`: whatever differs in `after`.
    changes: Option<Vec<Change>>,
}

impl Proposal {
    /// The setting that these changes make of a machine.
    pub fn new(name: impl Into<String>, before: &Snapshot, changes: &[Change]) -> Self {
        let after = apply_to(before, changes);
        let unknown = changes.iter().filter(|change| !knows(&change.target, before, &after));
        let not_modeled = unknown.map(|change| change.target.to_string()).collect();
        Self { name: name.into(), not_modeled, after, changes: Some(changes.to_vec()) }
    }

    /// A machine with other settings. All of them must be ones that the model knows.
    pub fn edited(
        name: impl Into<String>,
        before: &Snapshot,
        edit: impl FnOnce(&mut Snapshot),
    ) -> Self {
        let mut after = before.clone();
        edit(&mut after);
        Self { name: name.into(), not_modeled: Vec::new(), after, changes: None }
    }

    /// What it changes; `None` if that may be anything.
    pub(crate) fn changes(&self) -> Option<&[Change]> {
        self.changes.as_deref()
    }

    /// The machine that this setting makes of the observed one, if packets arrive on other queues
    /// there.
    ///
    /// A setting can change one netdev so. The error names the knob that the model does not know
    /// here, and why.
    pub(crate) fn other_queues(&self, work: &Work<'_>) -> Result<Option<Supposed>, String> {
        let before = work.analysis.after();
        let mut found: Option<Supposed> = None;
        for change in self.changes.iter().flatten() {
            let target = &change.target;
            let unknown = |why: CannotSuppose| format!("{target} ({why})");
            let supposed = match (target, &change.new) {
                (Target::Channels(knob), Value::Settings(new)) => {
                    let count = new.get("combined") + new.get("rx");
                    Supposed::with_queues(work, &knob.netdev, count).map_err(unknown)?
                }
                (Target::FlowHash(knob), _) => {
                    let hashes = |snapshot: &Snapshot| {
                        hashes_udp_ports(snapshot.netdevs.identified(&knob.netdev)?)
                    };
                    // Both versions of IP are changed together.
                    match (hashes(before), hashes(&self.after)) {
                        (Some(false), Some(true)) if found.is_none() => {
                            Supposed::with_udp_ports(work, &knob.netdev).map_err(unknown)?
                        }
                        (Some(false), Some(true)) => continue,
                        _ => return Err(target.to_string()),
                    }
                }
                _ => continue,
            };
            if found.replace(supposed).is_some() {
                return Err(format!("{target} (together with another one)"));
            }
        }
        Ok(found)
    }

    /// The knobs of RPS and RFS that it changes where it is not known which CPU sends, and of
    /// threaded NAPI where it is not known which CPU would poll, in words.
    pub(crate) fn of_unknown_cpus(&self, work: &Work<'_>) -> impl Iterator<Item = String> {
        let is_unknown = |change: &&Change| {
            let mut senders = work.queues.iter().filter(|queue| queue.has_unknown_senders());
            let mut alone = work.queues.iter().filter(|queue| queue.is_polled_by_kthread_alone());
            match (&change.target, &change.new) {
                (Target::RpsCpus(knob), _) => senders.any(|it| it.silo.netdev == knob.netdev),
                (Target::RpsFlowCnt(knob), _) => senders.any(|it| it.silo.netdev == knob.netdev),
                (Target::RpsSockFlowEntries(_), _) => senders.next().is_some(),
                (Target::Threaded(knob), Value::Count(0)) => {
                    alone.any(|it| it.silo.netdev == knob.netdev)
                }
                _ => false,
            }
        };
        self.changes.iter().flatten().filter(is_unknown).map(|change| change.target.to_string())
    }

    /// The knobs of XPS that it changes, in words.
    pub(crate) fn xps(&self) -> impl Iterator<Item = String> {
        let is_xps = |change: &&Change| matches!(change.target, Target::XpsCpus(_));
        self.changes.iter().flatten().filter(is_xps).map(|change| change.target.to_string())
    }

    /// The supposed machine with the other changes: those that do not define its queues.
    pub(crate) fn rest(&self, machine: &Supposed) -> Snapshot {
        let makes = |change: &Change| makes_queues(&change.target);
        let rest: Vec<Change> =
            self.changes.iter().flatten().filter(|change| !makes(change)).cloned().collect();
        apply_to(&machine.observation.after, &rest)
    }
}

/// Whether a change of this knob lets packets arrive on other queues.
fn makes_queues(target: &Target) -> bool {
    matches!(target, Target::Channels(_) | Target::FlowHash(_))
}

/// Whether the model knows what a change of this knob does.
fn knows(target: &Target, before: &Snapshot, after: &Snapshot) -> bool {
    match target {
        Target::IrqAffinity(_)
        | Target::RpsCpus(_)
        | Target::RpsFlowCnt(_)
        | Target::RpsSockFlowEntries(_)
        | Target::Threaded(_)
        | Target::NapiThread(_)
        | Target::XpsCpus(_)
        | Target::Channels(_)
        | Target::FlowHash(_) => true,
        Target::Offload(knob) if knob.feature == NTUPLE_FILTER => {
            let is_on = |it: &Snapshot| {
                let netdev = it.netdevs.identified(&knob.netdev);
                netdev.is_some_and(|netdev| arfs_is_on(it, netdev))
            };
            is_on(after) && !is_on(before)
        }
        Target::Coalesce(knob) => {
            let fixed = |it: &Snapshot| fixed_coalescing(it, &knob.netdev).is_some();
            fixed(before) && (fixed(after) || adapts(after, &knob.netdev))
        }
        Target::NapiDeferHardIrqs(knobs::NapiDeferHardIrqs { netdev })
        | Target::GroFlushTimeout(knobs::GroFlushTimeout { netdev }) => {
            !adapts(before, netdev) && adapts(after, netdev)
        }
        _ => false,
    }
}

/// Whether the driver of a netdev, or a kernel timer, holds back its interrupts for as long as it
/// finds right.
pub(crate) fn adapts(snapshot: &Snapshot, netdev: &NetdevIdentity) -> bool {
    let is_adaptive = |netdev: &Netdev| {
        let coalesce = netdev.ethtool.as_ref()?.coalesce.value()?;
        Some(coalesce.use_adaptive_rx_coalesce)
    };
    let netdev = snapshot.netdevs.identified(netdev);
    netdev.is_some_and(|it| {
        let is_deferred = it.napi_defer_hard_irqs > Some(0) && it.gro_flush_timeout > Some(0);
        is_deferred || is_adaptive(it) == Some(true)
    })
}

/// How a netdev holds back its interrupts; `None` if that is unknown, or something adapts it.
pub(crate) fn fixed_coalescing<'a>(
    snapshot: &'a Snapshot,
    netdev: &NetdevIdentity,
) -> Option<&'a Coalesce> {
    if adapts(snapshot, netdev) {
        return None;
    }
    let netdev = snapshot.netdevs.identified(netdev)?;
    netdev.ethtool.as_ref()?.coalesce.value()
}

/// The CPU on which the scheduler finds room for a new kthread: the idlest ones in turn.
pub(crate) fn room_for_kthread(idlest: &[CpuId], turn: usize) -> Option<CpuId> {
    idlest.get(turn % idlest.len().max(1)).copied()
}
