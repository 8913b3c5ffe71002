//! Places interrupts and NAPI kthreads: groups queues that must move together, asks the algorithm
//! for a CPU, and makes the changes.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::forwarding::ForwardShare;
use netsilo_model::derive::silo::{Silo, Silos};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{Snapshot, Writable, WriterKnob};
use netsilo_model::snapshot::netdev::{NapiThread, Netdev, NetdevIdentity, RxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::place::model::Model;
use crate::place::{AlgorithmName, Capacity, Suggestion, Vector, suggest};
use crate::plan::contents::{Placement, Plan, Predicted, RefusalCause};
use crate::plan::goal::{Goal, Override};
use crate::plan::{owners, selection};

/// Queues that are placed together: they share an interrupt, or have a kthread and no interrupt.
struct Group<'a> {
    netdev: &'a Netdev,
    irq: Option<Irq>,
    silos: Vec<&'a Silo>,
}

/// The CPU of each interrupt after the plan.
pub(super) type Places = BTreeMap<Irq, CpuId>;

/// Adds the changes that move interrupts and kthreads where the algorithm wants them; returns the
/// CPU of each interrupt afterwards.
pub(super) fn place(
    analysis: &Analysis<'_>,
    netdevs: &[&Netdev],
    pool: Option<CpuSet>,
    goal: &Goal,
    plan: &mut Plan,
) -> Places {
    let after = analysis.after();
    let mut places = present_places(after);
    let Some(pool) = pool.filter(|_| goal.irqs) else { return places };
    let mut groups = groups(after, &analysis.silos, netdevs, plan);
    groups.retain(|group| group.movable(after, plan));
    let rules = VectorRules::new(after, goal, pool, plan);
    let mut vectors: Vec<(Group<'_>, Vector, AlgorithmName)> =
        groups.into_iter().filter_map(|group| rules.vector(group, after, plan)).collect();
    add_completed_by(after, &mut vectors);
    let placed: Vec<&Silo> =
        vectors.iter().flat_map(|(group, ..)| group.silos.iter().copied()).collect();
    let capacity = Capacity::new(analysis, &placed);
    let split_group = |(group, vector, algorithm)| ((group, algorithm), vector);
    let (groups, vectors): (Vec<(Group<'_>, AlgorithmName)>, Vec<Vector>) =
        vectors.into_iter().map(split_group).unzip();
    let algorithms: Vec<AlgorithmName> = groups.iter().map(|(_, algorithm)| *algorithm).collect();
    let suggestions = suggest_each(&capacity, &vectors, &algorithms);
    let gains = predict(&capacity, &vectors, &suggestions, plan);
    let (mut changes, mut settled) = (Vec::new(), Places::new());
    for ((((group, algorithm), vector), suggestion), gain) in
        groups.iter().zip(&vectors).zip(suggestions).zip(gains)
    {
        let (cpu, basis, moves) = match suggestion {
            Suggestion::Leave(reason) => {
                plan.leave(&vector.label, &reason);
                continue;
            }
            Suggestion::Move(cpu, reason) => (cpu, reason, true),
            Suggestion::Keep(cpu, reason) => (cpu, reason, false),
        };
        if moves {
            changes.extend(group.changes(after, cpu, &vector.label, &basis));
        } else {
            plan.leave(&vector.label, &basis);
            // A kthread that stays put still wants its interrupt on its CPU.
            let threaded = group.kthread().is_some();
            changes
                .extend(group.interrupt_to_kthread(after, cpu, &vector.label).filter(|_| threaded));
        }
        plan.placements.push(group.placement(after, vector, *algorithm, cpu, basis, gain));
        settled.extend(group.irq.map(|irq| (irq, cpu)));
    }
    changes.extend(follow(after, netdevs, &settled, plan));
    for change in accept(after, goal, changes, plan) {
        if let (Target::IrqAffinity { irq, .. }, Value::Cpus(cpus)) = (&change.target, &change.new)
        {
            places.extend(cpus.single().map(|cpu| (*irq, cpu)));
        }
    }
    places
}

/// The pool and overrides of the goal, applied to each vector.
struct VectorRules<'a> {
    goal: &'a Goal,
    pool: CpuSet,
}

impl<'a> VectorRules<'a> {
    fn new(snapshot: &Snapshot, goal: &'a Goal, pool: CpuSet, plan: &mut Plan) -> Self {
        let full = full_of_vectors(snapshot).and(&pool);
        if !full.is_empty() {
            let reason = format!(
                "{} without a free interrupt vector: nothing is placed there",
                selection::cpus_are(&full)
            );
            plan.leave("cpus", &reason);
        }
        Self { goal, pool: pool.minus(&full) }
    }

    /// Returns the group's vector and algorithm; `None`, with the reason in the plan, if the group
    /// is to be left alone.
    fn vector<'g>(
        &self,
        group: Group<'g>,
        snapshot: &Snapshot,
        plan: &mut Plan,
    ) -> Option<(Group<'g>, Vector, AlgorithmName)> {
        let state = group.irq.and_then(|irq| snapshot.irqs.get(&irq));
        let mut vector = Vector::new(&group.silos, group.netdev.node, group.kthread())?;
        let other = self.goal.overrides.iter().find(|other| group.is_of(other));
        if other.is_some_and(|other| other.leave) {
            plan.leave(&vector.label, "left alone, as configured");
            return None;
        }
        vector.pool = match other.and_then(|other| other.cpus.as_ref()) {
            Some(cpus)
                if !selection::usable(
                    &snapshot.topology,
                    &vector.label.to_string(),
                    cpus,
                    plan,
                ) =>
            {
                return None;
            }
            Some(cpus) => cpus.minus(&self.goal.exclude),
            None => self.pool.clone(),
        };
        vector.hint = state.and_then(|state| state.hint.clone());
        vector.rps_targets = self.rps_targets(&group, snapshot);
        let algorithm = other.and_then(|other| other.algorithm).unwrap_or(self.goal.algorithm);
        Some((group, vector, algorithm))
    }

    /// CPUs that RPS will hand the group's packets to; none where RFS sends them to their readers.
    fn rps_targets(&self, group: &Group<'_>, snapshot: &Snapshot) -> CpuSet {
        let table = self.goal.rfs.or(snapshot.net.rps_sock_flow_entries).unwrap_or(0);
        let follows = |silo: &&Silo| self.goal.rfs.or(silo.rps_flow_cnt).unwrap_or(0) > 0;
        if table > 0 && group.silos.iter().any(follows) {
            return CpuSet::new();
        }
        let present =
            || group.silos.iter().filter_map(|silo| silo.rps_cpus.clone()).reduce(|a, b| a.or(&b));
        let cpus = self.goal.rps.clone().or_else(present).unwrap_or_default();
        cpus.and(&snapshot.topology.online).minus(&snapshot.topology.set_apart())
    }
}

/// Adds to each vector which other vectors complete the transmission of the packets it forwards.
///
/// Those are the vectors of the tx queues that it feeds. A tx queue with its own interrupt follows
/// the rx queue of the same number, so that rx queue's vector counts then.
fn add_completed_by(snapshot: &Snapshot, vectors: &mut [(Group<'_>, Vector, AlgorithmName)]) {
    let mut by_irq: BTreeMap<Irq, usize> = BTreeMap::new();
    let mut by_queue: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (index, (group, ..)) in vectors.iter().enumerate() {
        by_irq.extend(group.irq.map(|irq| (irq, index)));
        by_queue.extend(
            group
                .silos
                .iter()
                .filter_map(|silo| Some(((group.netdev.ifindex, silo.queue?), index))),
        );
    }
    let completes = |egress: &ForwardShare| {
        let same = |netdev: &&Netdev| {
            netdev.ifindex == egress.egress_ifindex && netdev.name == egress.egress
        };
        let netdev = snapshot.netdevs.iter().find(same)?;
        let irq = netdev.tx_queues.iter().find(|tx| tx.index == egress.tx_queue)?.irq.as_ref()?.to;
        by_irq.get(&irq).or_else(|| by_queue.get(&(netdev.ifindex, egress.tx_queue))).copied()
    };
    for (index, (group, vector, _)) in vectors.iter_mut().enumerate() {
        let mut completed_by: BTreeMap<usize, f64> = BTreeMap::new();
        for egress in group.silos.iter().flat_map(|silo| &silo.forwards) {
            if let Some(to) = completes(egress).filter(|to| *to != index) {
                *completed_by.entry(to).or_default() += egress.packets_per_s;
            }
        }
        vector.completed_by = completed_by.into_iter().collect();
    }
}

/// Most interrupts on one x86 CPU: of 256 vectors, 32 are exceptions and about two dozen are the
/// system's own (`arch/x86/include/asm/irq_vectors.h`).
///
/// The kernel refuses a write that targets a full CPU with ENOSPC.
const VECTORS_PER_CPU: usize = 190;

/// CPUs without a free interrupt vector; always none on architectures other than x86.
fn full_of_vectors(snapshot: &Snapshot) -> CpuSet {
    if !snapshot.arch_interrupts.contains_key("LOC") {
        return CpuSet::new();
    }
    let mut taken: BTreeMap<CpuId, usize> = snapshot.other_vectors.clone();
    for cpus in snapshot.irqs.values().filter_map(|state| state.effective.as_ref()) {
        cpus.single().into_iter().for_each(|cpu| *taken.entry(cpu).or_default() += 1);
    }
    taken.into_iter().filter(|(_, count)| *count >= VECTORS_PER_CPU).map(|(cpu, _)| cpu).collect()
}

/// Asks each vector's own algorithm for a suggestion.
///
/// Load that another algorithm places counts as busy time of its CPU. `auto` runs last, as it
/// weighs everything else.
fn suggest_each(
    capacity: &Capacity<'_>,
    vectors: &[Vector],
    algorithms: &[AlgorithmName],
) -> Vec<Suggestion> {
    let mut names: Vec<AlgorithmName> = AlgorithmName::ALL.to_vec();
    names.retain(|name| algorithms.contains(name));
    names.sort_by_key(|name| *name == AlgorithmName::Auto);
    if let [only] = names.as_slice() {
        return suggest(*only, capacity, vectors);
    }
    let mut at: Vec<Option<CpuId>> = vectors.iter().map(|vector| vector.present).collect();
    let mut suggestions: Vec<Suggestion> = vec![Suggestion::Leave(String::new()); vectors.len()];
    for name in names {
        let (mine, others): (Vec<usize>, Vec<usize>) =
            (0..vectors.len()).partition(|index| algorithms[*index] == name);
        let mut capacity = capacity.clone();
        for index in others {
            if let Some(busy) = at[index].and_then(|cpu| capacity.busy.get_mut(&cpu)) {
                *busy = (*busy + vectors[index].load).min(1.0);
            }
        }
        let number = |index: &usize| mine.binary_search(index).ok();
        let own = |index: &usize| {
            let completed_by = vectors[*index]
                .completed_by
                .iter()
                .filter_map(|(to, rate)| Some((number(to)?, *rate)))
                .collect();
            Vector { completed_by, ..vectors[*index].clone() }
        };
        let own: Vec<Vector> = mine.iter().map(own).collect();
        for (index, suggestion) in mine.iter().zip(suggest(name, &capacity, &own)) {
            at[*index] = suggestion.cpu().or(at[*index]);
            suggestions[*index] = suggestion;
        }
    }
    suggestions
}

/// Adds the predicted cost to the plan if anything moves; returns the gain of each vector (ns/s).
fn predict(
    capacity: &Capacity<'_>,
    vectors: &[Vector],
    suggestions: &[Suggestion],
    plan: &mut Plan,
) -> Vec<f64> {
    if !suggestions.iter().any(|suggestion| matches!(suggestion, Suggestion::Move(..))) {
        return vec![0.0; vectors.len()];
    }
    let model = Model::new(capacity, vectors);
    let after: Vec<Option<CpuId>> = vectors
        .iter()
        .zip(suggestions)
        .map(|(vector, suggestion)| suggestion.cpu().or(vector.present))
        .collect();
    let before: Vec<Option<CpuId>> =
        vectors.iter().zip(&after).map(|(vector, after)| vector.present.or(*after)).collect();
    let gains = model.gains(&after).into_iter().map(|gain| gain.unwrap_or(0.0)).collect();
    let (before, after) = (model.cost(&before), model.cost(&after));
    if !vectors.is_empty() && before.is_finite() && after.is_finite() {
        plan.predicted = Some(Predicted {
            before_ns_per_s: before.round() as u64,
            after_ns_per_s: after.round() as u64,
            distances: capacity.costs.source_in_words(),
        });
    }
    gains
}

/// The present CPU of each interrupt.
pub(super) fn present_places(after: &Snapshot) -> Places {
    after.irqs.keys().filter_map(|irq| Some((*irq, present(after, *irq)?))).collect()
}

/// The CPU of an interrupt by its settings: the requested affinity, or the effective one where the
/// requested one names several CPUs.
fn present(snapshot: &Snapshot, irq: Irq) -> Option<CpuId> {
    let state = snapshot.irqs.get(&irq)?;
    let requested = state.requested.as_ref().and_then(CpuSet::single);
    requested.or_else(|| state.effective.as_ref().and_then(CpuSet::single))
}

/// Groups the queues of the netdevs by shared interrupt; queues without a known interrupt or
/// kthread are left alone.
fn groups<'a>(
    snapshot: &'a Snapshot,
    silos: &'a Silos,
    netdevs: &[&'a Netdev],
    plan: &mut Plan,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut by_irq: BTreeMap<Irq, usize> = BTreeMap::new();
    for netdev in netdevs {
        if !netdev.up {
            plan.leave(
                &netdev.name,
                "it is down; its driver sets its interrupts up again when it comes up",
            );
            continue;
        }
        for silo in
            silos.queues.iter().filter(|silo| silo.queue.is_some() && silo.netdev.is(netdev))
        {
            let irq =
                silo.irq.as_ref().map(|edge| edge.to).filter(|irq| snapshot.irqs.contains_key(irq));
            let known = irq.and_then(|irq| by_irq.get(&irq).copied());
            match known.and_then(|at| groups.get_mut(at)) {
                _ if silo.leased.is_some() => {
                    let holder = silo.leased.clone().unwrap_or_default();
                    plan.refuse(
                        &silo.label(),
                        RefusalCause::LeasedQueue,
                        format!("in use by {holder}: end that use first"),
                    );
                }
                Some(group) => group.silos.push(silo),
                None if irq.is_none() && silo.kthread.is_none() => {
                    plan.leave(&silo.label(), "its interrupt is not known");
                }
                None => {
                    by_irq.extend(irq.map(|irq| (irq, groups.len())));
                    groups.push(Group { netdev, irq, silos: vec![silo] });
                }
            }
        }
    }
    groups
}

impl Group<'_> {
    fn kthread(&self) -> Option<&NapiThread> {
        self.silos.iter().find_map(|silo| silo.kthread.as_ref())
    }

    /// Whether an override covers one of its queues.
    fn is_of(&self, other: &Override) -> bool {
        let queue = |silo: &&Silo| match (&other.queues, silo.queue) {
            (Some(queues), Some(queue)) => queues.contains(CpuId(queue)),
            (queues, _) => queues.is_none(),
        };
        self.netdev.name == other.netdev && self.silos.iter().any(queue)
    }

    fn label(&self) -> String {
        self.silos.iter().map(|silo| silo.label()).collect::<Vec<_>>().join(", ")
    }

    /// Whether the group can be moved; adds a refusal with the reason if not.
    ///
    /// A kthread can always be moved, even if its interrupt cannot.
    fn movable(&self, snapshot: &Snapshot, plan: &mut Plan) -> bool {
        let Some(state) = self.irq.and_then(|irq| snapshot.irqs.get(&irq)) else { return true };
        let threaded = self.kthread().is_some();
        let Some((cause, reason)) = refusal(&state.writable) else { return true };
        if !threaded {
            plan.refuse(
                &format!("{} (irq {})", self.label(), self.irq.unwrap_or_default()),
                cause,
                reason.into(),
            );
        }
        threaded
    }

    /// The planned place, for reports and programs.
    fn placement(
        &self,
        snapshot: &Snapshot,
        vector: &Vector,
        algorithm: AlgorithmName,
        cpu: CpuId,
        basis: String,
        gain_ns_per_s: f64,
    ) -> Placement {
        let state = self.irq.and_then(|irq| snapshot.irqs.get(&irq));
        Placement {
            label: vector.label.clone(),
            netdev: NetdevIdentity::of(self.netdev),
            irq: self.irq,
            action: state.map(|state| state.actions.join(",")).unwrap_or_default(),
            cpus: CpuSet::of(cpu),
            algorithm,
            basis,
            moves: vector.present != Some(cpu),
            gain_ns_per_s: gain_ns_per_s.round() as i64,
        }
    }

    /// The changes that put the group on a CPU.
    fn changes(
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
            let target = Target::NapiThread {
                pid: thread.pid,
                comm: thread.comm.clone(),
                start_time: thread.start_time,
            };
            let (old, new) = (Value::Cpus(thread.cpus.clone()), Value::Cpus(CpuSet::of(cpu)));
            let reason =
                format!("{reason}; its NAPI is threaded, so this kthread does the polling");
            (old != new).then_some(Change { target, old, new, reason })
        }));
        changes
    }

    /// The change that puts the interrupt of a threaded NAPI on the kthread's CPU: it only wakes
    /// the kthread, and on the same CPU that needs no IPI.
    fn interrupt_to_kthread(
        &self,
        snapshot: &Snapshot,
        cpu: CpuId,
        label: &Subject,
    ) -> Option<Change> {
        let writable = snapshot.irqs.get(&self.irq?)?.writable == Writable::Yes;
        let reason = format!(
            "{label}: its interrupt only wakes the NAPI's kthread, on the same cpu without an ipi"
        );
        self.interrupt(snapshot, cpu, reason).filter(|_| writable)
    }

    fn interrupt(&self, snapshot: &Snapshot, cpu: CpuId, reason: String) -> Option<Change> {
        let shared = match self.silos.as_slice() {
            [] | [_] => String::new(),
            _ => format!(" (one interrupt for {}; the heaviest decides)", self.label()),
        };
        affinity(snapshot, self.irq?, self.netdev, cpu, format!("{reason}{shared}"))
    }
}

/// Why an interrupt cannot be moved.
fn refusal(writable: &Writable) -> Option<(RefusalCause, &'static str)> {
    match writable {
        Writable::Yes => None,
        Writable::Managed => Some((
            RefusalCause::ManagedIrq,
            "the kernel manages its affinity and refuses writes; RPS or threaded NAPI can move \
             the work that it triggers",
        )),
        Writable::Unsupported => Some((
            RefusalCause::NoAffinitySupport,
            "its interrupt controller cannot direct it; RPS or threaded NAPI can move the work \
             that it triggers",
        )),
    }
}

fn affinity(
    snapshot: &Snapshot,
    irq: Irq,
    netdev: &Netdev,
    cpu: CpuId,
    reason: String,
) -> Option<Change> {
    let state = snapshot.irqs.get(&irq)?;
    let (old, new) = (Value::Cpus(state.requested.clone()?), Value::Cpus(CpuSet::of(cpu)));
    let target = Target::IrqAffinity {
        irq,
        action: state.actions.join(","),
        netdev: Some(NetdevIdentity::of(netdev)),
    };
    (old != new).then_some(Change { target, old, new, reason })
}

/// Adds the interrupts of tx queues that have their own: each follows the rx queue of the same
/// number.
fn follow(
    snapshot: &Snapshot,
    netdevs: &[&Netdev],
    settled: &Places,
    plan: &mut Plan,
) -> Vec<Change> {
    let rx_queues = || snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
    let mut done: BTreeSet<Irq> = rx_queues().filter_map(|rx| Some(rx.irq.as_ref()?.to)).collect();
    let mut changes = Vec::new();
    for netdev in netdevs.iter().filter(|netdev| netdev.up) {
        let rx = |rx: &RxQueue| Some((rx.index, settled.get(&rx.irq.as_ref()?.to)?));
        let rx: BTreeMap<u32, &CpuId> = netdev.rx_queues.iter().filter_map(rx).collect();
        for tx in &netdev.tx_queues {
            let cpu = rx.get(&tx.index).copied();
            let irq = tx.irq.as_ref().map(|edge| edge.to);
            let (Some(&cpu), Some(irq)) = (cpu, irq.filter(|irq| !done.contains(irq))) else {
                continue;
            };
            done.insert(irq);
            if present(snapshot, irq) == Some(cpu) {
                continue;
            }
            let label = format!("{} tx-{}", netdev.name, tx.index);
            if let Some((cause, reason)) =
                snapshot.irqs.get(&irq).and_then(|state| refusal(&state.writable))
            {
                plan.refuse(&format!("{label} (irq {irq})"), cause, reason.into());
                continue;
            }
            let reason = format!("{label}: completions of the queue pair follow rx-{}", tx.index);
            changes.extend(affinity(snapshot, irq, netdev, cpu, reason));
        }
    }
    changes
}

/// Most `--banirq` arguments that are listed one by one.
const MOST_BANS: usize = 8;

/// Adds the changes to the plan, except those of knobs that another program owns; returns the added
/// interrupt changes.
fn accept(snapshot: &Snapshot, goal: &Goal, changes: Vec<Change>, plan: &mut Plan) -> Vec<Change> {
    let (irqs, threads): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|change| matches!(change.target, Target::IrqAffinity { .. }));
    plan.changes.extend(threads);
    let bans = irqs.iter().filter_map(|change| match change.target {
        Target::IrqAffinity { irq, .. } => Some(format!("--banirq={irq}")),
        _ => None,
    });
    let bans: Vec<String> = bans.collect();
    let advice = |name: &str| match name {
        "irqbalance" => {
            let bans =
                if bans.len() <= MOST_BANS { bans.join(" ") } else { "--banirq for each".into() };
            format!(
                "stop it (systemctl stop irqbalance), exclude these interrupts from it ({bans}, \
                 or --policyscript)"
            )
        }
        _ => "stop it, or exclude these interrupts in its configuration".into(),
    };
    let refused = owners::add_unless_owned(
        snapshot,
        WriterKnob::IrqAffinity,
        goal,
        irqs.clone(),
        advice,
        plan,
    );
    if refused { Vec::new() } else { irqs }
}
