//! Completions of transmission: the tx queues through which forwarded packets leave, and where the
//! interrupts of tx queues go.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::Change;
use netsilo_model::cost::assumed::Assumed;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::ordered::Ordered as _;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity, RxQueue, TxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::place::parts::Parts;
use crate::place::{AlgorithmName, Completion, Suggestion, Vector};
use crate::plan::contents::{Placement, Plan};
use crate::plan::goal::Goal;
use crate::plan::irq_changes::{affinity, refusal};
use crate::plan::places::present;
use crate::plan::vectors::Group;

/// Packets of a vector that leave through one tx queue.
struct Egress<'a> {
    netdev: &'a Netdev,
    tx: &'a TxQueue,
    packets_per_s: f64,
    /// The CPUs that send them there, if the CPU decides (XPS).
    senders: Option<CpuSet>,
}

impl Egress<'_> {
    fn queue(&self) -> Subject {
        Subject::TxQueue(self.netdev.name.clone(), self.tx.index)
    }

    fn irq(&self) -> Option<Irq> {
        self.tx.irq.as_ref().map(|edge| edge.to)
    }
}

/// Adds to each vector which other vectors complete the transmission of the packets it forwards.
///
/// Those are the vectors of the tx queues that it feeds. A tx queue with its own interrupt follows
/// the rx queue of the same number, so that rx queue's vector counts then; if it receives nothing,
/// the tx queue follows who feeds it ([`feeders`]).
pub(super) fn add_completed_by(
    snapshot: &Snapshot,
    goal: &Goal,
    vectors: &mut [(Group<'_>, Vector, AlgorithmName)],
) {
    let mut by_irq: BTreeMap<Irq, usize> = BTreeMap::new();
    let mut by_queue: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (index, (group, vector, _)) in vectors.iter().enumerate() {
        by_irq.extend(group.irq.map(|irq| (irq, index)));
        let queues = group.silos.iter().filter_map(|silo| silo.queue);
        let queues = queues.filter(|_| vector.quiet().is_none());
        by_queue.extend(queues.map(|queue| ((group.netdev.ifindex, queue), index)));
    }
    let mut completes: BTreeMap<usize, Subject> = BTreeMap::new();
    for (index, (group, vector, _)) in vectors.iter_mut().enumerate() {
        let mut all: Vec<Completion> = Vec::new();
        for egress in egress(snapshot, goal, group, vector) {
            let by_queue = by_queue.get(&(egress.netdev.ifindex, egress.tx.index));
            let to = egress.irq().and_then(|irq| by_irq.get(&irq).or(by_queue)).copied();
            let Some(to) = to.filter(|to| *to != index) else { continue };
            completes.entry(to).or_insert_with(|| egress.queue());
            let same = |it: &&mut Completion| it.to == to && it.senders == egress.senders;
            match all.iter_mut().find(same) {
                Some(known) => known.packets_per_s += egress.packets_per_s,
                None => all.push(Completion {
                    to,
                    queue: egress.queue(),
                    packets_per_s: egress.packets_per_s,
                    senders: egress.senders,
                }),
            }
        }
        vector.completed_by = all;
    }
    for (index, queue) in completes {
        vectors[index].1.completes = Some(queue);
    }
}

/// What `auto` puts on one CPU and sends through a tx queue.
pub(super) struct Feeder {
    /// The vector of them that sends most, and its packets per second.
    heaviest: (Subject, f64),
    packets_per_s: f64,
}

/// The feeder of each interrupt that announces completions of forwarded packets, with its CPU: the
/// one that sends most. One that is beside the interrupt already stays the feeder until another one
/// sends that much more ([`Assumed::leaving_partner`]).
pub(super) fn feeders(
    snapshot: &Snapshot,
    goal: &Goal,
    groups: &[(Group<'_>, AlgorithmName)],
    vectors: &[Vector],
    suggestions: &[Suggestion],
    assumed: &Assumed,
) -> BTreeMap<Irq, (CpuId, Feeder)> {
    let mut all: BTreeMap<Irq, BTreeMap<CpuId, Feeder>> = BTreeMap::new();
    for (((group, algorithm), vector), suggestion) in groups.iter().zip(vectors).zip(suggestions) {
        let Some(cpu) = suggestion.cpu().filter(|_| *algorithm == AlgorithmName::Auto) else {
            continue;
        };
        let is_from_here =
            |it: &Egress<'_>| it.senders.as_ref().is_none_or(|senders| senders.contains(cpu));
        for egress in egress(snapshot, goal, group, vector).into_iter().filter(is_from_here) {
            let Some(irq) = egress.irq() else { continue };
            let packets_per_s = egress.packets_per_s;
            let sender = || (vector.label.clone(), packets_per_s);
            let by_cpu = all.entry(irq).or_default();
            let feeder = by_cpu
                .entry(cpu)
                .or_insert_with(|| Feeder { heaviest: sender(), packets_per_s: 0.0 });
            feeder.packets_per_s += packets_per_s;
            if feeder.heaviest.1 < packets_per_s {
                feeder.heaviest = sender();
            }
        }
    }
    let enough = 1.0 - assumed.leaving_partner;
    let choose = |(irq, mut by_cpu): (Irq, BTreeMap<CpuId, Feeder>)| {
        let rate = |(_, feeder): &(&CpuId, &Feeder)| feeder.packets_per_s;
        let most = by_cpu.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)).then(b.0.cmp(a.0)))?;
        let (first, most) = (*most.0, rate(&most));
        let stays =
            |cpu: &CpuId| by_cpu.get(cpu).is_some_and(|here| here.packets_per_s >= enough * most);
        let cpu = present(snapshot, irq).filter(stays).unwrap_or(first);
        Some((irq, (cpu, by_cpu.remove(&cpu)?)))
    };
    all.into_iter().filter_map(choose).into_map()
}

/// Places the interrupts of tx queues that have their own: each follows the rx queue of the same
/// number, or if that one has no place, those that forward most packets through it.
pub(super) fn follow(
    snapshot: &Snapshot,
    netdevs: &[&Netdev],
    feeders: &BTreeMap<Irq, (CpuId, Feeder)>,
    plan: &mut Plan,
) -> Vec<Change> {
    let rx_queues = || snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
    let mut done: BTreeSet<Irq> = rx_queues().filter_map(|rx| Some(rx.irq.as_ref()?.to)).into_set();
    let placed = |it: &Placement| Some((it.irq?, (it.cpus.single()?, it.algorithm)));
    let placed: BTreeMap<Irq, (CpuId, AlgorithmName)> =
        plan.placements.iter().filter_map(placed).into_map();
    let mut changes = Vec::new();
    for netdev in netdevs.iter().filter(|netdev| netdev.up) {
        let rx = |rx: &RxQueue| Some((rx.index, *placed.get(&rx.irq.as_ref()?.to)?));
        let rx: BTreeMap<u32, (CpuId, AlgorithmName)> =
            netdev.rx_queues.iter().filter_map(rx).into_map();
        for tx in &netdev.tx_queues {
            let irq = tx.irq.as_ref().map(|edge| edge.to).filter(|irq| !done.contains(irq));
            let Some(irq) = irq else { continue };
            let (cpu, algorithm, basis) = match (rx.get(&tx.index), feeders.get(&irq)) {
                (Some((cpu, algorithm)), _) => {
                    let basis = format!("completions follow rx-{}", tx.index);
                    (*cpu, *algorithm, basis)
                }
                (None, Some((cpu, Feeder { heaviest: (label, _), .. }))) => {
                    let basis = format!("completes what {label} forwards, on the same cpu");
                    (*cpu, AlgorithmName::Auto, basis)
                }
                (None, None) => continue,
            };
            done.insert(irq);
            let label = Subject::TxQueue(netdev.name.clone(), tx.index);
            let state = snapshot.irqs.get(&irq);
            let moves = present(snapshot, irq) != Some(cpu);
            if let Some((cause, reason)) = refusal(snapshot, irq).filter(|_| moves) {
                plan.refuse(&format!("{label} (irq {irq})"), cause, reason);
                continue;
            }
            if moves {
                let reason = format!("{label}: {basis}");
                changes.extend(affinity(snapshot, irq, netdev, cpu, reason));
            }
            plan.placements.push(Placement {
                label,
                netdev: NetdevIdentity::from_netdev(netdev),
                irq: Some(irq),
                action: state.map(|state| state.actions.join(",")).unwrap_or_default(),
                cpus: CpuSet::from_cpu(cpu),
                algorithm,
                basis,
                moves,
                gain_ns_per_s: 0,
                cost: Parts::default(),
                alternatives: Vec::new(),
            });
        }
    }
    changes
}

/// Through which tx queues a group's packets leave, from each CPU that may forward them; not known
/// if the goal sets XPS, which chooses them after the interrupts are placed.
fn egress<'a>(
    snapshot: &'a Snapshot,
    goal: &Goal,
    group: &Group<'_>,
    vector: &Vector,
) -> Vec<Egress<'a>> {
    if goal.xps.is_some() {
        return Vec::new();
    }
    let mut seen: BTreeMap<u32, (&Netdev, BTreeMap<u32, f64>)> = BTreeMap::new();
    for forward in group.silos.iter().flat_map(|silo| &silo.forwards) {
        let same = |netdev: &&Netdev| {
            netdev.ifindex == forward.egress_ifindex && netdev.name == forward.egress
        };
        let Some(netdev) = snapshot.netdevs.iter().find(same) else { continue };
        let (_, queues) = seen.entry(netdev.ifindex).or_insert((netdev, BTreeMap::new()));
        *queues.entry(forward.tx_queue).or_default() += forward.packets_per_s;
    }
    let mut all = Vec::new();
    for (netdev, observed) in seen.into_values() {
        // RPS hands the packets to other CPUs, which send them.
        let ways = match vector.rps_targets.is_empty() {
            true => ways(netdev, observed, &snapshot.topology.online),
            false => vec![(None, observed)],
        };
        for (senders, queues) in ways {
            let tx = |index: u32| netdev.tx_queues.iter().find(|tx| tx.index == index);
            all.extend(queues.into_iter().filter_map(|(queue, packets_per_s)| {
                Some(Egress { netdev, tx: tx(queue)?, packets_per_s, senders: senders.clone() })
            }));
        }
    }
    all
}

/// Packets per second by tx queue, for the CPUs that send them; `None` if the CPU does not matter.
type Way = (Option<CpuSet>, BTreeMap<u32, f64>);

/// How packets leave through a netdev, whichever CPU forwards them (`netdev_pick_tx`,
/// `net/core/dev.c`): by XPS through the sending CPU's queues, with a hash if it has several; else
/// as observed.
fn ways(netdev: &Netdev, observed: BTreeMap<u32, f64>, online: &CpuSet) -> Vec<Way> {
    let is_by_rx = |tx: &TxQueue| tx.xps_rxqs.as_ref().is_some_and(|rxqs| !rxqs.is_empty());
    if netdev.tx_queues.iter().any(is_by_rx) {
        return vec![(None, observed)];
    }
    let mut queues_of: BTreeMap<CpuId, Vec<u32>> = BTreeMap::new();
    for tx in &netdev.tx_queues {
        for cpu in tx.xps_cpus.iter().flat_map(CpuSet::iter) {
            queues_of.entry(cpu).or_default().push(tx.index);
        }
    }
    if queues_of.is_empty() {
        return vec![(None, observed)];
    }
    let rest = online.minus(&queues_of.keys().copied().collect());
    let mut cpus_of: BTreeMap<Vec<u32>, CpuSet> = BTreeMap::new();
    for (cpu, queues) in queues_of {
        cpus_of.entry(queues).or_default().insert(cpu);
    }
    let total: f64 = observed.values().sum();
    let by_xps = |(queues, cpus): (Vec<u32>, CpuSet)| {
        let each = total / queues.len() as f64;
        (Some(cpus), queues.into_iter().map(|queue| (queue, each)).into_map())
    };
    let mut ways: Vec<Way> = cpus_of.into_iter().map(by_xps).collect();
    if !rest.is_empty() {
        ways.push((Some(rest), observed));
    }
    ways
}
