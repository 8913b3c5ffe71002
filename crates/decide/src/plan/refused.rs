//! What planning refuses, asked of changes that planning did not make for the machine as it is now:
//! those of a file, of a resumed run, of a measured outcome, of a finding's remedy.
//!
//! Planning refuses by the same functions: of a plan just made, nothing is refused (a property in
//! `plan/tests.rs`).

use netsilo_model::change::{Change, Steer, Target, Value};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{NetdevIdentity, RxQueue};

use crate::plan::contents::{Plan, Refusal, RefusalCause};
use crate::plan::free_vectors::FreeVectors;
use crate::plan::{by_value, flow_rules, irq_changes, selection};

impl Plan {
    /// What planning would refuse of these changes on this machine: work on CPUs that take none,
    /// interrupts that cannot be moved, knobs that another program owns.
    pub fn refused_on(&self, snapshot: &Snapshot) -> Vec<Refusal> {
        let mut refused = Plan::default();
        let mut vectors = FreeVectors::of(snapshot);
        for (at, change) in self.changes.iter().enumerate() {
            let subject = change.target.to_string();
            match self.changes[..at].iter().find(|other| other.target == change.target) {
                Some(other) => {
                    let reason =
                        format!("the plan sets it to {}, and again to {}", other.new, change.new);
                    refused.refuse(&subject, RefusalCause::Contradicted, reason);
                }
                None => refused.refuse_all(refusals(snapshot, &mut vectors, change, &subject)),
            }
        }
        for owner in self.knob_owners(&snapshot.knob_owners) {
            let todo = match &owner.bans {
                Some(_) => "make a new plan, which adds them to its ban list".to_owned(),
                None => format!("stop {}", owner.name),
            };
            let reason = format!(
                "it is running and writes these settings too: {todo}, or override with \
                 --even-if-owned"
            );
            let subject = format!("{} (pid {})", owner.name, owner.pid);
            refused.refuse(&subject, RefusalCause::OtherOwner, reason);
        }
        refused.refusals
    }
}

/// What planning would refuse of one change.
pub(super) fn refusals(
    snapshot: &Snapshot,
    vectors: &mut FreeVectors,
    change: &Change,
    subject: &str,
) -> Vec<Refusal> {
    let topology = &snapshot.topology;
    match (&change.target, &change.new) {
        (Target::IrqAffinity(knob), Value::Cpus(cpus)) => {
            if let Some((cause, reason)) = irq_changes::refusal(snapshot, knob.irq) {
                return vec![Refusal::new(subject, cause, reason)];
            }
            let is_announced = |rx: &&RxQueue| rx.irq.as_ref().is_some_and(|it| it.to == knob.irq);
            let mut queues = snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
            let holder = queues.find(is_announced).and_then(|rx| rx.leased.as_deref());
            let unusable = selection::unusable(topology, subject, cpus);
            let none_left = unusable.is_empty() && !vectors.take_for(snapshot, knob.irq, cpus);
            let full = none_left.then(|| {
                let reason =
                    format!("{} without a free interrupt vector", selection::cpus_are(cpus));
                Refusal::new(subject, RefusalCause::NoFreeVector, reason)
            });
            selection::leased(holder, subject).into_iter().chain(unusable).chain(full).collect()
        }
        (Target::NapiThread(_) | Target::DefaultSmpAffinity(_), Value::Cpus(cpus)) => {
            selection::unusable(topology, subject, cpus)
        }
        (Target::RpsCpus(knob), Value::Cpus(cpus)) => {
            let holder = holder(snapshot, &knob.netdev, knob.queue);
            let leased = selection::leased(holder, subject).into_iter();
            leased.chain(selection::closed(topology, subject, cpus)).collect()
        }
        (Target::RpsDefaultMask(_), Value::Cpus(cpus)) => {
            selection::closed(topology, subject, cpus)
        }
        (Target::RpsFlowCnt(knob), _) => {
            let holder = holder(snapshot, &knob.netdev, knob.queue);
            selection::leased(holder, subject).into_iter().collect()
        }
        (Target::RpsSockFlowEntries(_), Value::Count(entries)) => {
            by_value::table_too_large(*entries).into_iter().collect()
        }
        // The operator may run consumers on isolated CPUs.
        (Target::ThreadAffinity(_) | Target::CgroupCpuset(_), Value::Cpus(cpus)) => {
            selection::offline(topology, subject, cpus).into_iter().collect()
        }
        (Target::NtupleRule(knob), Value::Switch(true)) => {
            let queues = match &knob.rule.to {
                Steer::Queue(queue) => CpuSet::from_cpu(CpuId(*queue)),
                Steer::Queues(queues) => queues.clone(),
            };
            let netdev = snapshot.netdevs.identified(&knob.netdev);
            let refusal = |it| flow_rules::cannot_steer(it, &queues, subject);
            netdev.and_then(refusal).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The holder of an rx queue.
fn holder<'a>(snapshot: &'a Snapshot, netdev: &NetdevIdentity, queue: u32) -> Option<&'a str> {
    let mut queues = snapshot.netdevs.identified(netdev)?.rx_queues.iter();
    queues.find(|rx| rx.index == queue)?.leased.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::{FlowRule, knobs};
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::ethtool::FlowType;
    use netsilo_model::snapshot::host::{IrqState, KnobOwner, OwnedKnob, Writable};
    use netsilo_model::snapshot::netdev::{Association, AssociationSource, Confidence, Netdev};
    use netsilo_model::synthetic::grid::Grid;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    /// Six CPUs, of which 3 is isolated at boot, 4 by a partition, and 5 offline; eth0 with two
    /// queues, the second one of a lease.
    fn host() -> Snapshot {
        let mut topology = Grid { cores: 6, ..Grid::default() }.topology();
        topology.isolated = set("3");
        topology.isolated_partitions = set("4");
        topology.online = set("0-4");
        let irq = |writable| IrqState {
            actions: vec!["eth0".into()],
            effective: Some(set("0")),
            requested: Some(set("0")),
            writable,
            ..IrqState::default()
        };
        let irqs = [
            (Irq(30), irq(Writable::Yes)),
            (Irq(31), irq(Writable::Yes)),
            (Irq(32), irq(Writable::Managed)),
            (Irq(33), irq(Writable::Unsupported)),
        ];
        let queue = |index: u32, leased: Option<&str>| RxQueue {
            index,
            irq: Some(Association {
                to: Irq(30 + index),
                source: AssociationSource::Observed,
                confidence: Confidence::Certain,
            }),
            rps_cpus: Some(CpuSet::new()),
            rps_flow_cnt: Some(0),
            leased: leased.map(Into::into),
            ..RxQueue::default()
        };
        let rx_queues = vec![queue(0, None), queue(1, Some("AF_XDP"))];
        let netdev = Netdev { name: "eth0".into(), rx_queues, ..Netdev::default() };
        let owner = KnobOwner {
            name: "tuner".into(),
            pid: 9,
            writes: vec![OwnedKnob::Sysctls],
            bans: None,
        };
        let mut host = Snapshot {
            topology: topology.into(),
            irqs: irqs.into(),
            netdevs: vec![netdev].into(),
            knob_owners: vec![owner],
            ..Snapshot::default()
        };
        host.machine.architecture = Some("x86_64".into());
        host.other_vectors.insert(CpuId(2), 200);
        host
    }

    fn netdev() -> NetdevIdentity {
        NetdevIdentity::from_netdev(&host().netdevs[0])
    }

    fn irq(irq: u32, cpus: &str) -> Change {
        let knob = knobs::IrqAffinity { irq: Irq(irq), action: "eth0".into(), netdev: None };
        Change::new(knob, set("0"), set(cpus), "")
    }

    fn rps(queue: u32, cpus: &str) -> Change {
        let knob = knobs::RpsCpus { netdev: netdev(), queue };
        Change::new(knob, CpuSet::new(), set(cpus), "")
    }

    fn refused(changes: Vec<Change>) -> Vec<RefusalCause> {
        let plan = Plan { changes, ..Plan::default() };
        plan.refused_on(&host()).into_iter().map(|it| it.cause).collect()
    }

    #[test]
    fn each_reason_of_planning_refuses_a_change_of_a_file() {
        use RefusalCause::*;
        let (none, mut every) = (
            CpuSet::new,
            vec![
                (irq(30, "3"), vec![IsolatedCpu]),
                (irq(30, "0-1,4"), vec![IsolatedCpu]),
                (irq(30, "5"), vec![OfflineCpu]),
                (irq(30, ""), vec![EmptyMask]),
                (irq(30, "2"), vec![NoFreeVector]),
                (irq(31, "1"), vec![LeasedQueue]),
                (irq(32, "1"), vec![ManagedIrq]),
                (irq(33, "1"), vec![NoAffinitySupport]),
                (rps(0, "0,4"), vec![IsolatedCpu]),
                (rps(0, "5"), vec![OfflineCpu]),
                (rps(1, "0"), vec![LeasedQueue]),
            ],
        );
        let rule = FlowRule::to_port(FlowType::Tcp4, 443, Steer::Queue(0));
        let rule = knobs::NtupleRule { netdev: netdev(), rule };
        let thread = || knobs::NapiThread { pid: 7, comm: "napi/eth0-1".into(), start_time: 1 };
        let sysctl = knobs::Sysctl { name: "net.core.rmem_max".into() };
        every.extend([
            (Change::new(thread(), set("0"), set("4"), ""), vec![IsolatedCpu]),
            (Change::new(knobs::DefaultSmpAffinity, set("0"), set("3"), ""), vec![IsolatedCpu]),
            (Change::new(knobs::RpsDefaultMask, none(), set("3"), ""), vec![IsolatedCpu]),
            (Change::new(knobs::RpsSockFlowEntries, 0, u32::MAX, ""), vec![OutOfRange]),
            (
                Change::new(knobs::RpsFlowCnt { netdev: netdev(), queue: 1 }, 0, 64, ""),
                vec![LeasedQueue],
            ),
            (Change::new(rule, false, true, ""), vec![NoSuchKnob]),
            (Change::untyped(sysctl.into(), words("1"), words("2"), "").unwrap(), vec![OtherOwner]),
        ]);
        for (change, causes) in every {
            let what = format!("{} -> {}", change.target, change.new);
            assert_eq!(refused(vec![change]), causes, "{what}");
        }
        assert_eq!(refused(vec![irq(30, "0"), irq(30, "1")]), [Contradicted]);
    }

    fn words(text: &str) -> Value {
        Value::Words(netsilo_model::change::Words::new(text))
    }

    #[test]
    fn what_planning_would_do_is_not_refused() {
        let pin = knobs::CgroupCpuset { path: "/rt".into() };
        let changes = vec![
            irq(30, "1"),
            rps(0, "0-2"),
            Change::new(knobs::RpsSockFlowEntries, 0, 32_768, ""),
            Change::new(pin, set("0"), set("3-4"), ""),
        ];
        assert_eq!(refused(changes), []);
    }

    #[test]
    fn an_interrupt_may_stay_on_a_cpu_without_a_free_vector() {
        let mut host = host();
        host.irqs.get_mut(&Irq(30)).unwrap().effective = Some(set("2"));
        let plan = Plan { changes: vec![irq(30, "2")], ..Plan::default() };
        assert_eq!(plan.refused_on(&host), []);
    }
}
