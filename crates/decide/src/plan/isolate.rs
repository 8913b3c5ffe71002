//! Plans that interrupts, RPS, XPS and NAPI kthreads leave some CPUs alone, and says what would
//! move whatever else interrupts them.
//!
//! Each mask loses the CPUs, and gets others only if none is left.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Knob, Target, knobs, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::machine::words::{cpus, irqs as irq_words};
use netsilo_model::snapshot::host::{IrqState, Snapshot, Writable};
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::{Advice, Plan, Refusal, RefusalCause};
use crate::plan::free_vectors::FreeVectors;
use crate::plan::goal::Goal;
use crate::plan::irq_changes::{accept, observed_refusal};
use crate::plan::owners::{ban, unless_owned};
use crate::plan::refused::refusals;

/// Plans that nothing that netsilo can move interrupts these CPUs.
pub fn isolate(analysis: &Analysis<'_>, isolated: &CpuSet, even_if_owned: bool) -> Plan {
    let scope = match Scope::new(analysis, isolated) {
        Ok(scope) => scope,
        Err(refusal) => return Plan { refusals: vec![refusal], ..Plan::default() },
    };
    let after = analysis.after();
    let goal = Goal { even_if_owned, ..Goal::default() };
    let unless_owned = |mut part: Plan| {
        let changes = std::mem::take(&mut part.changes);
        part.and(unless_owned(&after.knob_owners, &goal, changes))
    };
    // An irqbalance could put any of these on the CPUs.
    let movable = after.irqs.iter().filter(|(_, state)| state.writable == Writable::Yes);
    let movable = movable.map(|(irq, _)| *irq).collect();
    let mut irqs = scope.emptied::<knobs::IrqAffinity>();
    let moved = std::mem::take(&mut irqs.changes);
    let mut accepted = accept(after, &goal, moved, &movable);
    // Where none is on these CPUs now, an irqbalance may still put one there.
    if accepted.changes.is_empty() && accepted.refusals.is_empty() {
        for owner in &after.knob_owners {
            match ban(owner, &movable) {
                Some(Ok(change)) => accepted.changes.push(change),
                Some(Err(why)) => accepted.leave(&owner.name, &why.to_string()),
                None => {}
            }
        }
    }
    let plan = irqs
        .and(accepted)
        .and(scope.emptied::<knobs::DefaultSmpAffinity>())
        .and(unless_owned(scope.emptied::<knobs::RpsCpus>()))
        .and(scope.emptied::<knobs::RpsDefaultMask>())
        .and(unless_owned(scope.xps()))
        .and(scope.emptied::<knobs::NapiThread>())
        .and(scope.fixed());
    let changes = ordered(plan.changes);
    Plan { changes, advice: scope.advice(), even_if_owned, ..plan }
}

/// What keeps the threads of others off these CPUs.
pub(crate) fn threads_off(isolated: &CpuSet) -> String {
    format!(
        "a cpuset partition (cpuset.cpus={isolated}, then cpuset.cpus.partition=isolated), tuned's \
         cpu-partitioning, or isolcpus={isolated} at boot"
    )
}

/// What stops the tick of these CPUs, and moves their RCU callbacks.
pub(crate) fn tick_off(isolated: &CpuSet) -> String {
    format!("nohz_full={isolated} at boot, which includes rcu_nocbs={isolated}")
}

/// What keeps managed interrupts off these CPUs.
pub(crate) fn managed_off(isolated: &CpuSet) -> String {
    format!(
        "isolcpus=managed_irq,{isolated} at boot, if its queue has other cpus too; else only \
         requests of its own cpus raise it"
    )
}

/// Of an interrupt that the kernel delivers elsewhere than its affinity says.
pub(crate) const STILL_HERE: &str = "its affinity leaves these cpus, and the kernel still delivers \
    it there: until its next interrupt, or because no other cpu has a free vector";

/// The CPUs to empty, and those that take what leaves them.
struct Scope<'a> {
    analysis: &'a Analysis<'a>,
    after: &'a Snapshot,
    isolated: &'a CpuSet,
    /// Online CPUs that may keep what they have.
    open: CpuSet,
    /// Those of them that may get more.
    takers: CpuSet,
}

impl<'a> Scope<'a> {
    fn new(analysis: &'a Analysis<'_>, isolated: &'a CpuSet) -> Result<Self, Refusal> {
        let after = analysis.after();
        let topology = &after.topology;
        let online = &topology.online;
        let refuse = |cause, reason| Err(Refusal::new(&cpus(isolated), cause, reason));
        if !isolated.intersects(online) {
            return refuse(RefusalCause::OfflineCpu, format!("not online; online are {online}"));
        }
        let others = online.minus(isolated);
        let open = others.minus(&topology.isolated_or_tickless());
        if others.is_empty() {
            let reason = "these are all online cpus: leave at least one for interrupts";
            return refuse(RefusalCause::EmptyMask, reason.to_owned());
        }
        if open.is_empty() {
            let reason = format!("the others, cpus {others}, are all isolated or tickless");
            return refuse(RefusalCause::EmptyMask, reason);
        }
        let free = topology.housekeeping().minus(isolated);
        let takers = if free.is_empty() { open.clone() } else { free };
        Ok(Self { analysis, after, isolated, open, takers })
    }

    /// The changes of all knobs of a type, as far as they can be made.
    fn emptied<K: Knob<Value = CpuSet> + Into<Target>>(&self) -> Plan {
        let mut part = Plan::default();
        let mut vectors = FreeVectors::of(self.after);
        for knob in K::all_in(self.after) {
            let Some(old) = knob.value_in(self.after) else { continue };
            let target: Target = knob.clone().into();
            let irq = target.irq();
            if irq.is_some_and(|irq| observed_refusal(self.analysis, irq).is_some()) {
                continue;
            }
            let of_irq = irq.and_then(|irq| self.after.irqs.get(&irq)?.node);
            let netdev = || self.after.netdevs.identified(target.netdev()?)?.node;
            let Some((new, reason)) = self.without(&old, of_irq.or_else(netdev)) else { continue };
            let change = Change::new(knob, old, new, reason);
            let refused = refusals(self.after, &mut vectors, &change, &target.to_string());
            part.changes.extend(refused.is_empty().then_some(change));
            part.refuse_all(refused);
        }
        part
    }

    /// The CPUs of a mask without those to empty, with the reason. If none is left: those that are
    /// nearest to the device. `None` if the mask stays.
    fn without(&self, old: &CpuSet, node: Option<NodeId>) -> Option<(CpuSet, String)> {
        let reason = format!("leaves {} alone", cpus(self.isolated));
        let kept = old.and(&self.open);
        if !old.intersects(self.isolated) {
            return None;
        }
        if !kept.is_empty() {
            return Some((kept, reason));
        }
        let far = |cpu: CpuId| self.after.topology.distance_from_device(node, cpu);
        let least = self.takers.iter().map(far).min();
        let near = self.takers.iter().filter(|cpu| Some(far(*cpu)) == least).collect();
        Some((near, format!("{reason}; no other cpu was left, so it gets the nearest ones")))
    }

    /// XPS interrupts nobody, but who sends through a queue also sends what others left in it. A
    /// queue that is only for CPUs to empty stays theirs.
    fn xps(&self) -> Plan {
        let mut part = Plan::default();
        let reason = format!(
            "leaves {} alone: who shares a tx queue also sends what others left in it",
            cpus(self.isolated)
        );
        for netdev in &self.after.netdevs {
            let mut own = CpuSet::new();
            for queue in &netdev.tx_queues {
                let Some(old) = queue.xps_cpus.clone().filter(|old| !old.is_empty()) else {
                    continue;
                };
                let new = old.minus(self.isolated);
                if new.is_empty() {
                    own.insert(CpuId(queue.index));
                    continue;
                }
                let netdev = NetdevIdentity::from_netdev(netdev);
                let knob = knobs::XpsCpus { netdev, queue: queue.index };
                part.set(knob, old, new, reason.clone());
            }
            if !own.is_empty() {
                let why = format!("XPS gives it only to {}: it stays theirs", cpus(self.isolated));
                part.leave(&format!("{} tx-{own}", netdev.name), &why);
            }
        }
        part
    }

    /// Whether an interrupt was counted on CPUs to empty.
    fn arrives(&self, irq: Irq) -> bool {
        let rates = self.analysis.rates.irqs.get(&irq);
        let mut on = rates.into_iter().flat_map(|it| &it.per_s);
        on.any(|(cpu, per_s)| *per_s > 0.0 && self.isolated.contains(*cpu))
    }

    /// The interrupts that netsilo cannot move, and masks that were not read.
    fn fixed(&self) -> Plan {
        let mut fixed: BTreeMap<String, Vec<Irq>> = BTreeMap::new();
        for (irq, state) in &self.after.irqs {
            let may_come = |cpus: &CpuSet| cpus.intersects(self.isolated);
            let why = match (&state.requested, observed_refusal(self.analysis, *irq)) {
                (None, _) => "not known: its requested cpus were not read".to_owned(),
                (Some(cpus), Some((cause, _))) if may_come(cpus) => match cause {
                    RefusalCause::ManagedIrq => {
                        format!("the kernel places it: {}", managed_off(self.isolated))
                    }
                    _ => "it is of each cpu, or its controller cannot direct it".to_owned(),
                },
                (Some(cpus), None) if !may_come(cpus) && self.arrives(*irq) => {
                    STILL_HERE.to_owned()
                }
                _ => continue,
            };
            fixed.entry(why).or_default().push(*irq);
        }
        let mut part = Plan::default();
        for (why, irqs) in fixed {
            part.leave(&named(self.after, &irqs), &why);
        }
        if self.after.default_smp_affinity.is_none() {
            part.leave("default_smp_affinity", "not known: it was not read");
        }
        part
    }

    /// What netsilo does not write, and what would.
    fn advice(&self) -> Vec<Advice> {
        let (topology, isolated) = (&self.after.topology, self.isolated);
        let mut advice = Vec::new();
        let mut add = |is_needed: bool, subject: &str, text: String| {
            let row = Advice { subject: subject.to_owned(), text, needs_rfs: false };
            advice.extend(is_needed.then_some(row));
        };
        let apart = topology.isolated.or(&topology.isolated_partitions);
        let threads = format!("others are kept away by {}", threads_off(isolated));
        add(!isolated.is_subset(&apart), "threads", threads);
        add(!isolated.is_subset(&topology.nohz_full), "timers, RCU", tick_off(isolated));
        let workers = format!(
            "netsilo does not read where they may run: {} in \
             /sys/devices/virtual/workqueue/cpumask keeps unbound ones away",
            topology.online.minus(isolated).to_mask(topology.nr_cpu_ids)
        );
        add(true, "workers", workers);
        let rfs = "it is on: packets are processed on the cpus of their readers; netsilo apply \
                   --rfs off ends this";
        let has_rfs = self.after.net.rps_sock_flow_entries.is_some_and(|entries| entries > 0);
        add(has_rfs, "RFS", rfs.to_owned());
        let mut owners = self.after.knob_owners.iter();
        let balances = owners.any(|owner| owner.name.starts_with("irqbalance"));
        let later = format!(
            "IRQBALANCE_BANNED_CPULIST={isolated} in its environment also keeps interrupts away \
             that appear later"
        );
        add(balances, "irqbalance", later);
        let places =
            format!("plan, apply and tune place on these cpus again, unless --exclude {isolated}");
        add(!isolated.is_subset(&topology.isolated_or_tickless()), "netsilo", places);
        advice
    }
}

/// `irqs 40-47 (nvme0q1, nvme0q2 and 6 more)`.
fn named(snapshot: &Snapshot, irqs: &[Irq]) -> String {
    const NAMED: usize = 2;
    let known = irqs.iter().filter_map(|irq| snapshot.irqs.get(irq));
    let names: Vec<String> = known.map(IrqState::devices).collect();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let word = if irqs.len() == 1 { "irq" } else { "irqs" };
    let shown = names[..names.len().min(NAMED)].join(", ");
    format!("{word} {} ({shown}{more})", irq_words(irqs))
}
