//! The page of a prediction: what `netsilo predict --json` printed, drawn.

use std::collections::BTreeMap;
use std::path;

use anyhow::{Context as _, Result, ensure};
use maud::{Markup, html};
use netsilo_predict::live::forecast::Path;
use netsilo_predict::prediction::CpuTime;
use netsilo_stats::Estimate;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::file;
use crate::report::charts::{self, Bar, Chart};
use crate::report::options::Format;
use crate::report::page::{Options, document, figure};
use crate::report::palette;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::views::units::{count, percent};

/// The schema that this page reads.
const SCHEMA: u64 = 1;

/// A prediction, as `netsilo predict --json` prints it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prediction {
    Sweep(Sweep),
    Observed { packets_per_s: f64, load: f64, assumed: Vec<String>, settings: Vec<Setting> },
    Described { unit: String, against: String, settings: Vec<Setting> },
}

#[derive(Deserialize)]
struct Sweep {
    key: String,
    unit: String,
    settings: Vec<String>,
    points: Vec<Point>,
    /// Where the best setting changes: the first point with another one.
    changes: Vec<usize>,
}

impl Sweep {
    /// Each change: the value of the key from which on a setting is better than the one before.
    fn crossings(&self) -> impl Iterator<Item = (f64, &str, &str)> {
        let best = |at: usize| {
            let point = self.points.get(at)?;
            Some((point.value, self.settings.get(point.best)?.as_str()))
        };
        self.changes.iter().filter_map(move |at| {
            let ((value, of), (_, than)) = (best(*at)?, best(at.checked_sub(1)?)?);
            Some((value, of, than))
        })
    }
}

#[derive(Deserialize)]
struct Point {
    value: f64,
    rates: Vec<f64>,
    best: usize,
    #[serde(default)]
    bands: Vec<Estimate>,
}

#[derive(Deserialize)]
struct Setting {
    name: String,
    /// The rate, or how many times the load fits.
    #[serde(alias = "fits")]
    rate: Estimate,
    gain: Option<Estimate>,
    is_clear: bool,
    #[serde(alias = "bottleneck")]
    limit: Value,
    cpus: Cpus,
    /// Only of an observed machine.
    path: Option<Path>,
}

/// The times of CPUs: of all in their order, or by number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Cpus {
    All(Vec<CpuTime>),
    Some(BTreeMap<String, CpuTime>),
}

impl Cpus {
    /// Each CPU's number and time, in the order of the numbers.
    fn times(&self) -> Vec<(u32, CpuTime)> {
        let mut times: Vec<(u32, CpuTime)> = match self {
            Self::All(times) => (0..).zip(times.iter().copied()).collect(),
            Self::Some(times) => {
                times.iter().filter_map(|(cpu, it)| Some((cpu.parse().ok()?, *it))).collect()
            }
        };
        times.sort_unstable_by_key(|(cpu, _)| *cpu);
        times
    }
}

/// Reads a prediction and renders it.
pub(super) fn text(path: &path::Path, format: &Format) -> Result<String> {
    let text = file::read(path, file::PLAN).context("cannot read the prediction")?;
    let no_prediction =
        || format!("{} is neither a run nor what `netsilo predict --json` prints", path.display());
    let value: Value = serde_json::from_slice(&text).with_context(no_prediction)?;
    let schema = value["schema"].as_u64();
    ensure!(
        schema.is_none_or(|schema| schema == SCHEMA),
        "{} has schema {}: this netsilo reads schema {SCHEMA}",
        path.display(),
        schema.unwrap_or_default()
    );
    let prediction = Prediction::deserialize(&value).with_context(no_prediction)?;
    match format {
        Format::Json => out::indented(&value),
        Format::Page => page(&prediction),
        Format::Markdown => Err(ExitError(
            Exit::Usage,
            "a prediction is written as a page: name its file with --output".to_owned(),
        )
        .into()),
    }
}

fn page(prediction: &Prediction) -> Result<String> {
    let mut options = Options::default();
    let (subtitle, sections) = match prediction {
        Prediction::Sweep(sweep) => {
            let Sweep { key, unit, settings, points, .. } = sweep;
            let table = curve_table(key, settings, points);
            let drawn = figure(&format!("{unit} by {key}"), &curves(sweep), &table, &mut options);
            let note = html! {
                p { "Bands hold nine of ten draws of the model's parameters." }
                ul.notes { @for (value, of, than) in sweep.crossings() {
                    li {
                        "From " (key) " = " (count(value)) " on " b { (of) } " is better than "
                        b { (than) } "."
                    }
                } }
            };
            (format!("{unit} along {key}"), vec![("rates", "Rates", html! { (note) (drawn) })])
        }
        Prediction::Observed { packets_per_s, load, assumed, settings } => {
            let note = html! {
                p {
                    "How many times this load fits until something is full. Whiskers hold nine of \
                     ten draws of the model's parameters."
                }
                @for what in assumed { p.warn role="note" { "Not measured: " (what) "." } }
            };
            let rates = bars("fits this many times", "times", settings, &mut options);
            let subtitle =
                format!("{} packets/s, x{} the observed load", count(*packets_per_s), count(*load));
            (subtitle, sections(html! { (note) (rates) }, settings, &mut options))
        }
        Prediction::Described { unit, against, settings } => {
            let note = html! {
                p {
                    "Compared with " b { (against) } ". Whiskers hold nine of ten draws of the \
                     model's parameters."
                }
            };
            let rates = bars(unit, unit, settings, &mut options);
            (unit.clone(), sections(html! { (note) (rates) }, settings, &mut options))
        }
    };
    let charts = json!({ "themes": palette::themes(), "options": options.into_values() });
    document("prediction", &subtitle, env!("CARGO_PKG_VERSION"), &sections, Some(&charts))
}

fn sections(
    rates: Markup,
    settings: &[Setting],
    options: &mut Options,
) -> Vec<(&'static str, &'static str, Markup)> {
    let cells: Vec<_> = settings.iter().map(|it| (it.name.as_str(), strip(it))).collect();
    let description = "usr, sys, softirq and idle time of each CPU, by setting".to_owned();
    let cpus = charts::strips(description, &cells);
    let cpus = cpus.map(|chart| figure("", &chart, &cpu_table(settings), options));
    let mut sections = vec![
        ("rates", "What each setting gives", rates),
        ("cpus", "CPU time", cpus.unwrap_or_default()),
    ];
    let paths: Vec<(&str, Path)> =
        settings.iter().filter_map(|it| Some((it.name.as_str(), it.path?))).collect();
    if !paths.is_empty() {
        let drawn = figure("ns per packet", &path_chart(&paths), &path_table(&paths), options);
        let note = html! {
            p {
                "CPU time of one packet at each stage, of all CPUs together. Poll and protocol are \
                 as measured; what a setting adds is the model's."
            }
        };
        sections.push(("path", "Path of a packet", html! { (note) (drawn) }));
    }
    sections
}

/// The time of a packet at each stage, stacked, one row for each setting.
fn path_chart(paths: &[(&str, Path)]) -> Chart {
    let series = Path::NAMES.into_iter().zip(palette::RECEIVE_STAGES).enumerate().map(
        |(at, (name, color))| {
            let data: Vec<f64> = paths.iter().map(|(_, it)| it.to_array()[at].round()).collect();
            json!({
                "type": "bar", "name": name, "stack": "path", "barWidth": 16,
                "itemStyle": { "color": color }, "data": data,
            })
        },
    );
    let names: Vec<&str> = paths.iter().map(|(name, _)| *name).collect();
    let description = "time of one packet at each stage, by setting".to_owned();
    charts::stacked_rows(description, &names, "ns per packet", &series.collect::<Vec<_>>())
}

fn path_table(paths: &[(&str, Path)]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "setting" }
                @for name in Path::NAMES { th scope="col" { (name) } }
                th scope="col" { "all" }
            } }
            tbody { @for (name, path) in paths { tr {
                th scope="row" { (name) }
                @for ns in path.to_array() { td { (format!("{ns:.0}")) } }
                td { (format!("{:.0}", path.to_array().iter().sum::<f64>())) }
            } } }
        }
    }
}

/// Each CPU's shares in the order of [`palette::STATES`].
fn strip(setting: &Setting) -> Vec<(String, Option<[f64; 6]>)> {
    let shares = |time: CpuTime| [time.usr, time.sys, 0.0, time.softirq, 0.0, time.idle()];
    let times = setting.cpus.times().into_iter();
    times.map(|(cpu, time)| (cpu.to_string(), Some(shares(time)))).collect()
}

fn change(setting: &Setting) -> String {
    match setting.gain {
        None => String::new(),
        Some(gain) if setting.is_clear => format!("{:+.0}%", 100.0 * gain.value),
        Some(_) => "no clear change".to_owned(),
    }
}

fn bars(title: &str, unit: &str, settings: &[Setting], options: &mut Options) -> Markup {
    let bars: Vec<Bar> = settings
        .iter()
        .map(|it| Bar {
            name: it.name.clone(),
            value: it.rate.value,
            interval: (it.rate.low, it.rate.high),
            text: format!("{}  {}", count(it.rate.value), change(it)),
        })
        .collect();
    let Some(chart) = charts::estimates(title, unit, &bars) else { return html!() };
    let table = html! {
        table {
            thead { tr {
                @for name in ["setting", "value", "low", "high", "change", "limit"] {
                    th scope="col" { (name) }
                }
            } }
            tbody { @for it in settings { tr {
                th scope="row" { (it.name) }
                @for value in [it.rate.value, it.rate.low, it.rate.high] { td { (count(value)) } }
                td { (change(it)) }
                td { (limit(&it.limit)) }
            } } }
        }
    };
    figure(title, &chart, &table, options)
}

/// A limit in words: a text, or one with a CPU's number.
fn limit(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            fields.iter().map(|(name, cpu)| format!("{name} of cpu {cpu}")).collect()
        }
        other => other.to_string(),
    }
}

fn cpu_table(settings: &[Setting]) -> Markup {
    html! {
        table {
            thead { tr {
                @for name in ["setting", "cpu", "usr", "sys", "softirq", "idle"] {
                    th scope="col" { (name) }
                }
            } }
            tbody { @for it in settings { @for (cpu, time) in it.cpus.times() { tr {
                th scope="row" { (it.name) }
                td { (cpu) }
                @for share in [time.usr, time.sys, time.softirq, time.idle()] {
                    td { (percent(share)) }
                }
            } } } }
        }
    }
}

/// The settings with their places in the points, `none` first: the first one is the reference.
fn ordered(settings: &[String]) -> Vec<(usize, &str)> {
    let mut ordered: Vec<_> = settings.iter().map(String::as_str).enumerate().collect();
    if let Some(none) = settings.iter().position(|name| name == "none") {
        ordered[..=none].rotate_right(1);
    }
    ordered
}

/// The rate of each setting along a key, with bands, and lines where the best setting changes.
fn curves(sweep: &Sweep) -> Chart {
    let Sweep { key, unit, settings, points, .. } = sweep;
    let crossings =
        sweep.crossings().map(|(value, best, _)| json!({ "xAxis": value, "name": best }));
    let crossings = json!({
        "type": "line", "name": "best setting", "data": [], "silent": true,
        "markLine": {
            "symbol": "none", "data": crossings.collect::<Vec<_>>(),
            "label": { "formatter": "{b}", "position": "insideEndTop" },
            "lineStyle": { "type": "dotted", "width": 1 },
        },
    });
    let ordered = ordered(settings);
    let series = ordered.iter().enumerate().flat_map(|(place, &(at, name))| {
        let of = |value: &dyn Fn(&Point) -> Option<f64>| -> Vec<Value> {
            let pair = |point: &Point| Some(json!([point.value, value(point)?]));
            points.iter().filter_map(pair).collect()
        };
        let band = |point: &Point| point.bands.get(at).copied();
        let color = palette::setting(place);
        let area = |data: Vec<Value>, opacity: f64| {
            json!({
                "type": "line", "name": name, "stack": at.to_string(), "data": data,
                "color": color, "symbol": "none", "silent": true, "lineStyle": { "opacity": 0 },
                "areaStyle": { "opacity": opacity }, "tooltip": { "show": false },
            })
        };
        [
            area(of(&|point| Some(band(point)?.low)), 0.0),
            area(of(&|point| Some(band(point)?.high - band(point)?.low)), 0.15),
            json!({
                "type": "line", "name": name, "color": color, "symbol": palette::symbol(place),
                "symbolSize": 6, "data": of(&|point| point.rates.get(at).copied()),
                "lineStyle": { "width": 2, "type": if place == 0 { "dashed" } else { "solid" } },
            }),
        ]
    });
    let ends = points.first().zip(points.last());
    let is_wide = ends.is_some_and(|(first, last)| last.value > 20.0 * first.value.max(1e-9));
    Chart {
        description: format!("{unit} by {key}, one line for each setting"),
        height: 420,
        option: json!({
            "animation": false,
            "aria": { "enabled": true },
            "legend": {
                "top": 0, "left": 0, "type": "plain",
                "data": ordered.iter().map(|(_, name)| *name).collect::<Vec<_>>(),
            },
            "tooltip": { "renderMode": "richText", "trigger": "item" },
            "grid": { "left": 8, "right": 24, "top": 62, "bottom": 30, "containLabel": true },
            "xAxis": {
                "type": if is_wide { "log" } else { "value" }, "name": key,
                "nameLocation": "middle", "nameGap": 30, "scale": true,
            },
            "yAxis": { "type": "value", "name": unit, "min": 0 },
            "series": series.chain([crossings]).collect::<Vec<_>>(),
        }),
    }
}

fn curve_table(key: &str, settings: &[String], points: &[Point]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { (key) }
                @for (_, name) in ordered(settings) { th scope="col" { (name) } }
            } }
            tbody { @for point in points { tr {
                th scope="row" { (count(point.value)) }
                @for (at, _) in ordered(settings) {
                    td { (point.rates.get(at).map_or_else(String::new, |rate| count(*rate))) }
                }
            } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_packet_has_a_bar_for_each_stage_that_adds_up() {
        let path = |poll| Path { poll, protocol: 900.0, ipis: 40.4, ..Path::default() };
        let paths = [("as it is", path(600.0)), ("rps=0-3", path(650.0))];
        let option = path_chart(&paths).option;
        assert_eq!(option["series"].as_array().map(Vec::len), Some(Path::NAMES.len()));
        assert_eq!(option["series"][0]["data"], json!([600.0, 650.0]));
        assert_eq!(option["series"][3]["data"], json!([40.0, 40.0]));
        let table = path_table(&paths).into_string();
        assert!(table.contains("<td>1540</td>") && table.contains("<td>1590</td>"), "{table}");
    }

    #[test]
    fn a_setting_has_one_colour_in_lines_bands_and_legend() {
        let band = Estimate { value: 1.0, low: 0.5, high: 2.0 };
        let point =
            |value, best| Point { value, rates: vec![1.0, 2.0], bands: vec![band; 2], best };
        let sweep = Sweep {
            key: "load.instances".to_owned(),
            unit: "packets/s".to_owned(),
            settings: vec!["irq_affinity".to_owned(), "none".to_owned()],
            points: vec![point(1.0, 1), point(2.0, 0)],
            changes: vec![1],
        };
        let option = curves(&sweep).option;
        assert_eq!(option["legend"]["data"], json!(["none", "irq_affinity"]));
        let series = option["series"].as_array().cloned().unwrap_or_default();
        assert_eq!(series.len(), 2 * 3 + 1);
        let line = json!([{ "xAxis": 2.0, "name": "irq_affinity" }]);
        assert_eq!(series[6]["markLine"]["data"], line);
        for (place, name) in ["none", "irq_affinity"].into_iter().enumerate() {
            let its: Vec<_> = series.iter().filter(|it| it["name"] == name).collect();
            // the legend takes the colour of the first one
            assert!(its.len() == 3 && its.iter().all(|it| it["color"] == palette::setting(place)));
        }
        let rates = |name: &str| {
            series.iter().rfind(|it| it["name"] == name).map(|it| it["data"][0][1].clone())
        };
        assert_eq!((rates("irq_affinity"), rates("none")), (Some(json!(1.0)), Some(json!(2.0))));
    }
}
