//! Findings as text: the most severe first, each with its evidence and remedies.

use std::fmt::Write as _;

use netsilo_decide::judge::evidence::{Gain, Measure, Remedy};
use netsilo_decide::judge::findings::{Check, Finding, Severity};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::judge::ledger::{Ledger, LossCounter, StageLosses};

use crate::views::table::{table, trim_lines};
use crate::views::units;

/// How many counters of a loss stage are named.
const COUNTERS_NAMED: usize = 3;

/// Renders all findings and the ledger of loss.
pub(crate) fn render(check: &Check) -> String {
    let mut text = String::new();
    let seconds = check.interval.as_secs_f64();
    let _ = writeln!(
        text,
        "{}, linux {}, {seconds:.1} s: {}",
        check.hostname,
        check.release,
        counts(check)
    );
    for finding in &check.findings {
        text.push('\n');
        one(&mut text, finding);
    }
    text.push_str(&ledger(&check.ledger));
    if check.findings.iter().any(|finding| finding.severity > Severity::Ok) {
        let _ = writeln!(text, "\nrun netsilo explain ID for the page of a finding");
    }
    text
}

/// Number of findings by severity: `1 critical, 2 warning, 3 ok`.
fn counts(check: &Check) -> String {
    let count = |severity: &Severity| {
        check.findings.iter().filter(|finding| finding.severity == *severity).count()
    };
    let counted = Severity::ALL.iter().rev().map(|severity| (count(severity), severity.as_str()));
    let counted: Vec<String> =
        counted.filter(|(count, _)| *count > 0).map(|(n, name)| format!("{n} {name}")).collect();
    if counted.is_empty() {
        "nothing found: there was too little traffic to judge".to_owned()
    } else {
        counted.join(", ")
    }
}

/// Packet loss by stage; stages that lost nothing since boot have no line.
fn ledger(ledger: &Ledger) -> String {
    let stages: Vec<&StageLosses> =
        ledger.stages.iter().filter(|stage| stage.since_boot > 0).collect();
    if stages.is_empty() {
        return String::new();
    }
    let mut table = table(&["  packets lost", "now", "per s", "since boot", "where"], |name| {
        matches!(name, "now" | "per s" | "since boot")
    });
    for stage in stages {
        table.add_row(stage_row(stage));
    }
    let mut text = format!("\n{}\n", trim_lines(&table));
    if let Some(next) = &ledger.next {
        let _ = writeln!(text, "  next: {next}");
    }
    text
}

/// The row of a stage, with its nonzero counters, those that grew first.
fn stage_row(stage: &StageLosses) -> Vec<String> {
    let mut lines: Vec<&LossCounter> = stage.lines.iter().collect();
    lines.sort_by_key(|line| {
        (line.aside.is_some(), std::cmp::Reverse(line.count), std::cmp::Reverse(line.since_boot))
    });
    let (named, rest) = lines.split_at(lines.len().min(COUNTERS_NAMED));
    let mut parts: Vec<String> =
        named.iter().map(|line| format!("{} {}", line.subject, line.counter)).collect();
    if !rest.is_empty() {
        parts.push(format!("{} more", rest.len()));
    }
    vec![
        format!("  {}", stage.place.label()),
        stage.count.to_string(),
        units::count(stage.per_s),
        stage.since_boot.to_string(),
        parts.join(", "),
    ]
}

fn one(text: &mut String, finding: &Finding) {
    let Finding { id, severity, subject, title, .. } = finding;
    let _ = writeln!(text, "{}: {subject}: {title} [{id}]", severity.as_str());
    let width = finding
        .evidence
        .iter()
        .map(|evidence| evidence.quantity.chars().count())
        .max()
        .unwrap_or(0);
    for evidence in &finding.evidence {
        let _ = writeln!(
            text,
            "  {:width$}  {} ({})",
            evidence.quantity,
            measure(&evidence.measure),
            evidence.source
        );
    }
    for remedy in &finding.remedies {
        crate::views::check::remedy(text, finding, remedy);
    }
}

fn remedy(text: &mut String, finding: &Finding, remedy: &Remedy) {
    let _ = writeln!(text, "  do: {}", remedy.what);
    let _ = match &remedy.gain {
        Gain::AtMost { measure, of, basis } => {
            writeln!(
                text,
                "      gains at most {} of {of}: {basis}",
                crate::views::check::measure(measure)
            )
        }
        Gain::Unknown(why) => writeln!(text, "      gain not known: {why}"),
        Gain::Nothing(why) => writeln!(text, "      gains nothing: {why}"),
    };
    if let Some(cost) = &remedy.cost {
        let _ = writeln!(text, "      costs: {cost}");
    }
    if let Some(not_when) = &remedy.not_when {
        let _ = writeln!(text, "      not when {not_when}");
    }
    if !remedy.changes.is_empty() {
        let stops = if remedy.interrupts_traffic { "; stops traffic for a moment" } else { "" };
        let count = remedy.changes.len();
        let settings =
            if count == 1 { "1 setting".to_owned() } else { format!("{count} settings") };
        let _ = writeln!(
            text,
            "      netsilo plan --fix {} ({settings}{stops})",
            FixRequest::of(finding)
        );
    }
}

/// A quantity with its unit.
pub(crate) fn measure(measure: &Measure) -> String {
    match measure {
        Measure::Share(share) => units::percent(*share),
        Measure::PerSecond(rate) => format!("{}/s", units::count(*rate)),
        Measure::Count(count) => count.to_string(),
        Measure::Nanoseconds(time) => units::nanoseconds(*time),
        Measure::Bytes(bytes) => units::bytes(*bytes),
        Measure::BytesPerSecond(rate) => units::bytes_per_s(*rate),
        Measure::Text(text) => text.clone(),
    }
}
