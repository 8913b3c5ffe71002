//! [`Capacity`]: the CPUs, and how busy each is with other work than the vectors.

use std::collections::BTreeMap;

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::seen_costs::{dilation, machine_costs};
use netsilo_model::derive::silo::Silo;
use netsilo_model::derive::utilization::{CpuUtilization, utilization};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Topology;
use netsilo_predict::parameters::Table;

use crate::place::vector::Vector;

/// The CPUs and their free capacity.
#[derive(Debug, Clone)]
pub struct Capacity<'a> {
    /// The CPUs and the caches that they share.
    pub topology: &'a Topology,
    /// The weights of the cost model on this machine.
    pub costs: Costs,
    /// Where the weights come from, in words.
    pub source: String,
    /// Share of the time in which each CPU is busy with other work than the vectors; unknown CPUs
    /// are left out.
    pub busy: BTreeMap<CpuId, f64>,
    /// Seconds in which the events of the vectors were counted.
    pub seconds: f64,
    /// Cost of a wakeup that finds the reader's CPU busy, relative to one that finds it idle; 1
    /// where that was not measured.
    pub busy_wakeup: f64,
    /// Work lost while two hardware threads of a core are busy, in shares of what one thread does:
    /// at most, because a choice that is wrong here loses more than it can gain.
    pub smt_loss: f64,
    /// How many times longer work seems to take than it could: a guest whose CPUs the hypervisor
    /// runs now and then, or emulates. Divides loads and busy time; 1 elsewhere.
    pub dilation: f64,
}

impl<'a> Capacity<'a> {
    /// Computes the busy time of the CPUs without the load of the given silos.
    ///
    /// [`CpuUtilization`] has the time, and the silos' part of it is subtracted
    /// ([`Silo::own_share`], from the same source).
    pub fn new(analysis: &Analysis<'a>, placed: &[&Silo]) -> Self {
        let own =
            |cpu: &CpuId| placed.iter().filter_map(|silo| silo.own_share.get(cpu)).sum::<f64>();
        let rest = |(cpu, work): (CpuId, CpuUtilization)| {
            (cpu, (work.claimed() - own(&cpu)).clamp(0.0, 1.0))
        };
        let known = machine_costs(analysis);
        Self {
            topology: &analysis.after().topology,
            source: known.source_in_words(),
            busy_wakeup: known.busy_wakeup,
            smt_loss: 2.0 - Table::shipped().least_smt(),
            costs: known.costs,
            busy: utilization(analysis).into_iter().map(rest).collect(),
            seconds: analysis.observation.attribution.elapsed.as_secs_f64(),
            dilation: dilation(analysis, placed),
        }
    }

    /// Share of the fastest CPU's time that a vector takes. Measured on several CPUs, it counts as
    /// measured on the fastest, so that no slow CPU gets more than it can do.
    pub(super) fn load(&self, vector: &Vector) -> f64 {
        vector.load / vector.measured_on.map_or(1.0, |cpu| self.topology.slowdown(cpu))
    }

    /// Share of a CPU's time that a vector takes there.
    pub fn load_on(&self, cpu: CpuId, vector: &Vector) -> f64 {
        self.load(vector) * self.topology.slowdown(cpu)
    }

    /// Share of the time in which a CPU has nothing else to do; none if that is unknown.
    pub fn idle(&self, cpu: CpuId) -> f64 {
        1.0 - self.busy.get(&cpu).copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::wakeups::WakeupRate;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::snapshot::attribution::{CpuTime, Reschedules};
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

    use super::*;
    use crate::place::algorithms::AlgorithmName;
    use crate::place::algorithms::suggest;
    use crate::place::cpu_loads::CpuLoads;
    use crate::place::model::Model;

    #[test]
    fn packets_take_longer_than_they_could_in_a_guest_that_receives_enough_of_them() {
        let dilation = |packets_per_s: u64, load: f64, virtual_machine: bool| {
            let (irq, cpus) = (Some(30), CpuSet::from_cpu(CpuId(0)));
            let queue = SceneQueue { irq, cpus, packets_per_s, load, ..SceneQueue::default() };
            let (name, queues) = ("eth0".into(), vec![queue]);
            let netdevs = vec![SceneNetdev { name, queues, ..SceneNetdev::default() }];
            let virtual_machine = Some(virtual_machine);
            let scene = Scene { netdevs, virtual_machine, ..Scene::default() };
            let (observation, costs) = (scene.observation(), Costs::default());
            let analysis = Analysis::new(&observation, &costs);
            let silos: Vec<&Silo> = analysis.silos.queues.iter().collect();
            Capacity::new(&analysis, &silos).dilation
        };
        // 500 us a packet, of which 25 are the packet's
        assert_eq!(dilation(1000, 0.5, true), 20.0);
        assert_eq!(dilation(100, 0.05, true), 20.0);
        assert_eq!(dilation(1000, 0.5, false), 1.0, "a machine's own time");
        assert_eq!(dilation(1000, 0.02, true), 1.0, "20 us are usual");
        assert_eq!(dilation(99, 0.5, true), 1.0, "too few packets");
    }

    /// A reader on CPU 1 that the queue on CPU 0 wakes, and the IPIs that were seen.
    fn woken(calls: CpuTime, reschedules: Option<Reschedules>) -> Observation {
        let reader = Reader { cpu: CpuId(1), bytes_per_s: 100_000, ..Reader::default() };
        let queue = SceneQueue {
            irq: Some(30),
            cpus: CpuSet::from_cpu(CpuId(0)),
            packets_per_s: 10_000,
            packets_per_poll: 1,
            wakeups_per_s: 10_000,
            load: 0.02,
            readers: vec![reader],
            ..SceneQueue::default()
        };
        let netdev = SceneNetdev { queues: vec![queue], ..SceneNetdev::default() };
        let grid = Grid { cores: 2, ..Grid::default() };
        let scene = Scene { grid, netdevs: vec![netdev], ..Scene::default() };
        let mut observation = scene.observation();
        let time = CpuTime { reschedules, ..calls };
        observation.attribution.cpu_time.insert(CpuId(1), time);
        observation
    }

    /// The cost of the wakeups where the queue is, and the source of the weights.
    fn wakeups(observation: &Observation) -> (f64, String) {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        let silos: Vec<&Silo> = analysis.silos.queues.iter().collect();
        let capacity = Capacity::new(&analysis, &silos);
        let pool = analysis.after().topology.online.clone();
        let vector = Vector { pool, ..Vector::new(&silos, None, None).unwrap() };
        let vectors = [vector];
        let model = Model::new(&capacity, &vectors);
        let here = model.place(&CpuId(0)).unwrap();
        let parts = model.placed(&[Some(CpuId(0))]).parts(0)[here];
        (parts.wakeups, capacity.source.clone())
    }

    #[test]
    fn a_wakeup_of_a_busy_cpu_costs_the_reschedule_ipi_that_was_seen() {
        let calls = CpuTime { ipi_ns: 200_000, ipis: 100, ..CpuTime::default() };
        let reschedules = |count| Some(Reschedules { ns: 1000 * count, count });
        let (all_idle, source) = wakeups(&woken(calls, reschedules(100)));
        assert!(source.ends_with(", 2.0 us per ipi (200 seen, 1.0 us to a busy cpu)"), "{source}");
        let of_idle = |reschedules, idle: fn(u64) -> Option<u64>| {
            let mut observation = woken(calls, reschedules);
            for wakeup in &mut observation.attribution.wakeups {
                wakeup.idle = idle(wakeup.count);
            }
            wakeups(&observation).0 / all_idle
        };
        let is = |share: f64, expected: f64| assert!((share - expected).abs() < 1e-9, "{share}");
        is(of_idle(reschedules(100), Some), 1.0);
        // The sender's half is the same, the receiver's is half of that of a call-function IPI.
        is(of_idle(reschedules(100), |_| Some(0)), 0.75);
        is(of_idle(reschedules(100), |count| Some(count / 2)), 0.875);
        is(of_idle(reschedules(100), |_| None), 1.0);
        is(of_idle(reschedules(99), |_| Some(0)), 1.0);
        is(of_idle(None, |_| Some(0)), 1.0);
    }

    #[test]
    fn few_call_function_ipis_count_together_with_reschedule_ipis() {
        let calls = CpuTime { ipi_ns: 40_000, ipis: 20, ..CpuTime::default() };
        let source =
            |count| wakeups(&woken(calls, Some(Reschedules { ns: 1000 * count, count }))).1;
        let (enough, few) = (source(80), source(79));
        assert!(enough.ends_with(", 1.2 us per ipi (100 seen)"), "{enough}");
        assert!(!few.contains("per ipi"), "{few}");
    }

    /// Two cores like a Cortex-A55 and two like an A76: 446 and 1024 of `cpu_capacity`.
    #[test]
    fn a_load_is_smaller_on_a_big_cpu_and_larger_on_a_little_one() {
        let observation = woken(CpuTime::default(), None);
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let mut topology = Grid { cores: 4, ..Grid::default() }.topology();
        for (cpu, capacity) in [446, 446, 1024, 1024].into_iter().enumerate() {
            topology.cpus.get_mut(&CpuId(cpu as u32)).unwrap().capacity = Some(capacity);
        }
        let busy = topology.online.iter().map(|cpu| (cpu, 0.0)).collect();
        let capacity = Capacity { topology: &topology, busy, ..Capacity::new(&analysis, &[]) };
        let queue = |measured_on: u32, load| Vector {
            pool: topology.online.clone(),
            present: Some(CpuId(measured_on)),
            measured_on: Some(CpuId(measured_on)),
            traffic: true,
            load,
            packets_per_s: 20_000.0,
            ..Vector::default()
        };
        let vectors = [queue(0, 0.6), queue(2, 0.6), queue(3, 0.6)];
        let model = Model::new(&capacity, &vectors);
        let load = |vector, cpu| model.problem.load(vector, model.place(&CpuId(cpu)).unwrap());
        let is = |load: f64, expected: f64| assert!((load - expected).abs() < 1e-6, "{load}");
        is(load(0, 0), 0.6);
        is(load(0, 2), 0.6 * 446.0 / 1024.0);
        is(load(1, 2), 0.6);
        is(load(1, 0), 0.6 * 1024.0 / 446.0);
        // The queue of a little CPU fits beside one of a big CPU; none goes to a little one.
        let placed = suggest(AlgorithmName::Auto, &capacity, &vectors);
        let cpus: Vec<_> = placed.iter().map(|it| it.cpu().unwrap().0).collect();
        assert!(cpus[1] >= 2 && cpus[2] >= 2, "{cpus:?}");
        let loads = CpuLoads::new(&capacity);
        assert_eq!([0, 1, 2, 3].map(|cpu| loads.is_slow(CpuId(cpu))), [true, true, false, false]);
    }

    /// Reads on CPU 1, and is woken by CPU 0 20,000 times a second.
    fn woken_by_cpu_0(measured_on: CpuId, load: f64, topology: &Topology) -> Vector {
        let waker = WakeupRate { per_s: 20_000.0, idle_per_s: 20_000.0 };
        Vector {
            pool: topology.online.clone(),
            present: Some(measured_on),
            measured_on: Some(measured_on),
            threaded: true,
            traffic: true,
            load,
            packets_per_s: 20_000.0,
            polls_per_s: 20_000.0,
            read_on: [(CpuId(1), 1e6)].into(),
            wakeups_on: Some(BTreeMap::new()),
            woken_by: [(CpuId(0), waker)].into(),
            ..Vector::default()
        }
    }

    #[test]
    fn a_kthread_beside_what_wakes_it_spares_both_cpus_an_ipi() {
        let observation = woken(CpuTime::default(), None);
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let capacity = Capacity::new(&analysis, &[]);
        let vectors = [woken_by_cpu_0(CpuId(1), 0.2, capacity.topology)];
        let model = Model::new(&capacity, &vectors);
        let [beside_waker, beside_reader] = [0, 1].map(|cpu| model.place(&CpuId(cpu)).unwrap());
        let parts = model.placed(&[Some(CpuId(1))]).parts(0);
        let ipi = costs.ipi_ns.at(analysis.after().topology.distance(CpuId(0), CpuId(1)));
        assert!((parts[beside_reader].wakeups - 20_000.0 * ipi).abs() < 1.0, "{parts:?}");
        assert_eq!(parts[beside_waker].wakeups, 0.0);
        // both halves of the IPIs are gone; what the reader fetches from there is added
        let lines = parts[beside_waker].lines;
        let expected = 0.2 - (20_000.0 * ipi - lines / 2.0) / 1e9;
        let loads = [beside_waker, beside_reader].map(|place| model.problem.load(0, place));
        assert!((loads[0] - expected).abs() < 1e-6 && (loads[1] - 0.2).abs() < 1e-6, "{loads:?}");
    }

    #[test]
    fn a_kthread_that_is_awake_is_not_woken() {
        let observation = woken(CpuTime::default(), None);
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let ipi = costs.ipi_ns.at(analysis.after().topology.distance(CpuId(0), CpuId(1)));
        let seen = |measured_on: Option<CpuId>, load, busy, dilation| {
            let busy = [(CpuId(0), 0.0), (CpuId(1), busy)].into();
            let capacity = Capacity { busy, dilation, ..Capacity::new(&analysis, &[]) };
            let vector = woken_by_cpu_0(CpuId(0), load, capacity.topology);
            let vectors = [Vector { measured_on, ..vector }];
            let model = Model::new(&capacity, &vectors);
            let placed = model.placed(&[Some(CpuId(0))]);
            placed.parts(0)[model.place(&CpuId(1)).unwrap()].wakeups / ipi
        };
        let ipis = |measured_on, load, busy| seen(Some(CpuId(measured_on)), load, busy, 1.0);
        let is = |ipis: f64, expected: f64| assert!((ipis - expected).abs() < 1.0, "{ipis}");
        // As counted: CPU 0 woke it there.
        is(ipis(1, 0.2, 0.5), 20_000.0);
        // It would be awake for a fifth of the time; for twice that, as it shares the CPU; always.
        is(ipis(0, 0.2, 0.0), 16_000.0);
        is(ipis(0, 0.2, 0.5), 12_000.0);
        is(ipis(0, 0.5, 0.5), 0.0);
        is(ipis(0, 0.2, 1.0), 0.0);
        // On both CPUs: some of the wakeups were from the other one.
        is(seen(None, 0.2, 0.5, 1.0), 20_000.0);
        // Half of both times is the hypervisor's: 0.2 of 0.75.
        is(seen(Some(CpuId(0)), 0.4, 0.5, 2.0), 14_666.7);
    }
}
