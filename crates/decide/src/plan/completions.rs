//! Completions of transmission: the tx queues through which forwarded packets leave, and where the
//! interrupts of tx queues go.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::cost::assumed::Assumed;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::forwarding::ForwardShare;
use netsilo_model::derive::silo::Silos;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity, RxQueue, TxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::place::parts::Parts;
use crate::place::{AlgorithmName, Completion, Suggestion, Vector};
use crate::plan::contents::{Placement, Plan};
use crate::plan::goal::Goal;
use crate::plan::irq_changes::{affinity, observed_refusal};
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
        self.tx.irq.as_ref()?.known().copied()
    }
}

/// Adds to each vector which other vectors complete the transmission of the packets it forwards.
///
/// Those are the vectors of the tx queues through which it sends. A tx queue with its own interrupt
/// follows the rx queue of the same number, so that rx queue's vector counts then; if it receives
/// nothing, the tx queue follows who sends through it ([`senders`]). What queues without a vector
/// send is added to the vectors that complete it.
pub(super) fn add_completed_by(
    snapshot: &Snapshot,
    silos: &Silos,
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
    let completes = |egress: &Egress<'_>| {
        let by_queue = by_queue.get(&(egress.netdev.ifindex, egress.tx.index));
        egress.irq().and_then(|irq| by_irq.get(&irq).or(by_queue)).copied()
    };
    let mut completed: BTreeMap<usize, Subject> = BTreeMap::new();
    for (index, (group, vector, _)) in vectors.iter_mut().enumerate() {
        let mut all: Vec<Completion> = Vec::new();
        for egress in egress(snapshot, goal, group, vector) {
            let Some(to) = completes(&egress).filter(|to| *to != index) else { continue };
            completed.entry(to).or_insert_with(|| egress.queue());
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
    let placed = in_groups(vectors.iter().map(|(group, ..)| group));
    for (cpu, egress) in sent_by_others(snapshot, silos, goal, &placed) {
        let Some(to) = completes(&egress) else { continue };
        completed.entry(to).or_insert_with(|| egress.queue());
        *vectors[to].1.sent_from.entry(cpu).or_default() += egress.packets_per_s;
    }
    for (index, queue) in completed {
        vectors[index].1.completes = Some(queue);
    }
}

/// The queues of these groups.
fn in_groups<'a>(groups: impl Iterator<Item = &'a Group<'a>>) -> BTreeSet<Subject> {
    groups.flat_map(|group| &group.silos).map(|silo| silo.subject()).collect()
}

/// What all other queues than these send, by the CPU that sends it.
fn sent_by_others<'a>(
    snapshot: &'a Snapshot,
    silos: &Silos,
    goal: &Goal,
    placed: &BTreeSet<Subject>,
) -> Vec<(CpuId, Egress<'a>)> {
    if goal.xps.is_some() {
        return Vec::new();
    }
    let others = silos.queues.iter().filter(|silo| !placed.contains(&silo.subject()));
    let sent = |forward: &ForwardShare| {
        let netdev = egress_netdev(snapshot, forward)?;
        let tx = netdev.tx_queues.iter().find(|tx| tx.index == forward.tx_queue)?;
        let packets_per_s = forward.packets_per_s;
        Some((forward.cpu, Egress { netdev, tx, packets_per_s, senders: None }))
    };
    others.flat_map(|silo| &silo.forwards).filter_map(sent).collect()
}

/// The netdev through which packets leave; `None` if it is in another network namespace.
fn egress_netdev<'a>(snapshot: &'a Snapshot, forward: &ForwardShare) -> Option<&'a Netdev> {
    let is_egress = |netdev: &&Netdev| {
        netdev.ifindex == forward.egress_ifindex && netdev.name == forward.egress
    };
    let here = snapshot.machine.is_own_netns(forward.egress_netns);
    snapshot.netdevs.iter().find(is_egress).filter(|_| here)
}

/// What one CPU sends through the tx queues of one interrupt.
#[derive(Default)]
struct Sender {
    packets_per_s: f64,
    /// Which of the vectors that `auto` puts on this CPU sends most, and how much.
    heaviest: Option<(f64, Subject)>,
}

/// The CPU that sends most through the tx queues of each interrupt, once `auto` has placed the
/// vectors, and which of them sends most there. Of what is not placed, nothing is followed.
///
/// The present CPU of the interrupt counts as the one that sends most unless another one sends more
/// by [`Assumed::leaving_sender`].
pub(super) fn senders(
    analysis: &Analysis<'_>,
    goal: &Goal,
    groups: &[(Group<'_>, AlgorithmName)],
    vectors: &[Vector],
    suggestions: &[Suggestion],
    assumed: &Assumed,
) -> BTreeMap<Irq, (CpuId, Subject)> {
    let snapshot = analysis.after();
    let mut all: BTreeMap<Irq, BTreeMap<CpuId, Sender>> = BTreeMap::new();
    let mut add = |cpu: CpuId, egress: &Egress<'_>, label: Option<&Subject>| {
        let Some(irq) = egress.irq() else { return };
        let sender = all.entry(irq).or_default().entry(cpu).or_default();
        sender.packets_per_s += egress.packets_per_s;
        let most = sender.heaviest.as_ref().map_or(0.0, |it| it.0);
        if let Some(label) = label.filter(|_| egress.packets_per_s > most) {
            sender.heaviest = Some((egress.packets_per_s, label.clone()));
        }
    };
    for (((group, algorithm), vector), suggestion) in groups.iter().zip(vectors).zip(suggestions) {
        let Some(cpu) = suggestion.cpu().or(vector.present) else { continue };
        let is_placed = suggestion.cpu().is_some() && algorithm.algorithm().completions_follow;
        let is_from_here =
            |it: &Egress<'_>| it.senders.as_ref().is_none_or(|senders| senders.contains(cpu));
        for egress in egress(snapshot, goal, group, vector).into_iter().filter(is_from_here) {
            add(cpu, &egress, Some(&vector.label).filter(|_| is_placed));
        }
    }
    let placed = in_groups(groups.iter().map(|(group, _)| group));
    for (cpu, egress) in sent_by_others(snapshot, &analysis.silos, goal, &placed) {
        add(cpu, &egress, None);
    }
    let followed = |(irq, mut by_cpu): (Irq, BTreeMap<CpuId, Sender>)| {
        let rate = |cpu: &CpuId| by_cpu.get(cpu).map_or(0.0, |sender| sender.packets_per_s);
        let most = by_cpu.keys().map(rate).fold(0.0, f64::max);
        let stays = |cpu: &CpuId| rate(cpu) * (1.0 + assumed.leaving_sender) >= most;
        let first = || by_cpu.keys().copied().find(|cpu| rate(cpu) >= most);
        let cpu = analysis.rates.cpu_of_irq(snapshot, irq).filter(stays).or_else(first)?;
        Some((irq, (cpu, by_cpu.remove(&cpu)?.heaviest?.1)))
    };
    all.into_iter().filter_map(followed).collect()
}

/// Places the interrupts of tx queues that have their own: each follows the rx queue of the same
/// number, or if that one has no place, the CPU that sends most through it. `placements` are those
/// of the rx queues.
pub(super) fn follow(
    analysis: &Analysis<'_>,
    netdevs: &[&Netdev],
    senders: &BTreeMap<Irq, (CpuId, Subject)>,
    placements: &[Placement],
) -> Plan {
    let snapshot = analysis.after();
    let mut part = Plan::default();
    let rx_queues = || snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
    let mut done: BTreeSet<Irq> = rx_queues().filter_map(|rx| Some(rx.irq.as_ref()?.to)).collect();
    let placed = |it: &Placement| Some((it.irq?, (it.cpus.single()?, it.algorithm)));
    let placed: BTreeMap<Irq, (CpuId, AlgorithmName)> =
        placements.iter().filter_map(placed).collect();
    for netdev in netdevs.iter().filter(|netdev| netdev.up) {
        let rx = |rx: &RxQueue| Some((rx.index, *placed.get(&rx.irq.as_ref()?.to)?));
        let rx: BTreeMap<u32, (CpuId, AlgorithmName)> =
            netdev.rx_queues.iter().filter_map(rx).collect();
        for tx in &netdev.tx_queues {
            let irq = tx.irq.as_ref().and_then(|edge| edge.known().copied());
            let Some(irq) = irq.filter(|irq| !done.contains(irq)) else { continue };
            let (cpu, algorithm, basis) = match (rx.get(&tx.index), senders.get(&irq)) {
                (Some((cpu, algorithm)), _) => {
                    let basis = format!("completions follow rx-{}", tx.index);
                    (*cpu, *algorithm, basis)
                }
                (None, Some((cpu, label))) => {
                    let basis = format!("completes what {label} forwards, on the same cpu");
                    (*cpu, AlgorithmName::Auto, basis)
                }
                (None, None) => continue,
            };
            done.insert(irq);
            let label = Subject::TxQueue(netdev.name.clone(), tx.index);
            let state = snapshot.irqs.get(&irq);
            let moves = analysis.rates.cpu_of_irq(snapshot, irq) != Some(cpu);
            if let Some((cause, reason)) = observed_refusal(analysis, irq).filter(|_| moves) {
                part.refuse(&format!("{label} (irq {irq})"), cause, reason);
                continue;
            }
            if moves {
                let reason = format!("{label}: {basis}");
                part.changes.extend(affinity(snapshot, irq, netdev, cpu, reason));
            }
            part.placements.push(Placement {
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
    part
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
        let Some(netdev) = egress_netdev(snapshot, forward) else { continue };
        let (_, queues) = seen.entry(netdev.ifindex).or_insert((netdev, BTreeMap::new()));
        *queues.entry(forward.tx_queue).or_default() += forward.packets_per_s;
    }
    let mut all = Vec::new();
    for (netdev, observed) in seen.into_values() {
        // RPS hands the packets to other CPUs, which send them.
        let ways = if vector.rps_targets.is_empty() {
            ways(netdev, observed, &snapshot.topology.online)
        } else {
            vec![(None, observed)]
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
        (Some(cpus), queues.into_iter().map(|queue| (queue, each)).collect())
    };
    let mut ways: Vec<Way> = cpus_of.into_iter().map(by_xps).collect();
    if !rest.is_empty() {
        ways.push((Some(rest), observed));
    }
    ways
}
