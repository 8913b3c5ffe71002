//! Groups queues that must move together, and makes of each group the vector that an algorithm
//! places.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::drivers::software::SoftwareNetdev;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::{Snapshot, Writable};
use netsilo_model::snapshot::netdev::{NapiThread, Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::place::{AlgorithmName, Vector};
use crate::plan::contents::{Placement, Plan, Refusal};
use crate::plan::free_vectors::FreeVectors;
use crate::plan::goal::{Goal, Override};
use crate::plan::irq_changes::{affinity, observed_refusal};
use crate::plan::placement_cost::PlacedCost;
use crate::plan::selection;

/// Queues that are placed together: they share an interrupt, or have a kthread and no interrupt.
pub(super) struct Group<'a> {
    pub(super) netdev: &'a Netdev,
    pub(super) irq: Option<Irq>,
    pub(super) silos: Vec<&'a Silo>,
}

/// The pool and overrides of the goal, applied to each vector.
pub(super) struct VectorRules<'a> {
    pub(super) goal: &'a Goal,
    pub(super) pool: CpuSet,
    /// CPUs that their owners may claim for their queues; none if the goal names CPUs.
    pub(super) claimable: CpuSet,
}

impl<'a> VectorRules<'a> {
    /// The rules, and the part of the plan that says which CPUs are left out.
    pub(super) fn new(snapshot: &Snapshot, goal: &'a Goal, pool: CpuSet) -> (Self, Plan) {
        let mut part = Plan::default();
        let full = FreeVectors::of(snapshot).full().and(&pool);
        if !full.is_empty() {
            let reason = format!(
                "{} without a free interrupt vector: nothing is placed there",
                selection::cpus_are(&full)
            );
            part.leave("cpus", &reason);
        }
        let topology = &snapshot.topology;
        let barred = topology.isolated_or_tickless().or(&goal.exclude).or(&full);
        let claimable = topology.online.minus(&barred);
        let claimable = if goal.cpus.is_none() { claimable } else { CpuSet::new() };
        (Self { goal, pool: pool.minus(&full), claimable }, part)
    }

    /// Returns the group's vector and algorithm. If the group is to be left alone, the error is the
    /// part of the plan that says why.
    pub(super) fn vector<'g>(
        &self,
        group: Group<'g>,
        snapshot: &Snapshot,
    ) -> Result<(Group<'g>, Vector, AlgorithmName), Box<Plan>> {
        let mut part = Plan::default();
        let state = group.irq.and_then(|irq| snapshot.irqs.get(&irq));
        let vector = Vector::new(&group.silos, group.netdev.node, group.kthread());
        let Some(mut vector) = vector else { return Err(part.into()) };
        let other = self.goal.overrides.iter().find(|other| group.is_of(other));
        if other.is_some_and(|other| other.leave) {
            part.leave(&vector.label, "left alone, as configured");
            return Err(part.into());
        }
        if let Some(why) = self.not_of_readers(&group) {
            part.leave(&vector.label, &why);
            return Err(part.into());
        }
        vector.pool = match other.and_then(|other| other.cpus.as_ref()) {
            Some(cpus) => {
                let label = vector.label.to_string();
                part.refuse_all(selection::unusable(&snapshot.topology, &label, cpus));
                if !part.refusals.is_empty() {
                    return Err(part.into());
                }
                cpus.minus(&self.goal.exclude)
            }
            None => self.pool.or(&group.claimed(&snapshot.topology).and(&self.claimable)),
        };
        if state.is_some_and(|state| state.writable == Writable::Yes) {
            // Its interrupt, which wakes it, is put on its CPU ([`Group::interrupt_to_kthread`]).
            vector.woken_by.clear();
        }
        vector.hint = state.and_then(|state| state.hint.clone());
        vector.rps_targets = self.rps_targets(&group, snapshot);
        if self.goal.rps.is_some() {
            vector.pool = apart_from_targets(&vector);
        }
        let algorithm = other.and_then(|other| other.algorithm).unwrap_or(self.goal.algorithm);
        Ok((group, vector, algorithm))
    }

    /// Why the goal's readers do not cover a group; `None` if they do, or if the goal names none.
    fn not_of_readers(&self, group: &Group<'_>) -> Option<String> {
        let readers = &self.goal.readers;
        let consumers = || group.silos.iter().flat_map(|silo| &silo.consumers);
        let theirs = consumers().filter(|it| readers.iter().any(|name| it.is_called(name)));
        // a sum of nothing is -0
        let read = theirs.fold(0.0, |sum, it| sum + it.bytes_per_s);
        let all = group.silos.iter().filter_map(|silo| silo.bytes_per_s).reduce(|a, b| a + b);
        let names = || readers.join(", ");
        let Some(all) = all.filter(|_| !readers.is_empty()) else {
            let unknown = || format!("not known whether {} read its data", names());
            return (!readers.is_empty()).then(unknown);
        };
        match all {
            0.0 => Some(format!("no data of it was read, so none by {}", names())),
            all if read < LEAST_READ * all => {
                let share = (100.0 * read / all).round();
                Some(format!("{share}% of its data was read by {}: less than half", names()))
            }
            _ => None,
        }
    }

    /// CPUs that RPS will hand the group's packets to; none where RFS sends them to their readers.
    pub(super) fn rps_targets(&self, group: &Group<'_>, snapshot: &Snapshot) -> CpuSet {
        let table = self.goal.rfs.or(snapshot.net.rps_sock_flow_entries).unwrap_or(0);
        let follows = |silo: &&Silo| self.goal.rfs.or(silo.rps_flow_cnt).unwrap_or(0) > 0;
        if table > 0 && group.silos.iter().any(follows) {
            return CpuSet::new();
        }
        let present =
            || group.silos.iter().filter_map(|silo| silo.rps_cpus.clone()).reduce(|a, b| a.or(&b));
        let cpus = self.goal.rps.clone().or_else(present).unwrap_or_default();
        cpus.and(&snapshot.topology.online).minus(&snapshot.topology.dropped_from_rps())
    }
}

/// The pool of a vector whose protocol work the same plan spreads with RPS: the targets have that
/// work to do, so it does not move onto one of them, if there is another CPU.
fn apart_from_targets(vector: &Vector) -> CpuSet {
    let apart = vector.pool.minus(&vector.rps_targets);
    let present: CpuSet =
        vector.present.filter(|cpu| vector.pool.contains(*cpu)).into_iter().collect();
    if apart.is_empty() { vector.pool.clone() } else { apart.or(&present) }
}

/// The share of a queue's data that the goal's readers must read for it to be placed.
const LEAST_READ: f64 = 0.5;

/// Groups the queues of the netdevs by shared interrupt. Queues without a known interrupt or
/// kthread are left alone, as the part of the plan says.
pub(super) fn groups<'a>(
    analysis: &'a Analysis<'_>,
    netdevs: &[&'a Netdev],
) -> (Vec<Group<'a>>, Plan) {
    let (snapshot, silos) = (analysis.after(), &analysis.silos);
    let mut part = Plan::default();
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut by_irq: BTreeMap<Irq, usize> = BTreeMap::new();
    for netdev in netdevs {
        if !netdev.up {
            part.leave(
                &netdev.name,
                "it is down; its driver sets its interrupts up again when it comes up",
            );
            continue;
        }
        for silo in analysis.silos_of(&netdev.name).filter(|silo| silo.queue.is_some()) {
            let edge = silo.irq.as_ref().filter(|edge| snapshot.irqs.contains_key(&edge.to));
            let irq = edge.and_then(|edge| edge.known().copied());
            if let Some(refusal) = selection::leased(silo.leased.as_deref(), &silo.label()) {
                part.refuse_all([refusal]);
                continue;
            }
            let known = irq.and_then(|irq| by_irq.get(&irq).copied());
            match known.and_then(|at| groups.get_mut(at)) {
                Some(group) => group.silos.push(silo),
                None if silo.only_wakes && silo.kthread.is_none() => {
                    let reason = "its interrupt only wakes a kthread of a netdev that is not \
                                  listed here: packets are polled where that runs";
                    part.leave(&silo.label(), reason);
                }
                None if irq.is_none() && silo.kthread.is_none() => match edge {
                    None if SoftwareNetdev::from_netdev(netdev).is_some() => {
                        part.leave(&silo.label(), "a netdev without hardware has no interrupt");
                    }
                    None => part.leave(&silo.label(), "its interrupt is not known"),
                    Some(edge) => {
                        let (irq, words) = (edge.to, edge.source.in_words());
                        let reason = format!("that irq {irq} is its interrupt is a guess: {words}");
                        part.leave(&silo.label(), &reason);
                    }
                },
                None if silos.may_receive_nothing(silo) => {
                    let reason = "data arrives, and the queue of most of it was not found: this \
                                  queue's interrupts may announce nothing but completions";
                    part.leave(&silo.label(), reason);
                }
                None => {
                    by_irq.extend(irq.map(|irq| (irq, groups.len())));
                    groups.push(Group { netdev, irq, silos: vec![silo] });
                }
            }
        }
    }
    (groups, part)
}

impl Group<'_> {
    pub(super) fn kthread(&self) -> Option<&NapiThread> {
        self.silos.iter().find_map(|silo| silo.kthread.as_ref())
    }

    /// Whether an override covers one of its queues.
    pub(super) fn is_of(&self, other: &Override) -> bool {
        let queue = |silo: &&Silo| match (&other.queues, silo.queue) {
            (Some(queues), Some(queue)) => queues.contains(CpuId(queue)),
            (queues, _) => queues.is_none(),
        };
        self.netdev.name == other.netdev && self.silos.iter().any(queue)
    }

    /// CPUs whose owner claims all of its queues that have readers.
    fn claimed(&self, topology: &Topology) -> CpuSet {
        let mut owners = self.silos.iter().filter(|silo| !silo.consumers.is_empty());
        let Some(first) = owners.next().and_then(|silo| silo.claimed_by(topology)) else {
            return CpuSet::new();
        };
        let all = owners.all(|silo| silo.claimed_by(topology) == Some(first));
        if all { first.cpus.clone() } else { CpuSet::new() }
    }

    /// The interrupt that moves with the group; none if its kthread moves alone.
    pub(super) fn movable_irq(&self, snapshot: &Snapshot) -> Option<Irq> {
        let irq = self.irq?;
        (snapshot.irqs.get(&irq)?.writable == Writable::Yes).then_some(irq)
    }

    pub(super) fn label(&self) -> String {
        self.silos.iter().map(|silo| silo.label()).collect::<Vec<_>>().join(", ")
    }

    /// Why the group cannot be moved. A kthread can always be moved, even if its interrupt cannot.
    pub(super) fn immovable(&self, analysis: &Analysis<'_>) -> Option<Refusal> {
        let irq = self.irq.filter(|_| self.kthread().is_none())?;
        let (cause, reason) = observed_refusal(analysis, irq)?;
        Some(Refusal::new(&format!("{} (irq {irq})", self.label()), cause, reason))
    }

    /// The planned place, for reports and programs.
    pub(super) fn placement(
        &self,
        snapshot: &Snapshot,
        vector: &Vector,
        algorithm: AlgorithmName,
        cpu: CpuId,
        basis: String,
        judged: PlacedCost,
    ) -> Placement {
        let state = self.irq.and_then(|irq| snapshot.irqs.get(&irq));
        Placement {
            label: vector.label.clone(),
            netdev: NetdevIdentity::from_netdev(self.netdev),
            irq: self.irq,
            action: state.map(|state| state.actions.join(",")).unwrap_or_default(),
            cpus: CpuSet::from_cpu(cpu),
            algorithm,
            basis,
            moves: vector.present != Some(cpu),
            gain_ns_per_s: judged.gain.round() as i64,
            cost: judged.cost,
            alternatives: judged.alternatives,
        }
    }

    /// The changes that put the group on a CPU.
    pub(super) fn changes(
        &self,
        snapshot: &Snapshot,
        cpu: CpuId,
        label: &Subject,
        reason: &str,
    ) -> Vec<Change> {
        let reason = format!("{label}: {reason}");
        let threads: Vec<&NapiThread> =
            self.silos.iter().filter_map(|silo| silo.kthread.as_ref()).collect();
        if threads.is_empty() {
            return self.interrupt(snapshot, cpu, reason).into_iter().collect();
        }
        let mut changes: Vec<Change> =
            self.interrupt_to_kthread(snapshot, cpu, label).into_iter().collect();
        changes.extend(threads.into_iter().filter_map(|thread| {
            let knob = knobs::NapiThread {
                pid: thread.pid,
                comm: thread.comm.clone(),
                start_time: thread.start_time,
            };
            let (old, new) = (thread.cpus.clone(), CpuSet::from_cpu(cpu));
            let reason =
                format!("{reason}; its NAPI is threaded, so this kthread does the polling");
            (old != new).then(|| Change::new(knob, old, new, reason))
        }));
        changes
    }

    /// The change that puts the interrupt of a threaded NAPI on the kthread's CPU: it only wakes
    /// the kthread, and on the same CPU that needs no IPI.
    pub(super) fn interrupt_to_kthread(
        &self,
        snapshot: &Snapshot,
        cpu: CpuId,
        label: &Subject,
    ) -> Option<Change> {
        let ignores = self.silos.iter().any(|silo| silo.ignores_affinity);
        let writable = !ignores && snapshot.irqs.get(&self.irq?)?.writable == Writable::Yes;
        let reason = format!(
            "{label}: its interrupt only wakes the NAPI's kthread, on the same cpu without an ipi"
        );
        self.interrupt(snapshot, cpu, reason).filter(|_| writable)
    }

    pub(super) fn interrupt(
        &self,
        snapshot: &Snapshot,
        cpu: CpuId,
        reason: String,
    ) -> Option<Change> {
        let shared = match self.silos.as_slice() {
            [] | [_] => String::new(),
            _ => format!(" (one interrupt for {}; the heaviest decides)", self.label()),
        };
        affinity(snapshot, self.irq?, self.netdev, cpu, format!("{reason}{shared}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    #[test]
    fn rps_hands_packets_on_unless_rfs_has_both_its_tables() {
        let targets = |table: Option<u32>, flow_cnt: Option<u32>, rfs: Option<u32>| {
            let queue = SceneQueue {
                irq: Some(30),
                cpus: CpuSet::from_cpu(CpuId(0)),
                rps_cpus: Some(CpuSet::first(3)),
                rps_flow_cnt: flow_cnt,
                packets_per_s: 1000,
                ..SceneQueue::default()
            };
            let (name, queues) = ("eth0".into(), vec![queue]);
            let netdevs = vec![SceneNetdev { name, queues, ..SceneNetdev::default() }];
            let grid = Grid { l2s: 4, ..Grid::default() };
            let isolated = CpuSet::from_cpu(CpuId(2));
            let rps_sock_flow_entries = table;
            let scene =
                Scene { grid, netdevs, isolated, rps_sock_flow_entries, ..Scene::default() };
            let (observation, costs) = (scene.observation(), Costs::default());
            let analysis = Analysis::new(&observation, &costs);
            let snapshot = analysis.after();
            let silos: Vec<&Silo> = analysis.silos.queues.iter().collect();
            let group = Group { netdev: &snapshot.netdevs[0], irq: Some(Irq(30)), silos };
            let goal = Goal { rfs, ..Goal::default() };
            let (pool, claimable) = (CpuSet::first(4), CpuSet::new());
            let rules = VectorRules { goal: &goal, pool, claimable };
            rules.rps_targets(&group, snapshot).to_string()
        };
        assert_eq!(targets(None, None, None), "0-1", "no packet goes to an isolated cpu");
        assert_eq!(targets(Some(32768), Some(0), None), "0-1");
        assert_eq!(targets(Some(0), Some(4096), None), "0-1", "RFS needs rps_sock_flow_entries");
        assert_eq!(targets(Some(32768), Some(4096), None), "");
        assert_eq!(targets(None, None, Some(32768)), "", "the goal sets both");
        assert_eq!(targets(Some(32768), Some(4096), Some(0)), "0-1", "the goal turns RFS off");
    }
}
