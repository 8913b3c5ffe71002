//! Removes addresses and host names from a capture. Equal addresses get equal replacements.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::{fs, io};

use netsilo_model::derive::namespaces::NAMESPACES;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::netdev::address;
use netsilo_model::parse::sanitize::escaped;
use netsilo_model::snapshot::attribution::{
    Attribution, Consumer, Consumption, Forwarded, GroupReads,
};
use netsilo_model::snapshot::audit::Connections;
use netsilo_model::snapshot::drops::DroppedPackets;
use netsilo_model::snapshot::flow::Flow;
use netsilo_model::snapshot::host::boot_parameters;
use netsilo_model::snapshot::packet_sockets::PacketSocket;
use netsilo_model::snapshot::queue_users::QueueUser;
use netsilo_model::snapshot::socket_readers::SocketReaders;
use netsilo_model::snapshot::sockets::Holder;
use netsilo_model::snapshot::tap_holders::TapHolder;

/// The replacements of a capture.
#[derive(Debug, Default)]
pub(crate) struct Redaction {
    /// Hardware addresses and their replacements, both with colons and without, as in
    /// `enx0123456789ab`.
    replaced: HashMap<String, String>,
    /// The lengths of these addresses.
    lengths: BTreeSet<usize>,
    /// Replaces the host's name, and differs between the hosts of a fleet: `host-` and the start of
    /// the boot's id.
    host: String,
}

impl Redaction {
    /// Finds the hardware addresses in the trees of a capture.
    pub(crate) fn of(dir: &Path) -> io::Result<Self> {
        let mut found = Vec::new();
        addresses(dir, &mut found)?;
        let mut redaction = Self::default();
        for mac in found {
            let synthetic = synthetic(redaction.replaced.len() / 2, mac.split(':').count());
            if mac.split(':').all(|byte| byte == "00" || byte == "ff")
                || redaction.replaced.contains_key(&mac)
            {
                continue;
            }
            redaction.replaced.insert(mac.replace(':', ""), synthetic.replace(':', ""));
            redaction.replaced.insert(mac, synthetic);
        }
        let boot = fs::read_to_string(dir.join("0/proc/sys/kernel/random/boot_id"));
        let boot: String = boot.unwrap_or_default().chars().take(8).collect();
        redaction.host = format!("host-{}", escaped(boot.trim()));
        redaction.lengths = redaction.replaced.keys().map(String::len).collect();
        Ok(redaction)
    }

    /// Replaces addresses in a text (a path, a link's target, a small file).
    pub(crate) fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    /// Replaces addresses in one pass, however many there are.
    fn bytes<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(&shortest) = self.lengths.first() else { return Cow::Borrowed(text) };
        let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
        // An address lies in a run of hexadecimal digits and colons.
        for run in text.split(|byte| !byte.is_ascii_hexdigit() && *byte != b':') {
            let end = at + run.len();
            while at + shortest <= end {
                let Some((length, to)) = self.address_at(&text[at..end]) else {
                    at += 1;
                    continue;
                };
                out.extend_from_slice(&text[copied..at]);
                out.extend_from_slice(to.as_bytes());
                at += length;
                copied = at;
            }
            at = end + 1;
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.extend_from_slice(&text[copied..]);
        Cow::Owned(out)
    }

    /// Finds the longest address at the start of `run`. Returns its length and its replacement.
    fn address_at(&self, run: &[u8]) -> Option<(usize, &str)> {
        self.lengths.iter().rev().find_map(|&length| {
            let address = str::from_utf8(run.get(..length)?).ok()?;
            Some((length, self.replaced.get(address)?.as_str()))
        })
    }

    /// Redacts a file of a sample (`0/proc/cmdline`).
    pub(crate) fn file(&self, path: &str, contents: Vec<u8>) -> Vec<u8> {
        let kernel = path.split_once('/').map_or("", |(_, kernel)| kernel);
        let text = String::from_utf8_lossy(&contents);
        match kernel {
            "proc/sys/kernel/hostname" => format!("{}\n", self.host).into_bytes(),
            "proc/cmdline" => cmdline(&text).into_bytes(),
            _ if kernel == crate::read::audit::CONNECTIONS => {
                self.text(&connections(&text)).into_bytes()
            }
            crate::read::snapshot::LOSING_SOCKETS | crate::read::snapshot::NETFILTER => {
                names_of_processes(&contents).unwrap_or_default()
            }
            NAMESPACES => {
                let names = names_of_processes(&contents).unwrap_or_default();
                self.bytes(&names).into_owned()
            }
            crate::read::snapshot::SOCKET_READERS => socket_readers(&contents).unwrap_or_default(),
            crate::read::snapshot::TAP_HOLDERS => {
                self.bytes(&tap_holders(&contents).unwrap_or_default()).into_owned()
            }
            _ if kernel.starts_with("proc/") && kernel.ends_with("/cmdline") => {
                self.text(&command(&text)).into_bytes()
            }
            // interrupts are named after netdevs, and a netdev's name may contain an address
            _ => self.bytes(&contents).into_owned(),
        }
    }

    /// Removes the addresses of flows. From the names and cgroups of consumers, removes whatever
    /// looks like an address (`sshd@1-192.0.2.1:22-...service`).
    pub(crate) fn attribution(&self, attribution: &Attribution) -> Attribution {
        let consumer = |consumer: &Consumer| Consumer {
            comm: without_addresses(&self.text(&consumer.comm)),
            cgroup: consumer.cgroup.as_ref().map(|path| without_addresses(&self.text(path))),
            ..consumer.clone()
        };
        let name =
            |(id, name): (&String, &String)| (id.clone(), without_addresses(&self.text(name)));
        let consumption =
            |one: &Consumption| Consumption { consumer: consumer(&one.consumer), ..one.clone() };
        let forwarded =
            |one: &Forwarded| Forwarded { egress: self.text(&one.egress), ..one.clone() };
        let member = |one: &GroupReads| GroupReads {
            comm: without_addresses(&self.text(&one.comm)),
            ..one.clone()
        };
        let flow = |one: &Flow| Flow { netdev: self.text(&one.netdev), ..one.without_addresses() };
        let dropped = |one: &DroppedPackets| DroppedPackets {
            netdev: self.text(&one.netdev),
            cgroup: one.cgroup.as_ref().map(|it| without_addresses(&self.text(it))),
            ..one.clone()
        };
        let capturing = |one: &PacketSocket| PacketSocket {
            netdev: self.text(&one.netdev),
            holder: Holder {
                comm: without_addresses(&self.text(&one.holder.comm)),
                ..one.holder.clone()
            },
            ..one.clone()
        };
        let user = |one: &QueueUser| QueueUser {
            holder: Holder {
                comm: without_addresses(&self.text(&one.holder.comm)),
                ..one.holder.clone()
            },
            ..one.clone()
        };
        Attribution {
            queue_users: attribution.queue_users.iter().map(user).collect(),
            packet_sockets: attribution.packet_sockets.iter().map(capturing).collect(),
            drops: attribution.drops.iter().map(dropped).collect(),
            flows: attribution.flows.iter().map(flow).collect(),
            group_reads: attribution.group_reads.iter().map(member).collect(),
            consumption: attribution.consumption.iter().map(consumption).collect(),
            containers: attribution.containers.iter().map(name).collect(),
            forwarded: attribution.forwarded.iter().map(forwarded).collect(),
            ..attribution.clone()
        }
    }
}

/// Collects the contents of all files named `address`.
fn addresses(dir: &Path, found: &mut Vec<String>) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<io::Result<_>>()?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            addresses(&entry.path(), found)?;
        } else if kind.is_file() && entry.file_name() == "address" {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).into_owned();
            found.extend(address(&text).ok().flatten());
        }
    }
    Ok(())
}

/// The n-th synthetic address, locally administered, of the given length in bytes.
fn synthetic(n: usize, bytes: usize) -> String {
    let digits = format!("02{n:0width$x}", width = bytes.saturating_sub(1) * 2);
    let pairs: Vec<&str> = (0..bytes).filter_map(|at| digits.get(at * 2..at * 2 + 2)).collect();
    pairs.join(":")
}

/// Removes network addresses from the names of processes, their cgroups, network namespaces and
/// netdevs; returns `None` for text that is no JSON.
fn names_of_processes(json: &[u8]) -> Option<Vec<u8>> {
    let mut read = serde_json::from_slice(json).ok()?;
    in_names(&mut read);
    serde_json::to_vec_pretty(&read).ok()
}

fn in_names(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(values) => values.iter_mut().for_each(in_names),
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("comm" | "cgroup" | "mount" | "pod", serde_json::Value::String(text)) => {
                        *text = without_addresses(text);
                    }
                    ("name", serde_json::Value::String(name)) => *name = without_mac(name),
                    (_, other) => in_names(other),
                }
            }
        }
        _ => {}
    }
}

/// Removes the hardware address from the name of a netdev of another network namespace
/// (`enx0123456789ab`), of which the tree has no address to replace.
fn without_mac(name: &str) -> String {
    let is_address = |it: &str| it.len() == 12 && it.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.split_at_checked(3) {
        Some((kind @ ("enx" | "wlx" | "wwx"), address)) if is_address(address) => {
            format!("{kind}020000000000")
        }
        _ => name.to_owned(),
    }
}

/// Removes network addresses from the names and cgroups of processes; returns `None` for an unknown
/// format.
fn socket_readers(json: &[u8]) -> Option<Vec<u8>> {
    let mut read: Reading<SocketReaders> = serde_json::from_slice(json).ok()?;
    if let Reading::Value(readers) = &mut read {
        for reader in readers.processes.values_mut() {
            reader.comm = without_addresses(&reader.comm);
            reader.cgroup = reader.cgroup.as_deref().map(without_addresses);
        }
        let quotas = std::mem::take(&mut readers.quotas).into_iter();
        readers.quotas = quotas.map(|(path, quota)| (without_addresses(&path), quota)).collect();
    }
    serde_json::to_vec_pretty(&read).ok()
}

fn tap_holders(json: &[u8]) -> Option<Vec<u8>> {
    let mut read: Reading<BTreeMap<u32, TapHolder>> = serde_json::from_slice(json).ok()?;
    if let Reading::Value(holders) = &mut read {
        for holder in holders.values_mut() {
            holder.comm = without_addresses(&holder.comm);
            holder.guest = holder.guest.as_deref().map(without_addresses);
            for thread in holder.threads.values_mut() {
                thread.comm = without_addresses(&thread.comm);
            }
        }
    }
    serde_json::to_vec_pretty(&read).ok()
}

fn cmdline(text: &str) -> String {
    boot_parameters(text).collect::<Vec<_>>().join(" ") + "\n"
}

/// Keeps the program, the script, and options without their values.
fn command(text: &str) -> String {
    let keep = |(at, word): (usize, &str)| {
        (at < 4 || word.starts_with("--") && !word.contains('=')).then(|| word.to_owned())
    };
    let words: Vec<String> = text
        .split('\0')
        .enumerate()
        .filter_map(keep)
        .map(|word| without_addresses(&word))
        .collect();
    words.join("\0")
}

/// Removes the peers of connections. Drops the whole list if it cannot be parsed.
fn connections(text: &str) -> String {
    let read = serde_json::from_slice(text.as_bytes()).unwrap_or_else(|_| {
        Reading::Absent("cannot be parsed, to remove its addresses".to_owned())
    });
    let without = read.map(|mut connections: Connections| {
        connections.busiest.iter_mut().for_each(|connection| connection.peer = None);
        connections
    });
    serde_json::to_string_pretty(&without).unwrap_or_default()
}

/// Replaces each word of a path that looks like a network address.
fn without_addresses(text: &str) -> String {
    let suspicious = |part: &str| {
        let quad = part
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .any(|w| w.parse::<std::net::Ipv4Addr>().is_ok());
        let colons = part
            .split(|c: char| !c.is_ascii_hexdigit() && c != ':')
            .any(|w| w.matches(':').count() >= 2);
        quad || colons
    };
    let part = |part: &str| match part.split_once('@') {
        _ if !suspicious(part) => part.to_owned(),
        Some((name, _)) => format!("{name}@address.service"),
        None => "address".to_owned(),
    };
    text.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mac: &str) -> Redaction {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("0/sys/devices/x")).unwrap();
        fs::write(dir.path().join("0/sys/devices/x/address"), format!("{mac}\n")).unwrap();
        Redaction::of(dir.path()).unwrap()
    }

    #[test]
    fn an_address_is_removed_from_files_and_from_derived_names() {
        let redaction = with("52:54:00:ab:cd:ef");
        assert_eq!(redaction.text("52:54:00:ab:cd:ef"), "02:00:00:00:00:00");
        assert_eq!(
            redaction.text("0/sys/class/net/enx525400abcdef/mtu"),
            "0/sys/class/net/enx020000000000/mtu"
        );
        let row = redaction
            .file("0/proc/interrupts", b" 30: 1 chip 1-edge enx525400abcdef-rx-0".to_vec());
        assert_eq!(row, b" 30: 1 chip 1-edge enx020000000000-rx-0");
        assert_eq!(with("00:00:00:00:00:00").text("00:00:00:00:00:00"), "00:00:00:00:00:00");
        let text = "a52:54:00:ab:cd:ef52:54:00:ab:cd:ef:52:54:00:ab:cd:e 525400abcdef";
        assert_eq!(
            redaction.text(text),
            "a02:00:00:00:00:0002:00:00:00:00:00:52:54:00:ab:cd:e 020000000000"
        );
    }

    #[test]
    fn flows_keep_hash_and_queue_without_addresses() {
        use netsilo_model::snapshot::flow::{Ends, Outer};
        let ends =
            Ends { source: "10.0.0.1:5".parse().unwrap(), target: "10.0.0.2:6".parse().unwrap() };
        let flow = Flow {
            hash: Some(7),
            queue: Some(3),
            outer: Outer::Udp,
            ends: Some(ends),
            ..Flow::default()
        };
        let kept = Redaction::default()
            .attribution(&Attribution { flows: vec![flow.clone()], ..Attribution::default() });
        assert_eq!(kept.flows, [Flow { ends: None, ..flow }]);
    }

    #[test]
    fn the_command_line_keeps_only_cpu_placement() {
        let kept = cmdline(
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ip=10.0.0.2 isolcpus=2-3 quiet nohz_full=2-3\n",
        );
        assert_eq!(kept, "isolcpus=2-3 nohz_full=2-3\n");
        let redaction = Redaction { host: "host-00000000".into(), ..Redaction::default() };
        assert_eq!(
            redaction.file("0/proc/sys/kernel/hostname", b"db7.example\n".to_vec()),
            b"host-00000000\n"
        );
        assert_eq!(
            redaction.file(
                "1/proc/812/cmdline",
                b"/usr/sbin/x\0--a\0b\0--c\0secret\0--flag\0--v=1".to_vec()
            ),
            b"/usr/sbin/x\0--a\0b\0--c\0--flag"
        );
    }

    #[test]
    fn connections_keep_their_numbers_without_peers() {
        let file = r#"{ "value": { "seen": 9, "kept": [
            { "cookie": 7, "peer": "192.0.2.9:443", "snd_mss": 1448 }
        ] } }"#;
        let kept = Redaction::default().file("0/sock_diag/connections.json", file.into());
        let kept = String::from_utf8(kept).unwrap();
        assert!(kept.contains("1448") && !kept.contains("192.0.2.9"), "{kept}");
        let broken = Redaction::default()
            .file("0/sock_diag/connections.json", b"[\"192.0.2.9:443\"".to_vec());
        assert!(String::from_utf8(broken).unwrap().starts_with("{\n  \"absent\""));
    }

    #[test]
    fn addresses_are_removed_from_names_and_cgroups_of_readers() {
        let json = br#"{"value":{"processes":{"9":{"comm":"dns 192.0.2.7","threads":{},
            "cgroup":"/sshd@1-192.0.2.1:22.service"}},"quotas":{"/sshd@1-192.0.2.1:22.service":
            {"quota_usec":1,"period_usec":1,"nr_periods":1,"nr_throttled":1,"throttled_usec":1}}}}"#;
        let text =
            String::from_utf8(Redaction::default().file("1/socket_readers.json", json.to_vec()));
        let text = text.unwrap();
        assert!(text.contains("quota_usec") && !text.contains("192.0.2"), "{text}");
    }

    #[test]
    fn addresses_are_removed_from_the_names_of_network_namespaces() {
        let json = br#"{"value":{"all":[{"inode":7,"mount":"/run/netns/to-192.0.2.7",
            "cgroup":"/sshd@1-192.0.2.1:22.service","process":{"tgid":9,"comm":"dns 192.0.2.9"},
            "counters":{"value":{"netdevs":[{"name":"enx525400abcdef"}]}}}]}}"#;
        let text = Redaction::default().file("1/namespaces.json", json.to_vec());
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\"inode\": 7") && text.contains("enx020000000000"), "{text}");
        assert!(!text.contains("192.0.2") && !text.contains("525400"), "{text}");
    }

    #[test]
    fn addresses_are_removed_from_holders_names() {
        let json = br#"{"value":[{"kind":"udp","port":53,"inode":7,"drops":3,"queued":0,
            "holder":{"tgid":9,"comm":"dns 192.0.2.7"}}]}"#;
        let text =
            String::from_utf8(Redaction::default().file("1/losing_sockets.json", json.to_vec()))
                .unwrap();
        assert!(!text.contains("192.0.2.7") && text.contains("\"drops\": 3"), "{text}");
    }

    #[test]
    fn addresses_are_removed_from_instance_names() {
        let path = "/system.slice/system-sshd.slice/sshd@3-192.0.2.7:22-198.51.100.9:40112.service";
        assert_eq!(without_addresses(path), "/system.slice/system-sshd.slice/sshd@address.service");
        assert_eq!(
            without_addresses("/a/sshd@3-2001:db8::1:22-x.service"),
            "/a/sshd@address.service"
        );
        assert_eq!(
            without_addresses("/user.slice/user-1000.slice/app-1.2.3.scope"),
            "/user.slice/user-1000.slice/app-1.2.3.scope"
        );
    }
}
