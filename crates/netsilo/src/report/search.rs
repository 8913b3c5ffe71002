//! The results of a search (`netsilo tune`): what was tried, how it differs from the present state,
//! when each candidate was dropped and why, and the CPUs before and after.

mod cpus;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use maud::{Markup, html};
use netsilo_stats::Estimate;
use netsilo_trial::race::{RacePlan, Standing};
use serde_json::json;

use crate::report::folder::sanitized;
use crate::report::options::Format;
use crate::report::page::{changes, document, subtitle};
use crate::report::{markdown, palette};
use crate::tell::out;
use crate::tell::words::plural;
use crate::tune::folder;
use crate::views::ab::interval;
use crate::views::tune::TuneResult;

/// Width and height of a row of the plot, in pixels.
const ROW: (f64, f64) = (460.0, 26.0);

/// Reads a search and renders its results.
pub(super) fn text(run: &Path, format: &Format) -> Result<String> {
    let (plan, lines) = folder::read(run)?;
    let plan: RacePlan = sanitized(plan)?;
    let race = folder::replay(run, &plan, &lines.records)?;
    let mut result = TuneResult::new(&plan, &race, false, None);
    result.cpus = cpus::before_and_after(&lines.records, &result.result);
    let torn = lines.torn.map(|line| format!("record {line} is incomplete and left out"));
    let notes: Vec<String> = torn.into_iter().chain(unfinished(&plan, &race)).collect();
    match format {
        Format::Json => out::indented(&result),
        Format::Markdown => Ok(as_markdown(&plan, &result, &notes)),
        Format::Page => page(&plan, &result, &notes),
    }
}

fn unfinished(plan: &RacePlan, race: &netsilo_trial::race::Race) -> Option<String> {
    let next = race.clone().next_turn().is_some();
    next.then(|| {
        format!(
            "the search ended after {} of at most {}; netsilo tune --resume goes on",
            race.turns(),
            plural(plan.rules.turns, "window")
        )
    })
}

fn title(plan: &RacePlan) -> String {
    format!("tune on {}", plan.machine.hostname)
}

/// One row per candidate: name, windows, median, change, status, expectation.
fn rows(result: &TuneResult<'_>) -> Vec<Vec<String>> {
    let change = |standing: &Standing| {
        standing.change.map_or_else(String::new, |it| interval(&it, result.rules.scale))
    };
    let row = |it: &crate::views::tune::CandidateResult<'_>| {
        vec![
            it.name.to_owned(),
            it.standing.windows.to_string(),
            result.median(&it.standing).unwrap_or_default(),
            change(&it.standing),
            it.words.clone(),
            it.expected.to_owned(),
        ]
    };
    result.candidates.iter().map(row).collect()
}

const HEADER: [&str; 6] = ["candidate", "windows", "median", "change", "status", "expected"];

fn as_markdown(plan: &RacePlan, result: &TuneResult<'_>, notes: &[String]) -> String {
    let mut text = format!(
        "# {}\n\n{}, {}, seed {}\n\n**{}**\n\n",
        markdown::plain(&title(plan)),
        markdown::plain(&result.measured()),
        plural(result.windows, "window"),
        result.rules.seed,
        markdown::plain(&result.words)
    );
    for note in notes {
        let _ = writeln!(text, "> {}\n", markdown::plain(note));
    }
    let header = HEADER.map(str::to_owned).to_vec();
    text += &markdown::table(&[vec![header], rows(result)].concat());
    if !result.cpus.is_empty() {
        let words = cpus::words(plan, &result.result, &result.cpus);
        let _ = writeln!(text, "\n## CPU time before and after\n\n{}\n", markdown::plain(&words));
        text += &markdown::table(&cpus::rows(&result.cpus));
    }
    text
}

fn page(plan: &RacePlan, result: &TuneResult<'_>, notes: &[String]) -> Result<String> {
    let sections = [
        ("verdict", "Verdict", verdict(result, notes)),
        ("changes", "Change from the present state", plot(result)),
        ("cpus", "CPU time before and after", cpus::section(plan, &result.result, &result.cpus)),
        ("details", "What each candidate writes", details(plan)),
    ];
    let sections: Vec<_> =
        sections.into_iter().filter(|(_, _, content)| !content.0.is_empty()).collect();
    let data = json!({ "themes": palette::themes(), "options": [] });
    let subtitle = subtitle(&plan.machine, plan.started_s);
    document(&title(plan), &subtitle, &plan.netsilo, &sections, Some(&data))
}

fn verdict(result: &TuneResult<'_>, notes: &[String]) -> Markup {
    html! {
        p { b { (result.words) } }
        p {
            "Objective: " (result.measured()) ". " (plural(result.windows, "window")) ", seed "
            (result.rules.seed) "."
        }
        @if !notes.is_empty() { ul.notes { @for note in notes { li { (note) } } } }
        div.scroll { table {
            thead { tr { @for name in HEADER { th scope="col" { (name) } } } }
            tbody { @for row in rows(result) { tr {
                @for (column, cell) in row.iter().enumerate() {
                    @if column == 0 { th scope="row" { (cell) } } @else { td.text { (cell) } }
                }
            } } }
        } }
    }
}

/// The interval of each candidate, with a line at no change.
fn plot(result: &TuneResult<'_>) -> Markup {
    let known = |it: &crate::views::tune::CandidateResult<'_>| {
        Some((it.name.to_owned(), it.standing.change?))
    };
    let shown: Vec<(String, Estimate)> = result.candidates.iter().filter_map(known).collect();
    let ends = || shown.iter().flat_map(|(_, it)| [it.low, it.high]);
    let most = ends().map(f64::abs).fold(f64::MIN_POSITIVE, f64::max);
    let width = ROW.0;
    let x = |value: f64| width / 2.0 * (1.0 + value / most);
    html! {
        @if shown.is_empty() { p { "No candidate was measured often enough for an interval." } }
        @for (at, (name, change)) in shown.iter().enumerate() {
            @if at == 0 {
                p {
                    "Each bar is an interval that holds for all candidates together; the line in \
                     the middle is the present state."
                }
            }
            div.card style="display:flex;gap:1em;align-items:center" {
                span style="min-width:12em" { (name) }
                svg width=(width) height=(ROW.1) role="img"
                    aria-label={ (name) ": " (interval(change, result.rules.scale)) } {
                    line x1=(x(0.0)) x2=(x(0.0)) y1="0" y2=(ROW.1) stroke="currentColor"
                        stroke-opacity="0.4" {}
                    line x1=(x(change.low)) x2=(x(change.high)) y1=(ROW.1 / 2.0) y2=(ROW.1 / 2.0)
                        stroke="currentColor" stroke-width="3" {}
                    circle cx=(x(change.value)) cy=(ROW.1 / 2.0) r="5" fill="currentColor" {}
                }
                span { (interval(change, result.rules.scale)) }
            }
        }
    }
}

fn details(plan: &RacePlan) -> Markup {
    html! {
        @for candidate in &plan.candidates {
            details.card {
                summary { (candidate.name) }
                p { (candidate.what) }
                @if candidate.changes.is_empty() { p { "This candidate writes nothing." } }
                @else { (changes(&candidate.changes)) }
            }
        }
        p { "Command line: " code { (plan.command.join(" ")) } }
    }
}
