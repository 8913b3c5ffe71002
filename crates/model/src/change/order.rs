//! Which change comes before which, which ones stop traffic for a moment, and which would be void
//! in one plan.

use crate::change::value::Value;
use crate::change::{Change, NTUPLE_FILTER, Target};

/// The order in which changes are made; undoing them goes the other way.
///
/// First the default for interrupts to come, then what sets a device up anew and so takes other
/// settings away: channels, rings and MTU, how it is polled, its offloads. Then what it hashes and
/// with which key, and the table that the hash leads into. Then interrupts, each kthread after the
/// interrupt that wakes it, then which queue a CPU sends through (its completions arrive at their
/// new place by then), then RPS. The RFS table is there before the queues count flows into it, and
/// goes after they have stopped. A device steers flows when what it steers by is there: tables,
/// contexts, then the rules that lead to them; all that stops the other way round. Consumers come
/// last: a cgroup before its threads, whose CPUs it may narrow.
pub fn ordered(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|change| rank(&change.target, &change.new));
    changes
}

fn rank(target: &Target, new: &Value) -> u8 {
    let ends = matches!(new, Value::Count(0) | Value::Switch(false));
    match target {
        Target::DefaultSmpAffinity => 0,
        Target::Channels { .. } => 1,
        Target::Rings { .. } | Target::Mtu { .. } => 2,
        Target::Threaded { .. } => 3,
        Target::NtupleRule { .. } if ends => 4,
        Target::RssContext { .. } if ends => 5,
        Target::Offload { feature, .. } if feature == NTUPLE_FILTER => {
            if ends {
                6
            } else {
                19
            }
        }
        Target::Offload { .. } => 7,
        Target::Coalesce { .. }
        | Target::NapiDeferHardIrqs { .. }
        | Target::GroFlushTimeout { .. } => 8,
        Target::RssHash { .. } | Target::RssKey { .. } => 9,
        Target::FlowHash { .. } => 10,
        Target::RssTable { .. } => 11,
        Target::IrqAffinity { .. } => 12,
        Target::NapiThread { .. } => 13,
        Target::XpsCpus { .. } => 14,
        Target::RpsDefaultMask | Target::RpsCpus { .. } => 15,
        Target::RpsSockFlowEntries => {
            if ends {
                18
            } else {
                16
            }
        }
        Target::RpsFlowCnt { .. } => 17,
        Target::RssContext { .. } => 20,
        Target::NtupleRule { .. } => 21,
        Target::Sysctl { .. } => 22,
        Target::CgroupCpuset { .. } => 23,
        Target::ThreadAffinity { .. } => 24,
    }
}

/// Whether a change stops the traffic of its device for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// With some drivers, which set themselves up anew.
    Sometimes,
    /// The driver sets up its queues anew: what is in them is lost, and the link may be away for
    /// seconds.
    Always,
}

impl Target {
    /// Whether writing it stops the traffic of its device for a moment; `None` where it does not.
    pub fn interrupts_traffic(&self) -> Option<Interruption> {
        match self {
            Self::Channels { .. } | Self::Rings { .. } => Some(Interruption::Always),
            Self::Mtu { .. }
            | Self::Offload { .. }
            | Self::Coalesce { .. }
            | Self::RssHash { .. } => Some(Interruption::Sometimes),
            _ => None,
        }
    }

    /// Whether another number of channels makes it void: what there is of each queue, the
    /// interrupts and their threads, and what names queues. The driver sets all that up anew, and
    /// by its own mind.
    fn is_of_queues(&self) -> bool {
        matches!(
            self,
            Self::IrqAffinity { .. }
                | Self::NapiThread { .. }
                | Self::RpsCpus { .. }
                | Self::RpsFlowCnt { .. }
                | Self::XpsCpus { .. }
                | Self::RssTable { .. }
                | Self::RssContext { .. }
                | Self::NtupleRule { .. }
        )
    }

    /// Whether a change of `self` makes one of `other` void in the same plan.
    pub fn voids(&self, other: &Self) -> bool {
        match self {
            Self::Channels { netdev } => other.is_of_queues() && other.is_of(&netdev.name),
            _ => false,
        }
    }
}

/// Changes that can be made together, and those that another one among them would make void: they
/// need a plan of their own, made when the first are in force.
pub fn held_back(changes: Vec<Change>) -> (Vec<Change>, Vec<Change>) {
    let first: Vec<Target> = changes.iter().map(|change| change.target.clone()).collect();
    changes.into_iter().partition(|change| !first.iter().any(|target| target.voids(&change.target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::FlowRule;
    use crate::machine::cpuset::CpuSet;
    use crate::machine::ids::Irq;
    use crate::snapshot::ethtool::FlowType;
    use crate::snapshot::netdev::NetdevIdentity;

    fn netdev(name: &str) -> NetdevIdentity {
        NetdevIdentity { name: name.into(), device_path: None }
    }

    fn change(target: Target, old: Value, new: Value) -> Change {
        Change { target, old, new, reason: String::new() }
    }

    fn order(changes: Vec<Change>) -> Vec<String> {
        ordered(changes).iter().map(|change| change.target.to_string()).collect()
    }

    #[test]
    fn the_flow_table_is_there_before_the_queues_count_into_it_and_goes_after() {
        let table =
            |count| change(Target::RpsSockFlowEntries, Value::Count(0), Value::Count(count));
        let queue = |count| {
            change(
                Target::RpsFlowCnt { netdev: netdev("eth0"), queue: 0 },
                Value::Count(0),
                Value::Count(count),
            )
        };
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
        let with = |target| change(target, Value::Switch(false), Value::Switch(true));
        let of = || netdev("eth0");
        let rule: FlowRule = "tcp4 dst-port 443 queues 2-3".parse().unwrap();
        let all = vec![
            with(Target::Sysctl { name: "net.core.netdev_budget".into() }),
            with(Target::NtupleRule { netdev: of(), rule }),
            with(Target::RssContext { netdev: of(), queues: CpuSet::parse_list("2-3").unwrap() }),
            with(Target::RssTable { netdev: of(), context: 0 }),
            with(Target::FlowHash { netdev: of(), flow_type: FlowType::Udp4 }),
            with(Target::Offload { netdev: of(), feature: NTUPLE_FILTER.into() }),
            with(Target::Offload { netdev: of(), feature: "rx-lro".into() }),
            with(Target::Rings { netdev: of() }),
            with(Target::Channels { netdev: of() }),
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
        let without = |target| change(target, Value::Switch(true), Value::Switch(false));
        let rule: FlowRule = "tcp4 dst-port 443 queues 2-3".parse().unwrap();
        let all = vec![
            without(Target::Offload { netdev: netdev("eth0"), feature: NTUPLE_FILTER.into() }),
            without(Target::RssContext {
                netdev: netdev("eth0"),
                queues: CpuSet::parse_list("2-3").unwrap(),
            }),
            without(Target::NtupleRule { netdev: netdev("eth0"), rule }),
        ];
        let wanted = [
            "eth0 rule tcp4 dst-port 443 queues 2-3",
            "eth0 rss context over queues 2-3",
            "eth0 rx-ntuple-filter",
        ];
        assert_eq!(order(all), wanted);
    }

    #[test]
    fn what_names_queues_waits_for_a_plan_after_the_one_that_changes_their_number() {
        let of = |target| change(target, Value::Count(0), Value::Count(1));
        let irq = |name| Target::IrqAffinity {
            irq: Irq(27),
            action: "x".into(),
            netdev: Some(netdev(name)),
        };
        let thread = Target::NapiThread { pid: 7, comm: "napi/eth0-8193".into(), start_time: 1 };
        let changes = vec![
            of(irq("eth0")),
            of(irq("eth1")),
            of(thread),
            of(Target::RssTable { netdev: netdev("eth0"), context: 0 }),
            of(Target::Channels { netdev: netdev("eth0") }),
            of(Target::Rings { netdev: netdev("eth0") }),
        ];
        let (now, later) = held_back(changes);
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
