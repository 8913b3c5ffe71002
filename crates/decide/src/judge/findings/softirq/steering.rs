//! Findings on RPS that steers packets to the polling CPU, and on RFS with one table missing.

use netsilo_model::change::{Change, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::{Silo, heaviest};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::relief::{room, steer};
use crate::judge::findings::softirq::affinity::OFTEN_PER_S;

pub(super) fn find(judged: &Judged<'_>, load: &[CpuWork<'_>]) -> Vec<Finding> {
    let analysis = judged.analysis;
    let widened = |finding: Finding, silo: &Silo| {
        let target = silo.rps_cpus.as_ref().and_then(CpuSet::single);
        let full = load.iter().find(|it| Some(it.cpu) == target && it.is_full());
        let idle = |it: &CpuWork<'_>| room(&analysis.after().topology, load, it.cpu);
        let wider = full.and_then(|it| steer(judged, &[silo], &idle(it)));
        let remedies = wider.into_iter().chain(finding.remedies).collect();
        Finding { remedies, ..finding }
    };
    let found = |silo: &Silo| Some(widened(to_itself(silo)?, silo));
    let mut findings: Vec<Finding> = analysis.silos.queues.iter().filter_map(found).collect();
    findings.extend(half_on(analysis));
    findings
}

/// RPS whose only target is the polling CPU. Packets pass through the backlog without relief.
fn to_itself(silo: &Silo) -> Option<Finding> {
    let target = silo.rps_cpus.as_ref()?.single()?;
    let work = work_on_only(silo, target)?;
    let netdev: NetdevIdentity = silo.netdev.clone();
    let queue = silo.queue?;
    let (old, new) = (CpuSet::from_cpu(target), CpuSet::new());
    let reason =
        format!("{} is polled on cpu {target}, which is also its only RPS target", silo.label());
    Some(Finding {
        id: FindingId::RpsToItself,
        severity: Severity::Warning,
        subject: silo.subject(),
        title: format!("RPS steers all packets to cpu {target}, which already polls them"),
        evidence: vec![
            Evidence::new(
                "rps_cpus",
                Measure::Text(target.to_string()),
                format!("queues/rx-{queue}/rps_cpus"),
            ),
            work.evidence(target),
        ],
        remedies: vec![Remedy {
            what: "switch RPS off for this queue".into(),
            gain: work.gain(),
            cost: None,
            not_when: Some(
                "its interrupt will move to another cpu, and RPS should keep protocol work here"
                    .into(),
            ),
            changes: vec![Change::new(knobs::RpsCpus { netdev, queue }, old, new, reason)],
            interrupts_traffic: false,
        }],
    })
}

/// The evidence that a queue is polled.
enum Work {
    /// Packets per second polled by its NAPI.
    Polled(f64),
    /// Interrupts per second, if it is not known which NAPI polls the queue. On some drivers and
    /// kernels, only data that a socket reads shows the NAPI.
    Interrupted(f64),
}

/// From this share on, all else is a few stray packets.
const NEARLY_ALL: f64 = 0.95;

/// The work of a queue that is polled, nearly always, on this CPU.
fn work_on_only(silo: &Silo, cpu: CpuId) -> Option<Work> {
    let only = |rates: Vec<(CpuId, f64)>| {
        let all: f64 = rates.iter().map(|(_, rate)| rate).sum();
        let (_, rate) = rates.into_iter().find(|(at, _)| *at == cpu)?;
        (rate > 0.0 && rate >= NEARLY_ALL * all).then_some(rate)
    };
    if silo.packets_per_s.is_some() || silo.kthread.is_some() || silo.only_wakes {
        let polls = silo.polls.iter().map(|(cpu, rate)| (*cpu, rate.packets_per_s));
        return only(polls.collect()).map(Work::Polled);
    }
    let interrupts = silo.interrupts_per_s.iter().flatten().map(|(cpu, rate)| (*cpu, *rate));
    only(interrupts.collect()).filter(|rate| *rate >= OFTEN_PER_S).map(Work::Interrupted)
}

impl Work {
    fn evidence(&self, cpu: CpuId) -> Evidence {
        match *self {
            Self::Polled(packets) => Evidence::new(
                format!("packets polled on cpu {cpu}"),
                Measure::PerSecond(packets),
                "tp_btf/napi_poll",
            ),
            Self::Interrupted(rate) => Evidence::new(
                format!("interrupts of the queue on cpu {cpu}"),
                Measure::PerSecond(rate),
                "/proc/interrupts",
            ),
        }
    }

    fn gain(&self) -> Gain {
        match *self {
            Self::Polled(packets) => Gain::AtMost {
                measure: Measure::PerSecond(packets),
                of: "packets that pass through the backlog without benefit".into(),
                basis: "each packet is queued and dequeued on the same cpu".into(),
            },
            Self::Interrupted(_) => {
                Gain::Unknown("it is not known which NAPI polls the queue".into())
            }
        }
    }
}

/// RFS needs a global flow table and one table per queue; one of the two is missing.
fn half_on(analysis: &Analysis<'_>) -> Option<Finding> {
    let entries = analysis.observation.after.net.rps_sock_flow_entries?;
    let with: Vec<&Silo> = analysis
        .silos
        .queues
        .iter()
        .filter(|silo| silo.rps_flow_cnt.is_some_and(|count| count > 0))
        .collect();
    let (half, source) = match (entries, with.is_empty()) {
        (0, false) => (
            "queues have flow tables, but the global flow table is off: RFS has no effect",
            "rps_sock_flow_entries",
        ),
        (1.., true) if analysis.silos.queues.iter().any(|silo| silo.rps_flow_cnt.is_some()) => (
            "the global flow table is on, but no queue has a flow table: RFS has no effect, and \
             sockets update the global table in vain",
            "rps_flow_cnt",
        ),
        _ => return None,
    };
    let busiest = heaviest(
        analysis
            .silos
            .queues
            .iter()
            .enumerate()
            .map(|(at, silo)| (at, silo.packets_per_s.unwrap_or(0.0))),
    );
    let counts = with.iter().filter_map(|silo| silo.rps_flow_cnt).map(u64::from).sum::<u64>();
    let mut evidence = vec![
        Evidence::new(
            "entries of the global flow table",
            Measure::Count(entries.into()),
            "net.core.rps_sock_flow_entries",
        ),
        Evidence::new(
            "entries of all queues' flow tables",
            Measure::Count(counts),
            "queues/rx-*/rps_flow_cnt",
        ),
    ];
    let busiest = busiest.and_then(|at| analysis.silos.queues.get(at));
    evidence.extend(busiest.and_then(|silo| {
        Some(Evidence::new(
            format!("packets of {}", silo.label()),
            Measure::PerSecond(silo.packets_per_s?),
            "tp_btf/napi_poll",
        ))
    }));
    let changes = if entries == 0 { queues_off(&with) } else { vec![global_off(entries)] };
    Some(Finding {
        id: FindingId::RfsHalfOn,
        severity: Severity::Info,
        subject: Subject::Machine,
        title: half.into(),
        evidence,
        remedies: vec![Remedy {
            what: "clear both tables; or set both, to use RFS".into(),
            gain: Gain::Unknown(format!(
                "the gain of RFS depends on where flows are read; {source} is the missing table"
            )),
            cost: None,
            not_when: Some("the readers do not move, and interrupts are placed near them".into()),
            changes,
            interrupts_traffic: false,
        }],
    })
}

fn global_off(entries: u32) -> Change {
    let reason = "no queue has a flow table: RFS has no effect";
    Change::new(knobs::RpsSockFlowEntries, entries, 0, reason)
}

fn queues_off(silos: &[&Silo]) -> Vec<Change> {
    let change = |silo: &&Silo| {
        let knob = knobs::RpsFlowCnt { netdev: silo.netdev.clone(), queue: silo.queue? };
        let reason = "the global flow table is off: RFS has no effect";
        Some(Change::new(knob, silo.rps_flow_cnt?, 0, reason))
    };
    silos.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::silo::PollRate;

    use super::*;

    /// A queue with RPS to CPU 5. Its interrupts arrive there at this rate.
    fn queue(interrupts_per_s: f64) -> Silo {
        Silo {
            queue: Some(3),
            rps_cpus: Some(CpuSet::from_cpu(CpuId(5))),
            interrupts_per_s: Some([(CpuId(5), interrupts_per_s)].into()),
            ..Silo::default()
        }
    }

    #[test]
    fn without_a_known_napi_the_interrupts_tell_where_a_queue_is_polled() {
        let found = to_itself(&queue(OFTEN_PER_S)).unwrap();
        assert!(found.evidence[1].quantity.starts_with("interrupts of the queue"), "{found:?}");
        assert!(matches!(found.remedies[0].gain, Gain::Unknown(_)));
        // a driver's watchdog interrupts idle queues now and then
        assert_eq!(to_itself(&queue(1.0)), None);
        let two = |other| {
            let mut two = queue(100.0);
            two.interrupts_per_s.as_mut().unwrap().insert(CpuId(1), other);
            to_itself(&two)
        };
        assert!(two(1.0).is_some(), "a stray one");
        assert_eq!(two(10.0), None);
    }

    #[test]
    fn polls_count_more_than_interrupts() {
        let rate = PollRate { packets_per_s: 9.0, ..PollRate::default() };
        let polled = |cpu| Silo {
            packets_per_s: Some(9.0),
            polls: [(CpuId(cpu), rate)].into(),
            ..queue(1000.0)
        };
        assert!(to_itself(&polled(5)).is_some());
        assert_eq!(to_itself(&polled(1)), None);
    }
}
