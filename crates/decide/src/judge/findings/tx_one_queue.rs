//! The finding on a NIC whose packets leave by one of its tx queues.

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::transmit::{Transmit, TxLoad, transmit};
use netsilo_model::drivers::name::DriverName;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::words;
use netsilo_model::snapshot::netdev::{Netdev, TxQueue};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::setting;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::plan::{Goal, Xps, plan_xps};

/// From this share of dropped packets, drops are critical.
pub(super) const CRITICAL_LOSS: f64 = 0.001;
/// From this many packets per second, a shared lock or a CPU without a queue is reported.
pub(super) const BUSY: f64 = 50_000.0;
/// From this share on, packets on other queues are strays.
const NEARLY_ALL: f64 = 0.95;
/// From this share on, a cause explains the netdev's packets.
const MOST: f64 = 0.5;
/// Drivers that choose by a recorded rx queue before they ask XPS.
const CHOOSE_BY_RECORDED: &[(&str, &str)] =
    &[("ena", "drivers/net/ethernet/amazon/ena/ena_netdev.c:ena_select_queue")];

/// Why packets get the same queue.
enum Cause {
    /// XPS gives it to all CPUs that send.
    Xps(CpuSet),
    /// A veth with one queue recorded its number in the packets.
    RecordedByVeth,
    /// All arrived by this rx queue, whose number the kernel keeps.
    RecordedByNic {
        rx_queue: u32,
    },
    /// One TCP connection has most of the bytes.
    OneConnection(f64),
    Unknown,
}

pub(super) fn one_queue(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let transmit = transmit(analysis, netdev).filter(|transmit| transmit.of > 1)?;
    let top = transmit.queues.first().filter(|top| top.share >= NEARLY_ALL)?;
    let senders: CpuSet = top.cpus.keys().copied().collect();
    let drops = top.drops_per_s.unwrap_or(0.0);
    let loses = drops >= CRITICAL_LOSS * top.packets_per_s;
    // nobody waits for the lock of a queue by which one cpu sends
    if !loses && (senders.len() < 2 || top.packets_per_s < BUSY) {
        return None;
    }
    let cause = cause(analysis, netdev, top, &senders);
    let mut evidence = evidence(&transmit, top, &senders);
    let mut remedies = Vec::new();
    let gain = &gain(drops, loses);
    let why = match &cause {
        Cause::Xps(cpus) => {
            evidence.push(setting(
                format!("XPS of tx-{}", top.queue),
                words::cpus(cpus),
                "queues/tx-*/xps_cpus",
            ));
            remedies.push(xps(analysis, netdev, gain));
            "XPS gives it to all cpus that send"
        }
        Cause::RecordedByVeth => {
            evidence.push(setting(
                "packets forwarded that no NIC received",
                "most of them",
                "net:net_dev_queue",
            ));
            remedies.extend(unless_driver_chooses(analysis, netdev, gain));
            remedies.push(Remedy::new(
                "clear what the veths recorded, at the host's end of each: tc qdisc add dev VETH \
                 clsact && tc filter add dev VETH ingress matchall action skbedit queue_mapping 0",
                gain.clone(),
            ));
            remedies.push(Remedy::new(
                "a kernel or CNI that does not keep it: kernels, stable ones too, and Cilium since \
                 January 2022",
                gain.clone(),
            ));
            "packets of containers keep the queue that their veth recorded"
        }
        Cause::RecordedByNic { rx_queue } => {
            evidence.push(setting(
                "rx queue of forwarded packets",
                format!("rx-{rx_queue}"),
                "net:net_dev_queue",
            ));
            remedies.extend(unless_driver_chooses(analysis, netdev, gain));
            remedies.push(Remedy::new(
                "let more rx queues receive them: see the findings on RSS of the other NIC",
                gain.clone(),
            ));
            "all forwarded packets arrive by one rx queue, whose number they keep"
        }
        Cause::OneConnection(share) => {
            evidence.push(Evidence::new(
                "bytes of the largest connection",
                Measure::Share(*share),
                "tcp_info, bytes_acked",
            ));
            remedies.push(Remedy::new(
                "several connections: the kernel keeps the packets of one on one queue",
                gain.clone(),
            ));
            "one connection sends most of the bytes"
        }
        Cause::Unknown => {
            remedies.extend(unless_driver_chooses(analysis, netdev, gain));
            "netsilo does not see why: few flows, the driver's choice, a tc or BPF program"
        }
    };
    Some(Finding {
        id: FindingId::TxOneQueue,
        severity: if loses { Severity::Warning } else { Severity::Info },
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "all packets leave by tx-{}, one of {} tx queues: {why}",
            top.queue, transmit.of
        ),
        evidence,
        remedies,
    })
}

fn evidence(transmit: &Transmit, top: &TxLoad, senders: &CpuSet) -> Vec<Evidence> {
    let name = format!("tx-{}", top.queue);
    let source = transmit.source.command();
    let mut evidence = vec![
        Evidence::new(format!("packets by {name}"), Measure::PerSecond(top.packets_per_s), source),
        Evidence::new("share of all packets sent", Measure::Share(top.share), source),
    ];
    if !senders.is_empty() {
        evidence.push(setting("sent by", words::cpus(senders), source));
    }
    if let Some((drops, kind)) = top.drops_per_s.zip(top.discipline.as_ref()) {
        let of = format!("dropped by its {kind}");
        evidence.push(Evidence::new(of, Measure::PerSecond(drops), "tc -s qdisc"));
    }
    let waiting = top.waiting.filter(|packets| *packets > 0);
    evidence.extend(waiting.map(|packets| {
        Evidence::new("packets that wait in it", Measure::Count(packets.into()), "tc -s qdisc")
    }));
    evidence
}

fn cause(analysis: &Analysis<'_>, netdev: &Netdev, top: &TxLoad, senders: &CpuSet) -> Cause {
    let mut xps = netdev.tx_queues.iter().filter_map(|queue| queue.xps_cpus.as_ref());
    let is_off = xps.all(CpuSet::is_empty);
    let (own, others): (Vec<_>, Vec<_>) =
        netdev.tx_queues.iter().partition(|queue| queue.index == top.queue);
    let own = own.first().and_then(|queue| queue.xps_cpus.clone()).unwrap_or_default();
    let other = |queue: &&TxQueue| queue.xps_cpus.as_ref().is_some_and(|it| it.intersects(senders));
    let is_only = !senders.is_empty() && senders.is_subset(&own) && !others.iter().any(other);
    if is_only && !recorded_first(netdev) {
        return Cause::Xps(own);
    }
    let attribution = &analysis.observation.attribution;
    let machine = &analysis.after().machine;
    let all = top.packets_per_s * attribution.elapsed.as_secs_f64();
    let forwarded = || {
        attribution.forwarded.iter().filter(|row| {
            row.egress_ifindex == netdev.ifindex
                && machine.is_own_netns(row.egress_netns)
                && row.tx_queue == top.queue
        })
    };
    let of = |rx_queue: Option<u32>| -> f64 {
        forwarded().filter(|row| row.rx_queue == rx_queue).map(|row| row.packets as f64).sum()
    };
    let rx_queue = forwarded().max_by_key(|row| row.packets).and_then(|row| row.rx_queue);
    let most = of(rx_queue) >= MOST * all;
    let is_recording =
        |other: &Netdev| other.driver.as_deref() == Some("veth") && other.rx_queues.len() == 1;
    // with XPS, all but some drivers ask it first
    let by_recorded = is_off || recorded_first(netdev);
    match rx_queue {
        Some(rx_queue) if most && by_recorded => return Cause::RecordedByNic { rx_queue },
        None if most && by_recorded && analysis.after().netdevs.iter().any(is_recording) => {
            return Cause::RecordedByVeth;
        }
        _ => {}
    }
    match largest_connection(analysis, netdev) {
        Some(share) if share >= MOST => Cause::OneConnection(share),
        _ => Cause::Unknown,
    }
}

fn recorded_first(netdev: &Netdev) -> bool {
    let drivers: Vec<&str> = CHOOSE_BY_RECORDED.iter().map(|(name, _)| *name).collect();
    DriverName::of(netdev).is_some_and(|driver| driver.is_in(&drivers))
}

/// The share of the netdev's bytes that one TCP connection sent.
fn largest_connection(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let sent = analysis.rate(netdev, "tx_bytes").filter(|rate| *rate > 0.0)?;
    let here = analysis.connections().into_iter();
    let here = here.filter(|(_, new)| new.netdev.as_ref() == Some(&netdev.name));
    let bytes = here.map(|(old, new)| new.bytes_acked.saturating_sub(old.bytes_acked)).max()?;
    Some((analysis.per_s(bytes) / sent).min(1.0))
}

/// XPS, where the driver asks it before a recorded queue.
fn unless_driver_chooses(analysis: &Analysis<'_>, netdev: &Netdev, gain: &Gain) -> Option<Remedy> {
    (!recorded_first(netdev)).then(|| xps(analysis, netdev, gain))
}

fn xps(analysis: &Analysis<'_>, netdev: &Netdev, gain: &Gain) -> Remedy {
    Remedy::new("XPS: each cpu sends by the queue nearest to it", gain.clone())
        .not_when("one cpu sends all packets")
        .by(xps_near(analysis, netdev))
}

/// The changes that assign each CPU the tx queue nearest to it.
pub(super) fn xps_near(analysis: &Analysis<'_>, netdev: &Netdev) -> Vec<Change> {
    // the owner of the knobs is checked when they are written
    let near = Goal {
        netdevs: vec![netdev.name.clone()],
        xps: Some(Xps::Near),
        even_if_owned: true,
        ..Goal::default()
    };
    plan_xps(&analysis.rates, analysis.after(), &near)
}

fn gain(drops_per_s: f64, loses: bool) -> Gain {
    if !loses {
        return Gain::Unknown("the wait for the queue's lock was not measured".into());
    }
    Gain::AtMost {
        measure: Measure::PerSecond(drops_per_s),
        of: "packets that need no retransmission".into(),
        basis: "all packets that are dropped at present".into(),
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::attribution::{Forwarded, Hook, Sent};
    use netsilo_model::snapshot::ip_packets;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    /// That of a scene.
    const NETNS: u32 = 4_026_531_840;

    /// A NIC of two tx queues. 60,000 packets per second leave by tx-1, sent by these CPUs.
    fn scene(driver: &str, xps: &str, cpus: &[u32]) -> Observation {
        with_xps(driver, ["", xps], cpus)
    }

    fn with_xps(driver: &str, [other, xps]: [&str; 2], cpus: &[u32]) -> Observation {
        let scene = format!(
            r#"{{ "grid": {{ "l2s": 4 }}, "netdevs": [
            {{ "name": "eth0", "driver": "{driver}", "queues": [
                {{ "irq": 30, "cpus": "0", "xps_cpus": "{other}" }}, {{ "irq": 31, "cpus": "1", "xps_cpus": "{xps}" }}] }},
            {{ "name": "lxc0", "driver": "veth", "queues": [{{}}] }}] }}"#
        );
        let scene: Scene = serde_json::from_str(&scene).unwrap();
        let mut observation = scene.observation();
        let packets = 600_000 / cpus.len() as u64;
        let sent =
            |cpu: &u32| Sent { netns: NETNS, ifindex: 2, tx_queue: 1, cpu: CpuId(*cpu), packets };
        observation.attribution.sent = cpus.iter().map(sent).collect();
        let quantity = ip_packets::QUANTITY.into();
        let hook = Hook { quantity, hook: "tp_btf/net_dev_queue".into(), refused: None };
        observation.attribution.hooks.push(hook);
        for snapshot in [&mut observation.before, &mut observation.after] {
            snapshot.netdevs.iter_mut().filter(|it| it.name == "lxc0").for_each(|it| {
                it.device_path = None;
            });
        }
        observation
    }

    fn title(observation: &Observation) -> Option<String> {
        let costs = Costs::default();
        let analysis = Analysis::new(observation, &costs);
        let netdev = analysis.running().find(|netdev| netdev.name == "eth0")?;
        let found = one_queue(&analysis, netdev)?;
        Some(found.title.split_once(": ")?.1.to_owned())
    }

    /// The same packets, forwarded from this rx queue, or from containers.
    fn forwarded(mut observation: Observation, rx_queue: Option<u32>) -> Observation {
        let row = |sent: &Sent| Forwarded {
            napi: None,
            rx_queue,
            poll_cpu: sent.cpu,
            xmit_cpu: sent.cpu,
            egress: "eth0".into(),
            egress_ifindex: 2,
            egress_netns: NETNS,
            tx_queue: 1,
            packets: sent.packets,
            bytes: sent.packets,
        };
        observation.attribution.forwarded = observation.attribution.sent.iter().map(row).collect();
        observation
    }

    #[test]
    fn each_cause_is_told_from_the_others() {
        let containers = "packets of containers keep the queue that their veth recorded";
        let nic = "all forwarded packets arrive by one rx queue, whose number they keep";
        let xps = "XPS gives it to all cpus that send";
        let why = |it: Observation| title(&it);
        assert_eq!(why(scene("igb", "2,3", &[2, 3])).as_deref(), Some(xps));
        assert_eq!(why(forwarded(scene("igb", "", &[2, 3]), None)).as_deref(), Some(containers));
        assert_eq!(why(forwarded(scene("igb", "", &[2, 3]), Some(1))).as_deref(), Some(nic));
        // ena's driver does not ask XPS first
        let ena = forwarded(scene("ena", "2,3", &[2, 3]), None);
        assert_eq!(why(ena).as_deref(), Some(containers));
        let unknown = why(scene("igb", "", &[2, 3])).unwrap();
        assert!(unknown.starts_with("netsilo does not see why"), "{unknown}");
        let by_hash = why(with_xps("igb", ["2,3", "2,3"], &[2, 3])).unwrap();
        assert!(by_hash.starts_with("netsilo does not see why"), "{by_hash}");
        assert_eq!(why(scene("igb", "2,3", &[2])), None, "nobody waits for it");
    }
}
