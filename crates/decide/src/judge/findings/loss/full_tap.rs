//! Why a tap was full: what its reader does.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::thread_share::ThreadShare;

use crate::judge::findings::id::FindingId;
use crate::judge::verdict::percent;

/// What the reader of this tap does, and what would help; `None` if it is not known.
pub(super) fn advice(analysis: &Analysis<'_>, netdev: &str) -> Option<String> {
    let holders = analysis.after().tap_holders.as_ref()?;
    let holds = |tgid: u32| holders.get(&tgid).is_some_and(|it| it.here.contains(netdev));
    let mut readers = analysis.tap_readers.iter().filter(|it| holds(it.tgid));
    let reader = readers.next().filter(|_| readers.next().is_none())?;
    let who = reader.label();
    if reader.packets_per_s == Some(0.0) {
        return Some(format!("{who} has it open and takes nothing: find out why it does not read"));
    }
    if let Some(waiting) = reader.longest_waiting()
        && let Some(time) = waiting.time.filter(|time| time.waited >= ThreadShare::WAITS)
    {
        return Some(format!(
            "{who} reads it, but its thread {} waits for a cpu {} of the time: see netsilo explain \
             {}",
            waiting.comm,
            percent(time.waited),
            FindingId::TapReaderWaits
        ));
    }
    let times = reader.takers.iter().filter_map(|it| Some((it.time?, &it.comm)));
    let (time, comm) = times.max_by(|a, b| a.0.busy().total_cmp(&b.0.busy()))?;
    Some(if time.busy() >= ThreadShare::ALWAYS_READS {
        format!(
            "{who} reads it all the time ({comm} uses {} of a cpu): give it more queues, each with \
             its own thread (multi_queue of the tap, queues= of the virtual machine's device)",
            percent(time.ran)
        )
    } else if reader.vcpus.is_empty() {
        format!(
            "{who} reads it, and its thread {comm} runs only {} of the time: find what it waits \
             for while it does not read; against bursts, make the queue longer (ip link set \
             {netdev} txqueuelen N)",
            percent(time.ran)
        )
    } else {
        format!(
            "{who} reads it, and its thread {comm} runs only {} of the time: see whether the \
             virtual machine gives buffers (its driver, its own losses); against bursts, make the \
             queue longer (ip link set {netdev} txqueuelen N)",
            percent(time.ran)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::{CpuId, CpuSet};
    use netsilo_model::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};
    use netsilo_model::snapshot::thread_time::ThreadTime;
    use netsilo_model::synthetic::scene::Scene;

    /// The advice for `tap0`, whose reader ran and waited for these shares of the time.
    fn of_reader(ran: f64, waited: f64) -> Option<String> {
        let mut host = Scene::default().observation();
        let elapsed = (host.after.at - host.before.at).as_secs_f64() * 1e9;
        let holder = |share: f64| {
            let time = |of: f64| (of * share * elapsed) as u64;
            let thread = TapThread {
                comm: "pasta".into(),
                role: TapThreadRole::Other,
                kthread: false,
                start_time: 5,
                time: ThreadTime { run_ns: time(ran), wait_ns: time(waited), runs: share as u64 },
                cpu: CpuId(1),
                cpus: CpuSet::first(2),
            };
            let here = ["tap0".to_owned()].into();
            let threads = [(812, thread)].into();
            TapHolder { comm: "pasta".into(), here, threads, ..TapHolder::default() }
        };
        host.before.tap_holders = Some([(812, holder(0.0))].into());
        host.after.tap_holders = Some([(812, holder(1.0))].into());
        let costs = Costs::default();
        let analysis = Analysis::new(&host, &costs);
        assert_eq!(advice(&analysis, "tap1"), None);
        advice(&analysis, "tap0")
    }

    #[test]
    fn what_helps_depends_on_what_the_reader_does() {
        let of = |ran, waited| of_reader(ran, waited).unwrap();
        assert!(of(0.3, 0.3).contains("pasta (pid 812) reads it, but its thread pasta waits"));
        assert!(of(0.95, 0.05).contains("reads it all the time (pasta uses 95% of a cpu)"));
        assert!(of(0.3, 0.01).contains("runs only 30% of the time: find what it waits for"));
    }
}
