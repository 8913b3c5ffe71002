//! What dropped packets mean, by all that was observed. Some drivers free what they have *sent*
//! with `dev_kfree_skb_any` (vmxnet3, bnx2, mvneta): each sent packet looks like a dropped one.

use std::collections::{BTreeMap, BTreeSet};

use crate::derive::drop_class::{DropClass, has_reason, lost_at};
use crate::drivers::loss_stage::LossStage;
use crate::drivers::name::DriverName;
use crate::snapshot::drops::DroppedPackets;
use crate::snapshot::observation::Observation;

/// With fewer packets, equal counts may be chance.
const LEAST_PACKETS: u64 = 20;

/// The counters and the event are not read at one time: this share, and this many packets.
const SKEW: (f64, f64) = (0.02, 2.0);

/// Functions that free packets for all drivers (`dev_kfree_skb_irq`, `dev_kfree_skb_any`).
const OF_ALL_DRIVERS: [&str; 3] =
    ["net_tx_action", "__dev_kfree_skb_any", "dev_kfree_skb_any_reason"];

/// Knows the functions that free packets after a NIC has sent them.
#[derive(Debug, Clone, Default)]
pub struct DropJudge {
    sent_by: BTreeSet<String>,
}

impl DropJudge {
    /// Judges by one observation.
    pub fn new(observation: &Observation) -> Self {
        let mut judge = Self::default();
        judge.learn(observation);
        judge
    }

    /// Finds functions of a driver that drop, without a reason, as many packets or bytes as the
    /// driver's netdevs send, while the netdevs count no such loss. They remain known, because
    /// this is a property of the driver.
    pub fn learn(&mut self, observation: &Observation) {
        let attribution = &observation.attribution;
        let mut freed: BTreeMap<(&str, Option<&str>), Growth> = BTreeMap::new();
        for drop in attribution.drops.iter().filter(|it| is_unexplained(it)) {
            let all = freed.entry((&drop.function, drop.module.as_deref())).or_default();
            all.packets = all.packets.saturating_add(drop.packets);
            all.bytes = all.bytes.saturating_add(drop.bytes);
        }
        if freed.is_empty() {
            return;
        }
        let counted = match attribution.drops_elapsed {
            elapsed if elapsed.is_zero() => attribution.elapsed,
            elapsed => elapsed,
        };
        let read = observation.after.at.saturating_sub(observation.before.at);
        let share = counted.as_secs_f64() / read.as_secs_f64();
        // Of a burst, all may have been sent between the reading of the counters.
        let most = if attribution.windowed { share } else { share.max(1.0) };
        let sent = sent(observation);
        for ((function, module), freed) in freed {
            let frees = |driver: &str| match module {
                None if OF_ALL_DRIVERS.contains(&function) => true,
                None => function.starts_with(driver),
                Some(module) => module == driver,
            };
            if sent
                .iter()
                .any(|(driver, sent)| frees(driver) && sent.is_freed(&freed, [share, most]))
            {
                self.sent_by.insert(function.to_owned());
            }
        }
    }

    /// Whether a NIC has sent these packets.
    pub fn was_sent(&self, drop: &DroppedPackets) -> bool {
        is_unexplained(drop) && self.sent_by.contains(&drop.function)
    }

    /// The class of dropped packets.
    pub fn class(&self, drop: &DroppedPackets) -> DropClass {
        if self.was_sent(drop) { DropClass::NoLoss } else { DropClass::of(drop) }
    }

    /// Where dropped packets were lost, if they were.
    pub fn lost_at(&self, drop: &DroppedPackets) -> Option<LossStage> {
        lost_at(drop).filter(|_| !self.was_sent(drop))
    }
}

fn is_unexplained(drop: &DroppedPackets) -> bool {
    !has_reason(drop) && DropClass::of(drop) == DropClass::Unknown
}

/// What netdevs have sent, or a function has freed.
#[derive(Debug, Default)]
struct Growth {
    packets: u64,
    bytes: u64,
    failed: u64,
}

impl Growth {
    /// Whether `freed` is what was sent. `shares`: the least and the largest part of
    /// what was sent that may have been seen.
    fn is_freed(&self, freed: &Self, [least, most]: [f64; 2]) -> bool {
        let skew = SKEW.0 + SKEW.1 / freed.packets as f64;
        let is_close = |sent: u64, freed: u64| {
            let (sent, freed) = (sent as f64, freed as f64);
            (sent * least * (1.0 - skew)..=sent * most * (1.0 + skew)).contains(&freed)
                && sent > 0.0
        };
        // Of a large packet, some drivers count the segments and others do not.
        freed.packets >= LEAST_PACKETS
            && self.failed as f64 <= skew * freed.packets as f64
            && (is_close(self.packets, freed.packets) || is_close(self.bytes, freed.bytes))
    }
}

/// What the netdevs of each driver sent in the interval, by the name of the driver's module.
fn sent(observation: &Observation) -> BTreeMap<String, Growth> {
    let mut drivers: BTreeMap<String, Growth> = BTreeMap::new();
    for netdev in observation.after.netdevs.iter().filter(|it| it.device_path.is_some()) {
        let (Some(driver), Some(before)) =
            (DriverName::of(netdev), observation.before.netdevs.same(netdev))
        else {
            continue;
        };
        let growth = |name: &str| {
            let value = netdev.statistics.get(name).copied().unwrap_or(0);
            value.saturating_sub(before.statistics.get(name).copied().unwrap_or(0))
        };
        let all = drivers.entry(driver.as_str().replace('-', "_")).or_default();
        all.packets = all.packets.saturating_add(growth("tx_packets"));
        all.bytes = all.bytes.saturating_add(growth("tx_bytes"));
        for failed in ["tx_dropped", "tx_errors", "rx_errors"] {
            all.failed = all.failed.saturating_add(growth(failed));
        }
    }
    drivers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::scene::{Scene, SceneNetdev};

    /// A host whose vmxnet3 sent these packets and bytes, and these drops without a reason:
    /// function, module, packets, bytes.
    fn host(sent: [u64; 2], drops: &[(&str, Option<&str>, u64, u64)]) -> Observation {
        let netdev =
            SceneNetdev { name: "eth0".into(), driver: "vmxnet3".into(), ..SceneNetdev::default() };
        let mut host = Scene { netdevs: vec![netdev], ..Scene::default() }.observation();
        for (name, grown) in [("tx_packets", sent[0]), ("tx_bytes", sent[1])] {
            host.before.netdevs[0].statistics.insert(name.into(), 1000);
            host.after.netdevs[0].statistics.insert(name.into(), 1000 + grown);
        }
        let drop =
            |(function, module, packets, bytes): &(&str, Option<&str>, u64, u64)| DroppedPackets {
                function: (*function).into(),
                module: module.map(str::to_owned),
                reason: "NOT_SPECIFIED".into(),
                packets: *packets,
                bytes: *bytes,
                ..DroppedPackets::default()
            };
        host.attribution.drops = drops.iter().map(drop).collect();
        host
    }

    fn was_sent(host: &Observation) -> bool {
        DropJudge::new(host).was_sent(&host.attribution.drops[0])
    }

    const UNMAP: &str = "vmxnet3_unmap_pkt";
    const VMXNET3: Option<&str> = Some("vmxnet3");

    #[test]
    fn what_a_driver_frees_after_sending_is_no_loss() {
        let sent = |packets, freed| host([packets, 0], &[(UNMAP, VMXNET3, freed, 0)]);
        assert!(
            was_sent(&sent(600, 599)) && was_sent(&sent(20, 22)) && was_sent(&sent(9000, 8900))
        );
        assert!(!was_sent(&sent(9000, 8700)), "fewer");
        assert!(!was_sent(&sent(9000, 9300)), "some of them were not sent");
        assert!(!was_sent(&sent(12, 12)), "chance");
        // the rows of several ports, and segments of large packets that the NIC counts as one
        let ports = [(UNMAP, VMXNET3, 300, 9), (UNMAP, VMXNET3, 298, 9)];
        assert!(was_sent(&host([600, 0], &ports)));
        assert!(was_sent(&host([600, 5000], &[(UNMAP, VMXNET3, 9000, 5001)])));
        let host = sent(600, 599);
        let judge = DropJudge::new(&host);
        let drop = &host.attribution.drops[0];
        assert_eq!((judge.class(drop), judge.lost_at(drop)), (DropClass::NoLoss, None));
        let named = DroppedPackets { reason: "QDISC_DROP".into(), ..drop.clone() };
        assert_eq!(judge.class(&named), DropClass::Lost, "the kernel said why");
    }

    #[test]
    fn only_functions_of_the_driver_and_those_of_all_drivers_free_what_it_sent() {
        let sent = |function, module| was_sent(&host([600, 0], &[(function, module, 600, 0)]));
        assert!(sent("other_name", VMXNET3) && sent("net_tx_action", None) && sent(UNMAP, None));
        assert!(!sent("tcp_v4_rcv", None), "each was answered");
        assert!(!sent(UNMAP, Some("another")) && !sent("veth_xmit", None));
    }

    #[test]
    fn what_the_netdev_failed_to_send_may_be_what_was_freed() {
        let mut host = host([600, 0], &[(UNMAP, VMXNET3, 600, 0)]);
        host.after.netdevs[0].statistics.insert("tx_dropped".into(), 590);
        assert!(!was_sent(&host));
        host.after.netdevs[0].statistics.insert("tx_dropped".into(), 3);
        assert!(was_sent(&host));
        host.after.netdevs[0].device_path = None;
        assert!(!was_sent(&host), "a virtual netdev");
    }

    #[test]
    fn in_a_part_of_the_interval_a_part_is_freed_and_what_was_learned_stays() {
        let mut host = host([600, 0], &[(UNMAP, VMXNET3, 60, 0)]);
        assert!(!was_sent(&host));
        host.attribution.windowed = true;
        host.attribution.drops_elapsed = (host.after.at - host.before.at) / 10;
        let mut judge = DropJudge::new(&host);
        host.attribution.drops[0].packets = 7;
        judge.learn(&host);
        assert!(judge.was_sent(&host.attribution.drops[0]));
    }
}
