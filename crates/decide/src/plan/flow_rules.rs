//! Steers the flows of a listening port to chosen rx queues by rules of the device: an ntuple rule
//! for one queue, a rule that leads to an RSS context for several.
//!
//! The operator names each worker's port: the eBPF counters do not record ports.

use netsilo_model::change::{Change, FlowRule, Knob, NTUPLE_FILTER, Steer, Target, knobs};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::plan::contents::{Plan, Refusal, RefusalCause};
use crate::plan::goal::Goal;
use crate::plan::port_steering::PortSteering;

/// Whether a netdev's driver can steer flows: the offload is on, or can be switched on.
pub(super) fn can_steer(netdev: &Netdev) -> bool {
    let feature = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.feature(NTUPLE_FILTER));
    feature.is_some_and(|feature| feature.active || !feature.fixed())
}

/// Plans the flow rules, the RSS contexts that they lead to, and the offload that enables them.
pub(super) fn steer(netdevs: &[&Netdev], goal: &Goal) -> Plan {
    let mut part = Plan::default();
    for netdev in netdevs {
        for steering in &goal.steer {
            let subject = format!("{} {steering}", netdev.name);
            match cannot_steer(netdev, &steering.queues, &subject) {
                Some(refusal) => part.refuse_all([refusal]),
                None => {
                    let rules = rules(netdev, steering);
                    let is_new = |it: &Change| !part.changes.iter().any(|k| k.target == it.target);
                    let new: Vec<Change> = rules.into_iter().filter(is_new).collect();
                    part.changes.extend(new);
                }
            }
        }
    }
    part
}

/// Why a netdev cannot steer flows to these queues.
pub(super) fn cannot_steer(netdev: &Netdev, queues: &CpuSet, subject: &str) -> Option<Refusal> {
    let count = netdev.rx_queues.len();
    if !can_steer(netdev) {
        let driver = netdev.driver.as_deref().unwrap_or("its driver");
        let reason = format!("{driver} supports no flow rules; --rfs moves flows in software");
        Some(Refusal::new(subject, RefusalCause::NoSuchKnob, reason))
    } else if queues.highest().is_some_and(|queue| queue.0 as usize >= count) {
        let reason = format!("it has {count} rx queues: choose from 0 to {}", count.max(1) - 1);
        Some(Refusal::new(subject, RefusalCause::OutOfRange, reason))
    } else {
        None
    }
}

/// The switches to turn on for the flows of a port; some may be on already.
fn rules(netdev: &Netdev, steering: &PortSteering) -> Vec<Change> {
    let mut changes = Vec::new();
    let identity = || NetdevIdentity::from_netdev(netdev);
    let active = netdev
        .ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.feature(NTUPLE_FILTER))
        .is_some_and(|it| it.active);
    let offload = knobs::Offload { netdev: identity(), feature: NTUPLE_FILTER.into() };
    changes.extend(switch_on(offload, active, "flow rules need it".into()));
    let to = match steering.queues.single() {
        Some(queue) => Steer::Queue(queue.0),
        None => {
            let context = knobs::RssContext { netdev: identity(), queues: steering.queues.clone() };
            let reason = format!("spreads flows over queues {} only", steering.queues);
            changes.extend(switch_on(context, false, reason));
            Steer::Queues(steering.queues.clone())
        }
    };
    for flow in steering.flows() {
        let rule = FlowRule::to_port(flow, steering.port, to.clone());
        let reason = format!(
            "flows to port {} arrive on rx queues {}, as requested",
            steering.port, steering.queues
        );
        let knob = knobs::NtupleRule { netdev: identity(), rule };
        changes.extend(switch_on(knob, false, reason));
    }
    changes
}

/// The change of a switch to on; `None` if it is on.
fn switch_on(
    knob: impl Knob<Value = bool> + Into<Target>,
    old: bool,
    reason: String,
) -> Option<Change> {
    (!old).then(|| Change::new(knob, old, true, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::Value;
    use netsilo_model::change::ordered;
    use netsilo_model::machine::reading::Reading;
    use netsilo_model::snapshot::ethtool::Feature;
    use netsilo_model::snapshot::netdev::RxQueue;

    /// A netdev with four queues whose driver can steer flows, or cannot.
    fn netdev(available: bool) -> Netdev {
        let feature = Feature {
            name: NTUPLE_FILTER.into(),
            available,
            requested: false,
            active: false,
            never_changed: false,
        };
        let absent = r#"{"absent":"not asked"}"#;
        let parts = [
            "driver",
            "channels",
            "rings",
            "coalesce",
            "features",
            "rss",
            "rx_rings",
            "ntuple_rules",
            "link",
            "stats",
        ];
        let parts: Vec<String> = parts.iter().map(|part| format!("\"{part}\":{absent}")).collect();
        let mut ethtool: netsilo_model::snapshot::ethtool::Ethtool =
            serde_json::from_str(&format!("{{{},\"flow_hash\":{{}}}}", parts.join(","))).unwrap();
        ethtool.features = Reading::Value(vec![feature]);
        let rx_queues = (0..4).map(|index| RxQueue { index, ..RxQueue::default() }).collect();
        Netdev {
            name: "eth0".into(),
            driver: Some("ice".into()),
            ethtool: Some(ethtool),
            rx_queues,
            ..Netdev::default()
        }
    }

    fn planned(netdev: &Netdev, texts: &[&str]) -> Plan {
        let goal = Goal {
            steer: texts.iter().map(|steering| steering.parse().unwrap()).collect(),
            ..Goal::default()
        };
        let plan = steer(&[netdev], &goal);
        Plan { changes: ordered(plan.changes), ..plan }
    }

    #[test]
    fn one_queue_needs_a_rule_and_several_need_an_rss_context() {
        let plan = planned(&netdev(true), &["443/tcp=2-3", "53/udp=0"]);
        let targets: Vec<String> =
            plan.changes.iter().map(|change| change.target.to_string()).collect();
        assert_eq!(
            targets,
            [
                "eth0 rx-ntuple-filter",
                "eth0 rss context over queues 2-3",
                "eth0 rule tcp4 dst-port 443 queues 2-3",
                "eth0 rule tcp6 dst-port 443 queues 2-3",
                "eth0 rule udp4 dst-port 53 action 0",
                "eth0 rule udp6 dst-port 53 action 0",
            ]
        );
        assert!(
            plan.changes.iter().all(|change| change.new == Value::Switch(true))
                && plan.refusals.is_empty()
        );
    }

    #[test]
    fn a_driver_without_rules_and_a_missing_queue_are_refused() {
        let plan = planned(&netdev(false), &["443/tcp=2"]);
        assert_eq!(
            plan.refusals[0].reason,
            "ice supports no flow rules; --rfs moves flows in software"
        );
        let plan = planned(&netdev(true), &["443/tcp=3-4"]);
        assert_eq!(
            (plan.refusals[0].reason.as_str(), plan.changes.len()),
            ("it has 4 rx queues: choose from 0 to 3", 0)
        );
    }

    #[test]
    fn a_steering_parses_what_it_prints() {
        for text in ["443/tcp=2-3", "53/udp=0"] {
            assert_eq!(text.parse::<PortSteering>().unwrap().to_string(), text);
        }
        for bad in ["443", "443/tcp", "443/tcp=", "0/tcp=1", "443/sctp=1", "tcp/443=1"] {
            assert!(bad.parse::<PortSteering>().is_err(), "{bad}");
        }
    }
}
