//! Findings on limits set by a cloud or a hypervisor: allowances, queues, accelerated networking.

use netsilo_model::derive::analysis::{Analysis, Poller};
use netsilo_model::drivers::name::has_driver;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::{no_problem, setting, softirq_time, sum};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;

/// ENA's counters of packets that were queued or dropped because the instance exceeded an
/// allowance, with the name of the allowance.
const ENA_LIMITS: &[(&str, &str)] = &[
    ("bw_in_allowance_exceeded", "inbound bandwidth"),
    ("bw_out_allowance_exceeded", "outbound bandwidth"),
    ("conntrack_allowance_exceeded", "tracked connections"),
    ("linklocal_allowance_exceeded", "packets to local services (DNS, metadata, time)"),
    ("pps_allowance_exceeded", "packets per second"),
];
/// `VIRTIO_NET_F_MQ`.
const VIRTIO_MQ: u32 = 22;
/// Minimum packets per second for which a missing virtual function is reported.
const BUSY: f64 = 50_000.0;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found = Vec::new();
    for netdev in analysis.running() {
        found.extend(allowance(analysis, netdev));
        found.extend(one_queue(analysis, netdev));
        found.extend(without_vf(analysis, netdev));
    }
    if found.is_empty() {
        found.extend(no_problem(
            FindingId::CloudLimitsFree,
            "the instance exceeded no allowance",
            looked_at(analysis),
        ));
    }
    found
}

fn is(netdev: &Netdev, driver: &str) -> bool {
    has_driver(netdev, &[driver])
}

fn allowance(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let is_limit = |name: &str| ENA_LIMITS.iter().any(|(limit, _)| *limit == name);
    let grown = analysis.driver_counter_growth(netdev, is_limit);
    if !is(netdev, "ena") || grown.is_empty() {
        return None;
    }
    let evidence = ENA_LIMITS.iter().filter_map(|(name, what)| {
        let packets = grown.get(name)?;
        Some(Evidence::new(
            *what,
            Measure::PerSecond(analysis.per_s(*packets)),
            format!("ethtool -S, {name}"),
        ))
    });
    let mut limits: Vec<&str> = ENA_LIMITS
        .iter()
        .filter(|(name, _)| grown.contains_key(name))
        .map(|(_, what)| *what)
        .collect();
    limits.truncate(2);
    Some(Finding {
        id: FindingId::CloudAllowance,
        severity: Severity::Critical,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "the instance exceeds its allowance of {}: the provider queues or drops packets",
            limits.join(" and ")
        ),
        evidence: evidence.collect(),
        remedies: vec![
            Remedy::new(
                "use a larger instance, fewer or larger packets, or fewer new connections: no \
                 local setting raises the allowance",
                Gain::AtMost {
                    measure: Measure::PerSecond(analysis.per_s(sum(grown.values().copied()))),
                    of: "packets that are queued or dropped".into(),
                    basis: "all packets that were counted".into(),
                },
            )
            .not_when("it was a single burst, after which the allowance refills"),
        ],
    })
}

/// A virtio device with one queue that uses at least half of one CPU's time.
fn one_queue(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let features = analysis.audit_of(netdev)?.virtio_features.as_ref()?;
    let cpus = analysis.after().topology.online.len();
    let poller = analysis.busiest_poller(netdev)?;
    let Poller { cpu, softirq, .. } = poller;
    if !is(netdev, "virtio_net") || features.contains(&VIRTIO_MQ) || cpus < 2 || softirq < 0.5 {
        return None;
    }
    Some(Finding {
        id: FindingId::VirtioOneQueue,
        severity: Severity::Warning,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("the hypervisor offers only one queue, which keeps cpu{cpu} busy"),
        evidence: vec![
            setting("VIRTIO_NET_F_MQ", "not offered", "device/features"),
            Evidence::new(
                "online cpus",
                Measure::Count(cpus as u64),
                "/sys/devices/system/cpu/online",
            ),
            softirq_time(poller),
        ],
        remedies: vec![
            Remedy::new(
                "on the host, configure more queues for this device (QEMU: queues=N, mq=on, \
                 vectors=2N+2), up to one per cpu",
                Gain::Unknown("a forecast knows only the queues that the device offers".into()),
            )
            .costs("the guest must restart")
            .not_when("one flow carries all packets: a flow stays on one queue"),
        ],
    })
}

/// A netvsc device without a virtual function carries the traffic itself.
fn without_vf(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let packets = analysis.rate(netdev, "rx_packets").unwrap_or(0.0)
        + analysis.rate(netdev, "tx_packets").unwrap_or(0.0);
    let vf =
        analysis.after().netdevs.iter().any(|other| other.master.as_deref() == Some(&netdev.name));
    if !is(netdev, "hv_netvsc") || vf || packets < BUSY {
        return None;
    }
    Some(Finding {
        id: FindingId::NetvscWithoutVf,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "it has no virtual function: all packets pass through the hypervisor's switch"
            .into(),
        evidence: vec![
            setting("virtual function", "none", "/sys/class/net/*/master"),
            Evidence::new("packets received and sent", Measure::PerSecond(packets), "statistics"),
        ],
        remedies: vec![
            Remedy::new(
                "enable accelerated networking for this interface in the cloud's settings",
                Gain::Unknown(
                    "the hypervisor's cost per packet cannot be measured in the guest".into(),
                ),
            )
            .not_when("this instance size does not support it"),
        ],
    })
}

/// Evidence for "all well": ENA allowance counters that did not grow.
fn looked_at(analysis: &Analysis<'_>) -> Vec<Evidence> {
    let ena = analysis.running().filter(|netdev| is(netdev, "ena"));
    let counted = |netdev: &Netdev| {
        let stats = netdev.ethtool.as_ref()?.stats.value()?;
        let counters = stats
            .iter()
            .filter(|(name, _)| ENA_LIMITS.iter().any(|(limit, _)| limit == name))
            .count();
        (counters > 0).then(|| {
            Evidence::new(
                format!("allowance counters of {} that did not grow", netdev.name),
                Measure::Count(counters as u64),
                "ethtool -S",
            )
        })
    };
    ena.filter_map(counted).collect()
}
