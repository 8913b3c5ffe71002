//! `/proc/net/snmp`, `/proc/net/netstat` (`net/ipv4/proc.c`) and `/proc/net/snmp6`
//! (`net/ipv6/proc.c`): protocol counters of one network namespace, with the names that `nstat`
//! uses (`UdpRcvbufErrors`, `TcpExtListenDrops`).

use std::collections::BTreeMap;

use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// Parses `snmp` or `netstat`: pairs of lines, first names, then values. Each starts with the
/// protocol and a colon.
///
/// A negative value is not a counter (`Tcp: MaxConn` is -1) and is left out, as is a counter that
/// is not `wanted`.
pub fn snmp(text: &str, wanted: fn(&str) -> bool) -> Result<BTreeMap<String, u64>, ParseError> {
    let (mut counters, mut counter) = (BTreeMap::new(), String::new());
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    while let Some((names, at)) = lines.next() {
        let Some((values, line)) = lines.next() else {
            return Err(ParseError::new(at + 1, 1, "no line of values after the line of names"));
        };
        let (mut names, mut words) = (words(names), words(values));
        let protocol = names.next().map_or("", |(_, word)| word);
        let begun = words.next().map_or("", |(_, word)| word);
        let Some(prefix) = protocol.strip_suffix(':').filter(|_| protocol == begun) else {
            let what = format!("expected the values of {protocol:?}, found {begun:?}");
            return Err(ParseError::new(line, 1, what));
        };
        for (_, name) in names {
            let Some(word) = words.next() else {
                return Err(ParseError::new(
                    line,
                    values.len() + 1,
                    format!("no value of {prefix}{name}"),
                ));
            };
            // an unsigned long, or a long in which -1 has a special meaning
            counter.clear();
            counter.extend([prefix, name]);
            if !word.1.starts_with('-') && wanted(&counter) {
                counters.insert(counter.clone(), decimal(line, word)?);
            }
        }
    }
    Ok(counters)
}

/// Parses `snmp6`: a name and a value on each line. Leaves out the counters that are not `wanted`.
pub fn snmp6(text: &str, wanted: fn(&str) -> bool) -> Result<BTreeMap<String, u64>, ParseError> {
    let counter = |(line, number): (&str, usize)| {
        let mut words = words(line);
        let (_, name) = words.next().filter(|(_, name)| wanted(name))?;
        let value = words
            .next()
            .ok_or_else(|| ParseError::new(number, line.len() + 1, format!("no value of {name}")));
        Some(value.and_then(|word| Ok((name.to_owned(), decimal(number, word)?))))
    };
    text.lines().zip(1..).filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snmp(text: &str) -> Result<BTreeMap<String, u64>, ParseError> {
        super::snmp(text, |_| true)
    }

    #[test]
    fn names_are_those_of_nstat() {
        let text = "Ip: Forwarding InDiscards\nIp: 2 7\nTcp: MaxConn InSegs\nTcp: -1 12\n";
        let read = snmp(text).unwrap();
        assert_eq!((read["IpForwarding"], read["IpInDiscards"], read["TcpInSegs"]), (2, 7, 12));
        assert!(!read.contains_key("TcpMaxConn"), "-1 is no count");
        let netstat = snmp("TcpExt: ListenOverflows ListenDrops\nTcpExt: 3 5 9\n").unwrap();
        assert_eq!((netstat["TcpExtListenOverflows"], netstat["TcpExtListenDrops"]), (3, 5));
        let v6 = "Udp6RcvbufErrors                \t4\nIp6InReceives 9\n";
        assert_eq!(snmp6(v6, |_| true).unwrap()["Udp6RcvbufErrors"], 4);
    }

    #[test]
    fn only_the_wanted_counters_are_returned() {
        let wanted: fn(&str) -> bool = |name| name.ends_with("Discards");
        let v4 = super::snmp("Ip: Forwarding InDiscards\nIp: 2 7\n", wanted).unwrap();
        assert_eq!(v4, BTreeMap::from([("IpInDiscards".into(), 7)]));
        let v6 = snmp6("Ip6InDiscards 4\nIp6InReceives 9\n", wanted).unwrap();
        assert_eq!(v6, BTreeMap::from([("Ip6InDiscards".into(), 4)]));
    }

    #[test]
    fn what_is_missing_is_named() {
        let message = |text| snmp(text).unwrap_err().to_string();
        assert_eq!(
            message("Udp: InErrors\n"),
            "line 2 column 1: no line of values after the line of names"
        );
        assert_eq!(
            message("Udp: InErrors\nTcp: 1\n"),
            "line 2 column 1: expected the values of \"Udp:\", found \"Tcp:\""
        );
        assert_eq!(message("Udp: A B\nUdp: 1\n"), "line 2 column 7: no value of UdpB");
        assert_eq!(
            snmp6("Ip6InReceives\n", |_| true).unwrap_err().to_string(),
            "line 1 column 14: no value of Ip6InReceives"
        );
    }
}
