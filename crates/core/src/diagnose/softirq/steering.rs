//! RPS that hands packets to the CPU that has them, and RFS of which one half is missing.

use crate::change::{Change, NetdevIdentity, knobs};
use crate::cpuset::CpuSet;
use crate::diagnose::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::silo::{Silo, heaviest};

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.silos.queues.iter().filter_map(to_itself).collect();
    findings.extend(half_on(seen));
    findings
}

/// RPS whose only target is the CPU that polls: a way through the backlog, and nobody else's help.
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
    let (old, new) = (CpuSet::of(target), CpuSet::new());
    let reason = format!("{} is polled on cpu {target}, the only one that RPS hands its packets to", silo.label());
    Some(Finding {
        id: FindingId::RpsToItself,
        severity: Severity::Warning,
        subject: silo.label(),
        title: format!("RPS hands all packets to cpu {target}, which has them already"),
        evidence: vec![
            Evidence::new("rps_cpus", Measure::Text(target.to_string()), format!("queues/rx-{queue}/rps_cpus")),
            Evidence::new(format!("packets polled on cpu {target}"), Measure::PerSecond(packets), "tp_btf/napi_poll"),
        ],
        remedies: vec![Remedy {
            what: "switch RPS off for this queue".into(),
            gain: Gain::AtMost {
                measure: Measure::PerSecond(packets),
                of: "packets that go through the backlog for nothing".into(),
                basis: "each is queued and taken up again on the same cpu".into(),
            },
            cost: None,
            not_when: Some("its interrupt is about to move elsewhere, and RPS shall keep the protocol here".into()),
            changes: vec![Change::new(knobs::RpsCpus { netdev, queue }, old, new, reason)],
            interrupts_traffic: false,
        }],
    })
}

/// RFS needs a table for the machine and one for each queue.
fn half_on(seen: &Seen<'_>) -> Option<Finding> {
    let entries = seen.observation.after.net.rps_sock_flow_entries?;
    let with: Vec<&Silo> = seen.silos.queues.iter().filter(|silo| silo.rps_flow_cnt.is_some_and(|count| count > 0)).collect();
    let (half, source) = match (entries, with.is_empty()) {
        (0, false) => ("queues have a flow table, the machine has none: RFS does nothing", "rps_sock_flow_entries"),
        (1.., true) if seen.silos.queues.iter().any(|silo| silo.rps_flow_cnt.is_some()) => {
            ("the machine has a flow table, no queue has one: RFS does nothing, and sockets keep it up to date for nobody", "rps_flow_cnt")
        }
        _ => return None,
    };
    let busiest = heaviest(seen.silos.queues.iter().enumerate().map(|(at, silo)| (at, silo.packets_per_s.unwrap_or(0.0))));
    let counts = with.iter().filter_map(|silo| silo.rps_flow_cnt).map(u64::from).sum::<u64>();
    let mut evidence = vec![
        Evidence::new("entries for the machine", Measure::Count(entries.into()), "net.core.rps_sock_flow_entries"),
        Evidence::new("entries of all queues", Measure::Count(counts), "queues/rx-*/rps_flow_cnt"),
    ];
    let busiest = busiest.and_then(|at| seen.silos.queues.get(at));
    evidence.extend(busiest.and_then(|silo| {
        Some(Evidence::new(format!("packets of {}", silo.label()), Measure::PerSecond(silo.packets_per_s?), "tp_btf/napi_poll"))
    }));
    let changes = if entries == 0 { off(&with) } else { Vec::new() };
    Some(Finding {
        id: FindingId::RfsHalfOn,
        severity: Severity::Info,
        subject: "machine".into(),
        title: half.into(),
        evidence,
        remedies: vec![Remedy {
            what: "have both or none: netsilo plan --rfs ENTRIES sets both, --rfs 0 none".into(),
            gain: Gain::Unknown(format!("what RFS would be worth depends on where flows are read; {source} is what is missing")),
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
        let reason = "no flow table for the machine: RFS does nothing";
        Some(Change::new(knob, silo.rps_flow_cnt?, 0, reason))
    };
    silos.iter().filter_map(change).collect()
}
