//! Findings on RPS that steers packets to the polling CPU, and on RFS with one table missing.

use netsilo_model::change::{Change, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::{Silo, heaviest};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

pub(super) fn find(analysis: &Analysis<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = analysis.silos.queues.iter().filter_map(to_itself).collect();
    findings.extend(half_on(analysis));
    findings
}

/// RPS whose only target is the polling CPU: packets pass through the backlog without relief.
fn to_itself(silo: &Silo) -> Option<Finding> {
    let target = silo.rps_cpus.as_ref()?.single()?;
    let polled = silo.polls.iter().filter(|(_, rate)| rate.packets_per_s > 0.0);
    let polled: CpuSet = polled.map(|(cpu, _)| *cpu).collect();
    let packets: f64 = silo.polls.get(&target)?.packets_per_s;
    if polled.single() != Some(target) {
        return None;
    }
    let netdev: NetdevIdentity = silo.netdev.clone();
    let queue = silo.queue?;
    let (old, new) = (CpuSet::from_cpu(target), CpuSet::new());
    let reason =
        format!("{} is polled on cpu {target}, which is also its only RPS target", silo.label());
    Some(Finding {
        id: FindingId::RpsTargetsPoller,
        severity: Severity::Warning,
        subject: silo.subject(),
        title: format!("RPS steers all packets to cpu {target}, which already polls them"),
        evidence: vec![
            Evidence::new(
                "rps_cpus",
                Measure::Text(target.to_string()),
                format!("queues/rx-{queue}/rps_cpus"),
            ),
            Evidence::new(
                format!("packets polled on cpu {target}"),
                Measure::PerSecond(packets),
                "tp_btf/napi_poll",
            ),
        ],
        remedies: vec![Remedy {
            what: "switch RPS off for this queue".into(),
            gain: Gain::AtMost {
                measure: Measure::PerSecond(packets),
                of: "packets that pass through the backlog without benefit".into(),
                basis: "each packet is queued and dequeued on the same cpu".into(),
            },
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
    let changes = if entries == 0 { off(&with) } else { Vec::new() };
    Some(Finding {
        id: FindingId::RfsHalfOn,
        severity: Severity::Info,
        subject: Subject::Machine,
        title: half.into(),
        evidence,
        remedies: vec![Remedy {
            what: "set both tables or neither: netsilo plan --rfs ENTRIES sets both, --rfs 0 \
                   clears both"
                .into(),
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

fn off(silos: &[&Silo]) -> Vec<Change> {
    let change = |silo: &&Silo| {
        let knob = knobs::RpsFlowCnt { netdev: silo.netdev.clone(), queue: silo.queue? };
        let reason = "the global flow table is off: RFS has no effect";
        Some(Change::new(knob, silo.rps_flow_cnt?, 0, reason))
    };
    silos.iter().filter_map(change).collect()
}
