//! The order of changes, and which changes another change of the same plan would reset.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::knobs::Target;
use crate::change::one_change::Change;

/// The order in which changes are made. Undo uses the reverse order.
pub fn ordered(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|change| change.target.step(change.new.is_off()));
    changes
}

/// Splits changes into those that can be made together, and those that another one of them would
/// reset. The latter need a separate plan, made when the first are in effect.
pub fn held_back(changes: Vec<Change>) -> (Vec<Change>, Vec<Change>) {
    let resets = resets(&changes);
    let stays: Vec<bool> =
        changes.iter().map(|change| reset_of(&resets, &change.target).is_none()).collect();
    let mut stays = stays.into_iter();
    changes.into_iter().partition(|_| stays.next() == Some(true))
}

/// The first change that another one of the plan would reset, after that other one.
pub fn first_void(changes: &[Change]) -> Option<(&Target, &Target)> {
    let resets = resets(changes);
    let mut targets = changes.iter().map(|change| &change.target);
    targets.find_map(|target| Some((reset_of(&resets, target)?, target)))
}

/// The changes that may reset others of their netdev, by the netdev's name. They are indexed
/// because a stranger's plan may have a hundred thousand changes.
type Resets<'a> = BTreeMap<&'a str, BTreeSet<&'a Target>>;

fn resets(changes: &[Change]) -> Resets<'_> {
    let mut resets = Resets::new();
    for target in changes.iter().map(|change| &change.target) {
        if let Some(netdev) = target.netdev().filter(|_| target.may_reset_queues()) {
            resets.entry(&netdev.name).or_default().insert(target);
        }
    }
    resets
}

fn reset_of<'a>(resets: &Resets<'a>, target: &Target) -> Option<&'a Target> {
    let voids = |reset: &&Target| reset.voids(target);
    match target.netdev() {
        Some(netdev) => resets.get(netdev.name.as_str())?.iter().copied().find(voids),
        // a kthread, whose name has only a part of its netdev's name
        None => resets.values().flatten().copied().find(voids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{FlowRule, Knob, NTUPLE_FILTER, Settings, Table, Words, knobs};
    use crate::machine::cpuset::CpuSet;
    use crate::machine::ids::Irq;
    use crate::snapshot::ethtool::{FlowType, HashFields};
    use crate::snapshot::netdev::NetdevIdentity;

    fn netdev(name: &str) -> NetdevIdentity {
        NetdevIdentity { name: name.into(), device_path: None, ifindex: None }
    }

    fn to<K: Knob + Into<Target>>(knob: K, new: K::Value) -> Change {
        Change::new(knob, new.clone(), new, "")
    }

    fn order(changes: Vec<Change>) -> Vec<String> {
        ordered(changes).iter().map(|change| change.target.to_string()).collect()
    }

    #[test]
    fn the_flow_table_is_there_before_the_queues_count_into_it_and_goes_after() {
        let table = |count| to(knobs::RpsSockFlowEntries, count);
        let queue = |count| to(knobs::RpsFlowCnt { netdev: netdev("eth0"), queue: 0 }, count);
        assert_eq!(
            order(vec![queue(1024), table(4096)]),
            ["rps_sock_flow_entries", "eth0 rx-0 rps_flow_cnt"]
        );
        assert_eq!(
            order(vec![table(0), queue(0)]),
            ["eth0 rx-0 rps_flow_cnt", "rps_sock_flow_entries"]
        );
    }

    #[test]
    fn what_sets_a_device_up_anew_comes_before_what_it_would_take_away() {
        let of = || netdev("eth0");
        let rule: FlowRule = "tcp4 dst-port 443 queues 2-3".parse().unwrap();
        let queues = CpuSet::parse_list("2-3").unwrap();
        let all = vec![
            to(knobs::Sysctl { name: "net.core.netdev_budget".into() }, Words::new("300")),
            to(knobs::NtupleRule { netdev: of(), rule }, true),
            to(knobs::RssContext { netdev: of(), queues }, true),
            to(knobs::RssTable { netdev: of(), context: 0 }, Table(vec![0])),
            to(knobs::FlowHash { netdev: of(), flow_type: FlowType::Udp4 }, HashFields::PORTS),
            to(knobs::Offload { netdev: of(), feature: NTUPLE_FILTER.into() }, true),
            to(knobs::Offload { netdev: of(), feature: "rx-lro".into() }, true),
            to(knobs::Rings { netdev: of() }, Settings::default()),
            to(knobs::Channels { netdev: of() }, Settings::default()),
        ];
        assert_eq!(
            order(all),
            [
                "eth0 channels",
                "eth0 rings",
                "eth0 rx-lro",
                "eth0 rx-flow-hash udp4",
                "eth0 rss table",
                "eth0 rx-ntuple-filter",
                "eth0 rss context over queues 2-3",
                "eth0 rule tcp4 dst-port 443 queues 2-3",
                "net.core.netdev_budget",
            ]
        );
    }

    #[test]
    fn a_rule_goes_before_the_context_that_it_leads_to() {
        let of = || netdev("eth0");
        let rule: FlowRule = "tcp4 dst-port 443 queues 2-3".parse().unwrap();
        let queues = CpuSet::parse_list("2-3").unwrap();
        let all = vec![
            to(knobs::Offload { netdev: of(), feature: NTUPLE_FILTER.into() }, false),
            to(knobs::RssContext { netdev: of(), queues }, false),
            to(knobs::NtupleRule { netdev: of(), rule }, false),
        ];
        let wanted = [
            "eth0 rule tcp4 dst-port 443 queues 2-3",
            "eth0 rss context over queues 2-3",
            "eth0 rx-ntuple-filter",
        ];
        assert_eq!(order(all), wanted);
    }

    #[test]
    fn a_kthread_is_not_moved_by_a_plan_that_ends_it() {
        let of = || netdev("eth0");
        let comm = || "napi/eth0-8193".into();
        let moved = to(knobs::NapiThread { pid: 7, comm: comm(), start_time: 1 }, CpuSet::first(1));
        let gro = |name: &str| knobs::Offload { netdev: netdev(name), feature: "rx-gro".into() };
        for ends in [
            to(knobs::Threaded { netdev: of() }, 0),
            to(knobs::Rings { netdev: of() }, Settings::default()),
            to(knobs::Mtu { netdev: of() }, 9000),
            to(gro("eth0"), false),
        ] {
            let plan = [ends, moved.clone()];
            assert!(first_void(&plan).is_some(), "{}", plan[0].target);
        }
        for other in [to(gro("eth1"), false), to(knobs::Threaded { netdev: netdev("eth1") }, 0)] {
            assert_eq!(first_void(&[other, moved.clone()]), None);
        }
    }

    #[test]
    fn what_names_queues_waits_for_a_plan_after_the_one_that_changes_their_number() {
        let of = || netdev("eth0");
        let irq = |name| knobs::IrqAffinity {
            irq: Irq(27),
            action: "x".into(),
            netdev: Some(netdev(name)),
        };
        let comm = "napi/eth0-8193".into();
        let changes = vec![
            to(irq("eth0"), CpuSet::first(1)),
            to(irq("eth1"), CpuSet::first(1)),
            to(knobs::NapiThread { pid: 7, comm, start_time: 1 }, CpuSet::first(1)),
            to(knobs::RssTable { netdev: of(), context: 0 }, Table(vec![0])),
            to(knobs::Channels { netdev: of() }, Settings::default()),
            to(knobs::Rings { netdev: of() }, Settings::default()),
        ];
        let (by, void) = first_void(&changes).unwrap();
        assert_eq!(
            (by.to_string(), void.to_string()),
            ("eth0 channels".into(), "irq 27 (x)".into())
        );
        let (now, later) = held_back(changes);
        assert_eq!(first_void(&now), None);
        let names = |changes: Vec<Change>| {
            changes.iter().map(|it| it.target.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(now), ["irq 27 (x)", "eth0 channels", "eth0 rings"]);
        assert_eq!(
            names(later),
            ["irq 27 (x)", "kthread napi/eth0-8193 (pid 7)", "eth0 rss table"]
        );
    }
}
