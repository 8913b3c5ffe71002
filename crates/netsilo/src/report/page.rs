//! Results as a page: one file that needs no network. What is said is in [`words`], what is drawn
//! in [`charts`].
//!
//! Maud escapes every text; what the script gets is JSON in which nothing can end its element.

mod details;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use netsilo_trial::experiment::measure::Measure;
use netsilo_trial::experiment::results::{Measured, Results, UnderLoad};
use serde_json::{Value, json};

use crate::report::charts::{self, Chart};
use crate::report::folder::Folder;
use crate::report::{palette, words};

/// Apache ECharts, made by `scripts/echarts`.
const ECHARTS: &str = include_str!("echarts.min.js");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Counts that have a section of their own, and whether it is open.
const COUNTS: [(Measure, bool); 9] = [
    (Measure::BusiestCpu, true),
    (Measure::NetRx, true),
    (Measure::Ipis, true),
    (Measure::HandedOver, false),
    (Measure::Interrupts, false),
    (Measure::ContextSwitches, false),
    (Measure::CpuTime, false),
    (Measure::CpuReceived, false),
    (Measure::SoftirqReceived, false),
];

/// The options of all charts, in the order in which they stand on the page.
#[derive(Default)]
struct Options(Vec<Value>);

/// The page.
pub(super) fn render(folder: &Folder, results: &Results) -> String {
    let mut options = Options::default();
    let machine = &folder.experiment.machine;
    let title = format!("{} on {}", results.kind, machine.hostname);
    let sections = [
        ("verdict", "What it comes to", verdict(folder, results)),
        ("rates", "Work done per second", rates(results, &mut options)),
        ("cpus", "What each CPU did", cpus(results, &mut options)),
        ("counts", "What each piece of work costs", counts(results, &mut options)),
        ("stages", "What each stage of receive work costs", stages(results, &mut options)),
        ("latency", "Latency", latency(results, &mut options)),
        ("maps", "The way of the packets", maps(results, &mut options)),
        ("details", "Machine, commands and raw figures", details::render(folder, results)),
    ];
    let sections: Vec<_> =
        sections.into_iter().filter(|(_, _, content)| !content.0.is_empty()).collect();
    let data = json!({ "themes": palette::themes(), "options": options.0 })
        .to_string()
        .replace('<', "\\u003c");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "netsilo: " (title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#verdict" { "Skip to the verdict" }
                header {
                    h1 { (title) }
                    button #theme type="button" hidden aria-label="Switch between light and dark" { "Dark" }
                    p { (subtitle(folder)) }
                    nav aria-label="Sections" { @for (id, title, _) in &sections { a href={ "#" (id) } { (title) } } }
                }
                main {
                    @for (id, title, content) in &sections {
                        section aria-labelledby=(id) { h2 id=(id) { (title) } (content) }
                    }
                }
                footer { p { "Made by netsilo " (folder.experiment.netsilo) ". Charts by Apache ECharts." } }
                script #charts type="application/json" { (PreEscaped(data)) }
                script { (PreEscaped(ECHARTS)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn subtitle(folder: &Folder) -> String {
    let machine = &folder.experiment.machine;
    let model = machine.model.as_ref().map(|model| format!(" ({model})")).unwrap_or_default();
    let parts = [
        details::when(folder.experiment.started_s),
        format!("{}{model}", crate::verbs::apply::count(machine.cpus as usize, "CPU")),
        format!("Linux {}", machine.kernel),
    ];
    parts.into_iter().chain(machine.netdevs.clone()).collect::<Vec<_>>().join(" · ")
}

fn verdict(folder: &Folder, results: &Results) -> Markup {
    let caveats = words::caveats(results);
    let (emulated, others) = caveats.split_at(usize::from(results.times_mean_nothing.is_some()));
    html! {
        p { "Each setting against " b { (results.reference) } ", round by round." }
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
        @let doubts = words::doubts(results);
        @if !doubts.is_empty() {
            details { summary { "What speaks against single figures (" (doubts.len()) ")" }
                ul.notes { @for doubt in &doubts { li { (doubt) } } } }
        }
        @if !results.failed.is_empty() {
            details open { summary { "Failed trials (" (results.failed.len()) ")" }
                ul.notes { @for it in &results.failed {
                    li { "round " (it.step.round + 1) ", " (it.step.load) ", " (it.step.setting) ": " (it.why) }
                } } }
        }
    }
}

/// Loads that stand in one chart: the same test and size, told apart by their instances or names.
fn groups(results: &Results) -> Vec<(String, Vec<&UnderLoad>)> {
    let mut groups: Vec<(String, Vec<&UnderLoad>)> = Vec::new();
    for load in &results.loads {
        let spec = &load.spec;
        let size = match (spec.test.has_responses(), spec.request_bytes == spec.response_bytes) {
            (true, true) => format!("{} B", spec.request_bytes),
            (true, false) => {
                format!("{} B asked, {} B answered", spec.request_bytes, spec.response_bytes)
            }
            (false, _) => format!("{} B a call", spec.send_bytes),
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
            "Bars are medians of the rounds, dots the rounds, whiskers the 95 % interval of the median (from five rounds on). At the right: the \
             median, its change against the first setting, and ▲ ▼ = as in the table above."
            @if results.times_mean_nothing.is_some() { " On this machine rates mean nothing." }
        }
        div.cards { @for (title, loads) in groups(results) { (bars(&title, &loads, Measure::Rate, options)) } }
    }
}

fn bars(title: &str, loads: &[&UnderLoad], measure: Measure, options: &mut Options) -> Markup {
    let Some(chart) = charts::bars(title, loads, measure) else { return html!() };
    figure(title, &chart, &tables::measure(loads, measure), options)
}

/// A chart, and the same as a table in a fold.
fn figure(title: &str, chart: &Chart, table: &Markup, options: &mut Options) -> Markup {
    let at = options.0.len();
    options.0.push(chart.option.clone());
    html! {
        figure.card {
            figcaption { (title) }
            div.chart role="img" aria-label=(chart.says) data-chart=(at) style={ "height:" (chart.height) "px" } {}
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
                "Shares of the clock ticks of the machine under test, means over the rounds. Without IRQ_TIME_ACCOUNTING irq and softirq are \
                 booked too low under load; where eBPF measured them the table has the true ones."
                @if results.times_mean_nothing.is_some() { " On this machine shares of time mean nothing." }
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
    let has = |measure: Measure| {
        let cells = || results.loads.iter().flat_map(|load| &load.settings);
        cells().any(|cell| cell.measured(measure).is_some_and(is_anything))
    };
    let shown: Vec<_> = COUNTS.into_iter().filter(|(measure, _)| has(*measure)).collect();
    html! {
        @if !shown.is_empty() {
            p { "Of the machine under test, for each transaction, packet or megabyte. More is neither better nor worse by itself: RPS buys \
                 room on a busy CPU with IPIs." }
            @for (measure, is_open) in shown {
                details.card open[is_open] {
                    summary { (words::every_work(measure)) }
                    div.cards { @for (title, loads) in &groups { (bars(title, loads, measure, options)) } }
                }
            }
        }
    }
}

/// Whether there is a bar to be seen.
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
                "Samples of kernel stacks in a trial of each setting and load that does not count. Nanoseconds are for each packet that the netdevs \
                 under test received; ± is the interval of 95 % that the number of samples alone leaves."
                @if results.times_mean_nothing.is_some() { " On this machine times mean nothing." }
            }
            div.cards { @for (load, chart) in &drawn { (figure(&load.load, chart, &tables::stages(&of(load)), options)) } }
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
                "All responses of all rounds together, each counted once (the histograms are added). A percentile needs ten responses beyond it."
                @if results.times_mean_nothing.is_some() { " On this machine times mean nothing." }
            }
            div.cards { @for (load, chart) in &drawn { (figure(&load.load, chart, &tables::latencies(load), options)) } }
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
            p { "From the rx queue by its interrupt to the CPU that polls it, and on to the CPU and the program that reads. A queue's packets \
                 are shared out in proportion to polls and to the bytes read; where RPS hands packets over, the CPU that runs the protocol stands between." }
            @for (at, (load, maps)) in drawn.iter().enumerate() {
                details.card open[at == 0] {
                    summary { (load.load) }
                    div.cards { @for map in maps {
                        @if let Some(chart) = charts::flow(map) { (figure(&map.setting, &chart, &tables::flow(map), options)) }
                    } }
                }
            }
        }
    }
}
