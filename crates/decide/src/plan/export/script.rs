//! A plain shell script that writes the plan's settings where they differ.

use std::fmt::Write as _;

use netsilo_model::change::{Change, Interruption, Target, Value, sysctl_path};
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::Plan;
use crate::plan::export::file::{ExportedFile, one_line, quoted, text_of};
use crate::plan::export::interrupts::interrupts;

/// Shell functions at the start of the script.
const FUNCTIONS: &str = include_str!("script.sh");

/// Builds the script.
pub fn script(plan: &Plan) -> ExportedFile {
    let mut text = FUNCTIONS.to_owned();
    // Changes that reset a netdev come first, because the reset undoes other settings.
    let resets =
        |change: &&Change| change.target.interrupts_traffic() == Some(Interruption::Always);
    for change in plan.changes.iter().filter(resets) {
        text.push_str(&lines(change));
    }
    for it in interrupts(plan) {
        let (action, mask, cpus) = (quoted(it.action), it.cpus.to_mask(1), it.cpus);
        let _ = writeln!(text, "# {}\ninterrupt {action} {mask} '{cpus}'", one_line(it.why));
    }
    for change in plan.changes.iter().filter(|change| !resets(change)) {
        text.push_str(&lines(change));
    }
    text.push_str("exit $failed\n");
    ExportedFile { name: "netsilo-placement.sh".into(), text, executable: true }
}

/// The lines of one change: its reason and its command, or a comment that it is left out.
fn lines(change: &Change) -> String {
    match line(change) {
        Some(line) => format!("# {}\n{line}\n", one_line(&change.reason)),
        // These belong to running threads and cgroups, not to a device; interrupts were written
        // before.
        None if matches!(
            change.target,
            Target::IrqAffinity { .. }
                | Target::ThreadAffinity { .. }
                | Target::CgroupCpuset { .. }
        ) =>
        {
            String::new()
        }
        None => {
            format!("# left out, ethtool has no repeatable command for it: {}\n", change.target)
        }
    }
}

fn line(change: &Change) -> Option<String> {
    let what = quoted(&change.target.to_string());
    let value = text_of(change);
    let path = |netdev: &NetdevIdentity| quoted(netdev.device_path.as_deref().unwrap_or_default());
    let queue = |netdev: &NetdevIdentity, file: &str| {
        format!("queue {} {} {file} {value} {what}", quoted(&netdev.name), path(netdev))
    };
    let setting = |netdev: &NetdevIdentity, file: &str| {
        format!("setting {} {} {file} {value} {what}", quoted(&netdev.name), path(netdev))
    };
    let ethtool = |netdev: &NetdevIdentity, option: &str, arguments: &str| {
        format!("device {} {} {what} {option} {arguments}", quoted(&netdev.name), path(netdev))
    };
    Some(match &change.target {
        Target::DefaultSmpAffinity => format!("put /proc/irq/default_smp_affinity {value} {what}"),
        Target::RpsSockFlowEntries => {
            format!("put /proc/sys/net/core/rps_sock_flow_entries {value} {what}")
        }
        Target::RpsDefaultMask => format!("put /proc/sys/net/core/rps_default_mask {value} {what}"),
        Target::Sysctl { name } => format!("put {} {} {what}", sysctl_path(name)?, quoted(&value)),
        Target::RpsCpus { netdev, queue: n } => queue(netdev, &format!("rx-{n}/rps_cpus")),
        Target::RpsFlowCnt { netdev, queue: n } => queue(netdev, &format!("rx-{n}/rps_flow_cnt")),
        Target::XpsCpus { netdev, queue: n } => queue(netdev, &format!("tx-{n}/xps_cpus")),
        Target::NapiDeferHardIrqs { netdev } => setting(netdev, "napi_defer_hard_irqs"),
        Target::GroFlushTimeout { netdev } => setting(netdev, "gro_flush_timeout"),
        Target::Mtu { netdev } => setting(netdev, "mtu"),
        Target::Threaded { netdev } => setting(netdev, "threaded"),
        Target::NapiThread { comm, .. } => {
            format!("kthread {} {value} '{}'", quoted(comm), change.new)
        }
        Target::Offload { netdev, feature } => {
            ethtool(netdev, "-K", &format!("{} {value}", quoted(feature)))
        }
        Target::Channels { netdev } => ethtool(netdev, "-L", &arguments(change)?),
        Target::Rings { netdev } => ethtool(netdev, "-G", &arguments(change)?),
        Target::Coalesce { netdev } => ethtool(netdev, "-C", &arguments(change)?),
        Target::FlowHash { netdev, flow_type } => match &change.new {
            Value::Fields(fields) if !fields.is_empty() => {
                ethtool(netdev, "-N", &format!("rx-flow-hash {flow_type} {fields}"))
            }
            _ => return None,
        },
        Target::RssTable { netdev, context: 0 } => match &change.new {
            Value::Table(table) => ethtool(netdev, "-X", &table.as_ethtool()?),
            _ => return None,
        },
        Target::RssKey { netdev } => ethtool(netdev, "-X", &format!("hkey {value}")),
        Target::RssHash { netdev } => match value.split_once(' ') {
            None => ethtool(netdev, "-X", &format!("hfunc {}", quoted(&value))),
            Some((function, xfrm)) => {
                ethtool(netdev, "-X", &format!("hfunc {} xfrm {}", quoted(function), quoted(xfrm)))
            }
        },
        // Each run would add the rule or context again.
        Target::RssTable { .. } | Target::RssContext { .. } | Target::NtupleRule { .. } => {
            return None;
        }
        Target::IrqAffinity { .. }
        | Target::ThreadAffinity { .. }
        | Target::CgroupCpuset { .. } => return None,
    })
}

/// The changed settings as ethtool arguments: `rx 4096 tx 512`.
fn arguments(change: &Change) -> Option<String> {
    let (Value::Settings(old), Value::Settings(new)) = (&change.old, &change.new) else {
        return None;
    };
    let words = new.unlike(old).to_string();
    Some(
        words
            .split(' ')
            .map(|word| quoted(&word.replacen('=', " ", 1)).replace(' ', "' '"))
            .collect::<Vec<_>>()
            .join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::FlowRule;
    use netsilo_model::change::Table;

    #[test]
    fn changes_become_ethtool_commands_and_the_rest_is_listed() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None };
        let settings = |text: &str| Value::Settings(text.parse().unwrap());
        let change = |target, old, new| Change { target, old, new, reason: "because".into() };
        let rule: FlowRule = "tcp4 dst-port 443 action 3".parse().unwrap();
        let table = |queues: &[u32]| Value::Table(Table(queues.to_vec()));
        let rss = || Target::RssTable { netdev: netdev(), context: 0 };
        let sysctl = Target::Sysctl { name: "net.ipv4.tcp_rmem".into() };
        let none = || Value::Words(String::new());
        let changes = vec![
            change(sysctl, none(), Value::words("4096 131072 6291456")),
            change(
                Target::Coalesce { netdev: netdev() },
                settings("rx-usecs=3"),
                settings("adaptive-rx=on rx-usecs=3"),
            ),
            change(rss(), none(), table(&[0, 0, 0, 1])),
            change(rss(), none(), table(&[1, 0, 1, 1])),
            change(Target::NapiDeferHardIrqs { netdev: netdev() }, none(), Value::Count(3)),
            change(
                Target::NtupleRule { netdev: netdev(), rule },
                Value::Switch(false),
                Value::Switch(true),
            ),
            change(
                Target::Rings { netdev: netdev() },
                settings("rx=256 tx=256"),
                settings("rx=4096 tx=256"),
            ),
        ];
        let text = script(&Plan { changes, ..Plan::default() }).text;
        let lines: Vec<&str> =
            text[FUNCTIONS.len()..].lines().filter(|line| *line != "# because").collect();
        assert_eq!(
            lines,
            [
                "device 'eth0' '' 'eth0 rings' -G 'rx' '4096'",
                "put /proc/sys/net/ipv4/tcp_rmem '4096 131072 6291456' 'net.ipv4.tcp_rmem'",
                "device 'eth0' '' 'eth0 coalesce' -C 'adaptive-rx' 'on'",
                "device 'eth0' '' 'eth0 rss table' -X weight 3 1",
                "# left out, ethtool has no repeatable command for it: eth0 rss table",
                "setting 'eth0' '' napi_defer_hard_irqs 3 'eth0 napi_defer_hard_irqs'",
                "# left out, ethtool has no repeatable command for it: \
                 eth0 rule tcp4 dst-port 443 action 3",
                "exit $failed",
            ]
        );
    }
}
