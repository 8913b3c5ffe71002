//! Findings on readers of taps: virtual machines, and programs that take packets themselves.

use netsilo_model::change::{Change, Value, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::tap_readers::{TapReader, TapThreadLine};
use netsilo_model::derive::thread_share::ThreadShare;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::sockets::Holder;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::setting;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::percent;

/// A CPU with so much idle time has room for a thread that takes packets.
const IDLE: f64 = 0.5;

/// Maximum number of threads that the evidence names.
const NAMED: usize = 4;

/// One finding for each reader whose thread waits for a CPU.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut findings = Vec::new();
    for reader in &analysis.tap_readers {
        let of_reader = waits(analysis, reader, &findings);
        findings.extend(of_reader);
    }
    findings
}

/// `before`: the findings on other readers, whose threads may get the same CPUs.
fn waits(analysis: &Analysis<'_>, reader: &TapReader, before: &[Finding]) -> Option<Finding> {
    let thread = reader.longest_waiting().filter(|_| reader.packets_per_s != Some(0.0))?;
    let time = thread.time.filter(|time| time.waited >= ThreadShare::WAITS)?;
    let source = "/proc/PID/task/TID/schedstat";
    let mut evidence = vec![
        Evidence::new(
            format!("{} waits for a cpu", thread.comm),
            Measure::Share(time.waited),
            source,
        ),
        Evidence::new("it runs", Measure::Share(time.ran), source),
        setting("it may run on cpus", thread.cpus.to_string(), "/proc/PID/task/TID/status"),
    ];
    let others = beside(&analysis.tap_readers, thread);
    if !others.is_empty() {
        let what = format!("also on cpu {}", thread.cpu);
        evidence.push(setting(what, others.join(", "), "/proc/PID/task/TID/stat"));
    }
    if let Some(rate) = reader.bytes_per_s {
        let rate = Measure::BytesPerSecond(rate);
        evidence.push(Evidence::new("it takes", rate, "tp_btf/skb_copy_datagram_iovec"));
    }
    Some(Finding {
        id: FindingId::TapReaderWaits,
        severity: Severity::Warning,
        subject: Subject::Taps(Holder { tgid: reader.tgid, comm: reader.comm.clone() }),
        title: format!(
            "{}the thread that takes its packets ({}) waits for a cpu {} of the time",
            reader.guest.as_ref().map_or_else(String::new, |guest| format!("{guest}: ")),
            thread.comm,
            percent(time.waited)
        ),
        evidence,
        remedies: vec![remedy(analysis, reader, thread, before)],
    })
}

/// The other threads of readers that ran last on the CPU of this one, those that ran most first.
fn beside(all: &[TapReader], thread: &TapThreadLine) -> Vec<String> {
    let ran = |it: &TapThreadLine| it.time.map_or(0.0, |time| time.ran);
    let threads = |of: &'_ TapReader| -> Vec<(f64, String)> {
        let threads = of.takers.iter().chain(&of.vcpus);
        let others = threads.filter(|it| it.cpu == thread.cpu && it.tid != thread.tid);
        others.map(|it| (ran(it), format!("{} of {}", it.comm, of.label()))).collect()
    };
    let mut others: Vec<_> = all.iter().flat_map(threads).filter(|(ran, _)| *ran > 0.01).collect();
    others.sort_by(|a, b| b.0.total_cmp(&a.0));
    let more = others.len().saturating_sub(NAMED);
    let named =
        others.into_iter().take(NAMED).map(|(ran, name)| format!("{name} {}", percent(ran)));
    named.chain((more > 0).then(|| format!("{more} more"))).collect()
}

fn remedy(
    analysis: &Analysis<'_>,
    reader: &TapReader,
    thread: &TapThreadLine,
    before: &[Finding],
) -> Remedy {
    let waited = thread.time.map_or(0.0, |time| time.waited);
    let gain = Gain::AtMost {
        measure: Measure::Share(waited),
        of: format!("the time of {}", thread.comm),
        basis: "all of its waiting".into(),
    };
    let room = room(analysis, reader, thread);
    if room.is_empty() {
        let what = "give it a cpu with idle time: none of this host's other cpus has enough, or it \
                    may run there already (then see the cpu quota of its cgroup)";
        return Remedy::new(what, gain);
    }
    let changes = before.iter().flat_map(|it| &it.remedies).flat_map(|it| &it.changes);
    let moved_there = changes.filter(|it| it.new == Value::Cpus(room.clone())).count();
    if moved_there >= room.len() {
        let what = format!("see whether it still waits when the others run on cpus {room}");
        return Remedy::new(what, gain);
    }
    let knob = knobs::ThreadAffinity {
        pid: thread.tgid,
        tid: thread.tid,
        comm: thread.comm.clone(),
        start_time: thread.start_time,
    };
    let reason = format!("it waits for a cpu {} of the time", percent(waited));
    let change = Change::new(knob, thread.cpus.clone(), room.clone(), reason);
    let near = match reader.sent_on {
        Some(cpu) => format!(", near cpu {cpu}, which sends its packets"),
        None => String::new(),
    };
    let what = format!("let {} run where there is idle time: cpus {room}{near}", thread.comm);
    Remedy::new(what, gain)
        .not_when(
            "the virtual machine's configuration pins this thread (libvirt: emulatorpin): change \
             it there, too",
        )
        .by(vec![change])
}

/// The CPUs with idle time that are nearest to where the packets come from (in its cache, then on
/// its node). None of them is one to which a CPU of a virtual machine is pinned, or that polls a
/// queue. Empty if the thread may run on a CPU with idle time already.
fn room(analysis: &Analysis<'_>, reader: &TapReader, thread: &TapThreadLine) -> CpuSet {
    let snapshot = analysis.after();
    let topology = &snapshot.topology;
    let idle = |cpu: &CpuId| {
        let shares = analysis.rates.cpus.get(cpu).and_then(|rates| rates.shares);
        shares.is_some_and(|it| it.idle >= IDLE)
    };
    if thread.cpus.iter().any(|cpu| idle(&cpu)) {
        return CpuSet::new();
    }
    let readers = analysis.tap_readers.iter();
    let pinned = readers.flat_map(|it| &it.vcpus).filter(|it| it.cpus.len() == 1);
    let pinned = pinned.map(|it| it.cpus.clone());
    let polling = analysis.silos.queues.iter().filter(|it| it.has_traffic());
    let polling = polling.map(|it| it.polling_cpus());
    let taken = pinned.chain(polling).fold(CpuSet::new(), |all, it| all.or(&it));
    let free = topology.housekeeping().minus(&taken);
    let free: Vec<CpuId> = free.iter().filter(idle).collect();
    let from = reader.sent_on.unwrap_or(thread.cpu);
    // A busy core, or the CPU that sends the packets, only if there is no other.
    let has_core =
        |cpu: &CpuId| *cpu != from && topology.core_of(*cpu).iter().all(|sibling| idle(&sibling));
    let distance = |cpu: &CpuId| topology.distance(from, *cpu).max(Distance::Llc);
    let nearest = |of: Vec<CpuId>| -> CpuSet {
        let nearest = of.iter().map(distance).min();
        of.into_iter().filter(|cpu| Some(distance(cpu)) == nearest).collect()
    };
    let cores = nearest(free.iter().copied().filter(has_core).collect());
    if cores.is_empty() { nearest(free) } else { cores }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};
    use netsilo_model::snapshot::thread_time::ThreadTime;
    use netsilo_model::synthetic::scene::Scene;

    use crate::judge::findings::check::check;

    /// Two virtual machines of eight CPUs in two caches, whose workers may run on CPU 1 only.
    fn host(waited: f64, cpus: &str) -> Observation {
        let scene = r#"{ "grid": { "llcs": 2, "l2s": 4 }, "busy": [{ "cpus": "1", "usr": 0.95 }], "netdevs": [
            { "name": "eth0", "driver": "igb", "queues": [
                { "irq": 41, "cpus": "0", "packets_per_s": 9000, "load": 0.1 }] }] }"#;
        let mut host: Observation = serde_json::from_str::<Scene>(scene).unwrap().observation();
        let elapsed = (host.after.at - host.before.at).as_secs_f64();
        let holder = |guest: &str, tgid: u32, share: f64| {
            let time = |share: f64| (share * elapsed * 1e9) as u64;
            let worker = TapThread {
                comm: format!("vhost-{tgid}"),
                role: TapThreadRole::Vhost,
                kthread: true,
                start_time: 5,
                time: ThreadTime {
                    run_ns: time(share),
                    wait_ns: time(share * waited * 2.0),
                    runs: 1,
                },
                cpu: CpuId(1),
                cpus: CpuSet::parse_list(cpus).unwrap(),
            };
            let vcpu = TapThread {
                comm: "CPU 0/KVM".into(),
                role: TapThreadRole::Vcpu(0),
                cpu: CpuId(2),
                cpus: CpuSet::parse_list("2").unwrap(),
                ..worker.clone()
            };
            let threads = [(tgid + 1, vcpu), (tgid + 2, worker)].into();
            let netdevs = [format!("vnet{tgid}")].into();
            let (comm, guest, here) = ("qemu".into(), Some(guest.into()), BTreeSet::new());
            (tgid, TapHolder { comm, guest, netdevs, here, threads })
        };
        let holders = |share| Some([holder("web1", 800, share), holder("web2", 900, share)].into());
        host.before.tap_holders = holders(0.0);
        host.after.tap_holders = holders(0.5);
        host
    }

    fn findings(host: &Observation) -> Vec<Finding> {
        let check = check(&Analysis::new(host, &Costs::default()));
        let of = |it: &Finding| it.id == FindingId::TapReaderWaits;
        check.findings.into_iter().filter(of).collect()
    }

    #[test]
    fn two_workers_on_one_cpu_wait_for_each_other_and_one_moves_beside_its_machine() {
        let all = findings(&host(0.4, "1"));
        let [first, second] = &all[..] else { panic!("{all:#?}") };
        assert_eq!(
            first.title,
            "web1: the thread that takes its packets (vhost-800) waits for a cpu 40% of the time"
        );
        let text = |finding: &Finding| serde_json::to_string(&finding.evidence).unwrap();
        assert!(text(first).contains("vhost-900 of web2 (qemu, pid 900) 50%"), "{}", text(first));
        let change = &first.remedies[0].changes[0];
        // CPU 0 polls, 1 is full, the machine's own CPU is 2.
        assert_eq!(
            (change.target.to_string().as_str(), change.new.to_string().as_str()),
            ("vhost-800 (pid 802)", "3")
        );
        assert_eq!(second.subject.to_string(), "taps of qemu (pid 900)");
        assert_eq!(second.remedies[0].changes, [], "it stays, and has the cpu for itself");
    }

    #[test]
    fn a_worker_that_seldom_waits_or_has_an_idle_cpu_is_not_moved() {
        assert_eq!(findings(&host(0.19, "1")), []);
        let all = findings(&host(0.4, "1,3"));
        assert!(all.iter().all(|it| it.remedies[0].changes.is_empty()), "{all:#?}");
    }
}
