//! Parsers of kernel text: one file per kernel file, no file access.
//!
//! Parsers ignore unknown columns and rows. A missing required column or row is a [`ParseError`]
//! with line and column. No input panics.

pub mod announced;
pub mod cpu_lists;
pub mod cpuinfo;
pub mod ethtool_decode;
pub mod interrupts;
pub mod irq_debugfs;
pub mod kallsyms;
pub mod net_udp;
pub mod netdev;
pub mod node_distance;
pub mod pcie;
pub mod per_cpu_count;
pub mod pid_stat;
pub mod pid_status;
pub mod sanitize;
pub mod scalar;
pub mod schedstat;
pub mod snmp;
pub mod softirqs;
pub mod softnet_stat;
pub mod stat;
pub mod uevent;

/// The position in a kernel file where required text is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} column {column}: {what}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Byte offset within the line, from 1.
    pub column: usize,
    /// The problem at this position.
    pub what: String,
}

impl ParseError {
    fn new(line: usize, column: usize, what: impl Into<String>) -> Self {
        Self { line, column, what: what.into() }
    }
}

/// The words of a line, each with the byte offset at which it starts (from 0).
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split_ascii_whitespace()
        .map(move |word| (word.as_ptr() as usize - line.as_ptr() as usize, word))
}

/// Parses one word of a line as a decimal number.
fn decimal<N: std::str::FromStr>(line: usize, (at, word): (usize, &str)) -> Result<N, ParseError> {
    word.parse()
        .map_err(|_| ParseError::new(line, at + 1, format!("expected a number, found {word:?}")))
}
