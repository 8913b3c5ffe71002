//! Plans which CPUs a consumer may run on, when the operator restricts it: from the observed
//! threads or cgroup to a [`Plan`].

use netsilo_model::change::{Knob, Target, knobs};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::consumer::{Cgroup, Thread};

use crate::plan::contents::{Plan, Refusal, RefusalCause};

/// Restricts threads to these CPUs.
pub fn pin_threads(topology: &Topology, threads: &[Thread], cpus: &CpuSet) -> Plan {
    let mut plan = Plan::default();
    if let Some(refusal) = offline(topology, cpus) {
        return Plan { refusals: vec![refusal], ..plan };
    }
    for thread in threads {
        let Thread { pid, tid, ref comm, start_time, .. } = *thread;
        let knob = knobs::ThreadAffinity { pid, tid, comm: comm.clone(), start_time };
        if thread.fixed_affinity {
            let reason =
                "the kernel binds this thread to its cpus (PF_NO_SETAFFINITY); leave it out".into();
            plan.refusals.push(Refusal {
                subject: knob.name(),
                cause: RefusalCause::NoAffinitySupport,
                reason,
            });
        } else {
            plan = plan.and(pin(knob, &thread.cpus, cpus));
        }
    }
    plan
}

/// Restricts a cgroup to these CPUs.
pub fn pin_cgroup(topology: &Topology, cgroup: &Cgroup, cpus: &CpuSet) -> Plan {
    if let Some(refusal) = offline(topology, cpus) {
        return Plan { refusals: vec![refusal], ..Plan::default() };
    }
    let knob = knobs::CgroupCpuset { path: cgroup.path.clone() };
    let closed = cpus.minus(&cgroup.open);
    if closed.is_empty() {
        return pin(knob, &cgroup.cpus, cpus);
    }
    let reason =
        format!("its parent has cpus {} and not {closed}; choose among these", cgroup.open);
    let refusal = Refusal::new(&knob.name(), RefusalCause::EmptyMask, reason);
    Plan { refusals: vec![refusal], ..Plan::default() }
}

fn pin(knob: impl Knob<Value = CpuSet> + Into<Target>, old: &CpuSet, new: &CpuSet) -> Plan {
    let mut part = Plan::default();
    if old == new {
        part.leave(&knob.name(), "it already has these cpus");
    } else {
        let reason = format!("requested: it runs only on cpus {new}");
        part.set(knob, old.clone(), new.clone(), reason);
    }
    part
}

/// Refuses the whole request if any of its CPUs is offline.
fn offline(topology: &Topology, cpus: &CpuSet) -> Option<Refusal> {
    let offline = cpus.minus(&topology.online);
    let reason = format!("not online; online are {}", topology.online);
    let refusal = || Refusal::new(&format!("cpus {offline}"), RefusalCause::OfflineCpu, reason);
    (!offline.is_empty()).then(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::Value;
    use netsilo_model::synthetic::grid::Grid;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    fn thread(tid: u32, cpus: &str, fixed_affinity: bool) -> Thread {
        Thread {
            pid: 10,
            tid,
            comm: "nginx".into(),
            start_time: 5,
            cpus: set(cpus),
            fixed_affinity,
        }
    }

    fn eight() -> Topology {
        Grid { cores: 8, ..Grid::default() }.topology()
    }

    #[test]
    fn each_thread_that_runs_elsewhere_is_pinned_and_a_bound_one_is_refused() {
        let threads = [thread(10, "0-7", false), thread(11, "2-5", false), thread(12, "0", true)];
        let plan = pin_threads(&eight(), &threads, &set("2-5"));
        let changes: Vec<String> =
            plan.changes.iter().map(|c| format!("{}: {} -> {}", c.target, c.old, c.new)).collect();
        assert_eq!(changes, ["nginx (pid 10): 0-7 -> 2-5"]);
        assert_eq!(plan.unchanged[0].subject, "nginx (thread 11 of pid 10)");
        assert_eq!(
            (plan.refusals[0].subject.as_str(), plan.refusals[0].cause),
            ("nginx (thread 12 of pid 10)", RefusalCause::NoAffinitySupport)
        );
    }

    #[test]
    fn one_offline_cpu_refuses_the_whole_request() {
        let plan = pin_threads(&eight(), &[thread(10, "0-7", false)], &set("7-8"));
        assert!(plan.changes.is_empty());
        assert_eq!(
            (plan.refusals[0].subject.as_str(), plan.refusals[0].cause),
            ("cpus 8", RefusalCause::OfflineCpu)
        );
    }

    #[test]
    fn a_cgroup_cannot_have_cpus_that_its_parent_lacks() {
        let cgroup = |open| Cgroup { path: "/web".into(), cpus: CpuSet::new(), open: set(open) };
        let plan = pin_cgroup(&eight(), &cgroup("0-3"), &set("2-5"));
        assert!(plan.changes.is_empty());
        assert_eq!(
            plan.refusals[0].reason,
            "its parent has cpus 0-3 and not 4-5; choose among these"
        );
        let plan = pin_cgroup(&eight(), &cgroup("0-7"), &set("2-5"));
        assert_eq!(
            (plan.changes[0].target.to_string().as_str(), &plan.changes[0].old),
            ("cgroup /web cpuset.cpus", &Value::Cpus(CpuSet::new()))
        );
    }
}
