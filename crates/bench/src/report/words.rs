//! Figures and verdicts as text, shared by the page and Markdown.

use netsilo::tell::words::plural;
use netsilo::views::units;
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_trial::comparison::Scale;
use netsilo_trial::experiment::compared::{
    CellResult, MeasureResult, ReferenceComparison, UnderLoad,
};
use netsilo_trial::experiment::expected::{ExpectedBesideMeasured, ExpectedUnderLoad};
use netsilo_trial::experiment::measure::{TrialMeasure, WorkUnit};
use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::stage_costs::{Difference, Saving, StageCost, StageCosts};
use netsilo_trial::stats::Estimate;

/// Measures that are counts, for machines whose times are not meaningful.
const IN_COUNTS: [TrialMeasure; 4] =
    [TrialMeasure::BusiestCpu, TrialMeasure::NetRx, TrialMeasure::Ipis, TrialMeasure::RpsWakeups];

/// Formats a value with its unit, to three significant digits.
pub(super) fn value(measure: TrialMeasure, work: WorkUnit, value: f64) -> String {
    match (measure, work) {
        (TrialMeasure::Rate, WorkUnit::Megabyte) => units::bytes_per_s(value),
        (TrialMeasure::Rate | TrialMeasure::Received, _) => format!("{}/s", units::count(value)),
        (TrialMeasure::Lost | TrialMeasure::BusiestCpu, _) => units::percent(value),
        (TrialMeasure::CpuTime, WorkUnit::Megabyte) => format!("{} s", units::small(value)),
        (TrialMeasure::MedianLatency | TrialMeasure::P99Latency | TrialMeasure::CpuTime, _) => {
            units::nanoseconds(value)
        }
        (TrialMeasure::CpuReceived | TrialMeasure::SoftirqReceived, _) => units::nanoseconds(value),
        _ => units::small(value),
    }
}

/// Formats the median with its interval: `12.3k/s (12.1k/s .. 12.6k/s)`.
pub(super) fn level(measured: &MeasureResult, work: WorkUnit) -> String {
    let shown = |it: f64| value(measured.measure, work, it);
    let interval =
        measured.interval.map(|it| format!(" ({} .. {})", shown(it.low), shown(it.high)));
    shown(measured.median) + &interval.unwrap_or_default()
}

/// Formats the change alone: `+9.8%`, or `+0.53` for a measure that may be 0.
pub(super) fn change(against: &ReferenceComparison) -> String {
    signed(against.change, against.scale)
}

/// Formats an interval: `+9.1% .. +10.4%`.
pub(super) fn interval(interval: &Estimate, scale: Scale) -> String {
    format!("{} .. {}", signed(interval.low, scale), signed(interval.high, scale))
}

fn signed(value: f64, scale: Scale) -> String {
    match scale {
        // above tenfold a factor is easier to read than a percentage
        Scale::Ratio if value >= 9.995 => format!("x{}", units::count(value + 1.0)),
        Scale::Ratio => format!("{:+.1}%", value * 100.0),
        Scale::Difference if value < 0.0 => format!("-{}", units::small(-value)),
        Scale::Difference => format!("+{}", units::small(value)),
    }
}

/// Names a verdict.
pub(super) fn verdict(verdict: CellResult) -> &'static str {
    match verdict {
        CellResult::Better => "better",
        CellResult::Worse => "worse",
        CellResult::Higher => "more",
        CellResult::Lower => "less",
        CellResult::NoDifferenceShown => "no difference shown",
        CellResult::TooFewRounds => "too few rounds",
        CellResult::TimesInvalid => "not judged",
    }
}

/// Formats change, interval and verdict: `+9.8% (+9.1% .. +10.4%): better`.
pub(super) fn against(against: &ReferenceComparison) -> String {
    let interval =
        against.interval.as_ref().map(|it| format!(" ({})", interval(it, against.scale)));
    format!("{}{}: {}", change(against), interval.unwrap_or_default(), verdict(against.verdict))
}

/// Formats change, interval and verdict. Without an interval, only the change.
pub(super) fn change_or_verdict(against: &ReferenceComparison) -> String {
    let interval =
        against.interval.as_ref().map(|it| format!(" ({})", interval(it, against.scale)));
    let verdict = against.interval.map(|_| format!(": {}", verdict(against.verdict)));
    format!("{}{}{}", change(against), interval.unwrap_or_default(), verdict.unwrap_or_default())
}

/// What the columns of predictions mean.
pub(super) const EXPECTED: &str = "Predicted is how much more of the load fits until something is \
    full, with a 90 % interval, as computed by netsilo predict before the settings were measured. \
    Measured is the rate. With few instances the rate is limited by latency, which is not \
    predicted.";

/// The columns of [`expected_rows`].
pub(super) const EXPECTED_COLUMNS: [&str; 5] =
    ["load", "setting", "predicted", "measured", "in the interval"];

/// The model's predictions and the measurements: one row per load and setting.
pub(super) fn expected_rows(results: &Results) -> Vec<[String; 5]> {
    let row = |load: &str, it: &ExpectedBesideMeasured| {
        let predicted = match it.expected {
            Some(change) => {
                let value = signed(change.value, Scale::Ratio);
                format!("{value} ({})", interval(&change, Scale::Ratio))
            }
            None => format!("not modeled: {}", it.not_modeled.join(", ")),
        };
        let measured = units::or_dash(it.measured, |change| signed(change, Scale::Ratio));
        let holds = units::or_dash(it.holds, |holds| if holds { "yes" } else { "no" }.to_owned());
        [load.to_owned(), it.setting.clone(), predicted, measured, holds]
    };
    let loads = results.expected.iter();
    loads.flat_map(|it| it.settings.iter().map(|setting| row(&it.load, setting))).collect()
}

/// Why nothing was predicted, by load.
pub(super) fn not_expected(results: &Results) -> Vec<String> {
    let why = |it: &ExpectedUnderLoad| {
        Some(format!("{}: no prediction: {}", it.load, it.why_not.as_ref()?))
    };
    results.expected.iter().filter_map(why).collect()
}

/// Returns sentences about the changes made by each setting except the first.
pub(super) fn summary(results: &Results) -> Vec<(String, Vec<String>)> {
    let names = results
        .loads
        .first()
        .map(|load| load.settings.iter().skip(1).map(|cell| cell.setting.clone()));
    let measures: &[TrialMeasure] =
        if results.times_invalid.is_some() { &IN_COUNTS } else { &[TrialMeasure::Rate] };
    let sentences =
        |setting: &str| measures.iter().filter_map(|it| sentence(results, setting, *it)).collect();
    names.into_iter().flatten().map(|name| (name.clone(), sentences(&name))).collect()
}

/// One sentence: `transactions per second, under 4 loads: better under 3 (+4.0% to +31%), no
/// difference shown under 1`, or `...: better under all 4 loads (+4.0% to +31%)`.
fn sentence(results: &Results, setting: &str, measure: TrialMeasure) -> Option<String> {
    let all: Vec<(&UnderLoad, &ReferenceComparison)> = results
        .loads
        .iter()
        .filter_map(|load| {
            Some((load, load.setting(setting)?.measured(measure)?.against.as_ref()?))
        })
        .collect();
    let (first, _) = all.first()?;
    let is_alike = results.loads.iter().all(|load| load.work == first.work);
    let kinds = [
        CellResult::Better,
        CellResult::Higher,
        CellResult::Worse,
        CellResult::Lower,
        CellResult::NoDifferenceShown,
        CellResult::TooFewRounds,
        CellResult::TimesInvalid,
    ];
    let part = |kind: CellResult| {
        let of: Vec<&ReferenceComparison> =
            all.iter().map(|(_, it)| *it).filter(|it| it.verdict == kind).collect();
        // with too few rounds there is no verdict, but the change is still shown
        let has_range = kind.differs() || kind == CellResult::TooFewRounds;
        let range = if has_range { range(&of) } else { String::new() };
        let under = match (of.len(), all.len()) {
            (0, _) => return None,
            (_, 1) => String::new(),
            (some, number) if some == number => format!(" under all {number} loads"),
            (some, _) => format!(" under {some}"),
        };
        Some(format!("{}{under}{range}", verdict(kind)))
    };
    let parts: Vec<String> = kinds.into_iter().filter_map(part).collect();
    let name = if is_alike { measure.name(first.work) } else { every_work(measure) };
    let loads =
        if parts.len() > 1 { format!(", under {} loads", all.len()) } else { String::new() };
    Some(format!("{name}{loads}: {}", parts.join(", ")))
}

/// Names a measure for loads that do different kinds of work.
pub(super) fn every_work(measure: TrialMeasure) -> String {
    match measure {
        TrialMeasure::Rate => "work done per second".into(),
        TrialMeasure::Received | TrialMeasure::CpuReceived | TrialMeasure::SoftirqReceived => {
            measure.name(WorkUnit::Packet)
        }
        _ => measure.name(WorkUnit::Packet).replace("per packet", "per unit of work"),
    }
}

/// Formats the smallest and the largest change.
fn range(of: &[&ReferenceComparison]) -> String {
    let by = |a: &&&ReferenceComparison, b: &&&ReferenceComparison| a.change.total_cmp(&b.change);
    match (of.iter().min_by(by), of.iter().max_by(by)) {
        (Some(least), Some(most)) if change(least) != change(most) => {
            format!(" ({} to {})", change(least), change(most))
        }
        (Some(one), _) => format!(" ({})", change(one)),
        _ => String::new(),
    }
}

/// Returns the table of stage costs under a load: a row for each sampled stage and for the totals,
/// each with one cell per setting.
pub(super) fn stage_rows(costs: &[&StageCosts]) -> Vec<(&'static str, Vec<String>)> {
    let row =
        |name, of: &dyn Fn(&StageCosts) -> String| (name, costs.iter().map(|it| of(it)).collect());
    let found = |it: &ReceiveStage| costs.iter().any(|costs| costs.stages.contains_key(it));
    let stages = ReceiveStage::ALL.into_iter().filter(found);
    let mut rows: Vec<_> = stages
        .map(|it| row(it.label(), &|costs| units::or_dash(costs.stages.get(&it), stage)))
        .collect();
    rows.push(row("all", &|it| units::or_dash(it.ns_per_packet, units::nanoseconds)));
    rows.push(row("NET_RX and NET_TX, by eBPF", &|it| {
        units::or_dash(it.softirq_ns_per_packet, units::nanoseconds)
    }));
    rows.push(row("samples", &|it| it.samples.to_string()));
    rows
}

/// Formats a stage's cost: `412 ns ±36 (31%)`, or its share alone.
fn stage(cost: &StageCost) -> String {
    let share = units::percent(cost.share);
    let Some(ns) = cost.ns_per_packet else { return share };
    let within =
        cost.half_width_ns.map(|ns| format!(" ±{}", units::nanoseconds(ns))).unwrap_or_default();
    format!("{}{within} ({share})", units::nanoseconds(ns))
}

/// Formats how much less a dropped packet costs, with the interval if there is one.
pub(super) fn saving(difference: &Difference) -> String {
    let interval = difference
        .interval
        .map(|it| format!(" ({} .. {})", signed_time(it.low), signed_time(it.high)));
    signed_time(difference.less_ns) + &interval.unwrap_or_default()
}

fn signed_time(ns: f64) -> String {
    if ns < 0.0 { format!("-{}", units::nanoseconds(-ns)) } else { units::nanoseconds(ns) }
}

/// Names the available comparisons between forwarded and dropped packets.
pub(super) fn early_drop_comparisons(spared: &Saving) -> Vec<(&'static str, &Difference)> {
    let ways = [
        ("CPU time of the machine, by round", &spared.cpu),
        ("softirq time by eBPF, by round", &spared.softirq),
        ("NET_RX and NET_TX time by eBPF, while sampled", &spared.softirq_seen),
        ("samples in receive work", &spared.sampled),
    ];
    ways.into_iter().filter_map(|(name, it)| Some((name, it.as_ref()?))).collect()
}

/// Lists loads and settings where stages were not sampled or samples were lost.
pub(super) fn not_sampled(results: &Results) -> Vec<String> {
    let notes = |costs: &StageCosts| {
        let who = format!("{}, {}", costs.load, costs.setting);
        let refused = costs.refused.as_ref().map(|why| format!("{who}: stages unknown: {why}"));
        let lost = (costs.lost > 0)
            .then(|| format!("{who}: {} lost, buffer full", plural(costs.lost as usize, "sample")));
        [refused, lost]
    };
    results.stages.iter().flat_map(notes).flatten().collect()
}

/// Lists what limits the results as a whole.
pub(super) fn caveats(results: &Results) -> Vec<String> {
    let mut caveats = Vec::new();
    if let Some(why) = &results.times_invalid {
        caveats.push(format!(
            "{why}: rates, latencies and shares of time are recorded and marked, but not judged. \
             Counts (per transaction, packet or megabyte) are judged."
        ));
    }
    let sure = (1.0 - results.error_rate) * 100.0;
    for (what, chance) in [("rates", &results.rates), ("other measures", &results.others)] {
        if chance.made > 0 {
            caveats.push(format!(
                "On {what}: {}, {} with a difference. If no setting changed anything, about {:.1} \
                 would show one by chance: one interval in {:.0} does not contain the true value \
                 ({sure:.0} %).",
                plural(chance.made, "verdict"),
                chance.differ,
                chance.by_chance,
                1.0 / results.error_rate
            ));
        }
    }
    if results.rounds < 6 {
        let few = plural(results.rounds as usize, "round");
        let is = if results.rounds == 1 { "is" } else { "are" };
        caveats
            .push(format!("{few} {is} too few for an interval: verdicts need 6 rounds or more."));
    }
    if !results.failed.is_empty() {
        caveats
            .push(format!("{} failed: see the list below.", plural(results.failed.len(), "trial")));
    }
    if !results.not_tried.is_empty() {
        caveats.push(format!(
            "{} missing: the experiment was interrupted.",
            plural(results.not_tried.len(), "trial")
        ));
    }
    if results.unknown_records > 0 {
        caveats.push(format!(
            "{} of a setting, load or round that this experiment does not have: not counted.",
            plural(results.unknown_records, "record")
        ));
    }
    if results.loads.iter().any(|load| load.both_ends) {
        caveats
            .push("Both ends ran on one machine: its CPU figures include the work of both.".into());
    }
    caveats
}

/// Lists the reasons to doubt single figures.
pub(super) fn cell_notes(results: &Results) -> Vec<String> {
    let mut doubts = Vec::new();
    for load in &results.loads {
        for cell in &load.settings {
            let who = format!("{}, {}", load.load, cell.setting);
            let steadiness = &cell.steadiness;
            if let Some(drift) = steadiness.drift {
                doubts.push(format!(
                    "{who}: drifted by {:+.1}% from the first round to the last",
                    drift * 100.0
                ));
            }
            if steadiness.autocorrelation.is_some() {
                doubts.push(format!("{who}: autocorrelated: neighbouring rounds are similar"));
            }
            if !steadiness.outliers.is_empty() {
                let outliers = plural(steadiness.outliers.len(), "outlier");
                doubts.push(format!("{who}: {outliers}"));
            }
            let unreadable = cell.latency.as_ref().map_or(0, |it| it.unreadable);
            if unreadable > 0 {
                doubts.push(format!(
                    "{who}: {} could not be read",
                    plural(unreadable, "latency histogram")
                ));
            }
        }
    }
    doubts
}
