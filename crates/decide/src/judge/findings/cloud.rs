//! What a cloud or a hypervisor bounds: allowances, queues, accelerated networking.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::growth::{all_well, setting, sum};
use crate::judge::findings::{Finding, FindingId, Severity};

/// ENA's counters of packets that were held back or dropped because the instance was over its
/// allowance, and of what.
const ENA_LIMITS: &[(&str, &str)] = &[
    ("bw_in_allowance_exceeded", "inbound bandwidth"),
    ("bw_out_allowance_exceeded", "outbound bandwidth"),
    ("conntrack_allowance_exceeded", "tracked connections"),
    ("linklocal_allowance_exceeded", "packets to local services (DNS, metadata, time)"),
    ("pps_allowance_exceeded", "packets per second"),
];
/// `VIRTIO_NET_F_MQ`.
const VIRTIO_MQ: u32 = 22;
/// Packets per second from which on the way through the hypervisor shows.
const BUSY: f64 = 50_000.0;

pub(super) fn find(seen: &Analysis<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for netdev in seen.running() {
        found.extend(allowance(seen, netdev));
        found.extend(one_queue(seen, netdev));
        found.extend(without_vf(seen, netdev));
    }
    if found.is_empty() {
        found.extend(all_well(FindingId::CloudLimitsFree, "no allowance of the instance was used up", looked_at(seen)));
    }
    found
}

fn is(netdev: &Netdev, driver: &str) -> bool {
    netdev.driver.as_deref() == Some(driver)
}

fn allowance(seen: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let over = |name: &str| ENA_LIMITS.iter().any(|(limit, _)| *limit == name);
    let grown = seen.driver_counters(netdev, over);
    if !is(netdev, "ena") || grown.is_empty() {
        return None;
    }
    let evidence = ENA_LIMITS.iter().filter_map(|(name, what)| {
        let packets = grown.get(name)?;
        Some(Evidence::new(*what, Measure::PerSecond(seen.per_s(*packets)), format!("ethtool -S, {name}")))
    });
    let mut limits: Vec<&str> = ENA_LIMITS.iter().filter(|(name, _)| grown.contains_key(name)).map(|(_, what)| *what).collect();
    limits.truncate(2);
    Some(Finding {
        id: FindingId::CloudAllowance,
        severity: Severity::Critical,
        subject: netdev.name.clone(),
        title: format!("the instance is over its allowance of {}: packets wait or are dropped outside", limits.join(" and ")),
        evidence: evidence.collect(),
        remedies: vec![
            Remedy::new(
                "a larger instance, fewer or larger packets, fewer new connections: no setting of this machine lifts it",
                Gain::AtMost {
                    measure: Measure::PerSecond(seen.per_s(sum(grown.values().copied()))),
                    of: "packets that are held back or dropped".into(),
                    basis: "all that were counted".into(),
                },
            )
            .not_when("it was one burst: the allowance fills up again"),
        ],
    })
}

/// A virtio device that was given one queue, on a machine whose one CPU it fills.
fn one_queue(seen: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let features = seen.audit_of(netdev)?.virtio_features.as_ref()?;
    let cpus = seen.after().topology.online.len();
    let (cpu, softirq) = seen.polling(netdev).into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if !is(netdev, "virtio_net") || features.contains(&VIRTIO_MQ) || cpus < 2 || softirq < 0.5 {
        return None;
    }
    Some(Finding {
        id: FindingId::VirtioOneQueue,
        severity: Severity::Warning,
        subject: netdev.name.clone(),
        title: format!("the hypervisor gave it one queue, and cpu{cpu} is busy with it"),
        evidence: vec![
            setting("VIRTIO_NET_F_MQ", "not offered", "device/features"),
            Evidence::new("CPUs", Measure::Count(cpus as u64), "/sys/devices/system/cpu/online"),
            Evidence::new(format!("softirq of cpu{cpu}"), Measure::Share(softirq), "eBPF or /proc/stat"),
        ],
        remedies: vec![
            Remedy::new(
                "on the host: more queues for this device (QEMU: queues=N, mq=on, vectors=2N+2), up to one per CPU",
                Gain::AtMost {
                    measure: Measure::Share(softirq * (1.0 - 1.0 / cpus as f64)),
                    of: format!("cpu{cpu}'s time"),
                    basis: "its softirq time, spread evenly over all CPUs".into(),
                },
            )
            .costs("the guest restarts")
            .not_when("one flow brings it all: a flow stays on one queue"),
        ],
    })
}

/// netvsc carries traffic by itself: no virtual function below it.
fn without_vf(seen: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let packets = seen.rate(netdev, "rx_packets").unwrap_or(0.0) + seen.rate(netdev, "tx_packets").unwrap_or(0.0);
    let vf = seen.after().netdevs.iter().any(|other| other.master.as_deref() == Some(&netdev.name));
    if !is(netdev, "hv_netvsc") || vf || packets < BUSY {
        return None;
    }
    Some(Finding {
        id: FindingId::NetvscWithoutVf,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "all its packets go through the hypervisor's switch: it has no virtual function".into(),
        evidence: vec![
            setting("virtual function", "none", "/sys/class/net/*/master"),
            Evidence::new("packets, both ways", Measure::PerSecond(packets), "statistics"),
        ],
        remedies: vec![
            Remedy::new(
                "switch accelerated networking on for this interface (in the cloud's settings)",
                Gain::Unknown("what the hypervisor takes of each packet is not seen from inside".into()),
            )
            .not_when("the size of instance does not offer it"),
        ],
    })
}

fn looked_at(seen: &Analysis<'_>) -> Vec<Evidence> {
    let ena = seen.running().filter(|netdev| is(netdev, "ena"));
    let counted = |netdev: &Netdev| {
        let stats = netdev.ethtool.as_ref()?.stats.value()?;
        let counters = stats.iter().filter(|(name, _)| ENA_LIMITS.iter().any(|(limit, _)| limit == name)).count();
        (counters > 0).then(|| {
            Evidence::new(
                format!("counters of {} that stood still", netdev.name),
                Measure::Count(counters as u64),
                "ethtool -S",
            )
        })
    };
    ena.filter_map(counted).collect()
}
