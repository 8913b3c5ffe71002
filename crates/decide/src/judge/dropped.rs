//! The packets that the kernel dropped, by reason, function, device and port.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::derive::drop_judge::DropJudge;
use netsilo_model::derive::namespaces::names_of;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::drivers::name::has_driver;
use netsilo_model::snapshot::drops::DroppedPackets;
use netsilo_model::snapshot::netdev::Netdev;
use serde::{Deserialize, Serialize};

/// Packets that were dropped in the interval for one reason, in one function, of one device and
/// port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DropRow {
    /// What the drop means.
    pub class: DropClass,
    /// The stage of the ledger at which they were lost; `null` if they were not.
    #[serde(default)]
    pub stage: Option<LossStage>,
    /// The kernel's name of the reason; empty before Linux 5.17.
    pub reason: String,
    /// The kernel function; empty if the kernel hides its name.
    pub function: String,
    /// The device through which they entered, or were to leave; empty if unknown.
    pub netdev: String,
    /// Inode number of the network namespace, if it is another than netsilo's.
    #[serde(default)]
    pub netns: Option<u32>,
    /// The name of that namespace; `null` if it is not known.
    #[serde(default)]
    pub namespace: Option<String>,
    /// `tcp`, `udp`, or the number of the transport protocol; empty if unknown.
    pub protocol: String,
    /// The local port of TCP and UDP; `null` if unknown, for packets that are sent from a port of
    /// the range for clients, and where there were too many ports to count each.
    pub port: Option<u16>,
    /// The cgroup of the socket that should have received or has sent them; `null` if there was no
    /// socket, or for the root.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// Whether this machine sent them.
    pub sent: bool,
    /// Packets; a large one counts as its segments.
    pub packets: u64,
    /// The same per second.
    pub per_s: f64,
}

impl DropRow {
    /// The service, pod or session: the last part of its cgroup.
    pub fn owner(&self) -> Option<&str> {
        self.cgroup.as_ref()?.rsplit('/').next()
    }

    /// The name of another network namespace, or its inode number if the name is not known.
    pub fn elsewhere(&self) -> Option<String> {
        let netns = self.netns?;
        Some(self.namespace.clone().unwrap_or_else(|| netns.to_string()))
    }
}

/// The dropped packets, those that were lost first, then by packets. `None` if they were not
/// counted during the whole interval.
pub(crate) fn dropped(analysis: &Analysis<'_>) -> Option<Vec<DropRow>> {
    let attribution = &analysis.observation.attribution;
    if !attribution.counts_drops() {
        return None;
    }
    let seconds = attribution.elapsed.as_secs_f64();
    let judge = DropJudge::new(analysis.observation);
    let names = names_of(analysis.observation);
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for drop in &attribution.drops {
        let netns = (!analysis.after().machine.is_own_netns(drop.netns)).then_some(drop.netns);
        let (class, stage) = (judge.class(drop), judge.lost_at(drop));
        let full = stage == Some(LossStage::Qdisc) && netns.is_none();
        let class = if full && drops_on_purpose(analysis, drop.ifindex) {
            (DropClass::Decided, None)
        } else {
            (class, stage)
        };
        let is_unknown = drop.netdev.is_empty() && netns.is_none();
        let netdev = is_unknown.then(|| full_netdev(analysis, &drop.function)).flatten();
        let place = place(drop, netdev.unwrap_or(&drop.netdev));
        let packets = sums.entry((class, netns, place)).or_default();
        *packets = packets.saturating_add(drop.packets);
    }
    let row = |((class, netns, place), packets): (Key<'_>, u64)| {
        let (class, stage) = class;
        let (reason, function, netdev, cgroup, protocol, (sent, port)) = place;
        DropRow {
            class,
            stage,
            reason: reason.to_owned(),
            function: function.to_owned(),
            netdev: netdev.to_owned(),
            netns,
            namespace: netns.and_then(|netns| names.get(&netns).cloned()),
            protocol: match protocol {
                0 => String::new(),
                6 => "tcp".into(),
                17 => "udp".into(),
                other => other.to_string(),
            },
            port,
            cgroup: cgroup.map(str::to_owned),
            sent,
            packets,
            per_s: if seconds > 0.0 { packets as f64 / seconds } else { 0.0 },
        }
    };
    let mut rows: Vec<DropRow> = sums.into_iter().map(row).collect();
    rows.sort_by_key(|row| (row.class, std::cmp::Reverse(row.packets)));
    Some(rows)
}

/// What it means and the stage, another network namespace, and the place.
type Key<'a> = ((DropClass, Option<LossStage>), Option<u32>, Place<'a>);

/// Whether a netdev keeps to a rate or its queues short: then a full queue is its doing, too. One
/// without a carrier has no queue that could be full, and drops everything.
fn drops_on_purpose(analysis: &Analysis<'_>, ifindex: u32) -> bool {
    let after = &analysis.observation.after;
    if after.netdevs.iter().any(|it| it.ifindex == ifindex && it.carrier == Some(false)) {
        return false;
    }
    let qdiscs = after.audit.as_ref().and_then(|audit| audit.qdiscs.value());
    let mut of_netdev = qdiscs.into_iter().flatten().filter(|qdisc| qdisc.ifindex == ifindex);
    of_netdev.any(|qdisc| qdisc.is_egress() && qdisc.drops_on_purpose())
}

/// The tun, tap or veth that was to send what this function dropped: the only one whose count of
/// dropped packets (`tx_dropped`) grew. Of forwarded packets the event does not tell it.
fn full_netdev<'a>(analysis: &Analysis<'a>, function: &str) -> Option<&'a str> {
    let driver = match function {
        "tun_net_xmit" => "tun",
        "veth_xmit" => "veth",
        _ => return None,
    };
    let grew = |netdev: &&Netdev| {
        let before = analysis.observation.before.netdevs.same(netdev);
        let count = |netdev: &Netdev| netdev.statistics.get("tx_dropped").copied().unwrap_or(0);
        has_driver(netdev, &[driver]) && count(netdev) > before.map_or(0, count)
    };
    let mut full = analysis.after().netdevs.iter().filter(grew);
    full.next().filter(|_| full.next().is_none()).map(|netdev| netdev.name.as_str())
}

/// Reason, function, device, cgroup, transport protocol, and the port with its direction.
type Place<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, u8, (bool, Option<u16>));

fn place<'a>(drop: &'a DroppedPackets, netdev: &'a str) -> Place<'a> {
    let port = (matches!(drop.protocol, 6 | 17) && drop.port != 0).then_some(drop.port);
    let cgroup = drop.cgroup.as_deref();
    (&drop.reason, &drop.function, netdev, cgroup, drop.protocol, (drop.is_sent(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::attribution::Hook;
    use netsilo_model::snapshot::drops::QUANTITY;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev};

    use crate::judge::ledger::ledger;

    fn rows(observation: &Observation) -> Option<Vec<DropRow>> {
        dropped(&Analysis::new(observation, &Costs::default()))
    }

    #[test]
    fn what_the_nic_has_sent_hides_no_loss_and_is_no_loss() {
        let netdev =
            SceneNetdev { name: "eth0".into(), driver: "bnx2".into(), ..SceneNetdev::default() };
        let mut host = Scene { netdevs: vec![netdev], ..Scene::default() }.observation();
        let hook = Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused: None };
        host.attribution.hooks = vec![hook];
        host.before.netdevs[0].statistics.insert("tx_packets".into(), 5);
        host.after.netdevs[0].statistics.insert("tx_packets".into(), 405);
        let drop = DroppedPackets {
            function: "bnx2_tx_int".into(),
            module: Some("bnx2".into()),
            packets: 400,
            ..DroppedPackets::default()
        };
        host.attribution.drops = vec![drop];
        let ledger = |host: &Observation| ledger(&Analysis::new(host, &Costs::default()));
        assert_eq!(ledger(&host).dropped.unwrap()[0].class, DropClass::NoLoss);
        assert!(!ledger(&host).may_have_lost());
        host.attribution.drops[0].packets = 40;
        assert_eq!(ledger(&host).dropped.unwrap()[0].class, DropClass::Unknown);
        assert!(ledger(&host).may_have_lost());
    }

    #[test]
    fn what_a_full_tap_dropped_has_its_name() {
        let tap = |name: &str| SceneNetdev {
            name: name.into(),
            driver: "tun".into(),
            ..SceneNetdev::default()
        };
        let netdevs = vec![tap("tap0"), tap("tap1")];
        let mut host = Scene { netdevs, ..Scene::default() }.observation();
        let hook = Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused: None };
        host.attribution.hooks = vec![hook];
        let function = "tun_net_xmit".into();
        host.attribution.drops =
            vec![DroppedPackets { function, packets: 40, ..DroppedPackets::default() }];
        for (before, at) in [(&mut host.before, 5), (&mut host.after, 5)] {
            let netdevs = before.netdevs.iter_mut();
            netdevs.for_each(|it| _ = it.statistics.insert("tx_dropped".into(), at));
        }
        let netdev = |host: &Observation| rows(host).unwrap()[0].netdev.clone();
        assert_eq!(netdev(&host), "", "none grew");
        host.after.netdevs[1].statistics.insert("tx_dropped".into(), 45);
        assert_eq!(netdev(&host), "tap1");
        host.after.netdevs[0].statistics.insert("tx_dropped".into(), 6);
        assert_eq!(netdev(&host), "", "one of two");
        host.after.netdevs[0].driver = Some("veth".into());
        assert_eq!(netdev(&host), "tap1");
    }

    #[test]
    fn what_was_lost_comes_first_and_equal_places_are_one_row() {
        let mut observation = Scene::default().observation();
        assert_eq!(rows(&observation), None, "nobody counted");
        let hook = |refused| Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused };
        observation.attribution.hooks.push(hook(Some("too old".into())));
        assert_eq!(rows(&observation), None, "the kernel refused to count");
        observation.attribution.hooks = vec![hook(None)];
        assert_eq!(rows(&observation), Some(Vec::new()));
        let own = observation.after.machine.netns;
        let drop = |reason: &str, netns, ethertype, packets| DroppedPackets {
            reason: reason.into(),
            netdev: "eth0".into(),
            netns,
            ethertype,
            protocol: 17,
            port: 53,
            packets,
            ..DroppedPackets::default()
        };
        observation.attribution.drops = vec![
            drop("NETFILTER_DROP", own, 0x0800, 900),
            drop("SOCKET_RCVBUFF", own, 0x0800, 5),
            drop("SOCKET_RCVBUFF", own, 0x86dd, 2),
        ];
        let rows = rows(&observation).unwrap();
        let short: Vec<_> = rows.iter().map(|it| (it.class, it.packets, it.port)).collect();
        let expected = [(DropClass::Lost, 7, Some(53)), (DropClass::Decided, 900, Some(53))];
        assert_eq!(short, expected);
    }
}
