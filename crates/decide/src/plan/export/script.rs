//! A plain shell script that writes the plan's settings where they differ.

use netsilo_model::change::{Change, Interruption, Location, Value, quoted};
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::Plan;
use crate::plan::export::file::{ExportedFile, add_line, one_line};
use crate::plan::export::interrupts::interrupts;

/// Shell functions at the start of the script.
const FUNCTIONS: &str = include_str!("script.sh");

/// Builds the script.
pub fn script(plan: &Plan) -> ExportedFile {
    let mut text = FUNCTIONS.to_owned();
    // Changes that reset a netdev come first, because the reset undoes other settings.
    let resets =
        |change: &&Change| change.target.interrupts_traffic() == Some(Interruption::Always);
    plan.changes.iter().filter(resets).for_each(|change| add(&mut text, change));
    for it in interrupts(plan) {
        let (action, mask, cpus) = (quoted(it.action), it.cpus.to_mask(1), it.cpus);
        add_line(&mut text, &format!("# {}", one_line(it.why)));
        add_line(&mut text, &format!("interrupt {action} {mask} '{cpus}'"));
    }
    plan.changes.iter().filter(|change| !resets(change)).for_each(|change| add(&mut text, change));
    text.push_str("exit $failed\n");
    ExportedFile { name: "netsilo-placement.sh".into(), text, executable: true }
}

/// Adds the lines of one change: its reason and its command, or a comment that it is left out.
fn add(text: &mut String, change: &Change) {
    let location = change.target.location();
    let line = match location {
        // Interrupts were written before; consumers belong to no device.
        Location::Irq { .. } | Location::Cgroup(_) | Location::Thread { comm: None, .. } => return,
        // A process that runs now; irqbalance has its own format.
        Location::Irqbalance { .. } => return,
        _ => line(change, &location),
    };
    match line {
        Some(line) => {
            add_line(text, &format!("# {}", one_line(&change.reason)));
            add_line(text, &line);
        }
        None => {
            let why = "left out, ethtool has no repeatable command for it";
            add_line(text, &format!("# {why}: {}", change.target));
        }
    }
}

/// The command; each value is one word.
fn line(change: &Change, location: &Location<'_>) -> Option<String> {
    let what = quoted(&change.target.to_string());
    let value = change.settled_text();
    let value = if matches!(change.new, Value::Words(_)) { quoted(&value) } else { word(&value) };
    let device = |netdev: &NetdevIdentity| {
        let path = netdev.device_path.as_deref().unwrap_or_default();
        format!("{} {}", quoted(&netdev.name), quoted(path))
    };
    Some(match location {
        Location::File(path) => format!("put {} {value} {what}", word(path)),
        Location::Netdev { netdev, file } => match file.strip_prefix("queues/") {
            Some(file) => format!("queue {} {} {value} {what}", device(netdev), word(file)),
            None => format!("setting {} {} {value} {what}", device(netdev), word(file)),
        },
        Location::Ethtool { netdev, .. } => {
            format!("device {} {what} {}", device(netdev), change.ethtool()?)
        }
        Location::Thread { comm, .. } => {
            format!("kthread {} {value} {}", quoted((*comm)?), quoted(&change.new.to_string()))
        }
        Location::Irq { .. }
        | Location::Cgroup(_)
        | Location::Irqbalance { .. }
        | Location::Refused(_) => return None,
    })
}

/// One word of the shell, quoted unless it is plain.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    use netsilo_model::change::FlowRule;
    use netsilo_model::change::Table;
    use netsilo_model::change::Words;
    use netsilo_model::change::knobs;

    #[test]
    fn changes_become_ethtool_commands_and_the_rest_is_listed() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let settings = |text: &str| text.parse().unwrap();
        let rule: FlowRule = "tcp4 dst-port 443 action 3".parse().unwrap();
        let table = |queues: &[u32]| Table(queues.to_vec());
        let rss = || knobs::RssTable { netdev: netdev(), context: 0 };
        let sysctl = knobs::Sysctl { name: "net.ipv4.tcp_rmem".into() };
        let rmem = Words::new("4096 131072 6291456");
        let coalesce = settings("adaptive-rx=on rx-usecs=3");
        let defer = knobs::NapiDeferHardIrqs { netdev: netdev() };
        let steer = knobs::NtupleRule { netdev: netdev(), rule };
        let (few, many) = (settings("rx=256 tx=256"), settings("rx=4096 tx=256"));
        let changes = vec![
            Change::new(sysctl, Words::default(), rmem, "because"),
            Change::new(
                knobs::Coalesce { netdev: netdev() },
                settings("rx-usecs=3"),
                coalesce,
                "because",
            ),
            Change::new(rss(), Table::default(), table(&[0, 0, 0, 1]), "because"),
            Change::new(rss(), Table::default(), table(&[1, 0, 1, 1]), "because"),
            Change::new(defer, 0, 3, "because"),
            Change::new(steer, false, true, "because"),
            Change::new(knobs::Rings { netdev: netdev() }, few, many, "because"),
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
