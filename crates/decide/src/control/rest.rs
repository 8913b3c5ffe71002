//! At rest: nothing that is wanted can be made, and as long as a window shows what was seen then,
//! the same plan holds.
//!
//! Asking for a plan is the dearest part of a window by far; a host at rest pays for looking only.

use std::collections::BTreeMap;

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{IrqState, NetSettings, Snapshot, Writable, Writer};
use netsilo_model::snapshot::netdev::{Napi, Netdev, RxQueue, TxQueue};

use crate::control::knob_state::Hold;
use crate::control::pattern::Pattern;
use crate::place::Room;
use crate::plan::Plan;

/// So many windows at most go by the same plan: five minutes.
const WINDOWS: u32 = 30;

/// A CPU is busy for so much more or less of its time: less is noise of clock ticks and of
/// measuring.
const BUSY: f64 = 0.10;

/// What a plan is made from, as far as it does not change from window to window by itself.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pattern: Pattern,
    busy: BTreeMap<CpuId, f64>,
    settings: Settings,
}

/// The settings and what there is to be set.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    apart: [CpuSet; 3],
    irqs: Vec<IrqSettings>,
    netdevs: Vec<NetdevSettings>,
    net: NetSettings,
    default_smp_affinity: Option<CpuSet>,
    writers: Vec<Writer>,
}

#[derive(Debug, Clone, PartialEq)]
struct IrqSettings {
    irq: Irq,
    requested: Option<CpuSet>,
    effective: Option<CpuSet>,
    writable: Writable,
}

#[derive(Debug, Clone, PartialEq)]
struct NetdevSettings {
    name: String,
    ifindex: u32,
    up: bool,
    rx_queues: Vec<RxQueue>,
    tx_queues: Vec<TxQueue>,
    napis: Vec<Napi>,
}

/// A plan that nothing can be made of, and what it was made from.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    plan: Plan,
    seen: Seen,
    windows: u32,
}

impl Rest {
    /// Rest from now on, if all that is wanted is held, and not only for a time.
    pub(super) fn of(plan: &Plan, decided: &[(&Change, Option<Hold>)], seen: Seen) -> Option<Self> {
        let stays = |(_, hold): &(&Change, Option<Hold>)| hold.as_ref().is_some_and(Hold::stays);
        decided.iter().all(stays).then(|| Self { plan: plan.clone(), seen, windows: 0 })
    }

    /// Another window of it, if that is of the same; else it is over.
    pub(super) fn goes_on(self, pattern: &Pattern, analysis: &Analysis<'_>) -> Option<Self> {
        let same = self.windows < WINDOWS
            && self.seen.settings.are_those_of(analysis.after())
            && !pattern.differs(&self.seen.pattern)
            && !differ(&busy(analysis), &self.seen.busy);
        same.then_some(Self { windows: self.windows + 1, ..self })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Seen {
    pub(super) fn of(pattern: Pattern, analysis: &Analysis<'_>) -> Self {
        Self { pattern, busy: busy(analysis), settings: Settings::of(analysis.after()) }
    }
}

/// How busy each CPU is, with whatever.
fn busy(analysis: &Analysis<'_>) -> BTreeMap<CpuId, f64> {
    Room::of(analysis, &[]).busy
}

fn differ(now: &BTreeMap<CpuId, f64>, then: &BTreeMap<CpuId, f64>) -> bool {
    now.len() != then.len()
        || now
            .iter()
            .zip(then)
            .any(|((cpu, now), (known, then))| cpu != known || (now - then).abs() > BUSY)
}

impl Settings {
    fn of(snapshot: &Snapshot) -> Self {
        let irq = |(irq, state): (&Irq, &IrqState)| IrqSettings {
            irq: *irq,
            requested: state.requested.clone(),
            effective: state.effective.clone(),
            writable: state.writable.clone(),
        };
        let netdev = |netdev: &Netdev| NetdevSettings {
            name: netdev.name.clone(),
            ifindex: netdev.ifindex,
            up: netdev.up,
            rx_queues: netdev.rx_queues.clone(),
            tx_queues: netdev.tx_queues.clone(),
            napis: netdev.napis.clone(),
        };
        let topology = &snapshot.topology;
        Self {
            apart: [topology.online.clone(), topology.isolated.clone(), topology.nohz_full.clone()],
            irqs: snapshot.irqs.iter().map(irq).collect(),
            netdevs: snapshot.netdevs.iter().map(netdev).collect(),
            net: snapshot.net.clone(),
            default_smp_affinity: snapshot.default_smp_affinity.clone(),
            writers: snapshot.writers.clone(),
        }
    }

    /// Whether nothing is set otherwise in this snapshot.
    fn are_those_of(&self, snapshot: &Snapshot) -> bool {
        let irq = |(then, (irq, now)): (&IrqSettings, (&Irq, &IrqState))| {
            then.irq == *irq
                && then.requested == now.requested
                && then.effective == now.effective
                && then.writable == now.writable
        };
        let netdev = |(then, now): (&NetdevSettings, &Netdev)| {
            (&then.name, then.ifindex, then.up) == (&now.name, now.ifindex, now.up)
                && then.rx_queues == now.rx_queues
                && then.tx_queues == now.tx_queues
                && then.napis == now.napis
        };
        let topology = &snapshot.topology;
        self.apart.iter().eq([&topology.online, &topology.isolated, &topology.nohz_full])
            && self.irqs.len() == snapshot.irqs.len()
            && self.irqs.iter().zip(&snapshot.irqs).all(irq)
            && self.netdevs.len() == snapshot.netdevs.len()
            && self.netdevs.iter().zip(&snapshot.netdevs).all(netdev)
            && self.net == snapshot.net
            && self.default_smp_affinity == snapshot.default_smp_affinity
            && self.writers == snapshot.writers
    }
}
