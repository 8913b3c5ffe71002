//! A synthetic machine in a closed loop with a controller: writes move the load, and the task
//! scheduler moves the readers.
//!
//! All random numbers come from a seed, so that each run can be repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_decide::control::{Controller, Decision, Policy, WINDOW, WriteResult};
use netsilo_decide::plan::find_outcome::{FoundOutcome, KeptOutcome};
use netsilo_decide::plan::plan;
use netsilo_model::change::{Change, Target, Value, apply_to};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{CpuLoad, Reader, Scene, SceneNetdev, SceneQueue};

/// Random numbers from a seed (Knuth's MMIX constants; the high bits are good enough for noise).
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        let mixed = (seed ^ (seed >> 30))
            .wrapping_add(0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self(mixed ^ (mixed >> 27))
    }

    /// 0 up to, without, `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }

    fn share(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }

    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// A factor that deviates from 1 by at most this share.
    fn noisy(&mut self, value: f64, noise: f64) -> f64 {
        value * (1.0 + noise * (2.0 * self.share() - 1.0))
    }

    pub(super) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub(super) fn cpu_of(&mut self, cpus: &CpuSet) -> CpuId {
        self.one_of(&cpus.iter().collect::<Vec<_>>())
    }
}

/// What the task scheduler does to readers: probabilities per window and reader.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scheduler {
    /// Wake-affine: the reader moves to the CPU that wakes it, or to the last-level cache of that
    /// CPU.
    pub(super) pull: f64,
    /// The reader leaves a CPU that is more than 80% busy for any other CPU of its last-level
    /// cache.
    pub(super) push: f64,
    /// The reader moves to any CPU of its last-level cache.
    pub(super) wander: f64,
    /// The reader leaves its last-level cache as soon as its interrupt is there: an adversary.
    pub(super) flee: f64,
}

/// A write that was made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Made {
    pub(super) at: Duration,
    pub(super) target: Target,
    pub(super) old: Value,
    pub(super) new: Value,
}

/// A machine, its workload and its controller.
pub(super) struct World {
    pub(super) scene: Scene,
    pub(super) settings: Snapshot,
    pub(super) controller: Controller,
    /// Its measured outcomes, newest first.
    pub(super) outcomes: Vec<KeptOutcome>,
    pub(super) scheduler: Scheduler,
    /// The largest relative error of each measure.
    pub(super) noise: f64,
    /// The factor by which polling costs more on a different CPU than an interrupt's first one. The
    /// cost model does not know it.
    pub(super) penalty: f64,
    /// The CPU where packets are processed, wherever they are polled. The cost model does not know
    /// it.
    pub(super) processed_on: Option<CpuId>,
    pub(super) now: Duration,
    pub(super) made: Vec<Made>,
    pub(super) chance: Chance,
    first: Snapshot,
}

/// Share of a CPU that each reader takes.
const READING: f64 = 0.04;

impl World {
    pub(super) fn new(scene: Scene, policy: Policy, seed: u64) -> Self {
        let settings = scene.settings();
        Self {
            first: settings.clone(),
            settings,
            scene,
            controller: Controller::new(policy),
            outcomes: Vec::new(),
            scheduler: Scheduler::default(),
            noise: 0.03,
            penalty: 1.0,
            processed_on: None,
            now: Duration::from_secs(1000),
            made: Vec::new(),
            chance: Chance::new(seed),
        }
    }

    /// A random machine with a random workload. In a third of these machines kthreads poll the
    /// queues; in another third the tx queues have their own interrupts.
    pub(super) fn random(policy: Policy, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let kind = chance.below(3);
        let (threaded, tx_apart) = (kind == 1, kind == 2);
        let grid = |nodes, llcs, l2s, cores, threads| Grid {
            nodes,
            llcs,
            l2s,
            cores,
            threads,
            siblings_apart: false,
        };
        let grid = chance.one_of(&[
            grid(1, 1, 2, 1, 1),
            grid(1, 1, 4, 1, 2),
            grid(2, 1, 4, 1, 1),
            grid(2, 2, 2, 2, 2),
            grid(1, 4, 2, 1, 1),
        ]);
        let all = grid.topology().online;
        let count = 1 + chance.below(6) as u32;
        let queue = |at: u32, chance: &mut Chance| {
            let packets_per_s = chance.one_of(&[4_000, 20_000, 100_000]);
            let reader = |chance: &mut Chance| Reader {
                comm: chance.one_of(&["redis", "nginx", "iperf"]).into(),
                cpu: chance.cpu_of(&all),
                bytes_per_s: chance.one_of(&[1_000_000, 5_000_000, 20_000_000]),
                ..Reader::default()
            };
            SceneQueue {
                irq: Some(30 + at),
                cpus: CpuSet::from_cpu(chance.cpu_of(&all)),
                tx_irq: tx_apart.then_some(60 + at),
                tx_cpus: if tx_apart {
                    CpuSet::from_cpu(chance.cpu_of(&all))
                } else {
                    CpuSet::new()
                },
                xps_cpus: Some(CpuSet::new()),
                kthread_cpus: if threaded {
                    CpuSet::from_cpu(chance.cpu_of(&all))
                } else {
                    CpuSet::new()
                },
                packets_per_s,
                load: packets_per_s as f64 / 1e5 * 0.8 / f64::from(count),
                readers: (0..=chance.below(3)).map(|_| reader(chance)).collect(),
                ..SceneQueue::default()
            }
        };
        let queues = (0..count).map(|at| queue(at, &mut chance)).collect();
        let netdev = SceneNetdev {
            name: "eth0".into(),
            driver: "igb".into(),
            threaded,
            queues,
            ..SceneNetdev::default()
        };
        Self::new(Scene { grid, netdevs: vec![netdev], ..Scene::default() }, policy, seed)
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.settings.topology
    }

    /// The workload changes permanently: each reader moves to a random CPU.
    pub(super) fn shift(&mut self) {
        let all = self.topology().online.clone();
        for reader in self
            .scene
            .netdevs
            .iter_mut()
            .flat_map(|netdev| &mut netdev.queues)
            .flat_map(|q| &mut q.readers)
        {
            reader.cpu = self.chance.cpu_of(&all);
        }
    }

    /// One window. The decision is written and reported as in effect.
    pub(super) fn step(&mut self) -> Decision {
        let decision = self.look();
        let changes: Vec<Change> =
            decision.revert.iter().chain(&decision.writes.changes).cloned().collect();
        self.write(&changes);
        let in_effect =
            |change: &Change| (change.target.clone(), WriteResult::InEffect(change.new.clone()));
        self.controller.wrote(self.now, &changes.iter().map(in_effect).collect::<Vec<_>>());
        decision
    }

    pub(super) fn steps(&mut self, windows: usize) -> Decision {
        (1..windows).for_each(|_| drop(self.step()));
        self.step()
    }

    /// One window. Nothing is written.
    pub(super) fn look(&mut self) -> Decision {
        let observation = self.window();
        let kept = &self.outcomes;
        self.controller.tick(self.now, &observation, &|analysis| {
            let now = Signature::new(analysis, &BTreeMap::new());
            FoundOutcome::newest(kept, now.as_ref(), Duration::from_secs(60))
        })
    }

    /// One window without the controller. The whole plan is written at once.
    pub(super) fn step_without_controller(&mut self) {
        let observation = self.window();
        let goal = &self.controller.policy().goal;
        let changes = plan(&Analysis::new(&observation, &goal.costs), goal).changes;
        self.write(&changes);
    }

    fn window(&mut self) -> Observation {
        self.schedule();
        self.now += WINDOW;
        let mut observation = self.noisy().observe(&self.settings);
        if let Some(cpu) = self.processed_on {
            let attribution = &mut observation.attribution;
            attribution.consumption.iter_mut().for_each(|row| row.protocol_cpu = Some(cpu));
            attribution.wakeups.iter_mut().for_each(|row| row.waker_cpu = cpu);
        }
        observation
    }

    fn write(&mut self, changes: &[Change]) {
        for change in changes {
            assert_eq!(
                change.target.value_in(&self.settings),
                Some(change.old.clone()),
                "a write by old data"
            );
            assert_ne!(change.old, change.new, "a write that changes nothing");
        }
        self.settings = apply_to(&self.settings, changes);
        let made = |change: &Change| Made {
            at: self.now,
            target: change.target.clone(),
            old: change.old.clone(),
            new: change.new.clone(),
        };
        self.made.extend(changes.iter().map(made));
    }

    fn schedule(&mut self) {
        let scheduler = self.scheduler;
        let (settings, scene) = (&self.settings, &self.scene);
        let at = |netdev: usize, queue: usize| scene.polled_on(settings, netdev, queue);
        let wakers: Vec<Vec<Option<CpuId>>> = scene
            .netdevs
            .iter()
            .enumerate()
            .map(|(n, netdev)| (0..netdev.queues.len()).map(|queue| at(n, queue)).collect())
            .collect();
        let queues = || scene.netdevs.iter().flat_map(|netdev| &netdev.queues);
        let loads: Vec<(Option<CpuId>, f64)> =
            wakers.iter().flatten().copied().zip(queues().map(|queue| queue.load)).collect();
        let (topology, chance) = (&settings.topology, &mut self.chance);
        let queues = self.scene.netdevs.iter_mut().flat_map(|netdev| &mut netdev.queues);
        for (queue, waker) in queues.zip(wakers.iter().flatten()) {
            let Some(waker) = *waker else { continue };
            for reader in &mut queue.readers {
                let load: f64 = loads
                    .iter()
                    .filter(|(cpu, _)| *cpu == Some(reader.cpu))
                    .map(|(_, load)| load)
                    .sum();
                let near = topology.llc_of(reader.cpu);
                if chance.happens(scheduler.pull) {
                    reader.cpu = if chance.happens(0.5) {
                        waker
                    } else {
                        chance.cpu_of(&topology.llc_of(waker))
                    };
                } else if load > 0.8 && chance.happens(scheduler.push)
                    || chance.happens(scheduler.wander)
                {
                    reader.cpu = chance.cpu_of(&near);
                } else if near.contains(waker) && chance.happens(scheduler.flee) {
                    let elsewhere = topology.online.minus(&near);
                    reader.cpu = if elsewhere.is_empty() {
                        chance.cpu_of(&near)
                    } else {
                        chance.cpu_of(&elsewhere)
                    };
                }
            }
        }
    }

    /// The scene as one window measures it.
    fn noisy(&mut self) -> Scene {
        let (mut scene, noise, penalty) = (self.scene.clone(), self.noise, self.penalty);
        let chance = &mut self.chance;
        for (n, netdev) in scene.netdevs.iter_mut().enumerate() {
            for (at, queue) in netdev.queues.iter_mut().enumerate() {
                let polled_on = |settings| self.scene.polled_on(settings, n, at);
                let moved = polled_on(&self.settings) != polled_on(&self.first);
                queue.load = chance.noisy(queue.load, noise) * if moved { penalty } else { 1.0 };
                queue.packets_per_s = chance.noisy(queue.packets_per_s as f64, noise) as u64;
                for forward in &mut queue.forwards {
                    forward.packets_per_s =
                        chance.noisy(forward.packets_per_s as f64, noise) as u64;
                    forward.bytes_per_s = forward.packets_per_s * 500;
                }
                for reader in &mut queue.readers {
                    reader.bytes_per_s = chance.noisy(reader.bytes_per_s as f64, noise) as u64;
                    scene.busy.push(CpuLoad {
                        cpus: CpuSet::from_cpu(reader.cpu),
                        usr: chance.noisy(READING, noise),
                    });
                }
            }
        }
        scene
    }

    /// How often a knob changed from A to B, back to A, and to B again.
    pub(super) fn oscillations(&self) -> usize {
        let of_knob = |made: Vec<&Made>| {
            made.windows(3).filter(|w| w[0].new == w[2].new && w[0].old == w[1].new).count()
        };
        self.by_knob().into_iter().map(of_knob).sum()
    }

    /// The largest number of writes of one knob.
    pub(super) fn most_writes(&self) -> usize {
        self.by_knob().into_iter().map(|made| made.len()).max().unwrap_or(0)
    }

    fn by_knob(&self) -> Vec<Vec<&Made>> {
        let mut knobs: BTreeMap<&Target, Vec<&Made>> = BTreeMap::new();
        for made in &self.made {
            knobs.entry(&made.target).or_default().push(made);
        }
        knobs.into_values().collect()
    }
}
