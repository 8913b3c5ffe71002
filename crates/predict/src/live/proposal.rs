//! A setting of an observed machine, and which of its knobs the model knows.

use std::collections::BTreeSet;

use netsilo_model::change::{Change, NTUPLE_FILTER, Target, Value, apply_in, apply_to, knobs};
use netsilo_model::derive::flow_steering::arfs_is_on;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;

use crate::live::resplit::hashes_udp_ports;
use crate::live::supposed::{CannotSuppose, Supposed};
use crate::live::work::Work;

/// What a machine would be set to.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its name.
    pub name: String,
    /// The machine with it; without the netdevs and interrupts that stay as they are, if `changes`
    /// name the others.
    pub(crate) after: Snapshot,
    /// Knobs that it changes and the model does not know.
    pub not_modeled: Vec<String>,
    /// What it changes; `None`: whatever differs in `after`.
    changes: Option<Vec<Change>>,
}

impl Proposal {
    /// The setting that these changes make of a machine.
    ///
    /// `before` is the later snapshot of the machine that is judged.
    pub fn new(name: impl Into<String>, before: &Snapshot, changes: &[Change]) -> Self {
        let after = part_after(before, changes);
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

/// The part of a machine that these changes may change, after them. A machine can have thousands
/// of netdevs.
fn part_after(before: &Snapshot, changes: &[Change]) -> Snapshot {
    let mut part = Snapshot {
        topology: before.topology.clone(),
        net: before.net.clone(),
        ..Snapshot::default()
    };
    let (mut names, mut kthreads, mut has_table) = (BTreeSet::new(), BTreeSet::new(), false);
    for target in changes.iter().map(|change| &change.target) {
        names.extend(target.netdev().map(|netdev| netdev.name.as_str()));
        match target {
            Target::IrqAffinity(knob) => {
                let state = before.irqs.get(&knob.irq);
                part.irqs.extend(state.map(|state| (knob.irq, state.clone())));
            }
            Target::NapiThread(knob) => _ = kthreads.insert(knob.pid),
            // Completions are on interrupts of all netdevs.
            Target::XpsCpus(_) => return apply_to(before, changes),
            Target::RpsSockFlowEntries(_) => has_table = true,
            _ => {}
        }
    }
    let is_touched = |netdev: &&Netdev| {
        let mut threads = netdev.napis.iter().filter_map(|napi| napi.thread.as_ref());
        has_table && netdev.rx_queues.iter().any(|rx| rx.rps_flow_cnt.unwrap_or(0) > 0)
            || threads.any(|thread| kthreads.contains(&thread.pid))
    };
    if has_table || !kthreads.is_empty() {
        names.extend(before.netdevs.iter().filter(is_touched).map(|it| it.name.as_str()));
    }
    let netdevs = names.into_iter().filter_map(|name| before.netdevs.named(name));
    part.netdevs = netdevs.cloned().collect::<Vec<_>>().into();
    apply_in(&mut part, changes);
    part
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
            let [before, after] = [before, after].map(|it| it.netdevs.identified(&knob.netdev));
            let is_fixed = |it| fixed_coalescing(it).is_some();
            is_fixed(before) && (is_fixed(after) || adapts(after))
        }
        Target::NapiDeferHardIrqs(knobs::NapiDeferHardIrqs { netdev })
        | Target::GroFlushTimeout(knobs::GroFlushTimeout { netdev }) => {
            let [before, after] = [before, after].map(|it| it.netdevs.identified(netdev));
            !adapts(before) && adapts(after)
        }
        _ => false,
    }
}

/// Whether the driver of a netdev, or a kernel timer, holds back its interrupts for as long as it
/// finds right.
pub(crate) fn adapts(netdev: Option<&Netdev>) -> bool {
    let is_adaptive = |netdev: &Netdev| {
        let coalesce = netdev.ethtool.as_ref()?.coalesce.value()?;
        Some(coalesce.use_adaptive_rx_coalesce)
    };
    netdev.is_some_and(|it| {
        let is_deferred = it.napi_defer_hard_irqs > Some(0) && it.gro_flush_timeout > Some(0);
        is_deferred || is_adaptive(it) == Some(true)
    })
}

/// How a netdev holds back its interrupts; `None` if that is unknown, or something adapts it.
pub(crate) fn fixed_coalescing(netdev: Option<&Netdev>) -> Option<&Coalesce> {
    netdev.filter(|_| !adapts(netdev))?.ethtool.as_ref()?.coalesce.value()
}

/// The CPU on which the scheduler finds room for a new kthread: the idlest ones in turn.
pub(crate) fn room_for_kthread(idlest: &[CpuId], turn: usize) -> Option<CpuId> {
    idlest.get(turn % idlest.len().max(1)).copied()
}
