//! Charts as options of Apache ECharts; all values are computed here, the page's script only passes
//! them on.
//!
//! Names from outside appear in options as plain text: tooltips are drawn (`richText`), never built
//! from HTML.

use netsilo_model::derive::rates::Shares;
use netsilo_model::snapshot::stage_samples;
use netsilo_trial::experiment::compared::{CpuMean, Measured, UnderLoad};
use netsilo_trial::experiment::expected::ExpectedUnderLoad;
use netsilo_trial::experiment::flow_map::{FlowMap, HopStage};
use netsilo_trial::experiment::measure::TrialMeasure;
use netsilo_trial::experiment::stage_costs::{StageCost, StageCosts};
use serde_json::{Value, json};

use crate::report::{palette, words};

/// Height of one row of bars, in pixels.
const ROW: usize = 24;

/// Height of one setting's strip of CPUs.
const STRIP: usize = 74;

/// A chart of the page.
#[derive(Debug)]
pub(super) struct Chart {
    /// Text for screen readers.
    pub(super) description: String,
    /// Height in pixels.
    pub(super) height: usize,
    pub(super) option: Value,
}

/// Bars of one measure: one row per setting, loads below each other; whiskers are intervals, dots
/// are rounds, diamonds what was expected.
pub(super) fn bars(
    title: &str,
    loads: &[&UnderLoad],
    measure: TrialMeasure,
    expected: &[ExpectedUnderLoad],
) -> Option<Chart> {
    let mut rows = Rows::default();
    for load in loads {
        let measured: Vec<_> =
            load.settings.iter().map(|cell| (cell, cell.measured(measure))).collect();
        if measured.iter().all(|(_, it)| it.is_none()) {
            continue;
        }
        rows.head(&label(load, loads));
        let reference = measured.first().and_then(|(_, first)| Some(first.as_ref()?.median));
        let expected = expected.iter().find(|it| it.load == load.load);
        for (at, (cell, measured)) in measured.into_iter().enumerate() {
            let change = expected.and_then(|it| it.setting(&cell.setting)?.expected);
            rows.diamonds.extend(
                reference
                    .zip(change)
                    .map(|(rate, change)| json!([rate * (1.0 + change.value), rows.left.len()])),
            );
            rows.bar(&cell.setting, palette::setting(at), measured, load);
        }
    }
    let work = loads.first()?.work;
    let name = measure.name(work);
    let unit = rows.scaled(measure.unit(work));
    let height = rows.left.len() * ROW + 64;
    (!rows.bars.is_empty()).then(|| Chart {
        description: format!("{title}: {name}, by setting"),
        height,
        option: rows.option(&unit),
    })
}

/// A bar with its interval and what stands beside it.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) interval: (f64, f64),
    pub(super) text: String,
}

/// One bar for each setting; whiskers are intervals.
pub(super) fn estimates(title: &str, unit: &str, bars: &[Bar]) -> Option<Chart> {
    let mut rows = Rows::default();
    for (at, bar) in bars.iter().enumerate() {
        let style = json!({ "color": palette::setting(at) });
        rows.left.push(json!(bar.name));
        rows.right.push(json!(bar.text));
        rows.bars.push(json!({ "value": [bar.value, at], "itemStyle": style }));
        rows.whiskers.push(json!([bar.interval.0, bar.interval.1, at]));
    }
    let unit = rows.scaled(unit);
    (!bars.is_empty()).then(|| Chart {
        description: format!("{title}, by setting"),
        height: bars.len() * ROW + 64,
        option: rows.option(&unit),
    })
}

/// Returns the shortest name that distinguishes a load in its chart.
fn label(load: &UnderLoad, loads: &[&UnderLoad]) -> String {
    let instances = load.spec.instances;
    let is_alone = loads.iter().filter(|it| it.spec.instances == instances).count() == 1;
    if is_alone && loads.len() > 1 {
        crate::tell::words::plural(instances, "instance")
    } else {
        load.load.clone()
    }
}

/// The rows of a bar chart, from top to bottom.
#[derive(Default)]
struct Rows {
    left: Vec<Value>,
    right: Vec<Value>,
    bars: Vec<Value>,
    whiskers: Vec<Value>,
    dots: Vec<Value>,
    diamonds: Vec<Value>,
}

impl Rows {
    fn head(&mut self, text: &str) {
        self.left
            .push(json!({ "value": text, "textStyle": { "fontWeight": "bold", "fontSize": 13 } }));
        self.right.push(json!(""));
    }

    fn bar(&mut self, setting: &str, color: &str, measured: Option<&Measured>, load: &UnderLoad) {
        let row = self.left.len();
        self.left.push(json!(setting));
        let Some(measured) = measured else {
            self.right.push(json!("no result"));
            return;
        };
        let value = words::value(measured.measure, load.work, measured.median);
        let change = measured
            .against
            .as_ref()
            .map(|it| format!("  {} {}", words::change(it), words::sign(it.verdict)));
        self.right.push(json!(value + &change.unwrap_or_default()));
        self.bars.push(json!({ "value": [measured.median, row], "itemStyle": { "color": color } }));
        if let Some(interval) = measured.interval {
            self.whiskers.push(json!([interval.low, interval.high, row]));
        }
        self.dots.extend(measured.rounds.values().map(|value| json!([value, row])));
    }

    /// Scales large values by thousand, million or billion; returns the unit with its prefix.
    fn scaled(&mut self, unit: &str) -> String {
        let values = || self.bars.iter().filter_map(|bar| bar["value"][0].as_f64());
        let most = values().fold(0.0, f64::max);
        let scales = [(1e9, "G", "billion "), (1e6, "M", "million "), (1e3, "k", "thousand ")];
        if unit.starts_with("1/") {
            return unit.into();
        }
        let Some((scale, prefix, word)) = scales.into_iter().find(|(scale, _, _)| most >= *scale)
        else {
            return unit.into();
        };
        let divide = |value: &mut Value| *value = json!(value.as_f64().map(|value| value / scale));
        self.bars.iter_mut().for_each(|bar| divide(&mut bar["value"][0]));
        self.dots.iter_mut().chain(&mut self.diamonds).for_each(|dot| divide(&mut dot[0]));
        self.whiskers
            .iter_mut()
            .flat_map(|it| it.as_array_mut())
            .flat_map(|it| &mut it[..2])
            .for_each(divide);
        match unit {
            "B/s" => format!("{prefix}{unit}"),
            "ns/transaction" | "ns/packet" => unit.replace(
                "ns",
                ["s", "ms", "µs"][scales.iter().position(|it| it.0 == scale).unwrap_or(0)],
            ),
            _ => format!("{word}{unit}"),
        }
    }

    fn option(self, unit: &str) -> Value {
        let axis = |data: &[Value], position: &str| {
            json!({
                "type": "category", "data": data, "position": position, "inverse": true,
                "axisTick": { "show": false }, "axisLine": { "show": false },
                "axisLabel": { "interval": 0, "overflow": "truncate" },
            })
        };
        let base = json!({
            "animation": false,
            "aria": { "enabled": true },
            "grid": { "left": 8, "right": 8, "top": 8, "bottom": 24, "containLabel": true },
            "tooltip": { "renderMode": "richText", "trigger": "item" },
            "xAxis": {
                "type": "value", "min": 0, "name": unit, "nameLocation": "middle", "nameGap": 30,
                "splitNumber": 4, "axisLabel": { "hideOverlap": true },
            },
            "yAxis": [axis(&self.left, "left"), axis(&self.right, "right")],
            "series": [
                { "type": "bar", "name": "median", "barWidth": 14, "data": self.bars, "z": 1 },
                { "type": "scatter", "name": "round", "symbolSize": 4, "data": self.dots, "z": 3,
                  "itemStyle": {
                      "color": "#ffffff", "borderColor": "#24292f", "borderWidth": 1,
                  } },
                { "type": "custom", "name": "interval", "renderItem": "whisker",
                  "data": self.whiskers, "z": 4, "encode": { "x": [0, 1], "y": 2 },
                  "silent": true },
                { "type": "scatter", "name": "predicted", "symbol": "diamond", "symbolSize": 11,
                  "data": self.diamonds, "z": 5,
                  "itemStyle": {
                      "color": "transparent", "borderColor": "#cf222e", "borderWidth": 2,
                  } },
            ],
        });
        // narrow screens: truncate names to leave room for bars
        let widths = |left, right| {
            json!({ "yAxis": [
                { "axisLabel": { "width": left } },
                { "axisLabel": { "width": right } },
            ] })
        };
        let media = [
            json!({ "query": { "maxWidth": 480 }, "option": widths(96, 140) }),
            json!({ "option": widths(190, 150) }),
        ];
        json!({ "baseOption": base, "media": media })
    }
}

/// Time shares of each CPU, one strip per setting.
pub(super) fn cpus(load: &UnderLoad) -> Option<Chart> {
    let share = |cpu: &CpuMean| cpu.shares.map(|shares| parts(&shares));
    let cells: Vec<_> = load
        .settings
        .iter()
        .filter(|cell| cell.cpus.values().any(|cpu| cpu.shares.is_some()))
        .map(|cell| {
            let cpus = cell.cpus.iter().map(|(id, cpu)| (id.to_string(), share(cpu)));
            (cell.setting.as_str(), cpus.collect())
        })
        .collect();
    let description = format!(
        "{}: usr, sys, irq, softirq, steal and idle time of each CPU, by setting",
        load.load
    );
    strips(description, &cells)
}

/// The shares of one CPU's time in the order of [`palette::STATES`], by its number.
type Strip = Vec<(String, Option<[f64; 6]>)>;

/// Time shares of each CPU, one strip for each setting with its name.
pub(super) fn strips(description: String, cells: &[(&str, Strip)]) -> Option<Chart> {
    let top = |at: usize| 66 + at * (STRIP + 50);
    let per_strip = |make: &dyn Fn(usize) -> Value| (0..cells.len()).map(make).collect::<Vec<_>>();
    let names = |at: usize| cells[at].1.iter().map(|(cpu, _)| cpu.clone()).collect::<Vec<_>>();
    let series = |at: usize| {
        palette::STATES
            .into_iter()
            .enumerate()
            .map(move |(state, (name, color))| (at, state, name, color))
    };
    let series: Vec<Value> = (0..cells.len())
        .flat_map(series)
        .map(|(at, state, name, color)| {
            let share = |(_, parts): &(String, Option<[f64; 6]>)| {
                parts.map(|parts| rounded(parts[state] * 100.0))
            };
            json!({
                "type": "bar", "name": name, "stack": at.to_string(),
                "xAxisIndex": at, "yAxisIndex": at,
                "barCategoryGap": "12%", "itemStyle": { "color": color },
                "data": cells[at].1.iter().map(share).collect::<Vec<_>>(),
            })
        })
        .collect();
    let option = json!({
        "animation": false,
        "aria": { "enabled": true, "decal": { "show": true } },
        "legend": { "top": 0, "left": 0, "data": palette::STATES.map(|(name, _)| name) },
        "tooltip": {
            "renderMode": "richText", "trigger": "axis", "axisPointer": { "type": "shadow" },
        },
        "title": per_strip(&|at| json!({
            "text": cells[at].0, "left": 0, "top": top(at) - 22, "padding": 0,
            "textStyle": { "fontSize": 13, "fontWeight": "bold" },
        })),
        "grid": per_strip(&|at| json!({
            "left": 44, "right": 8, "top": top(at), "height": STRIP,
        })),
        "xAxis": per_strip(&|at| json!({
            "type": "category", "gridIndex": at, "data": names(at), "axisTick": { "show": false },
            "name": "cpu", "nameLocation": "start", "nameGap": 14,
            "axisLabel": { "hideOverlap": true },
        })),
        "yAxis": per_strip(&|at| json!({
            "type": "value", "gridIndex": at, "min": 0, "max": 100, "interval": 50,
            "axisLabel": { "formatter": "{value}%" },
        })),
        "series": series,
    });
    (!cells.is_empty()).then(|| Chart { description, height: top(cells.len()) - 20, option })
}

/// Time shares in the order of [`palette::STATES`]; their sum is 1.
pub(super) fn parts(shares: &Shares) -> [f64; 6] {
    [
        shares.usr + shares.nice,
        shares.sys,
        shares.irq,
        shares.softirq,
        shares.steal,
        shares.idle + shares.iowait,
    ]
}

/// Cost of each stage per packet, stacked, one row per setting; shares of the samples if no packets
/// were counted.
pub(super) fn stages(load: &str, costs: &[&StageCosts]) -> Option<Chart> {
    let in_time = costs.iter().any(|it| it.ns_per_packet.is_some());
    let value =
        |cost: &StageCost| if in_time { cost.ns_per_packet } else { Some(cost.share * 100.0) };
    let series = stage_samples::ReceiveStage::ALL
        .into_iter()
        .zip(palette::RECEIVE_STAGES)
        .filter_map(|(stage, color)| {
            let data: Vec<_> =
                costs.iter().map(|it| it.stages.get(&stage).and_then(value).map(rounded)).collect();
            let is_any = data.iter().any(Option::is_some);
            is_any.then(|| {
                json!({ "type": "bar", "name": stage.label(), "stack": "stages", "barWidth": 16,
                    "itemStyle": { "color": color }, "data": data })
            })
        });
    let series: Vec<Value> = series.collect();
    let names: Vec<_> = costs.iter().map(|it| it.setting.as_str()).collect();
    let unit = if in_time { "ns per packet received" } else { "% of the samples" };
    let description = format!("{load}: cost of each stage of receive work, by setting");
    (!series.is_empty()).then(|| stacked_rows(description, &names, unit, &series))
}

/// Stacked bars from left to right, one row for each name.
pub(super) fn stacked_rows(
    description: String,
    names: &[&str],
    unit: &str,
    series: &[Value],
) -> Chart {
    let option = json!({
        "animation": false,
        "aria": { "enabled": true, "decal": { "show": true } },
        "legend": { "top": 0, "left": 0 },
        "tooltip": {
            "renderMode": "richText", "trigger": "axis", "axisPointer": { "type": "shadow" },
        },
        "grid": { "left": 8, "right": 16, "top": 56, "bottom": 24, "containLabel": true },
        "xAxis": {
            "type": "value", "min": 0, "name": unit, "nameLocation": "middle", "nameGap": 30,
            "splitNumber": 4,
        },
        "yAxis": {
            "type": "category", "inverse": true, "axisTick": { "show": false }, "data": names,
            "axisLabel": { "interval": 0, "overflow": "truncate", "width": 150 },
        },
        "series": series,
    });
    Chart { description, height: names.len() * 30 + 116, option }
}

/// Latency by percentile, one line per setting.
pub(super) fn latencies(load: &UnderLoad) -> Option<Chart> {
    let cells: Vec<_> = load
        .settings
        .iter()
        .enumerate()
        .filter_map(|(at, it)| Some((at, it, it.latency.as_ref()?)))
        .collect();
    let longest = cells.iter().max_by_key(|(_, _, merged)| merged.percentiles_ns.len())?;
    let all =
        || cells.iter().flat_map(|(_, _, merged)| merged.percentiles_ns.iter().map(|(_, ns)| *ns));
    let is_wide = all().max()? / all().min()?.max(1) > 200;
    let percents: Vec<String> =
        longest.2.percentiles_ns.iter().map(|(percent, _)| percent.to_string()).collect();
    let line = |(at, cell, merged): &(usize, &netsilo_trial::experiment::compared::Cell, &_)| {
        let merged: &netsilo_trial::experiment::latency::MergedLatency = merged;
        let us = |(_, ns): &(f64, u64)| rounded(*ns as f64 / 1e3);
        json!({
            "type": "line", "name": cell.setting, "symbol": palette::symbol(*at), "symbolSize": 7,
            "color": palette::setting(*at),
            "lineStyle": { "width": 2, "type": if *at == 0 { "dashed" } else { "solid" } },
            "data": merged.percentiles_ns.iter().map(us).collect::<Vec<_>>(),
        })
    };
    let option = json!({
        "animation": false,
        "aria": { "enabled": true },
        "legend": { "top": 0, "left": 0, "type": "plain" },
        "tooltip": { "renderMode": "richText", "trigger": "axis" },
        "grid": { "left": 8, "right": 16, "top": 62, "bottom": 24, "containLabel": true },
        "xAxis": {
            "type": "category", "data": percents, "boundaryGap": false, "name": "percentile",
            "nameLocation": "middle", "nameGap": 28,
        },
        "yAxis": {
            "type": "log", "logBase": if is_wide { 10 } else { 2 }, "name": "µs", "nameGap": 8,
            "axisLabel": { "hideOverlap": true },
        },
        "series": cells.iter().map(line).collect::<Vec<_>>(),
    });
    Some(Chart {
        description: format!("{}: latency by percentile, by setting", load.load),
        height: 300,
        option,
    })
}

/// The path of the packets under one load and setting, as a Sankey diagram.
pub(super) fn flow(map: &FlowMap) -> Option<Chart> {
    let stages: Vec<HopStage> =
        map.hops.iter().map(|hop| hop.stage).fold(Vec::new(), |mut stages, stage| {
            if stages.last() != Some(&stage) {
                stages.push(stage);
            }
            stages
        });
    let most = stages
        .iter()
        .map(|stage| map.hops.iter().filter(|place| place.stage == *stage).count())
        .max()?;
    let depth = |stage: HopStage| stages.iter().position(|it| *it == stage).unwrap_or_default();
    let nodes = map.hops.iter().enumerate().map(|(at, place)| {
        let is_last = place.stage == HopStage::Consumer;
        json!({
            "name": at.to_string(), "depth": depth(place.stage),
            "itemStyle": { "color": palette::STAGES[place.stage as usize] },
            "label": {
                "formatter": place.name.replace(['{', '}'], "'"),
                "width": if is_last { 104 } else { 150 }, "overflow": "truncate",
            },
            "tooltip": { "formatter": place.name.replace(['{', '}'], "'") },
        })
    });
    let links = map.links.iter().map(|link| {
        let (from, to) = (&map.hops[link.from].name, &map.hops[link.to].name);
        let tooltip = format!("{from} → {to}: {}/s", crate::views::units::count(link.per_s));
        json!({
            "source": link.from.to_string(), "target": link.to.to_string(), "value": link.per_s,
            "tooltip": { "formatter": tooltip.replace(['{', '}'], "'") },
        })
    });
    let option = json!({
        "animation": false,
        "aria": { "enabled": true },
        "tooltip": { "renderMode": "richText" },
        "series": [{
            "type": "sankey", "left": 8, "right": 116, "top": 12, "bottom": 12,
            "nodeGap": 8, "nodeWidth": 12, "draggable": false,
            "layoutIterations": 0, "emphasis": { "focus": "adjacency" },
            "lineStyle": { "color": "source", "opacity": 0.35, "curveness": 0.5 },
            "nodes": nodes.collect::<Vec<_>>(), "links": links.collect::<Vec<_>>(),
        }],
    });
    let description = format!(
        "{}, {}: from queues through interrupts and CPUs to readers",
        map.load, map.setting
    );
    Some(Chart { description, height: (most * 26 + 40).max(160), option })
}

/// Rounds to four significant digits, which is what a tooltip can show.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}
