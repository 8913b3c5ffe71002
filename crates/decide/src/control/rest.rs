//! The resting state: no wanted change can be written, and the plan is reused as long as the
//! windows look alike.
//!
//! Making a plan is by far the largest cost of a window. In the resting state only observing costs
//! time.

use std::collections::BTreeMap;

use super::hold::Hold;
use super::pattern::Pattern;
use super::view::Window;
use super::wanted_change::WantedChange;
use crate::place::Capacity;
use crate::plan::Plan;
use netsilo_model::machine::cpu_owner::CpuOwner;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::{IrqState, Snapshot};
use netsilo_model::snapshot::netdev::Netdev;

/// Maximum number of windows for which a plan is reused: five minutes.
const WINDOWS: u32 = 30;

/// Differs if the busy share of a CPU differs by this much. Less is noise of clock ticks and of
/// measuring.
const BUSY: f64 = 0.10;

/// The data from which a plan is made.
#[derive(Debug, Clone)]
struct Basis {
    pattern: Pattern,
    busy: BTreeMap<CpuId, f64>,
    /// The snapshot with the settings. Its counters are ignored.
    snapshot: Snapshot,
}

/// A plan without a change that can be written now, and the data it was made from.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    plan: Plan,
    basis: Basis,
    windows: u32,
}

impl Rest {
    /// A rest begins if every wanted change is held, and not only for a limited time.
    pub(super) fn begin(
        plan: &Plan,
        wanted_changes: &[WantedChange<'_>],
        window: &Window<'_>,
    ) -> Option<Self> {
        let lasting = |it: &WantedChange<'_>| it.hold.as_ref().is_some_and(Hold::is_lasting);
        wanted_changes.iter().all(lasting).then(|| Self {
            plan: plan.clone(),
            basis: Basis::new(window),
            windows: 0,
        })
    }

    /// The rest continues if this window looks like the first one.
    pub(super) fn goes_on(self, window: &Window<'_>) -> Option<Self> {
        let same = self.windows < WINDOWS
            && have_same_settings(&self.basis.snapshot, window.after())
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
        let snapshot = window.after().clone();
        Self { pattern: window.pattern.clone(), busy: busy(window), snapshot }
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
fn cpu_sets(topology: &Topology) -> ([&CpuSet; 4], &[CpuOwner]) {
    let Topology { online, isolated, isolated_partitions, nohz_full, cpu_owners, .. } = topology;
    ([online, isolated, isolated_partitions, nohz_full], cpu_owners)
}

/// Whether two snapshots of a machine have the same settings, and the same settings can be changed.
///
/// The compared values must not include counters, because counters would end every rest. A test
/// compares the snapshots of recorded machines.
fn have_same_settings(then: &Snapshot, now: &Snapshot) -> bool {
    let irq = |((then, before), (now, after)): ((&Irq, &IrqState), (&Irq, &IrqState))| {
        then == now
            && before.requested == after.requested
            && before.effective == after.effective
            && before.writable == after.writable
    };
    let netdev = |(then, now): (&Netdev, &Netdev)| {
        (&then.name, then.ifindex, then.up) == (&now.name, now.ifindex, now.up)
            && then.rx_queues == now.rx_queues
            && then.tx_queues == now.tx_queues
            && then.napis == now.napis
    };
    cpu_sets(&then.topology) == cpu_sets(&now.topology)
        && then.irqs.len() == now.irqs.len()
        && then.irqs.iter().zip(&now.irqs).all(irq)
        && then.netdevs.len() == now.netdevs.len()
        && then.netdevs.iter().zip(&now.netdevs).all(netdev)
        && then.net == now.net
        && then.default_smp_affinity == now.default_smp_affinity
        && then.knob_owners == now.knob_owners
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::snapshot::observation::Observation;
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

    /// Whether a rest that began in one scene continues in another.
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
        assert!(!changed(|it| {
            let cpus = CpuSet::from_cpu(CpuId(3));
            it.cpu_owners = vec![CpuOwner { cpus, ..CpuOwner::default() }];
        }));
        assert!(!changed(|it| it.rps_sock_flow_entries = Some(4096)));
    }
    /// Between the two snapshots of a recording, counters of the kernel grow and settings stay the
    /// same.
    #[test]
    fn counters_do_not_end_a_rest() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/outcomes");
        for name in [
            "guest/booted",
            "guest8/dns-from-0-0",
            "veth/tcp-rr-x-16-from-0-0",
            "veths-4/forwarded-tcp-rr-x-1-from-0-0-0",
        ] {
            let bundle = format!("{fixtures}/{name}.tar.zst");
            let Observation { before, after, .. } = netsilo_sys::bundle::open(&bundle).unwrap();
            assert_ne!(before, after, "{name}");
            assert!(have_same_settings(&before, &after), "{name}");
        }
    }
}
