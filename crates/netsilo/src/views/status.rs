//! The daemon's status as text.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use netsilo_decide::control::{ControllerState, LogEntry, LogKind};
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::attribution::AttributionSource;

use crate::tell::status::{CountingStatus, Mode, NamespacesStatus, Status};
use crate::tell::words::plural;
use crate::views::plan::basis;
use crate::views::units::{bytes_per_s, percent};

/// How many decisions are shown.
const DECISIONS: usize = 10;

/// Renders the whole status.
pub(crate) fn render(status: &Status) -> String {
    let mut text = head(status);
    if !status.placements.is_empty() {
        let _ = writeln!(text, "\n{}", placements(status));
    }
    let pending = status.pending.iter().map(|change| {
        let held = status.held.iter().find(|held| held.target == change.target);
        let why = held.map_or(&change.reason, |held| &held.why);
        format!("{}: {} -> {}: {why}", change.target, change.old, change.new)
    });
    section(&mut text, "planned, not in effect", pending);
    let conflicts = status.conflicts.iter().map(|it| {
        format!(
            "{}: netsilo wrote {}, now it is {}: left to {}, since {} ago",
            it.target,
            it.ours,
            it.theirs,
            it.owner,
            ago(status, it.since)
        )
    });
    section(&mut text, "left to others", conflicts);
    section(
        &mut text,
        "refused",
        status.refusals.iter().map(|it| format!("{}: {}", it.subject, it.reason)),
    );
    section(
        &mut text,
        "advice",
        status.advice.iter().map(|it| format!("{}: {}", it.subject, it.text)),
    );
    section(
        &mut text,
        "last verified",
        status
            .verification
            .iter()
            .map(|it| format!("{} ago: {}", ago(status, it.written_at), it.words)),
    );
    section(&mut text, "other network namespaces", status.namespaces.iter().flat_map(namespaces));
    let log = status.log.iter().rev().take(DECISIONS).rev();
    section(&mut text, "decisions", log.map(|entry| decision(status, entry)));
    section(&mut text, "notes", status.notes.iter().cloned());
    text
}

/// How many other network namespaces were read, why the others were not, and what they lost.
fn namespaces(of: &NamespacesStatus) -> Vec<String> {
    let NamespacesStatus { found, read, oldest_s, why_not, losing } = of;
    let mut lines = Vec::new();
    if *read > 0 {
        let oldest = oldest_s.map_or_else(String::new, |age| format!(", {age:.0} s ago or less"));
        lines.push(format!("{read} of {found} read{oldest}"));
    }
    if let Some(why) = why_not {
        lines.push(format!("{} not looked at: {why}", found - read));
    }
    lines.extend(losing.iter().map(|it| format!("{} lost {} packets", it.name, it.lost)));
    lines
}

/// The daemon as a whole, in a few lines.
pub(crate) fn head(status: &Status) -> String {
    let mode = match &status.mode {
        Mode::Placing => "writes knobs and hints".to_owned(),
        Mode::HintsOnly => "hints only".to_owned(),
        Mode::ObserveOnly(why) => format!("only observes: {why}"),
    };
    let up = span(status.at.saturating_sub(status.started));
    let mut text = format!(
        "netsilo {} (pid {}), up {up}: {}, {mode}\n",
        status.version,
        status.pid,
        state(status.state)
    );
    let config = &status.config;
    let files: Vec<String> = config.files.iter().map(|file| file.display().to_string()).collect();
    let files = if files.is_empty() { "defaults".to_owned() } else { files.join(", ") };
    let _ = writeln!(text, "config: {files}; a window every {}", span(config.interval));
    if let Some(error) = &config.error {
        let _ = writeln!(text, "config REJECTED, so the previous one stays: {error}");
    }
    if let Some(measured) = &status.measured {
        let _ = writeln!(text, "placed {}", basis(measured));
    }
    if let Some(unused) = &status.unused_outcome {
        let _ = writeln!(text, "{}: {}", unused.subject, unused.reason);
    }
    let totals = &status.totals;
    let _ = writeln!(
        text,
        "totals: {} in {}; {}, {} again after a reset, {} refused, {} left to others",
        plural(totals.changes as usize, "write"),
        plural(status.windows as usize, "window"),
        plural(totals.reverts as usize, "revert"),
        totals.reapplied,
        totals.refused,
        totals.yielded,
    );
    let by = match status.attribution.source {
        AttributionSource::Bpf => "eBPF",
        AttributionSource::SockDiag => "sock_diag, TCP only",
        AttributionSource::None => "nothing: consumers unknown",
    };
    let locality = &status.locality;
    let near = |distance: &Distance| {
        locality
            .shares
            .get(distance)
            .map(|share| format!("{} {}", distance.label(), percent(*share)))
    };
    let near: Vec<String> = Distance::ALL.iter().filter_map(near).collect();
    let near = if near.is_empty() { String::new() } else { format!(": {}", near.join(", ")) };
    let _ = writeln!(text, "read: {}{near} (by {by})", bytes_per_s(locality.bytes_per_s));
    let memory = status
        .own
        .resident_bytes
        .map_or(String::new(), |bytes| format!(", {} MB", bytes / 1_000_000));
    let _ = writeln!(text, "own cost: {:.1} s of CPU{memory}", status.own.cpu.as_secs_f64());
    let _ = writeln!(text, "{}", counting(&status.counting));
    text
}

fn counting(counting: &CountingStatus) -> String {
    let budget = counting
        .budget
        .map_or("no budget".to_owned(), |share| format!("budget {:.2}%", share * 100.0));
    format!(
        "eBPF: {:.1} s of CPU ({}); attached for {} of a cycle; all together {:.2}% of the \
         machine in the last one, {budget}",
        counting.programs.as_secs_f64(),
        if counting.measured { "measured" } else { "estimated" },
        humantime::format_duration(Duration::from_millis(counting.window.as_millis() as u64)),
        counting.share * 100.0,
    )
}

fn placements(status: &Status) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["queue", "irq", "cpus", "now", "algorithm", "basis"]);
    for placement in &status.placements {
        let irq = placement.irq.map_or_else(|| "-".to_owned(), |irq| irq.to_string());
        let state = if placement.moves { "elsewhere" } else { "in place" };
        table.add_row([
            placement.label.to_string(),
            irq,
            placement.cpus.to_string(),
            state.to_owned(),
            placement.algorithm.to_string(),
            placement.basis.clone(),
        ]);
    }
    table
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

fn decision(status: &Status, entry: &LogEntry) -> String {
    format!("{} ago: {}", ago(status, entry.at), decision_line(entry))
}

/// A decision in one line. In a mode without writes, a write is shown as advice.
pub(crate) fn decision_line(entry: &LogEntry) -> String {
    let what = kind(entry.kind);
    match &entry.target {
        Some(target) => format!("{target}: {what}: {}", entry.why),
        None => format!("{what}: {}", entry.why),
    }
}

/// The kind of a decision in words: `in effect`.
pub(crate) fn kind(kind: LogKind) -> String {
    let name = serde_json::to_value(kind).ok();
    name.and_then(|name| Some(name.as_str()?.replace('_', " "))).unwrap_or_default()
}

fn state(state: ControllerState) -> &'static str {
    match state {
        ControllerState::Observing => "observing",
        ControllerState::Settling => "settling",
        ControllerState::Verifying => "verifying",
        ControllerState::HoldOff => "holding off",
        ControllerState::Settled => "settled",
    }
}

/// Time since a moment in the status.
pub(crate) fn ago(status: &Status, at: Duration) -> String {
    span(status.at.saturating_sub(at))
}

fn span(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_advice_where_nothing_is_written() {
        let entry =
            |kind| LogEntry { at: Duration::ZERO, target: None, kind, why: "7 -> 0".into() };
        let line = |kind| decision_line(&entry(kind));
        assert_eq!(line(LogKind::Write), "write: 7 -> 0");
        assert_eq!(line(LogKind::Write.without_writes()), "advise: 7 -> 0");
        assert_eq!(line(LogKind::Hold.without_writes()), "hold: 7 -> 0");
    }
}
