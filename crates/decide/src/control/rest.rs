//! At rest: no wanted change can be written, and the plan is reused as long as the windows look
//! alike.
//!
//! Making a plan costs by far the most of a window; a host at rest pays for observing only.

use std::collections::BTreeMap;

use super::candidate::Candidate;
use super::hold::Hold;
use super::pattern::Pattern;
use super::view::Window;
use crate::place::Capacity;
use crate::plan::Plan;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::{IrqState, KnobOwner, NetSettings, Snapshot, Writable};
use netsilo_model::snapshot::netdev::{Napi, Netdev, RxQueue, TxQueue};

/// A plan is reused for this many windows at most: five minutes.
const WINDOWS: u32 = 30;

/// The busy share of a CPU differs by this: less is noise of clock ticks and of measuring.
const BUSY: f64 = 0.10;

/// What a plan is made from, without the counters that grow in each window.
#[derive(Debug, Clone)]
struct Basis {
    pattern: Pattern,
    busy: BTreeMap<CpuId, f64>,
    settings: Settings,
}

/// The settings, and what can be set.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    apart: [CpuSet; 5],
    irqs: Vec<IrqSettings>,
    netdevs: Vec<NetdevSettings>,
    net: NetSettings,
    default_smp_affinity: Option<CpuSet>,
    writers: Vec<KnobOwner>,
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

/// A plan without a change that can be written, and its basis.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    plan: Plan,
    basis: Basis,
    windows: u32,
}

impl Rest {
    /// A rest begins if every wanted change is held, and not only for a time.
    pub(super) fn begin(
        plan: &Plan,
        candidates: &[Candidate<'_>],
        window: &Window<'_>,
    ) -> Option<Self> {
        let lasting = |it: &Candidate<'_>| it.hold.as_ref().is_some_and(Hold::is_lasting);
        candidates.iter().all(lasting).then(|| Self {
            plan: plan.clone(),
            basis: Basis::new(window),
            windows: 0,
        })
    }

    /// The rest goes on if this window looks like the first one.
    pub(super) fn goes_on(self, window: &Window<'_>) -> Option<Self> {
        let same = self.windows < WINDOWS
            && self.basis.settings.are_those_of(window.after())
            && !window.pattern.differs(&self.basis.pattern)
            && !differ(&busy(window), &self.basis.busy);
        same.then_some(Self { windows: self.windows + 1, ..self })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Basis {
    fn new(window: &Window<'_>) -> Self {
        let settings = Settings::new(window.after());
        Self { pattern: window.pattern.clone(), busy: busy(window), settings }
    }
}

/// The busy share of each CPU.
fn busy(window: &Window<'_>) -> BTreeMap<CpuId, f64> {
    Capacity::new(window.analysis, &[]).busy
}

fn differ(now: &BTreeMap<CpuId, f64>, then: &BTreeMap<CpuId, f64>) -> bool {
    now.len() != then.len()
        || now
            .iter()
            .zip(then)
            .any(|((cpu, now), (known, then))| cpu != known || (now - then).abs() > BUSY)
}

/// The sets of CPUs that decide where work may be placed.
fn cpu_sets(topology: &Topology) -> [&CpuSet; 5] {
    let Topology { online, isolated, isolated_partitions, nohz_full, exclusive, .. } = topology;
    [online, isolated, isolated_partitions, nohz_full, exclusive]
}

impl Settings {
    fn new(snapshot: &Snapshot) -> Self {
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
            apart: cpu_sets(topology).map(Clone::clone),
            irqs: snapshot.irqs.iter().map(irq).collect(),
            netdevs: snapshot.netdevs.iter().map(netdev).collect(),
            net: snapshot.net.clone(),
            default_smp_affinity: snapshot.default_smp_affinity.clone(),
            writers: snapshot.writers.clone(),
        }
    }

    /// Whether this snapshot has the same settings.
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
        self.apart.iter().eq(cpu_sets(topology))
            && self.irqs.len() == snapshot.irqs.len()
            && self.irqs.iter().zip(&snapshot.irqs).all(irq)
            && self.netdevs.len() == snapshot.netdevs.len()
            && self.netdevs.iter().zip(&snapshot.netdevs).all(netdev)
            && self.net == snapshot.net
            && self.default_smp_affinity == snapshot.default_smp_affinity
            && self.writers == snapshot.writers
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{CpuLoad, Scene, SceneNetdev, SceneQueue};

    fn scene() -> Scene {
        let cpus = CpuSet::from_cpu(CpuId(0));
        let queue =
            SceneQueue { irq: Some(30), cpus, packets_per_s: 10_000, ..SceneQueue::default() };
        let netdev =
            SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
        let grid = Grid { l2s: 4, ..Grid::default() };
        Scene { grid, netdevs: vec![netdev], ..Scene::default() }
    }

    /// Whether a rest that began in one scene goes on in another.
    fn goes_on(from: &Scene, to: &Scene) -> bool {
        let (observations, costs) = ([from.observation(), to.observation()], Costs::default());
        let [before, now] = observations.each_ref().map(|it| Analysis::new(it, &costs));
        let rest = Rest::begin(&Plan::default(), &[], &Window::new(Duration::ZERO, &before));
        rest.unwrap().goes_on(&Window::new(Duration::from_secs(10), &now)).is_some()
    }

    #[test]
    fn a_rest_goes_on_while_settings_and_load_are_alike() {
        let quiet = scene();
        assert!(goes_on(&quiet, &quiet));
        let busy = |usr| {
            let cpus = CpuSet::from_cpu(CpuId(1));
            Scene { busy: vec![CpuLoad { cpus, usr }], ..scene() }
        };
        assert!(goes_on(&busy(0.30), &busy(0.35)));
        assert!(!goes_on(&quiet, &busy(0.14)), "less than what counts as another workload");
    }

    #[test]
    fn each_changed_setting_ends_a_rest() {
        let changed = |change: fn(&mut Scene)| {
            let mut other = scene();
            change(&mut other);
            goes_on(&scene(), &other)
        };
        assert!(!changed(|it| it.netdevs[0].queues[0].cpus = CpuSet::from_cpu(CpuId(1))));
        assert!(!changed(|it| it.netdevs[0].queues[0].rps_cpus = Some(CpuSet::new())));
        assert!(!changed(|it| it.netdevs[0].name = "eth1".into()));
        assert!(!changed(|it| it.isolated = CpuSet::from_cpu(CpuId(3))));
        assert!(!changed(|it| it.isolated_partitions = CpuSet::from_cpu(CpuId(3))));
        assert!(!changed(|it| it.exclusive = CpuSet::from_cpu(CpuId(3))));
        assert!(!changed(|it| it.rps_sock_flow_entries = Some(4096)));
    }
}
