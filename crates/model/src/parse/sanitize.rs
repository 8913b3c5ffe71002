//! Escapes control characters in names from outside.
//!
//! Processes and bundles choose their names freely. A name must not control a terminal or forge a
//! line of output. So control characters are escaped before any other code sees the name.

use std::borrow::Cow;
use std::sync::Arc;

use crate::machine::reading::Reading;
use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;
use crate::snapshot::namespaces::Namespace;
use crate::snapshot::netdev::{AssociationSource, Netdev};

/// Whether a character is a control or format character. Such a character moves the cursor, starts
/// an escape sequence, ends a line, is invisible, or changes the text direction.
pub fn is_control(c: char) -> bool {
    let format = matches!(
        c,
        '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
    );
    c.is_control() || format
}

/// The text with control characters escaped (`\u{1b}`, `\n`).
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let written_out =
        |c: char| -> String { if is_control(c) { c.escape_default().collect() } else { c.into() } };
    Cow::Owned(text.chars().map(written_out).collect())
}

fn escape(text: &mut String) {
    if let Cow::Owned(escaped) = escaped(text) {
        *text = escaped;
    }
}

fn escape_all<'a>(texts: impl IntoIterator<Item = &'a mut String>) {
    texts.into_iter().for_each(escape);
}

impl Snapshot {
    /// Escapes control characters in all names.
    ///
    /// A device whose name was escaped cannot be found under the escaped name, so netsilo never
    /// writes its settings.
    pub fn escape_names(&mut self) {
        let machine = &mut self.machine;
        escape_all([
            &mut machine.hostname,
            &mut machine.release,
            &mut machine.boot_id,
            &mut machine.cmdline,
        ]);
        for state in self.irqs.values_mut() {
            escape_all(state.actions.iter_mut().chain([&mut state.chip]));
        }
        if !self.topology.cpu_owners.is_empty() {
            for owner in &mut Arc::make_mut(&mut self.topology).cpu_owners {
                escape_all([&mut owner.cgroup, &mut owner.name, &mut owner.why]);
            }
        }
        self.netdevs.iter_mut().for_each(escape_netdev);
        escape_all(self.net_threads.values_mut().map(|it| &mut it.comm));
        escape_all(self.knob_owners.iter_mut().map(|writer| &mut writer.name));
        let sockets = self.losing_sockets.iter_mut().flatten();
        escape_all(sockets.filter_map(|socket| Some(&mut socket.holder.as_mut()?.comm)));
        let queues = self.netfilter.iter_mut().flat_map(|it| &mut it.queues);
        escape_all(queues.filter_map(|queue| Some(&mut queue.reader.as_mut()?.comm)));
        let readers = self.socket_readers.iter_mut().flat_map(|it| it.processes.values_mut());
        escape_all(readers.flat_map(|it| it.cgroup.iter_mut().chain([&mut it.comm])));
        if let Some(readers) = &mut self.socket_readers {
            let quotas = std::mem::take(&mut readers.quotas).into_iter();
            readers.quotas =
                quotas.map(|(path, quota)| (escaped(&path).into_owned(), quota)).collect();
        }
        for holder in self.tap_holders.iter_mut().flat_map(|it| it.values_mut()) {
            escape_all(holder.guest.iter_mut().chain([&mut holder.comm]));
            escape_all(holder.threads.values_mut().map(|it| &mut it.comm));
            for names in [&mut holder.netdevs, &mut holder.here] {
                let all = std::mem::take(names).into_iter();
                *names = all.map(|it: String| escaped(&it).into_owned()).collect();
            }
        }
        self.namespaces.iter_mut().flat_map(|it| &mut it.all).for_each(escape_namespace);
        escape_all(self.gaps.iter_mut().flat_map(|gap| [&mut gap.what, &mut gap.why]));
        if let Some(audit) = &mut self.audit {
            let netdevs = std::mem::take(&mut audit.netdevs);
            audit.netdevs = netdevs
                .into_iter()
                .map(|(name, netdev)| (escaped(&name).into_owned(), netdev))
                .collect();
            if let Reading::Value(connections) = &mut audit.connections {
                escape_all(
                    connections
                        .busiest
                        .iter_mut()
                        .filter_map(|connection| connection.netdev.as_mut()),
                );
            }
            if let Reading::Value(qdiscs) = &mut audit.qdiscs {
                escape_all(qdiscs.iter_mut().map(|qdisc| &mut qdisc.kind));
            }
        }
    }
}

fn escape_namespace(namespace: &mut Namespace) {
    let texts = [&mut namespace.mount, &mut namespace.cgroup, &mut namespace.pod];
    escape_all(texts.into_iter().flatten());
    escape_all(namespace.process.iter_mut().map(|it| &mut it.comm));
    match &mut namespace.counters {
        Reading::Absent(why) => escape(why),
        Reading::Value(counters) => {
            counters.netdevs.iter_mut().for_each(escape_netdev);
            let sockets = counters.losing_sockets.iter_mut();
            escape_all(sockets.filter_map(|it| Some(&mut it.holder.as_mut()?.comm)));
            let queues = counters.netfilter.queues.iter_mut();
            escape_all(queues.filter_map(|it| Some(&mut it.reader.as_mut()?.comm)));
        }
    }
}

fn escape_netdev(netdev: &mut Netdev) {
    escape(&mut netdev.name);
    let optional = [
        &mut netdev.device_path,
        &mut netdev.driver,
        &mut netdev.bus,
        &mut netdev.mac,
        &mut netdev.master,
    ];
    escape_all(optional.into_iter().flatten());
    escape_all(netdev.napis.iter_mut().filter_map(|napi| Some(&mut napi.thread.as_mut()?.comm)));
    escape_all(netdev.rx_queues.iter_mut().filter_map(|queue| queue.leased.as_mut()));
    let rx = netdev.rx_queues.iter_mut();
    let rx = rx.flat_map(|queue| queue.irq.as_mut().into_iter().chain(&mut queue.irq_conflicts));
    let tx = netdev.tx_queues.iter_mut().filter_map(|queue| queue.irq.as_mut());
    escape_all(rx.chain(tx).filter_map(|edge| match &mut edge.source {
        AssociationSource::ActionName(name)
        | AssociationSource::VectorOrder(name)
        | AssociationSource::DeviceName(name)
        | AssociationSource::Ancestor(name) => Some(name),
        _ => None,
    }));
    let Some(ethtool) = &mut netdev.ethtool else { return };
    if let Reading::Value(driver) = &mut ethtool.driver {
        escape(&mut driver.driver);
        escape_all(
            [&mut driver.version, &mut driver.fw_version, &mut driver.bus_info]
                .into_iter()
                .flatten(),
        );
    }
    if let Reading::Value(features) = &mut ethtool.features {
        escape_all(features.iter_mut().map(|feature| &mut feature.name));
    }
    if let Reading::Value(stats) = &mut ethtool.stats {
        escape_all(stats.iter_mut().map(|(name, _)| name));
    }
}

impl Attribution {
    /// Escapes control characters in all names.
    pub fn escape_names(&mut self) {
        for consumption in &mut self.consumption {
            escape(&mut consumption.consumer.comm);
            escape_all(&mut consumption.consumer.cgroup);
        }
        escape_all(self.group_reads.iter_mut().map(|it| &mut it.comm));
        escape_all(self.containers.values_mut());
        escape_all(self.polls.iter_mut().map(|poll| &mut poll.netdev));
        escape_all(self.scheduled.iter_mut().map(|row| &mut row.netdev));
        escape_all(self.flows.iter_mut().map(|flow| &mut flow.netdev));
        for drop in &mut self.drops {
            escape_all([&mut drop.netdev].into_iter().chain(&mut drop.cgroup));
        }
        for socket in &mut self.packet_sockets {
            escape_all([&mut socket.holder.comm, &mut socket.netdev]);
        }
        escape_all(self.queue_users.iter_mut().map(|it| &mut it.holder.comm));
        escape_all(self.forwarded.iter_mut().map(|forwarded| &mut forwarded.egress));
        for hook in &mut self.hooks {
            escape_all([&mut hook.quantity, &mut hook.hook].into_iter().chain(&mut hook.refused));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::attribution::Hook;
    use crate::synthetic::scene::Scene;

    #[test]
    fn terminal_control_characters_are_escaped() {
        assert_eq!(escaped("nginx: worker"), "nginx: worker");
        assert_eq!(escaped("\u{1b}[2J\u{9b}31m"), "\\u{1b}[2J\\u{9b}31m");
        assert_eq!(escaped("a\nok: eth0\tb\r\u{7f}"), "a\\nok: eth0\\tb\\r\\u{7f}");
        assert_eq!(escaped("txt.\u{202e}exe\u{200b}"), "txt.\\u{202e}exe\\u{200b}");
        assert!(matches!(escaped("größe-服务"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_name_in_an_observation_keeps_a_control_character() {
        let scene = r#"{ "grid": { "l2s": 2 },
            "netdevs": [{ "name": "eth\u001b[1m", "driver": "igb\u0007", "threaded": true,
            "queues": [{ "irq": 41, "cpus": "0", "packets_per_s": 900, "load": 0.1,
                "leased": "AF\u0008XDP",
                "readers": [{ "comm": "evil\nok: machine", "cpu": 1, "bytes_per_s": 9000 }],
                "forwards": [{ "to": "tap\u009b2J", "queue": 0, "packets_per_s": 60,
                    "bytes_per_s": 900 }] }] }],
            "cpu_owners": [{ "cgroup": "a\u0007", "name": "b\u0007", "why": "c\u0007" }],
            "knob_owners": [{ "name": "irq\u001bbalance", "pid": 7, "writes": [] }] }"#;
        let scene: Scene = serde_json::from_str(scene).unwrap();
        let mut observation = scene.observation();
        observation.attribution.consumption[0].consumer.cgroup = Some("/a\r/b".into());
        let word = || "a\nb".to_owned();
        let hook = Hook { quantity: word(), hook: word(), refused: Some(word()) };
        observation.attribution.hooks.push(hook);
        observation.before.escape_names();
        observation.after.escape_names();
        observation.attribution.escape_names();
        let json = serde_json::to_value(&observation).unwrap();
        fn check(value: &serde_json::Value) {
            match value {
                serde_json::Value::String(text) => assert!(!text.contains(is_control), "{text:?}"),
                serde_json::Value::Array(values) => values.iter().for_each(check),
                serde_json::Value::Object(map) => {
                    assert!(map.keys().all(|key| !key.contains(is_control)));
                    map.values().for_each(check);
                }
                _ => {}
            }
        }
        check(&json);
        assert_eq!(observation.attribution.consumption[0].consumer.comm, "evil\\nok: machine");
    }
}
