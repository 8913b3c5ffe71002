//! The output of `ethtool`.

use crate::collection::names::EthtoolPart;
use crate::collection::{number, whole_lines};
use crate::machine::reading::Reading;
use crate::parse::ParseError;
use crate::snapshot::ethtool::{
    Channels, Coalesce, Driver, Duplex, Ethtool, Feature, HashFunction, Limit, Link, Rings, Rss,
};

/// Features that `ethtool -k` prints by an older name, and their name in the kernel.
const FEATURES: [(&str, &str); 9] = [
    ("rx-checksumming", "rx-checksum"),
    ("generic-segmentation-offload", "tx-generic-segmentation"),
    ("generic-receive-offload", "rx-gro"),
    ("large-receive-offload", "rx-lro"),
    ("rx-vlan-offload", "rx-vlan-hw-parse"),
    ("tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("receive-hashing", "rx-hashing"),
    ("udp-fragmentation-offload", "tx-udp-fragmentation"),
];

/// Lines of `ethtool -k` that sum up the features in the lines below.
const GROUPS: [&str; 3] = ["tx-checksumming", "scatter-gather", "tcp-segmentation-offload"];

/// Adds a part to what is known of a netdev.
pub fn add(known: &mut Ethtool, part: EthtoolPart, text: &str) -> Result<(), ParseError> {
    let lines: Vec<(usize, &str)> = whole_lines(text)?.collect();
    let refused = refused(&lines);
    fn or<T>(
        refused: &Option<String>,
        value: Result<T, ParseError>,
    ) -> Result<Reading<T>, ParseError> {
        match (value, refused) {
            (Ok(value), _) => Ok(Reading::Value(value)),
            (Err(_), Some(why)) => Ok(Reading::Absent(why.clone())),
            (Err(error), None) => Err(error),
        }
    }
    match part {
        EthtoolPart::Link => known.link = or(&refused, link(&lines))?,
        EthtoolPart::Driver => known.driver = or(&refused, driver(&lines))?,
        EthtoolPart::Channels => {
            let limits = limits(&lines, ["RX", "TX", "Other", "Combined"]);
            known.channels = or(&refused, limits)?.map(|[rx, tx, other, combined]| Channels {
                rx,
                tx,
                other,
                combined,
            });
        }
        EthtoolPart::Rings => {
            let limits = limits(&lines, ["RX", "RX Mini", "RX Jumbo", "TX"]);
            known.rings = or(&refused, limits)?.map(|[rx, rx_mini, rx_jumbo, tx]| Rings {
                rx,
                rx_mini,
                rx_jumbo,
                tx,
            });
        }
        EthtoolPart::Coalesce => known.coalesce = or(&refused, coalesce(&lines))?,
        EthtoolPart::Features => known.features = or(&refused, features(&lines))?,
        EthtoolPart::Rss => {
            known.rss = or(&refused, rss(&lines))?;
            known.rx_rings = or(&refused, rings_of_table(&lines))?;
        }
        EthtoolPart::Rules => {
            // without support for rules, it still prints the rings
            let all = |end: &str| counted(&lines, end);
            known.ntuple_rules = or(
                &refused,
                all(" rules")
                    .map(|total| total.strip_prefix("Total ").unwrap_or(total))
                    .and_then(|it| number(1, it)),
            )?;
            if known.rx_rings.value().is_none() {
                known.rx_rings =
                    or(&refused, all(" RX rings available").and_then(|it| number(1, it)))?;
            }
        }
        EthtoolPart::Stats => known.stats = or(&refused, stats(&lines))?,
    }
    Ok(())
}

/// Says why a part is not known.
pub fn set_absent(known: &mut Ethtool, part: EthtoolPart, why: String) {
    match part {
        EthtoolPart::Link => known.link = Reading::Absent(why),
        EthtoolPart::Driver => known.driver = Reading::Absent(why),
        EthtoolPart::Channels => known.channels = Reading::Absent(why),
        EthtoolPart::Rings => known.rings = Reading::Absent(why),
        EthtoolPart::Coalesce => known.coalesce = Reading::Absent(why),
        EthtoolPart::Features => known.features = Reading::Absent(why),
        EthtoolPart::Rss => known.rss = Reading::Absent(why),
        EthtoolPart::Rules => {
            known.rx_rings = Reading::Absent(why.clone());
            known.ntuple_rules = Reading::Absent(why);
        }
        EthtoolPart::Stats => known.stats = Reading::Absent(why),
    }
}

/// Why the command printed nothing, if it says so.
fn refused(lines: &[(usize, &str)]) -> Option<String> {
    let starts = ["Cannot get", "netlink error:", "no stats available", "ethtool:", "rxclass:"];
    let is_refusal = |line: &&str| {
        line.ends_with("not supported")
            || line.trim() == "No data available"
            || starts.iter().any(|start| line.starts_with(start))
    };
    let line = lines.iter().map(|(_, line)| *line).find(is_refusal)?.trim();
    Some(if line.ends_with("not supported") || line == "no stats available" {
        "EOPNOTSUPP: the driver does not offer it".to_owned()
    } else {
        format!("ethtool: {line}")
    })
}

fn missing(lines: &[(usize, &str)], what: &str) -> ParseError {
    ParseError::new(lines.len().max(1), 1, format!("no {what:?} up to here"))
}

/// The value after `name:` in the first line of this name, with its line.
fn value<'a>(lines: &[(usize, &'a str)], name: &str) -> Option<(usize, &'a str)> {
    lines.iter().find_map(|(line, text)| {
        let value = text.trim_start().strip_prefix(name)?.strip_prefix(':')?;
        Some((*line, value.trim()))
    })
}

fn wanted<'a>(lines: &[(usize, &'a str)], name: &str) -> Result<(usize, &'a str), ParseError> {
    value(lines, name).ok_or_else(|| missing(lines, &format!("{name}:")))
}

fn driver(lines: &[(usize, &str)]) -> Result<Driver, ParseError> {
    let text = |name| {
        let value = value(lines, name).map(|(_, value)| value.to_owned());
        value.filter(|value| !value.is_empty() && value != "N/A")
    };
    // the last line that all versions print
    wanted(lines, "supports-register-dump")?;
    Ok(Driver {
        driver: wanted(lines, "driver")?.1.to_owned(),
        version: text("version"),
        fw_version: text("firmware-version"),
        bus_info: text("bus-info"),
    })
}

/// Maximum and current value of four things.
fn limits(lines: &[(usize, &str)], names: [&str; 4]) -> Result<[Option<Limit>; 4], ParseError> {
    let at = |title: &str| lines.iter().position(|(_, line)| line.trim_end().ends_with(title));
    let current = at("Current hardware settings:")
        .ok_or_else(|| missing(lines, "Current hardware settings:"))?;
    let (before, after) = lines.split_at(current);
    let of = |lines, name| match wanted(lines, name)? {
        (_, "n/a") => Ok(0),
        (line, word) => number(line, word),
    };
    let limit = |name| {
        let limit = Limit { current: of(after, name)?, max: of(before, name)? };
        Ok((limit.max != 0 || limit.current != 0).then_some(limit))
    };
    let [first, second, third, fourth] = names.map(limit);
    Ok([first?, second?, third?, fourth?])
}

fn coalesce(lines: &[(usize, &str)]) -> Result<Coalesce, ParseError> {
    let of = |name: &str| match value(lines, name) {
        // the ioctl returns 0 too
        None | Some((_, "n/a")) => Ok(0),
        Some((line, word)) => number(line, word),
    };
    let (line, adaptive) = wanted(lines, "Adaptive RX")?;
    let Some((rx, tx)) = adaptive.split_once("TX:") else {
        return Err(ParseError::new(line, 1, "no \"TX:\""));
    };
    // frames are printed as `rx-frame-high` or `rx-frames-high`
    let frames = |direction: &str, when: &str| match of(&format!("{direction}-frames-{when}"))? {
        0 => of(&format!("{direction}-frame-{when}")),
        frames => Ok(frames),
    };
    wanted(lines, "tx-usecs-high")?;
    Ok(Coalesce {
        rx_coalesce_usecs: of("rx-usecs")?,
        rx_max_coalesced_frames: of("rx-frames")?,
        rx_coalesce_usecs_irq: of("rx-usecs-irq")?,
        rx_max_coalesced_frames_irq: of("rx-frames-irq")?,
        tx_coalesce_usecs: of("tx-usecs")?,
        tx_max_coalesced_frames: of("tx-frames")?,
        tx_coalesce_usecs_irq: of("tx-usecs-irq")?,
        tx_max_coalesced_frames_irq: of("tx-frames-irq")?,
        stats_block_coalesce_usecs: of("stats-block-usecs")?,
        use_adaptive_rx_coalesce: rx.trim() == "on",
        use_adaptive_tx_coalesce: tx.trim() == "on",
        pkt_rate_low: of("pkt-rate-low")?,
        rx_coalesce_usecs_low: of("rx-usecs-low")?,
        rx_max_coalesced_frames_low: frames("rx", "low")?,
        tx_coalesce_usecs_low: of("tx-usecs-low")?,
        tx_max_coalesced_frames_low: frames("tx", "low")?,
        pkt_rate_high: of("pkt-rate-high")?,
        rx_coalesce_usecs_high: of("rx-usecs-high")?,
        rx_max_coalesced_frames_high: frames("rx", "high")?,
        tx_coalesce_usecs_high: of("tx-usecs-high")?,
        tx_max_coalesced_frames_high: frames("tx", "high")?,
        rate_sample_interval: of("sample-interval")?,
    })
}

fn features(lines: &[(usize, &str)]) -> Result<Vec<Feature>, ParseError> {
    let feature = |(line, text): &(usize, &str)| {
        let (name, value) = text.trim().split_once(": ")?;
        let kernel = FEATURES.iter().find(|(printed, _)| *printed == name);
        let active = match value.split_ascii_whitespace().next() {
            Some("on") => true,
            Some("off") => false,
            _ => {
                return Some(Err(ParseError::new(*line, 1, format!("{value:?} is not on or off"))));
            }
        };
        let requested = match value.split_once('[').map(|(_, state)| state) {
            Some("requested on]") => true,
            Some("requested off]" | "not requested]") => false,
            _ => active,
        };
        let name = kernel.map_or(name, |(_, kernel)| kernel).to_owned();
        let available = !value.contains("[fixed]");
        Some(Ok(Feature { name, available, requested, active, never_changed: false }))
    };
    let printed = lines.iter().filter(|(_, line)| !GROUPS.iter().any(|it| line.starts_with(it)));
    let features: Vec<Feature> = printed.filter_map(feature).collect::<Result<_, _>>()?;
    // the first feature of all kernels
    let is_whole = features.iter().any(|feature| feature.name == "rx-checksum");
    if is_whole { Ok(features) } else { Err(missing(lines, "rx-checksumming:")) }
}

/// The number of rings in the title of the indirection table.
fn rings_of_table(lines: &[(usize, &str)]) -> Result<u32, ParseError> {
    let title = counted(lines, " RX ring(s):")?;
    number(1, title.rsplit(' ').next().unwrap_or_default())
}

fn rss(lines: &[(usize, &str)]) -> Result<Rss, ParseError> {
    rings_of_table(lines)?;
    let mut indirection = Vec::new();
    for (line, text) in lines {
        let Some((first, queues)) = text.split_once(':') else { continue };
        let Ok(first) = first.trim().parse::<usize>() else { continue };
        if first != indirection.len() {
            return Err(ParseError::new(
                *line,
                1,
                format!("entry {} is missing", indirection.len()),
            ));
        }
        for queue in queues.split_ascii_whitespace() {
            indirection.push(number(*line, queue)?);
        }
    }
    // after the table, or a table that was cut would be a shorter one
    let at = lines.iter().position(|(_, line)| line.trim() == "RSS hash key:");
    let key = at.ok_or_else(|| missing(lines, "RSS hash key:"))?;
    let byte = |text: &str| u8::from_str_radix(text, 16).ok();
    let key = lines.get(key + 1).and_then(|(_, text)| text.trim().split(':').map(byte).collect());
    let on = |name| value(lines, name).is_some_and(|(_, value)| value == "on");
    if indirection.is_empty() && key.is_none() {
        return Err(missing(lines, "RSS hash key"));
    }
    Ok(Rss {
        function: match (on("toeplitz"), on("xor"), on("crc32")) {
            (true, ..) => Some(HashFunction::Toeplitz),
            (_, true, _) => Some(HashFunction::Xor),
            (.., true) => Some(HashFunction::Crc32),
            _ => None,
        },
        key,
        indirection,
        input_xfrm: u8::from(on("symmetric-xor")) | u8::from(on("symmetric-or-xor")) << 1,
    })
}

/// The text before `end` in the line that ends like this.
fn counted<'a>(lines: &[(usize, &'a str)], end: &str) -> Result<&'a str, ParseError> {
    let found = lines.iter().find_map(|(_, line)| line.trim_end().strip_suffix(end));
    found.ok_or_else(|| missing(lines, end))
}

fn stats(lines: &[(usize, &str)]) -> Result<Vec<(String, u64)>, ParseError> {
    let title = lines.iter().position(|(_, line)| line.trim_end().ends_with("statistics:"));
    let counters = title.ok_or_else(|| missing(lines, "NIC statistics:"))? + 1;
    let counter = |(line, text): &(usize, &str)| {
        let Some((name, value)) = text.trim().rsplit_once(':') else {
            return Err(ParseError::new(*line, 1, "no \":\" between a counter and its value"));
        };
        Ok((name.trim_end().to_owned(), number(*line, value.trim())?))
    };
    let is_counter = |(_, line): &&(usize, &str)| !line.trim().is_empty();
    lines[counters..].iter().filter(is_counter).map(counter).collect()
}

fn link(lines: &[(usize, &str)]) -> Result<Link, ParseError> {
    let text = |name| value(lines, name).map(|(_, value)| value);
    if !lines.iter().any(|(_, line)| line.starts_with("Settings for ")) {
        return Err(missing(lines, "Settings for"));
    }
    let of_speed =
        |(line, speed): (usize, &str)| Some(number::<u32>(line, speed.strip_suffix("Mb/s")?));
    let speed = value(lines, "Speed").and_then(of_speed).transpose()?;
    let port = text("Port").unwrap_or("Other");
    Ok(Link {
        speed_mbps: speed.filter(|speed| *speed != 0),
        duplex: match text("Duplex") {
            Some("Half") => Some(Duplex::Half),
            Some("Full") => Some(Duplex::Full),
            _ => None,
        },
        port: match port {
            "Twisted Pair" => "tp".to_owned(),
            "Direct Attach Copper" => "da".to_owned(),
            other => other.to_ascii_lowercase(),
        },
        autoneg: match text("Auto-negotiation") {
            Some("on") => Some(true),
            Some("off") => Some(false),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: EthtoolPart, text: &str) -> Ethtool {
        let mut known = Ethtool::unavailable("not recorded");
        add(&mut known, part, text).unwrap();
        known
    }

    fn error(part: EthtoolPart, text: &str) -> String {
        add(&mut Ethtool::unavailable(""), part, text).unwrap_err().to_string()
    }

    const CHANNELS: &str = "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\tn/a\n\
        TX:\t\t0\nOther:\t\t1\nCombined:\t8\nCurrent hardware settings:\nRX:\t\tn/a\n\
        TX:\t\t0\nOther:\t\t1\nCombined:\t4\n";

    #[test]
    fn channels_that_do_not_exist_are_absent() {
        let channels = read(EthtoolPart::Channels, CHANNELS).channels;
        let limit = |current, max| Some(Limit { current, max });
        let expected = Channels { rx: None, tx: None, other: limit(1, 1), combined: limit(4, 8) };
        assert_eq!(channels.value(), Some(&expected));
    }

    #[test]
    fn what_the_driver_refuses_has_its_reason() {
        let text = "netlink error: Operation not supported\n";
        let channels = read(EthtoolPart::Channels, text).channels;
        assert_eq!(channels.reason(), Some("EOPNOTSUPP: the driver does not offer it"));
        let text = "RX flow hash indirection table for eth0 with 1 RX ring(s):\n\
            Operation not supported\nRSS hash key:\nOperation not supported\n";
        let known = read(EthtoolPart::Rss, text);
        assert_eq!(known.rss.reason(), channels.reason());
        assert_eq!(known.rx_rings.value(), Some(&1));
    }

    #[test]
    fn offloads_have_the_kernels_names() {
        let text = "Features for eth0:\nrx-checksumming: on [fixed]\ntx-checksumming: on\n\
            \ttx-checksum-ipv4: off [requested on]\ngeneric-receive-offload: on\n";
        let known = read(EthtoolPart::Features, text);
        let names = known.features.value().unwrap().iter().map(|feature| feature.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["rx-checksum", "tx-checksum-ipv4", "rx-gro"]);
        assert!(known.feature("rx-checksum").unwrap().fixed());
        let ipv4 = known.feature("tx-checksum-ipv4").unwrap();
        assert!(ipv4.requested && !ipv4.active && !ipv4.fixed());
    }

    #[test]
    fn the_table_is_whole_only_if_the_key_follows() {
        let table = "RX flow hash indirection table for eth0 with 2 RX ring(s):\n    \
            0:      0     1     0     1\n    4:      0     1     0     1\n";
        let rest = "RSS hash key:\n6d:5a:56\nRSS hash function:\n    toeplitz: on\n    xor: off\n";
        let rss = read(EthtoolPart::Rss, &format!("{table}{rest}")).rss;
        let rss = rss.value().unwrap();
        assert_eq!(rss.indirection, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(rss.key.as_deref(), Some(&[0x6d, 0x5a, 0x56][..]));
        assert_eq!(rss.function, Some(HashFunction::Toeplitz));
        assert!(error(EthtoolPart::Rss, table).contains("no \"RSS hash key:\" up to here"));
        let gap = format!("{}{rest}", table.replace("    4:", "    8:"));
        assert!(error(EthtoolPart::Rss, &gap).starts_with("line 3 column 1: entry 4 is missing"));
    }

    #[test]
    fn a_counter_may_have_a_colon_in_its_name() {
        let text = "NIC statistics:\n     rxq0: rx_pkts: 18446744073709551615\n     rx_bytes: 7\n";
        let stats = read(EthtoolPart::Stats, text).stats;
        let expected = [("rxq0: rx_pkts".to_owned(), u64::MAX), ("rx_bytes".to_owned(), 7)];
        assert_eq!(stats.value().unwrap(), &expected);
        let cut = error(EthtoolPart::Stats, text.trim_end());
        assert_eq!(cut, "line 3 column 1: the file ends within a line");
        let garbled = error(EthtoolPart::Stats, "NIC statistics:\n     rx_bytes: x\n");
        assert_eq!(garbled, "line 2 column 1: expected a number, found \"x\"");
    }

    #[test]
    fn rules_and_rings_are_counted() {
        let known = read(EthtoolPart::Rules, "8 RX rings available\nTotal 2 rules\n");
        assert_eq!((known.rx_rings.value(), known.ntuple_rules.value()), (Some(&8), Some(&2)));
    }

    #[test]
    fn moderation_that_the_driver_lacks_is_0_as_in_the_ioctl() {
        let text = "Coalesce parameters for eth0:\nAdaptive RX: on  TX: n/a\nrx-usecs: 8\n\
            rx-frames-irq: n/a\nrx-frame-high: 3\ntx-usecs-high: n/a\n";
        let coalesce = *read(EthtoolPart::Coalesce, text).coalesce.value().unwrap();
        assert!(coalesce.use_adaptive_rx_coalesce && !coalesce.use_adaptive_tx_coalesce);
        assert_eq!((coalesce.rx_coalesce_usecs, coalesce.rx_max_coalesced_frames_high), (8, 3));
    }

    #[test]
    fn an_unknown_speed_is_absent() {
        let text = "Settings for eth0:\n\tSpeed: Unknown!\n\tDuplex: Full\n\tPort: FIBRE\n";
        let link = read(EthtoolPart::Link, text).link;
        let expected = Link {
            speed_mbps: None,
            duplex: Some(Duplex::Full),
            port: "fibre".into(),
            autoneg: None,
        };
        assert_eq!(link.value(), Some(&expected));
    }
}
