//! The results of an experiment as one HTML page that needs no network; texts are in [`words`],
//! charts in [`charts`].
//!
//! Maud escapes every text; the script's data is JSON without `<`, so it cannot end its element.

mod details;
mod tables;

use anyhow::{Context as _, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use netsilo_trial::experiment::MachineSummary;
use netsilo_trial::experiment::compared::{Measured, UnderLoad};
use netsilo_trial::experiment::expected::ExpectedUnderLoad;
use netsilo_trial::experiment::measure::TrialMeasure;
use netsilo_trial::experiment::results::Results;
use serde_json::{Value, json};

use crate::report::charts::{self, Chart};
use crate::report::folder::ReportFolder;
use crate::report::{palette, words};

pub(super) use details::changes;

/// Apache ECharts, built and compressed by `scripts/echarts`.
const ECHARTS: &[u8] = include_bytes!("echarts.min.js.zst");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Measures with a section of their own; `true` if it is open at first.
const COUNTS: [(TrialMeasure, bool); 9] = [
    (TrialMeasure::BusiestCpu, true),
    (TrialMeasure::NetRx, true),
    (TrialMeasure::Ipis, true),
    (TrialMeasure::RpsWakeups, false),
    (TrialMeasure::Interrupts, false),
    (TrialMeasure::ContextSwitches, false),
    (TrialMeasure::CpuTime, false),
    (TrialMeasure::CpuReceived, false),
    (TrialMeasure::SoftirqReceived, false),
];

/// The options of all charts, in page order.
#[derive(Default)]
pub(super) struct Options(Vec<Value>);

impl Options {
    pub(super) fn into_values(self) -> Vec<Value> {
        self.0
    }
}

/// Renders the page.
pub(super) fn render(folder: &ReportFolder, results: &Results) -> Result<String> {
    let mut options = Options::default();
    let machine = &folder.experiment.machine;
    let title = format!("{} on {}", results.kind, machine.hostname);
    let subtitle = subtitle(machine, folder.experiment.started_s);
    let sections = [
        ("verdict", "Verdict", verdict(folder, results)),
        ("rates", "Work done per second", rates(results, &mut options)),
        ("cpus", "CPU time", cpus(results, &mut options)),
        ("counts", "Cost per unit of work", counts(results, &mut options)),
        ("stages", "Cost of each stage of receive work", stages(results, &mut options)),
        ("latency", "Latency", latency(results, &mut options)),
        ("maps", "Path of the packets", maps(results, &mut options)),
        ("details", "Machine, commands and raw figures", details::render(folder, results)),
    ];
    let sections: Vec<_> =
        sections.into_iter().filter(|(_, _, content)| !content.0.is_empty()).collect();
    let data = json!({ "themes": palette::themes(), "options": options.0 });
    document(&title, &subtitle, &folder.experiment.netsilo, &sections, Some(&data))
}

/// A section of a page: id, title, content.
pub(super) type Section = (&'static str, &'static str, Markup);

/// A whole page; `charts` is what the scripts draw, and a page without charts has no scripts.
pub(super) fn document(
    title: &str,
    subtitle: &str,
    version: &str,
    sections: &[Section],
    charts: Option<&Value>,
) -> Result<String> {
    // Only these scripts run, and nothing is fetched: names of a stranger's folder cannot guess it.
    let nonce = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'nonce-{nonce}'"
    );
    let scripts = charts.map(|data| scripts(data, &nonce)).transpose()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "netsilo: " (title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                @if let Some((id, title, _)) = sections.first() {
                    a.skip href={ "#" (id) } { "Skip to: " (title) }
                }
                header {
                    h1 { (title) }
                    button #theme type="button" hidden
                        aria-label="Switch between light and dark" { "Dark" }
                    p { (subtitle) }
                    nav aria-label="Sections" {
                        @for (id, title, _) in sections { a href={ "#" (id) } { (title) } }
                    }
                }
                main {
                    @for (id, title, content) in sections {
                        section aria-labelledby=(id) { h2 id=(id) { (title) } (content) }
                    }
                }
                footer {
                    p {
                        "Made by netsilo " (version) "."
                        @if charts.is_some() { " Charts by Apache ECharts." }
                    }
                }
                @if let Some(scripts) = scripts { (scripts) }
            }
        }
    };
    Ok(page.into_string())
}

/// The data of all charts, and the scripts that draw them.
fn scripts(data: &Value, nonce: &str) -> Result<Markup> {
    let data = data.to_string().replace('<', "\\u003c");
    let echarts = zstd::decode_all(ECHARTS).context("cannot unpack the chart library")?;
    let echarts = String::from_utf8(echarts).context("the chart library is damaged")?;
    Ok(html! {
        script #charts type="application/json" { (PreEscaped(data)) }
        script nonce=(nonce) { (PreEscaped(&echarts)) }
        script nonce=(nonce) { (PreEscaped(SCRIPT)) }
    })
}

/// When and where a run was made.
pub(super) fn subtitle(machine: &MachineSummary, started_s: u64) -> String {
    let model = machine.model.as_ref().map(|model| format!(" ({model})")).unwrap_or_default();
    let parts = [
        details::when(started_s),
        format!("{}{model}", crate::tell::words::plural(machine.cpus as usize, "CPU")),
        format!("Linux {}", machine.kernel),
    ];
    parts.into_iter().chain(machine.netdevs.clone()).collect::<Vec<_>>().join(" · ")
}

fn verdict(folder: &ReportFolder, results: &Results) -> Markup {
    let caveats = words::caveats(results);
    let (emulated, others) = caveats.split_at(usize::from(results.times_invalid.is_some()));
    html! {
        p { "Each setting compared with " b { (results.reference) } ", round by round." }
        @for text in emulated { p.warn role="note" { (text) } }
        ul.say {
            @for (at, (setting, sentences)) in words::summary(results).iter().enumerate() {
                li style={ "--mark:" (palette::setting(at + 1)) } {
                    b { (setting) }
                    @for sentence in sentences { span { (sentence) } }
                }
            }
        }
        (tables::verdicts(results))
        ul.notes { @for text in others.iter().chain(&folder.note) { li { (text) } } }
        @let doubts = words::cell_notes(results);
        @if !doubts.is_empty() {
            details { summary { "What weakens single figures (" (doubts.len()) ")" }
                ul.notes { @for doubt in &doubts { li { (doubt) } } } }
        }
        @if !results.failed.is_empty() {
            details open { summary { "Failed trials (" (results.failed.len()) ")" }
                ul.notes { @for it in &results.failed {
                    li {
                        "round " (it.step.round + 1) ", " (it.step.load) ", " (it.step.setting)
                        ": " (it.why)
                    }
                } } }
        }
    }
}

/// Groups loads by chart: the same test and size, with different instances or names.
fn groups(results: &Results) -> Vec<(String, Vec<&UnderLoad>)> {
    let mut groups: Vec<(String, Vec<&UnderLoad>)> = Vec::new();
    for load in &results.loads {
        let spec = &load.spec;
        let size = match (spec.test.has_responses(), spec.request_bytes == spec.response_bytes) {
            (true, true) => format!("{} B", spec.request_bytes),
            (true, false) => {
                format!(
                    "requests of {} B, responses of {} B",
                    spec.request_bytes, spec.response_bytes
                )
            }
            (false, _) => format!("{} B per call", spec.send_bytes),
        };
        let title = format!("{}, {size}", spec.test);
        match groups.iter_mut().find(|(it, _)| *it == title) {
            Some((_, loads)) => loads.push(load),
            None => groups.push((title, vec![load])),
        }
    }
    groups
}

fn rates(results: &Results, options: &mut Options) -> Markup {
    html! {
        p {
            "Bars are medians of the rounds, dots the rounds, whiskers the 95 % interval of the \
             median (from five rounds on). At the right: the median, its change against the first \
             setting, and ▲ ▼ = as in the table above."
            @if results.expected.iter().any(|it| !it.settings.is_empty()) {
                " Diamonds are what the model predicted before anything was measured."
            }
            @if results.times_invalid.is_some() {
                " On this machine rates are not meaningful."
            }
        }
        div.cards {
            @for (title, loads) in groups(results) {
                (bars(&title, &loads, TrialMeasure::Rate, &results.expected, options))
            }
        }
        (tables::expected(results))
    }
}

fn bars(
    title: &str,
    loads: &[&UnderLoad],
    measure: TrialMeasure,
    expected: &[ExpectedUnderLoad],
    options: &mut Options,
) -> Markup {
    let Some(chart) = charts::bars(title, loads, measure, expected) else { return html!() };
    figure(title, &chart, &tables::measure(loads, measure), options)
}

/// A chart, and its figures as a table in a collapsed section.
pub(super) fn figure(title: &str, chart: &Chart, table: &Markup, options: &mut Options) -> Markup {
    let at = options.0.len();
    options.0.push(chart.option.clone());
    html! {
        figure.card {
            figcaption { (title) }
            div.chart role="img" aria-label=(chart.description) data-chart=(at)
                style={ "height:" (chart.height) "px" } {}
            details { summary { "The figures as a table" } div.scroll { (table) } }
        }
    }
}

fn cpus(results: &Results, options: &mut Options) -> Markup {
    let drawn: Vec<_> =
        results.loads.iter().filter_map(|load| Some((load, charts::cpus(load)?))).collect();
    html! {
        @if !drawn.is_empty() {
            p {
                "Shares of the clock ticks of the machine under test, means over the rounds. \
                 Without IRQ_TIME_ACCOUNTING the kernel accounts too little irq and softirq time \
                 under load; where eBPF measured it, the table has the measured shares."
                @if results.times_invalid.is_some() {
                    " On this machine shares of time are not meaningful."
                }
            }
            @for (at, (load, chart)) in drawn.iter().enumerate() {
                details.card open[at == 0] {
                    summary { (load.load) }
                    (figure("", chart, &tables::cpus(load), options))
                }
            }
        }
    }
}

fn counts(results: &Results, options: &mut Options) -> Markup {
    let groups = groups(results);
    let has = |measure: TrialMeasure| {
        let cells = || results.loads.iter().flat_map(|load| &load.settings);
        cells().any(|cell| cell.measured(measure).is_some_and(is_anything))
    };
    let shown: Vec<_> = COUNTS.into_iter().filter(|(measure, _)| has(*measure)).collect();
    html! {
        @if !shown.is_empty() {
            p {
                "Of the machine under test, per transaction, packet or megabyte. More is neither \
                 better nor worse by itself: RPS relieves a busy CPU at the price of IPIs."
            }
            @for (measure, is_open) in shown {
                details.card open[is_open] {
                    summary { (words::every_work(measure)) }
                    div.cards {
                        @for (title, loads) in &groups {
                            (bars(title, loads, measure, &[], options))
                        }
                    }
                }
            }
        }
    }
}

/// Whether any bar would be visible.
fn is_anything(measured: &Measured) -> bool {
    measured.rounds.values().any(|value| *value > 0.0)
}

fn stages(results: &Results, options: &mut Options) -> Markup {
    let of = |load: &UnderLoad| {
        results.stages.iter().filter(|it| it.load == load.load).collect::<Vec<_>>()
    };
    let drawn = results
        .loads
        .iter()
        .filter_map(|load| Some((load, charts::stages(&load.load, &of(load))?)));
    let drawn: Vec<_> = drawn.collect();
    html! {
        @if !drawn.is_empty() {
            p {
                "Samples of kernel stacks in a separate trial per setting and load that does not \
                 count. Nanoseconds are per packet that the netdevs under test received; ± is the \
                 95 % interval from the number of samples alone."
                @if results.times_invalid.is_some() {
                    " On this machine times are not meaningful."
                }
            }
            div.cards {
                @for (load, chart) in &drawn {
                    (figure(&load.load, chart, &tables::stages(&of(load)), options))
                }
            }
        }
        @for pair in &results.early_drops { div.card { div.scroll { (tables::early_drop(pair)) } } }
        @let not_sampled = words::not_sampled(results);
        @if !not_sampled.is_empty() { ul.notes { @for text in &not_sampled { li { (text) } } } }
    }
}

fn latency(results: &Results, options: &mut Options) -> Markup {
    let drawn: Vec<_> =
        results.loads.iter().filter_map(|load| Some((load, charts::latencies(load)?))).collect();
    html! {
        @if !drawn.is_empty() {
            p {
                "All responses of all rounds together (the histograms are added). A percentile \
                 needs ten responses beyond it."
                @if results.times_invalid.is_some() {
                    " On this machine times are not meaningful."
                }
            }
            div.cards {
                @for (load, chart) in &drawn {
                    (figure(&load.load, chart, &tables::latencies(load), options))
                }
            }
        }
    }
}

fn maps(results: &Results, options: &mut Options) -> Markup {
    let of = |load: &UnderLoad| {
        results
            .maps
            .iter()
            .filter(|map| map.load == load.load && !map.links.is_empty())
            .collect::<Vec<_>>()
    };
    let drawn: Vec<_> = results
        .loads
        .iter()
        .map(|load| (load, of(load)))
        .filter(|(_, maps)| !maps.is_empty())
        .collect();
    html! {
        @if !drawn.is_empty() {
            p {
                "From the rx queue through its interrupt to the CPU that polls it, and on to the \
                 CPU and the program that reads. A queue's packets are divided in proportion to \
                 polls and to the bytes read; where RPS moves packets, the CPU that runs the \
                 protocol stands between."
            }
            @for (at, (load, maps)) in drawn.iter().enumerate() {
                details.card open[at == 0] {
                    summary { (load.load) }
                    div.cards { @for map in maps {
                        @if let Some(chart) = charts::flow(map) {
                            (figure(&map.setting, &chart, &tables::flow(map), options))
                        }
                    } }
                }
            }
        }
    }
}
