//! The output of `tc -s qdisc`.

use crate::collection::{after, number, whole_lines};
use crate::parse::ParseError;
use crate::snapshot::audit::Qdisc;

/// Parses the text. `ifindex` knows the netdevs; qdiscs of others are left out.
pub fn qdiscs(text: &str, ifindex: impl Fn(&str) -> Option<u32>) -> Result<Vec<Qdisc>, ParseError> {
    let mut qdiscs: Vec<Option<Qdisc>> = Vec::new();
    let mut open = None;
    for (line, text) in whole_lines(text)? {
        let words: Vec<&str> =
            text.split([' ', '\t', '(', ')', ',']).filter(|it| !it.is_empty()).collect();
        match (&words[..], qdiscs.last_mut()) {
            (["qdisc", kind, handle, ..], _) => {
                if let Some(line) = open.replace(line) {
                    return Err(ParseError::new(line, 1, "no counters below"));
                }
                let found = after(&words, "dev").and_then(&ifindex);
                let parent = match after(&words, "parent") {
                    Some(parent) => self::handle(line, parent)?,
                    // `ingress` and `clsact` print their parent too
                    None => Qdisc::ROOT,
                };
                let (kind, handle) = ((*kind).to_owned(), self::handle(line, handle)?);
                qdiscs.push(found.map(|ifindex| Qdisc {
                    ifindex,
                    kind,
                    handle,
                    parent,
                    ..Qdisc::default()
                }));
            }
            (["Sent", bytes, "bytes", packets, ..], Some(last)) if open.take().is_some() => {
                let count = |name| after(&words, name).map_or(Ok(0), |word| number(line, word));
                if let Some(qdisc) = last {
                    qdisc.bytes = number(line, bytes)?;
                    qdisc.packets = number(line, packets)?;
                    qdisc.drops = count("dropped")?;
                    qdisc.overlimits = count("overlimits")?;
                    qdisc.requeues = count("requeues")?;
                }
            }
            (["backlog", bytes, packets, ..], Some(Some(qdisc))) => {
                qdisc.backlog_bytes = quantity(line, bytes)?;
                qdisc.qlen = quantity(line, packets)?;
            }
            _ => {}
        }
    }
    match open {
        Some(line) => Err(ParseError::new(line, 1, "no counters below")),
        None => Ok(qdiscs.into_iter().flatten().collect()),
    }
}

/// A handle, `8001:` or `8001:2`, in hexadecimal.
fn handle(line: usize, text: &str) -> Result<u32, ParseError> {
    let (major, minor) = text.split_once(':').unwrap_or((text, ""));
    let half = |digits: &str| match digits {
        "" => Some(0),
        digits => u16::from_str_radix(digits, 16).ok(),
    };
    let value = half(major).zip(half(minor)).map(|(a, b)| u32::from(a) << 16 | u32::from(b));
    value.ok_or_else(|| ParseError::new(line, 1, format!("expected a handle, found {text:?}")))
}

/// A rounded number with its unit: `0b`, `27p`, `5Kb`, `3Mb`.
fn quantity(line: usize, text: &str) -> Result<u32, ParseError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        unit if unit.starts_with('K') => 1 << 10,
        unit if unit.starts_with('M') => 1 << 20,
        _ => 1_u32,
    };
    Ok(number::<u32>(line, digits)?.saturating_mul(factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
qdisc noqueue 0: dev lo root refcnt 2
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
qdisc mq 0: dev eth0 root
 Sent 900 bytes 9 pkt (dropped 3, overlimits 2 requeues 1)
 backlog 5Kb 27p requeues 1
qdisc fq_codel 8001: dev eth0 parent :a limit 10240p flows 1024
 Sent 900 bytes 9 pkt (dropped 3, overlimits 2 requeues 1)
 backlog 0b 0p requeues 1
  maxpacket 4325 drop_overlimit 0
";

    #[test]
    fn each_qdisc_has_its_counters() {
        let read = qdiscs(TEXT, |name| (name == "eth0").then_some(2)).unwrap();
        let [mq, child] = &read[..] else { panic!("{read:?}") };
        assert!(mq.is_root() && mq.kind == "mq" && mq.ifindex == 2);
        assert_eq!((mq.bytes, mq.packets, mq.drops, mq.overlimits), (900, 9, 3, 2));
        assert_eq!((mq.requeues, mq.backlog_bytes, mq.qlen), (1, 5120, 27));
        assert_eq!((child.handle, child.parent), (0x8001_0000, 10));
    }

    #[test]
    fn without_counters_it_was_cut_or_tc_ran_without_s() {
        let cut = TEXT.lines().take(4).map(|line| format!("{line}\n")).collect::<String>();
        let error = qdiscs(&cut, |_| Some(1)).unwrap_err().to_string();
        assert_eq!(error, "line 4 column 1: no counters below");
    }
}
