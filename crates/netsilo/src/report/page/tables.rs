//! The tables of the page: the figures of the charts.

use maud::{Markup, html};
use netsilo_trial::experiment::compared::{CellResult, Measured, UnderLoad};
use netsilo_trial::experiment::flow_map::FlowMap;
use netsilo_trial::experiment::measure::TrialMeasure;
use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::stage_costs::{EarlyDrop, StageCosts};

use crate::report::{charts, palette, words};
use crate::views::units::{count, nanoseconds, or_dash, percent};

/// The verdicts: one row per load, one column per setting.
pub(super) fn verdicts(results: &Results) -> Markup {
    let settings = results.loads.first().map(|load| load.settings.as_slice()).unwrap_or_default();
    let measure = TrialMeasure::Rate;
    html! {
        div.card { div.scroll { table {
            caption {
                "Work done per second: the median change by round, its interval, the verdict; the \
                 median below."
            }
            thead { tr {
                th scope="col" { "load" }
                @for cell in settings { th scope="col" { (cell.setting) } }
            } }
            tbody { @for load in &results.loads {
                tr {
                    th scope="row" { (load.load) }
                    @for cell in &load.settings { (verdict(cell.measured(measure), load)) }
                }
            } }
        } } }
    }
}

fn verdict(measured: Option<&Measured>, load: &UnderLoad) -> Markup {
    let Some(measured) = measured else { return html! { td { "no result" } } };
    let level = words::value(measured.measure, load.work, measured.median);
    let Some(against) = &measured.against else { return html! { td { b { (level) } } } };
    html! {
        td class=(class(against.verdict)) {
            b { (words::sign(against.verdict)) " " (words::change(against)) } " "
            (words::verdict(against.verdict))
            @if let Some(interval) = &against.interval {
                small { (words::interval(interval, against.scale)) }
            }
            small { (level) }
        }
    }
}

fn class(verdict: CellResult) -> &'static str {
    match verdict {
        CellResult::Better => "better",
        CellResult::Worse => "worse",
        CellResult::NoDifferenceShown => "no_difference_shown",
        _ => "",
    }
}

/// One measure: one row per load and setting.
pub(super) fn measure(loads: &[&UnderLoad], measure: TrialMeasure) -> Markup {
    let Some(unit) = loads.first().map(|load| measure.unit(load.work)) else { return html!() };
    html! {
        table {
            caption {
                (loads[0]
                    .settings
                    .iter()
                    .find_map(|it| it.measured(measure))
                    .map_or("", |it| &it.name))
                " (" (unit) ")"
            }
            thead { tr {
                th scope="col" { "load" } th.text scope="col" { "setting" }
                th scope="col" { "median" } th scope="col" { "95 % interval" }
                th scope="col" { "change" } th scope="col" { "verdict" }
                th scope="col" { "rounds" }
            } }
            tbody { @for load in loads { @for cell in &load.settings {
                @if let Some(it) = cell.measured(measure) {
                    @let shown = |value: f64| words::value(measure, load.work, value);
                    @let rounds = it.rounds.values().map(|value| shown(*value));
                    tr {
                        th scope="row" { (load.load) }
                        td.text { (cell.setting) }
                        td data-value=(it.median) { (shown(it.median)) }
                        td {
                            (or_dash(it.interval, |it| {
                                format!("{} .. {}", shown(it.low), shown(it.high))
                            }))
                        }
                        td { (or_dash(it.against.as_ref(), words::change)) }
                        td {
                            (or_dash(it.against.as_ref(), |it| {
                                words::verdict(it.verdict).to_owned()
                            }))
                        }
                        td { (rounds.collect::<Vec<_>>().join(", ")) }
                    }
                }
            } } }
        }
    }
}

/// What the model expected beside what was measured: one row per load and setting.
pub(super) fn expected(results: &Results) -> Markup {
    let rows = words::expected_rows(results);
    let why_not = words::not_expected(results);
    html! {
        @if !rows.is_empty() {
            details.card { summary { "Predicted beside measured" }
                p { (words::EXPECTED) }
                div.scroll { table {
                    thead { tr {
                        @for name in words::EXPECTED_COLUMNS { th scope="col" { (name) } }
                    } }
                    tbody { @for [load, cells @ ..] in &rows { tr {
                        th scope="row" { (load) }
                        @for cell in cells { td { (cell) } }
                    } } }
                } }
            }
        }
        @if !why_not.is_empty() { ul.notes { @for text in &why_not { li { (text) } } } }
    }
}

/// Time shares and rates: one row per setting and CPU.
pub(super) fn cpus(load: &UnderLoad) -> Markup {
    let all = || load.settings.iter().flat_map(|cell| cell.cpus.values());
    let is_measured = all().any(|cpu| cpu.softirq_share.is_some());
    html! {
        table {
            thead { tr {
                th scope="col" { "setting" } th scope="col" { "cpu" }
                @for (state, _) in palette::STATES { th scope="col" { (state) } }
                @if is_measured {
                    @for state in ["measured hardirq", "measured softirq", "measured ipi"] {
                        th scope="col" { (state) }
                    }
                }
                @for rate in ["NET_RX/s", "IPI/s", "packets/s", "rps/s"] {
                    th scope="col" { (rate) }
                }
            } }
            tbody { @for cell in &load.settings { @for (id, cpu) in &cell.cpus {
                tr {
                    th scope="row" { (cell.setting) }
                    td { (id) }
                    @for state in 0..palette::STATES.len() {
                        td {
                            (or_dash(cpu.shares, |shares| percent(charts::parts(&shares)[state])))
                        }
                    }
                    @if is_measured {
                        @for share in [cpu.hardirq_share, cpu.softirq_share, cpu.ipi_share] {
                            td { (or_dash(share, percent)) }
                        }
                    }
                    @for rate in [
                        cpu.net_rx_per_s,
                        cpu.cal_per_s,
                        cpu.processed_per_s,
                        cpu.received_rps_per_s,
                    ] {
                        td { (or_dash(rate, count)) }
                    }
                }
            } } }
        }
    }
}

/// Stage costs: one row per stage, one column per setting.
pub(super) fn stages(costs: &[&StageCosts]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "stage" }
                @for it in costs { th scope="col" { (it.setting) } }
            } }
            tbody {
                @for (name, cells) in words::stage_rows(costs) {
                    tr { th scope="row" { (name) } @for cell in &cells { td { (cell) } } }
                }
            }
        }
    }
}

/// Early drops: one row per setting and way of measuring.
pub(super) fn early_drop(pair: &EarlyDrop) -> Markup {
    html! {
        table {
            caption {
                "Cost per packet received of the path after raw PREROUTING: " (pair.load)
                " against " (pair.dropped) "."
            }
            thead { tr {
                th scope="col" { "setting" } th.text scope="col" { "measured by" }
                th scope="col" { "forwarded" } th scope="col" { "dropped early" }
                th scope="col" { "saved" }
            } }
            tbody { @for spared in &pair.settings {
                @for (name, it) in words::early_drop_comparisons(spared) {
                    tr {
                        th scope="row" { (spared.setting) }
                        td.text { (name) }
                        td { (nanoseconds(it.passed_on_ns)) }
                        td { (nanoseconds(it.dropped_ns)) }
                        td { (words::saving(it)) }
                    }
                }
            } }
        }
    }
}

/// Latency: one row per setting, one column per percentile.
pub(super) fn latencies(load: &UnderLoad) -> Markup {
    let merged: Vec<_> =
        load.settings.iter().filter_map(|cell| Some((cell, cell.latency.as_ref()?))).collect();
    let longest = merged.iter().map(|(_, it)| &it.percentiles_ns).max_by_key(|it| it.len());
    html! {
        table {
            thead { tr {
                th scope="col" { "setting" } th scope="col" { "responses" }
                th scope="col" { "mean" }
                @for (percent, _) in longest.into_iter().flatten() {
                    th scope="col" { "p" (percent) }
                }
                th scope="col" { "max" }
            } }
            tbody { @for (cell, it) in &merged {
                tr {
                    th scope="row" { (cell.setting) }
                    td { (count(it.count as f64)) }
                    td { (nanoseconds(it.mean_ns)) }
                    @for at in 0..longest.map_or(0, Vec::len) {
                        td {
                            (or_dash(it.percentiles_ns.get(at), |(_, ns)| nanoseconds(*ns as f64)))
                        }
                    }
                    td { (nanoseconds(it.max_ns as f64)) }
                }
            } }
        }
    }
}

/// The path of the packets: one row per link.
pub(super) fn flow(map: &FlowMap) -> Markup {
    let unit = if map.in_packets { "packets/s" } else { "interrupts/s" };
    html! {
        table {
            thead { tr {
                th scope="col" { "from" } th.text scope="col" { "to" } th scope="col" { (unit) }
            } }
            tbody { @for link in &map.links {
                tr {
                    th scope="row" { (map.hops[link.from].name) }
                    td.text { (map.hops[link.to].name) }
                    td { (count(link.per_s)) }
                }
            } }
        }
    }
}
