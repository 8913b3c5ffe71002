//! `/proc/net/sockstat` (`net/ipv4/proc.c:sockstat_seq_show`) and `/proc/net/sockstat6`
//! (`net/ipv6/proc.c:sockstat6_seq_show`): sockets of one network namespace.

use crate::parse::words::words;

/// Number of sockets of a protocol, as `UDP` or `TCP6`. `None` if the file does not have it.
pub fn in_use(text: &str, protocol: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'))?;
    let mut words = words(line).map(|(_, word)| word);
    words.find(|word| *word == "inuse")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_found_by_its_whole_name() {
        let text = "sockets: used 7\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 48\nUDPLITE: inuse 4\n\
                    UDP: inuse 0 mem 0\nFRAG: memory 0\n";
        assert_eq!(["TCP", "UDP"].map(|name| in_use(text, name)), [Some(1), Some(0)]);
        assert_eq!(["TCP6", "FRAG"].map(|name| in_use(text, name)), [None, None]);
    }
}
