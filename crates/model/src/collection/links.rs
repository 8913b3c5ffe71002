//! The output of `ip link` and `ip address`, as text.

use std::collections::BTreeMap;

use crate::collection::{after, number, whole_lines};
use crate::drivers::software::SoftwareNetdev;
use crate::parse::ParseError;

/// Most netdevs of one output.
const MOST_LINKS: usize = 20_000;

/// A netdev.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Flags as printed.
    pub flags: Vec<String>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// The bridge, bond or team that it is a port of.
    pub master: Option<String>,
    /// `tx_queue_len`.
    pub qlen: Option<u32>,
    /// Hardware address.
    pub address: Option<String>,
    /// The kind of a netdev without hardware (`-d`).
    pub software: Option<String>,
    /// Allocated queues (`-d`); the driver may use fewer.
    pub numrxqueues: Option<u32>,
    /// Allocated queues (`-d`); the driver may use fewer.
    pub numtxqueues: Option<u32>,
    /// Its device on its bus, such as `virtio2` (`-d`).
    pub parentdev: Option<String>,
    /// Counters, with the names of sysfs (`-s`).
    pub statistics: BTreeMap<String, u64>,
}

impl Link {
    /// The files of its folder in sysfs.
    pub fn files(&self) -> Vec<(String, String)> {
        let has = |flag: &str| self.flags.iter().any(|known| known == flag);
        let mut files = vec![
            ("ifindex".to_owned(), self.ifindex.to_string()),
            // IFF_UP, the only one that is read
            ("flags".to_owned(), format!("{:#x}", u32::from(has("UP")))),
        ];
        let mut add = |name: &str, value: Option<String>| {
            files.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("mtu", self.mtu.map(|mtu| mtu.to_string()));
        add("tx_queue_len", self.qlen.map(|qlen| qlen.to_string()));
        add("address", self.address.clone());
        add("carrier", has("UP").then(|| u32::from(has("LOWER_UP")).to_string()));
        add("uevent", self.software.as_ref().map(|kind| format!("DEVTYPE={kind}")));
        for (name, count) in &self.statistics {
            add(&format!("statistics/{name}"), Some(count.to_string()));
        }
        files.iter_mut().for_each(|(_, value)| value.push('\n'));
        files
    }

    /// Whether it is more than another output says of the same netdev.
    fn weight(&self) -> usize {
        self.statistics.len() + usize::from(self.numrxqueues.is_some())
    }
}

/// What several outputs say: of each netdev, the one that says most.
pub fn merged(outputs: impl IntoIterator<Item = Vec<Link>>) -> BTreeMap<u32, Link> {
    let mut links: BTreeMap<u32, Link> = BTreeMap::new();
    for link in outputs.into_iter().flatten() {
        let known = links.get(&link.ifindex).map(Link::weight);
        if known.is_none_or(|known| known < link.weight()) {
            links.insert(link.ifindex, link);
        }
    }
    links
}

/// Parses the text.
pub fn links(text: &str) -> Result<Vec<Link>, ParseError> {
    if text.starts_with('[') {
        return Err(ParseError::new(1, 1, "JSON is not read: run ip without -j"));
    }
    let lines: Vec<(usize, &str)> = whole_lines(text)?.collect();
    let starts = |(_, line): &(usize, &str)| line.starts_with(|c: char| c.is_ascii_digit());
    let first = lines.iter().position(starts).unwrap_or(lines.len());
    let mut rest = &lines[first..];
    let mut links = Vec::new();
    while let Some((head, below)) = rest.split_first() {
        if links.len() == MOST_LINKS {
            return Err(ParseError::new(head.0, 1, format!("more than {MOST_LINKS} netdevs")));
        }
        let end = below.iter().position(starts).unwrap_or(below.len());
        links.push(link(*head, &below[..end])?);
        rest = &below[end..];
    }
    Ok(links)
}

fn link((line, head): (usize, &str), below: &[(usize, &str)]) -> Result<Link, ParseError> {
    let wrong = || ParseError::new(line, 1, "expected `2: eth0: <FLAGS> mtu 1500`");
    let mut parts = head.splitn(3, ": ");
    let (index, name, rest) = parts
        .next()
        .zip(parts.next())
        .zip(parts.next())
        .map(|((a, b), c)| (a, b, c))
        .ok_or_else(wrong)?;
    let (flags, _) =
        rest.strip_prefix('<').and_then(|rest| rest.split_once('>')).ok_or_else(wrong)?;
    let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let is_count =
        |line: &str| line.split_ascii_whitespace().all(|word| word.parse::<u64>().is_ok());
    let described = below.iter().map(|(_, line)| *line).filter(|line| !is_count(line));
    let described: Vec<&str> = described.collect();
    words.extend(described.iter().flat_map(|line| line.split_ascii_whitespace()));
    let text = |name| after(&words, name).map(str::to_owned);
    let count = |name| after(&words, name).map(|word| number(line, word)).transpose();
    let kinds = described.iter().filter_map(|line| line.split_ascii_whitespace().next());
    let software = kinds.filter(|kind| SoftwareNetdev::is_kind(kind)).map(str::to_owned).next();
    let name = name.split('@').next().unwrap_or(name);
    Ok(Link {
        ifindex: number(line, index)?,
        name: name.to_owned(),
        flags: flags.split(',').map(str::to_owned).collect(),
        mtu: count("mtu")?,
        master: text("master"),
        qlen: count("qlen")?,
        address: text("link/ether"),
        software,
        numrxqueues: count("numrxqueues")?,
        numtxqueues: count("numtxqueues")?,
        parentdev: text("parentdev"),
        statistics: statistics(below)?,
    })
}

/// The counters in the lines below a netdev: each line of names is above a line of numbers.
fn statistics(lines: &[(usize, &str)]) -> Result<BTreeMap<String, u64>, ParseError> {
    let mut statistics = BTreeMap::new();
    for (at, (line, text)) in lines.iter().enumerate() {
        let Some((direction, names)) = text.trim_start().split_once(':') else { continue };
        let direction = match direction {
            "RX" | "RX errors" => "rx",
            "TX" | "TX errors" => "tx",
            _ => continue,
        };
        let Some((below, counts)) = lines.get(at + 1) else {
            return Err(ParseError::new(*line, 1, "no counters below"));
        };
        let names = names.split_ascii_whitespace();
        let counts: Vec<&str> = counts.split_ascii_whitespace().collect();
        if names.clone().count() > counts.len() {
            return Err(ParseError::new(*below, 1, "fewer counters than names"));
        }
        for (name, count) in names.zip(counts) {
            statistics.insert(counter(direction, name), number(*below, count)?);
        }
    }
    Ok(statistics)
}

/// The name of a counter in sysfs.
fn counter(direction: &str, name: &str) -> String {
    match name {
        "mcast" => "multicast".to_owned(),
        "collsns" => "collisions".to_owned(),
        "bytes" | "packets" | "errors" | "dropped" | "nohandler" => format!("{direction}_{name}"),
        "overrun" => format!("{direction}_over_errors"),
        "heartbt" => format!("{direction}_heartbeat_errors"),
        _ => format!("{direction}_{name}_errors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq master br0 state UP qlen 1000
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff promiscuity 0 numtxqueues 8 numrxqueues 8 \
parentbus virtio parentdev virtio2
    RX:  bytes packets errors dropped  missed   mcast
         1000      10      1       2       3       4
    RX errors:  length    crc   frame    fifo overrun
                     0      0       0       5       6
    TX:  bytes packets errors dropped carrier collsns
          500       5      0       0       0       7
7: veth1@if6: <BROADCAST,UP> mtu 1400 qdisc noqueue state LOWERLAYERDOWN
    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff link-netnsid 0
    veth addrgenmode eui64 numtxqueues 1 numrxqueues 1
";

    #[test]
    fn a_netdev_has_the_files_of_sysfs() {
        let links = links(TEXT).unwrap();
        let [eth0, veth1] = &links[..] else { panic!("{links:?}") };
        let files: BTreeMap<String, String> = eth0.files().into_iter().collect();
        let expected = [
            ("ifindex", "2\n"),
            ("flags", "0x1\n"),
            ("mtu", "1500\n"),
            ("carrier", "1\n"),
            ("statistics/rx_missed_errors", "3\n"),
            ("statistics/rx_over_errors", "6\n"),
            ("statistics/multicast", "4\n"),
            ("statistics/collisions", "7\n"),
        ];
        for (name, value) in expected {
            assert_eq!(files[name], value, "{name}");
        }
        assert_eq!(
            (eth0.master.as_deref(), eth0.parentdev.as_deref()),
            (Some("br0"), Some("virtio2"))
        );
        assert_eq!((veth1.name.as_str(), veth1.software.as_deref()), ("veth1", Some("veth")));
        assert!(veth1.statistics.is_empty(), "not printed");
    }

    #[test]
    fn counters_that_were_cut_are_an_error() {
        let cut = TEXT.lines().take(3).map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(links(&cut).unwrap_err().to_string(), "line 3 column 1: no counters below");
        let json = links("[{}]").unwrap_err().to_string();
        assert_eq!(json, "line 1 column 1: JSON is not read: run ip without -j");
        let garbled = TEXT.replace("1000      10", "1000      x");
        let error = links(&garbled).unwrap_err().to_string();
        assert_eq!(error, "line 4 column 1: expected a number, found \"x\"");
    }

    #[test]
    fn of_several_outputs_the_one_with_counters_is_used() {
        let address = Link { ifindex: 2, name: "eth0".into(), ..Link::default() };
        let merged = merged([vec![address.clone()], links(TEXT).unwrap(), vec![address]]);
        assert_eq!(merged[&2].statistics["rx_packets"], 10);
    }
}
