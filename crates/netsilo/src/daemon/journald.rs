//! The daemon's decisions as entries of systemd's journal, with fields to search by
//! (systemd's "Native Journal Protocol").

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use netsilo_decide::control::{LogEntry, LogKind};

use crate::views::status::decision_line;

/// Where systemd-journald receives entries.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// `MESSAGE_ID` of all decisions (`journalctl MESSAGE_ID=..`). It was chosen at random once.
const MESSAGE_ID: &str = "5f0d3a9e6c1b4d72a8e40b9c7d2f6135";

/// A connection to systemd's journal.
pub(super) struct Journald(UnixDatagram);

impl Journald {
    /// Connects if stderr goes to the journal (`JOURNAL_STREAM`, systemd.exec(5)). Otherwise, as in
    /// a terminal or a container, lines on stderr are what the user sees.
    pub(super) fn connect(socket: &Path) -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = rustix::fs::fstat(rustix::stdio::stderr()).ok()?;
        if stream != format!("{}:{}", stderr.st_dev, stderr.st_ino) {
            return None;
        }
        let sender = UnixDatagram::unbound().ok()?;
        sender.connect(socket).ok()?;
        // A journald that is stopped must not stop the daemon.
        sender.set_nonblocking(true).ok()?;
        Some(Self(sender))
    }

    /// Sends a decision.
    pub(super) fn send(&self, entry: &LogEntry) -> io::Result<()> {
        self.0.send(&fields(entry)).map(drop)
    }
}

/// The fields of a decision. `NETSILO_KNOB` and `NETSILO_NETDEV` are present only if it concerns
/// one.
fn fields(entry: &LogEntry) -> Vec<u8> {
    let target = entry.target.as_ref();
    let kind = serde_json::to_value(entry.kind).ok();
    let netdev = target.and_then(|target| Some(target.netdev()?.name.clone()));
    let fields = [
        ("MESSAGE", Some(decision_line(entry))),
        ("MESSAGE_ID", Some(MESSAGE_ID.to_owned())),
        ("PRIORITY", Some(priority(entry.kind).to_string())),
        ("SYSLOG_IDENTIFIER", Some("netsilo".to_owned())),
        ("NETSILO_DECISION", kind.and_then(|kind| Some(kind.as_str()?.to_owned()))),
        ("NETSILO_KNOB", target.map(ToString::to_string)),
        ("NETSILO_NETDEV", netdev),
        ("NETSILO_REASON", Some(entry.why.clone())),
    ];
    let mut bytes = Vec::new();
    for (name, value) in fields {
        value.iter().for_each(|value| field(&mut bytes, name, value));
    }
    bytes
}

/// A value with a line break must be preceded by its length (64 bits, little-endian).
fn field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

/// syslog's levels: warning if something was refused, lost or reverted, else information.
fn priority(kind: LogKind) -> u8 {
    match kind {
        LogKind::Refused | LogKind::Yield | LogKind::Revert => 4,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netsilo_model::change::knobs::RpsSockFlowEntries;

    use super::*;

    fn entry(kind: LogKind, why: &str) -> LogEntry {
        let target = Some(RpsSockFlowEntries.into());
        LogEntry { at: Duration::ZERO, target, kind, why: why.into() }
    }

    #[test]
    fn a_decision_has_a_field_for_each_of_its_parts() {
        let text = String::from_utf8(fields(&entry(LogKind::InEffect, "0 -> 4096"))).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("MESSAGE=") && lines[0].ends_with(": in effect: 0 -> 4096"));
        assert!(lines.contains(&"PRIORITY=6") && lines.contains(&"NETSILO_DECISION=in_effect"));
        assert!(lines.contains(&"NETSILO_REASON=0 -> 4096"), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("NETSILO_KNOB=")), "{text}");
        assert!(!text.contains("NETSILO_NETDEV"), "{text}");
        let revert = fields(&entry(LogKind::Revert, "worse"));
        assert!(String::from_utf8(revert).unwrap().contains("\nPRIORITY=4\n"));
    }

    #[test]
    fn a_line_break_in_a_value_makes_no_field_of_its_own() {
        let bytes = fields(&entry(LogKind::Write, "a\nPRIORITY=0"));
        let expected = b"NETSILO_REASON\n\x0c\0\0\0\0\0\0\0a\nPRIORITY=0\n";
        assert!(bytes.ends_with(expected), "{}", String::from_utf8_lossy(&bytes));
    }
}
