//! How each CPU spent its time before and after a search: in the windows of the present state, and
//! in those of the winner.

use std::collections::BTreeMap;

use maud::{Markup, html};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::race::cpu_use::CpuUse;
use netsilo_trial::race::{RacePlan, RaceRecord, RaceResult, TurnEnd};

use crate::report::palette::STATES;
use crate::tell::words::plural;
use crate::views::tune::CpuBeforeAfter;
use crate::views::units::percent;

/// The least share of a CPU's time that is shown: a tick or two of a window are noise.
const LEAST_SHOWN: f64 = 0.01;

/// Width and height of a bar, in pixels.
const BAR: (f64, f64) = (150.0, 14.0);

/// Each CPU that any window saw, before and after; without a winner only before.
pub(super) fn before_and_after(
    records: &[RaceRecord],
    result: &RaceResult,
) -> BTreeMap<CpuId, CpuBeforeAfter> {
    let of = |candidate: usize| {
        let measured =
            |it: &&RaceRecord| it.candidate == candidate && matches!(it.end, TurnEnd::Value(_));
        CpuUse::medians(records.iter().filter(measured).map(|it| &it.cpus))
    };
    let after = match result {
        RaceResult::Won { candidate, .. } => of(*candidate),
        RaceResult::NoDifferenceShown => BTreeMap::new(),
    };
    let row = |(cpu, before)| (cpu, CpuBeforeAfter { before, after: after.get(&cpu).copied() });
    of(0).into_iter().map(row).collect()
}

/// The CPUs that are in use before or after, and how many others there are.
fn in_use(cpus: &BTreeMap<CpuId, CpuBeforeAfter>) -> (Vec<(CpuId, CpuBeforeAfter)>, usize) {
    let is_used = |it: &CpuBeforeAfter| {
        it.before.busy() >= LEAST_SHOWN || it.after.is_some_and(|it| it.busy() >= LEAST_SHOWN)
    };
    let shown: Vec<_> =
        cpus.iter().filter(|(_, it)| is_used(it)).map(|(cpu, it)| (*cpu, *it)).collect();
    let others = cpus.len() - shown.len();
    (shown, others)
}

/// What the columns are, and which CPUs are left out.
fn note(plan: &RacePlan, result: &RaceResult, others: usize) -> String {
    let after = match result {
        RaceResult::Won { candidate, .. } => {
            format!("after: of the winner, {}", plan.candidates[*candidate].name)
        }
        RaceResult::NoDifferenceShown => "nobody won: the present state stays".into(),
    };
    let rest = match others {
        0 => String::new(),
        _ => format!(" {} below 1% before and after.", plural(others, "other CPU")),
    };
    format!("Medians of the windows. Before: of the present state; {after}.{rest}")
}

/// The section of the page; empty if no window has the times of the CPUs.
pub(super) fn section(
    plan: &RacePlan,
    result: &RaceResult,
    cpus: &BTreeMap<CpuId, CpuBeforeAfter>,
) -> Markup {
    let (shown, others) = in_use(cpus);
    let has_after = cpus.values().any(|it| it.after.is_some());
    html! {
        @if !cpus.is_empty() {
            p { (note(plan, result, others)) }
            p { @for (name, _) in CpuUse::FIGURES { (key(name)) } }
            div.scroll { table {
                thead {
                    tr {
                        th scope="col" rowspan="2" { "CPU" }
                        th scope="colgroup" colspan="5" { "before" }
                        @if has_after { th scope="colgroup" colspan="5" { "after" } }
                    }
                    tr {
                        @for _ in 0..1 + usize::from(has_after) {
                            @for (name, _) in CpuUse::FIGURES { th scope="col" { (name) } }
                            th scope="col" {}
                        }
                    }
                }
                tbody { @for (cpu, it) in shown { tr {
                    th scope="row" { (cpu) }
                    (cells(Some(&it.before)))
                    @if has_after { (cells(it.after.as_ref())) }
                } } }
            } }
        }
    }
}

/// A state of a CPU with its colour.
fn key(name: &str) -> Markup {
    html! {
        span style="white-space:nowrap;margin-right:1.2em" {
            svg width="12" height="12" aria-hidden="true" {
                rect width="12" height="12" fill=(colour(name)) {}
            }
            " " (name)
        }
    }
}

fn colour(state: &str) -> &'static str {
    STATES.iter().find(|(name, _)| *name == state).map_or("currentColor", |(_, colour)| colour)
}

/// The figures of a CPU, and its bar.
fn cells(usage: Option<&CpuUse>) -> Markup {
    html! {
        @for (_, figure) in CpuUse::FIGURES {
            td { @if let Some(it) = usage { (percent(figure(it))) } }
        }
        td { @if let Some(it) = usage { (bar(it)) } }
    }
}

/// The states of a CPU side by side; the frame is all of its time.
fn bar(usage: &CpuUse) -> Markup {
    let mut at = 0.0;
    let parts = CpuUse::FIGURES.map(|(name, figure)| {
        let (from, width) = (at, figure(usage).clamp(0.0, 1.0) * BAR.0);
        at += width;
        (name, from, width)
    });
    let label =
        |(name, figure): &(&str, fn(&CpuUse) -> f64)| format!("{name} {}", percent(figure(usage)));
    let label = CpuUse::FIGURES.iter().map(label).collect::<Vec<_>>().join(", ");
    html! {
        svg width=(BAR.0) height=(BAR.1) role="img" aria-label=(label) {
            @for (name, from, width) in parts {
                rect x=(format!("{from:.1}")) y="0" width=(format!("{width:.1}")) height=(BAR.1)
                    fill=(colour(name)) {}
            }
            rect x="0.5" y="0.5" width=(BAR.0 - 1.0) height=(BAR.1 - 1.0) fill="none"
                stroke="currentColor" stroke-opacity="0.4" {}
        }
    }
}

/// The rows of a table in Markdown, the header first; empty if no window has the times of the CPUs.
pub(super) fn rows(cpus: &BTreeMap<CpuId, CpuBeforeAfter>) -> Vec<Vec<String>> {
    if cpus.is_empty() {
        return Vec::new();
    }
    let has_after = cpus.values().any(|it| it.after.is_some());
    let names = |when: &str| CpuUse::FIGURES.map(|(name, _)| format!("{name} {when}"));
    let figures = |usage: Option<CpuUse>| {
        CpuUse::FIGURES.map(|(_, of)| usage.map_or_else(String::new, |it| percent(of(&it))))
    };
    let mut header = vec!["CPU".to_owned()];
    header.extend(names("before"));
    header.extend(names("after").into_iter().filter(|_| has_after));
    let row = |(cpu, it): (CpuId, CpuBeforeAfter)| {
        let mut row = vec![cpu.to_string()];
        row.extend(figures(Some(it.before)));
        row.extend(figures(it.after).into_iter().filter(|_| has_after));
        row
    };
    std::iter::once(header).chain(in_use(cpus).0.into_iter().map(row)).collect()
}

/// The words before the table in Markdown.
pub(super) fn words(
    plan: &RacePlan,
    result: &RaceResult,
    cpus: &BTreeMap<CpuId, CpuBeforeAfter>,
) -> String {
    note(plan, result, in_use(cpus).1)
}

#[cfg(test)]
mod tests {
    use netsilo_stats::Estimate;

    use super::*;

    fn record(candidate: usize, end: TurnEnd, softirq: f64) -> RaceRecord {
        let busy = CpuUse { usr: 0.25, softirq, ..CpuUse::default() };
        let cpus = [(CpuId(0), busy), (CpuId(1), CpuUse::default())].into();
        RaceRecord { candidate, started_ms: 0, peeks: vec![], end, cpus }
    }

    #[test]
    fn before_and_after_are_the_medians_of_the_present_state_and_of_the_winner() {
        let value = || TurnEnd::Value(1.0);
        let records = [
            record(0, value(), 0.5),
            record(2, value(), 0.13),
            // neither another candidate nor a window without a value counts
            record(1, value(), 0.9),
            record(2, TurnEnd::Lost("why".into()), 0.9),
        ];
        let change = Estimate { value: -0.1, low: -0.2, high: -0.05 };
        let won = RaceResult::Won { candidate: 2, change };
        let cpus = before_and_after(&records, &won);
        let rows = rows(&cpus);
        assert_eq!(rows.len(), 2, "the idle CPU has no row: {rows:?}");
        assert_eq!(rows[0][4..6], ["softirq before", "usr after"]);
        assert_eq!(rows[1], ["0", "25%", "0%", "0%", "50%", "25%", "0%", "0%", "13%"]);
        assert_eq!(in_use(&cpus).1, 1);
        let none = before_and_after(&records, &RaceResult::NoDifferenceShown);
        assert!(none.values().all(|it| it.after.is_none()));
        assert_eq!(super::rows(&none)[1].len(), 5);
        assert!(super::rows(&before_and_after(&[], &won)).is_empty());
    }

    #[test]
    fn the_bar_has_a_part_for_each_state_within_its_frame() {
        let bar = bar(&CpuUse { usr: 0.5, softirq: 0.25, ..CpuUse::default() }).into_string();
        assert!(bar.contains("usr 50%, sys 0%, irq 0%, softirq 25%"), "{bar}");
        assert!(bar.contains(r#"x="75.0" y="0" width="37.5""#), "{bar}");
    }
}
