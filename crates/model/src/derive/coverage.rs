//! Which stages of loss were counted and which were not, for the output, the JSON and the metrics.
//!
//! A stage of [`LossStage`] is counted if its counters were read twice. [`NOT_COUNTED`] lists all
//! other stages, each with the reason. A stage that gets counters becomes a [`LossStage`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::derive::analysis::Analysis;
use crate::derive::namespaces::{NAMESPACES, Others};
use crate::drivers::counters;
use crate::drivers::loss_stage::LossStage;
use crate::drivers::name::DriverName;
use crate::snapshot::netdev::Netdev;

/// A stage at which received packets can be lost, and whether these losses are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageCoverage {
    /// The stage: that of the ledger, or another one.
    pub stage: String,
    /// Its name in a sentence.
    pub name: String,
    /// Why its losses are not counted; absent: they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

impl StageCoverage {
    /// Whether losses of this stage are counted.
    pub fn is_counted(&self) -> bool {
        self.not_counted.is_none()
    }
}

/// Stages whose drops the event `skb:kfree_skb` shows, if it was counted.
const BY_EVENT: [&str; 6] =
    ["tc", "virtual-switches", "routing", "no-receiver", "filters", "other-sockets"];

/// Stages without counters in the ledger: id, name, reason.
const NOT_COUNTED: &[(&str, &str, &str)] = &[
    (
        "xdp",
        "XDP programs",
        "they drop on purpose: a driver's counter is shown, but is no loss; others are not read",
    ),
    ("tc", "tc programs", "their drops on receive are not read"),
    (
        "virtual-switches",
        "virtual switches and tunnels",
        "drops of bridges, bonds, tunnels and IPsec are not read",
    ),
    (
        "routing",
        "rp_filter and routing",
        "rejected by a rule: rp_filter is shown, but is no loss; the others are not read",
    ),
    (
        "no-receiver",
        "packets without a socket or protocol handler",
        "UdpNoPorts and rx_dropped are shown, but are no loss",
    ),
    ("filters", "socket filters and cgroup programs", "they drop on purpose, and are not read"),
    ("other-sockets", "sockets other than UDP and TCP", "their drops are not read"),
];

/// The id of the other network namespaces.
pub const OTHER_NAMESPACES: &str = "other-namespaces";

/// The other network namespaces: how many of them, and why some are not counted.
fn other_namespaces(analysis: &Analysis<'_>) -> StageCoverage {
    let (name, not_counted) = match Others::of(analysis.observation) {
        Some(others) => (others.in_words(), others.why_not),
        None => {
            let mut gaps = analysis.after().gaps.iter();
            let why = gaps.find(|gap| gap.what == NAMESPACES).map(|gap| gap.why.clone());
            let why = why.unwrap_or_else(|| "N/A: not recorded".to_owned());
            ("other network namespaces".to_owned(), Some(why))
        }
    };
    StageCoverage { stage: OTHER_NAMESPACES.to_owned(), name, not_counted }
}

/// Each stage, in the order of the receive path those of the ledger, then the others.
pub fn coverage(analysis: &Analysis<'_>) -> Vec<StageCoverage> {
    let of_the_ledger = LossStage::ALL.into_iter().filter_map(|stage| {
        let (stage_id, name) = named(stage)?;
        Some((stage_id, name, not_counted(analysis, stage)))
    });
    let by_event = analysis.observation.attribution.counts_drops();
    let others = NOT_COUNTED.iter().map(|(id, name, why)| {
        (*id, *name, (!by_event || !BY_EVENT.contains(id)).then(|| (*why).to_owned()))
    });
    let guest = analysis.after().machine.virtual_machine == Some(true);
    let host = guest.then(|| {
        ("host", "the host of this virtual machine", Some("it is another machine".to_owned()))
    });
    let row = |(stage, name, not_counted): (&str, &str, _)| StageCoverage {
        stage: stage.to_owned(),
        name: name.to_owned(),
        not_counted,
    };
    let all = of_the_ledger.chain(others).map(row);
    all.chain([other_namespaces(analysis)]).chain(host.map(row)).collect()
}

/// Both lists: `counted: wire, NIC; not counted: connection tracking`.
pub fn in_words(coverage: &[StageCoverage]) -> String {
    let names = |counted: bool| {
        let names = coverage.iter().filter(|it| it.is_counted() == counted);
        names.map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (names(true), names(false)) {
        (counted, others) if counted.is_empty() => format!("counted: none; not counted: {others}"),
        (counted, others) if others.is_empty() => format!("counted: {counted}"),
        (counted, others) => format!("counted: {counted}; not counted: {others}"),
    }
}

/// The id and name of a stage of the ledger; `None` for one that loses nothing.
fn named(stage: LossStage) -> Option<(&'static str, &'static str)> {
    Some(match stage {
        LossStage::Wire => ("wire", "wire"),
        LossStage::Nic => ("nic", "NIC"),
        LossStage::Ring => ("ring", "rings"),
        LossStage::Backlog => ("backlog", "backlogs of the cpus"),
        LossStage::PacketSocket => ("packet-socket", "packet and AF_XDP sockets"),
        LossStage::Conntrack => ("conntrack", "connection tracking"),
        LossStage::Nfqueue => ("nfqueue", "NFQUEUE"),
        LossStage::Protocol => ("protocol", "IP and checksums"),
        LossStage::Neighbour => ("neighbour", "next hops"),
        LossStage::Qdisc => ("qdisc", "queueing disciplines"),
        LossStage::VirtualDevice => ("virtual-device", "virtual netdevs"),
        LossStage::Listen => ("listen", "listen queues"),
        LossStage::Socket => ("socket", "UDP and TCP sockets"),
        LossStage::Other => ("other", "other parts of the kernel"),
        LossStage::Xdp | LossStage::Squeeze => return None,
    })
}

/// Why the losses of a stage of the ledger are not counted here; `None` if they are.
fn not_counted(analysis: &Analysis<'_>, stage: LossStage) -> Option<String> {
    if analysis.rates.elapsed.is_zero() {
        return Some("there is no interval between two readings".into());
    }
    match stage {
        LossStage::Wire | LossStage::Nic | LossStage::Ring => by_devices(analysis, stage),
        LossStage::Backlog => {
            let rates = &analysis.rates.cpus;
            let is_read = |cpu| {
                let softnet = rates.get(&cpu).and_then(|rates| rates.softnet);
                softnet.is_some_and(|softnet| softnet.dropped_per_s.is_some())
            };
            let all = analysis.after().topology.online.iter().all(is_read);
            (!all).then(|| "/proc/net/softnet_stat was not read of each cpu".into())
        }
        LossStage::PacketSocket => {
            let counted = analysis.observation.attribution.counts_packet_sockets();
            (!counted).then(|| "what they take and lose was not counted".into())
        }
        LossStage::Conntrack | LossStage::Nfqueue => {
            let both = [&analysis.observation.before, &analysis.observation.after];
            let read = both.iter().all(|snapshot| snapshot.netfilter.is_some());
            (!read).then(|| "the statistics of netfilter were not read twice".into())
        }
        LossStage::Neighbour | LossStage::Qdisc | LossStage::VirtualDevice | LossStage::Other => {
            let counted = analysis.observation.attribution.counts_drops();
            (!counted).then(|| "the packets that the kernel drops were not counted".into())
        }
        LossStage::Protocol => unread(analysis, &["IpInDiscards"]),
        LossStage::Listen => unread(analysis, &["TcpExtListenDrops"]),
        LossStage::Socket => unread(analysis, &["UdpRcvbufErrors", "TcpExtTCPBacklogDrop"]),
        LossStage::Xdp | LossStage::Squeeze => None,
    }
}

fn unread(analysis: &Analysis<'_>, counters: &[&str]) -> Option<String> {
    let unread = counters.iter().find(|name| !analysis.rates.protocols.contains_key(**name))?;
    Some(format!("{unread} was not read twice"))
}

/// Why losses of a device's stage are not counted: the first device without counters.
fn by_devices(analysis: &Analysis<'_>, stage: LossStage) -> Option<String> {
    let guest = analysis.after().machine.virtual_machine == Some(true);
    if guest && stage == LossStage::Wire {
        return Some("a virtual machine has no wire of its own".into());
    }
    let devices = analysis.after().netdevs.iter().filter(|it| it.up && it.device_path.is_some());
    let mut devices = devices.peekable();
    if devices.peek().is_none() {
        return Some("no netdev here is a device".into());
    }
    devices.find_map(|netdev| {
        let before = analysis.observation.before.netdevs.same(netdev);
        let why = of_device(before?, netdev, stage)?;
        Some(format!("{}: {why}", netdev.name))
    })
}

fn of_device(before: &Netdev, after: &Netdev, stage: LossStage) -> Option<String> {
    if stage == LossStage::Wire && !has(before, after, "rx_crc_errors") {
        return Some("rx_crc_errors was not read".into());
    }
    let stats = after.ethtool.as_ref().map(|ethtool| &ethtool.stats);
    if let Some(why) = stats.map_or(Some("not read"), |stats| stats.reason()) {
        return Some(format!("the statistics of its driver: {why}"));
    }
    let (old, new) = (driver_counters(before), driver_counters(after));
    let knows = |stage: LossStage| {
        let of_stage =
            new.iter().filter(|((place, _), (_, aside))| *place == stage && aside.is_empty());
        of_stage.into_iter().any(|(key, _)| old.contains_key(key))
    };
    let device = [LossStage::Nic, LossStage::Ring];
    // with most drivers the NIC's buffer fills up because it waits for descriptors
    let is_known = match stage {
        LossStage::Wire => device.into_iter().any(knows),
        _ if counters::ring_apart(after) => knows(stage),
        _ => device.into_iter().any(knows),
    };
    (!is_known).then(|| match &after.driver {
        None => "its driver is not known".to_owned(),
        Some(driver) => format!("netsilo knows no such counter of {driver} there"),
    })
}

fn has(before: &Netdev, after: &Netdev, counter: &str) -> bool {
    [before, after].iter().all(|netdev| netdev.statistics.contains_key(counter))
}

/// A driver's loss counters by stage and name, each summed over its queue numbers.
pub fn driver_counters(netdev: &Netdev) -> BTreeMap<(LossStage, String), (u64, &'static str)> {
    let mut sums: BTreeMap<(LossStage, String), (u64, &'static str)> = BTreeMap::new();
    let stats = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.stats.value());
    let driver = DriverName::of(netdev);
    for (name, value) in stats.into_iter().flatten() {
        if let Some(row) = counters::row(driver, name) {
            let sum = sums.entry((row.place, row.name())).or_insert((0, row.aside));
            sum.0 = sum.0.saturating_add(*value);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use crate::cost::weights::Costs;
    use crate::machine::reading::Reading;
    use crate::snapshot::ethtool::Ethtool;
    use crate::snapshot::observation::Observation;
    use crate::synthetic::scene::{Scene, SceneNetdev};

    use super::*;

    fn host(driver: &str) -> Observation {
        let netdev =
            SceneNetdev { name: "eth0".into(), driver: driver.into(), ..SceneNetdev::default() };
        let mut host = Scene { netdevs: vec![netdev], ..Scene::default() }.observation();
        for snapshot in [&mut host.before, &mut host.after] {
            let counters =
                ["IpInDiscards", "TcpExtListenDrops", "UdpRcvbufErrors", "TcpExtTCPBacklogDrop"];
            snapshot.protocols = counters.map(|name| (name.to_owned(), 0)).into();
            snapshot.machine.virtual_machine = Some(false);
            let netdev = &mut snapshot.netdevs[0];
            netdev.statistics.insert("rx_crc_errors".into(), 0);
        }
        host
    }

    /// Gives the netdev these counters of its driver in both snapshots.
    fn with_stats(mut host: Observation, names: &[&str]) -> Observation {
        let stats = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
        let stats = Reading::Value(stats);
        for snapshot in [&mut host.before, &mut host.after] {
            let unknown = Ethtool { stats: stats.clone(), ..Ethtool::unavailable("not read") };
            snapshot.netdevs[0].ethtool = Some(unknown);
        }
        host
    }

    fn why_not(host: &Observation, stage: &str) -> Option<String> {
        let coverage = coverage(&Analysis::new(host, &Costs::default()));
        coverage.into_iter().find(|it| it.stage == stage).unwrap().not_counted
    }

    #[test]
    fn what_was_read_twice_is_counted_and_nothing_else() {
        let host = with_stats(host("igb"), &["rx_missed_errors", "rx_queue_0_drops"]);
        let coverage = coverage(&Analysis::new(&host, &Costs::default()));
        let words = in_words(&coverage);
        assert!(
            words.starts_with(
                "counted: wire, NIC, rings, backlogs of the cpus, IP and checksums, \
                 listen queues, UDP and TCP sockets; not counted: packet and AF_XDP \
                 sockets, connection"
            ),
            "{words}"
        );
        assert!(words.contains("tc programs, virtual switches") && words.ends_with("namespaces"));
        let mut ids: Vec<_> = coverage.iter().map(|it| &it.stage).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), coverage.len(), "a stage is in one of the lists");
    }

    #[test]
    fn a_device_without_known_counters_is_not_counted() {
        let unknown = with_stats(host("igb"), &["rx_packets"]);
        let words = "eth0: netsilo knows no such counter of igb there";
        for stage in ["wire", "nic", "ring"] {
            assert_eq!(why_not(&unknown, stage).as_deref(), Some(words), "{stage}");
        }
        // its buffer fills up because it waits for descriptors: one counter is enough
        let missed = with_stats(host("igb"), &["rx_missed_errors"]);
        assert_eq!((why_not(&missed, "nic"), why_not(&missed, "ring")), (None, None));
        let apart = with_stats(host("mlx5_core"), &["rx_discards_phy"]);
        assert_eq!(why_not(&apart, "nic"), None);
        assert!(why_not(&apart, "ring").is_some());
        let mut refused = missed.clone();
        refused.after.netdevs[0].ethtool.as_mut().unwrap().stats = Reading::Absent("EPERM".into());
        let words = "eth0: the statistics of its driver: EPERM";
        assert_eq!(why_not(&refused, "nic").as_deref(), Some(words));
        let mut none = missed;
        none.after.netdevs.clear();
        assert_eq!(why_not(&none, "ring").as_deref(), Some("no netdev here is a device"));
    }

    #[test]
    fn a_file_that_was_not_read_twice_counts_nothing() {
        let mut host = host("igb");
        host.before.protocols.remove("TcpExtTCPBacklogDrop");
        let words = "TcpExtTCPBacklogDrop was not read twice";
        assert_eq!(why_not(&host, "socket").as_deref(), Some(words));
        assert_eq!(why_not(&host, "listen"), None);
        let cpu = *host.after.cpus.keys().next().unwrap();
        host.after.cpus.get_mut(&cpu).unwrap().softnet = None;
        assert!(why_not(&host, "backlog").is_some());
        host.after.at = host.before.at;
        assert!(why_not(&host, "listen").unwrap().contains("no interval"));
    }

    #[test]
    fn a_guest_sees_neither_its_wire_nor_its_host() {
        let mut host = with_stats(host("igb"), &["rx_missed_errors"]);
        host.after.machine.virtual_machine = Some(true);
        assert!(why_not(&host, "wire").is_some() && why_not(&host, "host").is_some());
        assert_eq!(why_not(&host, "nic"), None);
    }
}
