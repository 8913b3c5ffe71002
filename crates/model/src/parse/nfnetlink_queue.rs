//! `/proc/net/netfilter/nfnetlink_queue` (`net/netfilter/nfnetlink_queue.c:seq_show`): the NFQUEUEs
//! of one network namespace.

use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};
use crate::snapshot::netfilter::NfQueue;

/// Parses a line for each queue: number, netlink port, packets that wait, copy mode, copy range,
/// packets dropped at the queue and at the program's buffer, last id, 1.
pub fn nfnetlink_queue(text: &str) -> Result<Vec<NfQueue>, ParseError> {
    text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).map(queue).collect()
}

fn queue((line, at): (&str, usize)) -> Result<NfQueue, ParseError> {
    let words: Vec<(usize, &str)> = words(line).collect();
    let word = |n: usize| {
        let missing = || ParseError::new(at, line.len() + 1, format!("no column {}", n + 1));
        words.get(n).copied().ok_or_else(missing)
    };
    Ok(NfQueue {
        number: decimal(at, word(0)?)?,
        port: decimal(at, word(1)?)?,
        waiting: decimal(at, word(2)?)?,
        dropped: decimal(at, word(5)?)?,
        user_dropped: decimal(at, word(6)?)?,
        reader: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_queue_and_a_short_one_is_an_error() {
        let text = "    0  28517   256 2 65531     7 11049    20000  1\n";
        let queues = nfnetlink_queue(text).unwrap();
        let expected = NfQueue {
            number: 0,
            port: 28517,
            waiting: 256,
            dropped: 7,
            user_dropped: 11049,
            reader: None,
        };
        assert_eq!(queues, [expected]);
        assert_eq!(queues[0].lost(), 11056);
        assert_eq!(nfnetlink_queue(""), Ok(Vec::new()));
        let short = nfnetlink_queue("0 28517 256").unwrap_err();
        assert_eq!(short.to_string(), "line 1 column 12: no column 6");
    }
}
