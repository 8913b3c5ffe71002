//! Figures and verdicts in words, the same on a page and in Markdown.

use netsilo_model::snapshot::stage_samples::Stage;
use netsilo_stats::Estimate;
use netsilo_trial::comparison::Scale;
use netsilo_trial::experiment::measure::{Measure, Work};
use netsilo_trial::experiment::results::{Against, Measured, Results, UnderLoad, Verdict};
use netsilo_trial::experiment::stage_costs::{Difference, Spared, StageCost, StageCosts};

use crate::verbs::apply::count as plural;
use crate::views::units;

/// What counts say where times say nothing.
const IN_COUNTS: [Measure; 4] =
    [Measure::BusiestCpu, Measure::NetRx, Measure::Ipis, Measure::HandedOver];

/// A value with its unit, to three digits.
pub(super) fn value(measure: Measure, work: Work, value: f64) -> String {
    match (measure, work) {
        (Measure::Rate, Work::Megabyte) => units::bytes_per_s(value),
        (Measure::Rate | Measure::Received, _) => format!("{}/s", units::count(value)),
        (Measure::Lost | Measure::BusiestCpu, _) => units::percent(value),
        (Measure::CpuTime, Work::Megabyte) => format!("{} s", units::small(value)),
        (Measure::MedianLatency | Measure::P99Latency | Measure::CpuTime, _) => {
            units::nanoseconds(value)
        }
        (Measure::CpuReceived | Measure::SoftirqReceived, _) => units::nanoseconds(value),
        _ => units::small(value),
    }
}

/// The median with its interval: `12.3k/s (12.1k/s .. 12.6k/s)`.
pub(super) fn level(measured: &Measured, work: Work) -> String {
    let told = |it: f64| value(measured.measure, work, it);
    let interval = measured.interval.map(|it| format!(" ({} .. {})", told(it.low), told(it.high)));
    told(measured.median) + &interval.unwrap_or_default()
}

/// The change alone: `+9.8%`, or `+0.53` of what may be 0.
pub(super) fn change(against: &Against) -> String {
    signed(against.change, against.scale)
}

/// `+9.1% .. +10.4%`.
pub(super) fn interval(interval: &Estimate, scale: Scale) -> String {
    format!("{} .. {}", signed(interval.low, scale), signed(interval.high, scale))
}

fn signed(value: f64, scale: Scale) -> String {
    match scale {
        // a setting may make something a hundred times as large
        Scale::Ratio if value >= 9.995 => format!("x{}", units::count(value + 1.0)),
        Scale::Ratio => format!("{:+.1}%", value * 100.0),
        Scale::Difference if value < 0.0 => format!("-{}", units::small(-value)),
        Scale::Difference => format!("+{}", units::small(value)),
    }
}

/// What a comparison comes to.
pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Higher => "more",
        Verdict::Lower => "less",
        Verdict::NoDifferenceShown => "no difference shown",
        Verdict::TooFewRounds => "too few rounds",
        Verdict::TimesMeanNothing => "not judged",
    }
}

/// A sign beside the word, for those who skim.
pub(super) fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better | Verdict::Higher => "▲",
        Verdict::Worse | Verdict::Lower => "▼",
        Verdict::NoDifferenceShown => "=",
        Verdict::TooFewRounds | Verdict::TimesMeanNothing => "",
    }
}

/// The change, its interval and the verdict: `+9.8% (+9.1% .. +10.4%): better`.
pub(super) fn against(against: &Against) -> String {
    let interval =
        against.interval.as_ref().map(|it| format!(" ({})", interval(it, against.scale)));
    format!("{}{}: {}", change(against), interval.unwrap_or_default(), verdict(against.verdict))
}

/// The change with its interval, and what it comes to where that is told from an interval.
pub(super) fn briefly(against: &Against) -> String {
    let interval =
        against.interval.as_ref().map(|it| format!(" ({})", interval(it, against.scale)));
    let verdict = against.interval.map(|_| format!(": {}", verdict(against.verdict)));
    format!("{}{}{}", change(against), interval.unwrap_or_default(), verdict.unwrap_or_default())
}

/// For each setting but the first, what it changed, in sentences.
pub(super) fn summary(results: &Results) -> Vec<(String, Vec<String>)> {
    let names = results
        .loads
        .first()
        .map(|load| load.settings.iter().skip(1).map(|cell| cell.setting.clone()));
    let measures: &[Measure] =
        if results.times_mean_nothing.is_some() { &IN_COUNTS } else { &[Measure::Rate] };
    let sentences =
        |setting: &str| measures.iter().filter_map(|it| sentence(results, setting, *it)).collect();
    names.into_iter().flatten().map(|name| (name.clone(), sentences(&name))).collect()
}

/// `transactions per second, under 4 loads: better under 3 (+4.0% to +31%), no difference shown
/// under 1`; `... : better under all 4 loads (+4.0% to +31%)`.
fn sentence(results: &Results, setting: &str, measure: Measure) -> Option<String> {
    let all: Vec<(&UnderLoad, &Against)> = results
        .loads
        .iter()
        .filter_map(|load| Some((load, load.of(setting)?.measured(measure)?.against.as_ref()?)))
        .collect();
    let (first, _) = all.first()?;
    let is_alike = results.loads.iter().all(|load| load.work == first.work);
    let kinds = [
        Verdict::Better,
        Verdict::Higher,
        Verdict::Worse,
        Verdict::Lower,
        Verdict::NoDifferenceShown,
        Verdict::TooFewRounds,
        Verdict::TimesMeanNothing,
    ];
    let part = |kind: Verdict| {
        let of: Vec<&Against> =
            all.iter().map(|(_, it)| *it).filter(|it| it.verdict == kind).collect();
        // where it is not judged, the change is still worth knowing
        let told = kind.differs() || kind == Verdict::TooFewRounds;
        let range = if told { range(&of) } else { String::new() };
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

/// A measure's name where loads do different kinds of work.
pub(super) fn every_work(measure: Measure) -> String {
    match measure {
        Measure::Rate => "work done per second".into(),
        Measure::Received | Measure::CpuReceived | Measure::SoftirqReceived => {
            measure.name(Work::Packet)
        }
        _ => measure.name(Work::Packet).replace("per packet", "per piece of work"),
    }
}

/// The smallest and the largest change.
fn range(of: &[&Against]) -> String {
    let by = |a: &&&Against, b: &&&Against| a.change.total_cmp(&b.change);
    match (of.iter().min_by(by), of.iter().max_by(by)) {
        (Some(least), Some(most)) if change(least) != change(most) => {
            format!(" ({} to {})", change(least), change(most))
        }
        (Some(one), _) => format!(" ({})", change(one)),
        _ => String::new(),
    }
}

/// What is told of stages under a load: a row for each stage that some sample found, and what they
/// come to; a cell for each of the settings.
pub(super) fn stage_rows(costs: &[&StageCosts]) -> Vec<(&'static str, Vec<String>)> {
    let row =
        |name, of: &dyn Fn(&StageCosts) -> String| (name, costs.iter().map(|it| of(it)).collect());
    let found = |it: &Stage| costs.iter().any(|costs| costs.stages.contains_key(it));
    let stages = Stage::ALL.into_iter().filter(found);
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

/// A stage's cost: `412 ns ±36 (31%)`, or its share alone.
fn stage(cost: &StageCost) -> String {
    let share = units::percent(cost.share);
    let Some(ns) = cost.ns_per_packet else { return share };
    let within =
        cost.within_ns.map(|ns| format!(" ±{}", units::nanoseconds(ns))).unwrap_or_default();
    format!("{}{within} ({share})", units::nanoseconds(ns))
}

/// How much less it is, with its interval or the reason that there is none.
pub(super) fn less(difference: &Difference) -> String {
    let interval = difference
        .interval
        .map(|it| format!(" ({} .. {})", signed_time(it.low), signed_time(it.high)));
    signed_time(difference.less_ns) + &interval.unwrap_or_default()
}

fn signed_time(ns: f64) -> String {
    if ns < 0.0 { format!("-{}", units::nanoseconds(-ns)) } else { units::nanoseconds(ns) }
}

/// What is compared of packets that are passed on and dropped, each with its name.
pub(super) fn ways(spared: &Spared) -> Vec<(&'static str, &Difference)> {
    let ways = [
        ("CPU time of the machine, by round", &spared.cpu),
        ("softirq time by eBPF, by round", &spared.softirq),
        ("NET_RX and NET_TX time by eBPF, while sampled", &spared.softirq_seen),
        ("samples in receive work", &spared.sampled),
    ];
    ways.into_iter().filter_map(|(name, it)| Some((name, it.as_ref()?))).collect()
}

/// What was not sampled, or not wholly.
pub(super) fn not_sampled(results: &Results) -> Vec<String> {
    let told = |costs: &StageCosts| {
        let who = format!("{}, {}", costs.load, costs.setting);
        let refused = costs.refused.as_ref().map(|why| format!("{who}: stages not known: {why}"));
        let lost = (costs.lost > 0)
            .then(|| format!("{who}: {} found no room", plural(costs.lost as usize, "sample")));
        [refused, lost]
    };
    results.stages.iter().flat_map(told).flatten().collect()
}

/// What to know before believing any of it.
pub(super) fn caveats(results: &Results) -> Vec<String> {
    let mut caveats = Vec::new();
    if let Some(why) = &results.times_mean_nothing {
        caveats.push(format!(
            "{why}: rates, latencies and shares of time are kept and marked, but nothing is concluded from them. Counts (for each \
             transaction, packet or megabyte) are."
        ));
    }
    let sure = (1.0 - results.doubt) * 100.0;
    for (what, chance) in [("rates", &results.rates), ("other measures", &results.others)] {
        if chance.made > 0 {
            caveats.push(format!(
                "On {what}: {}, {} of them of a difference. If no setting changed anything, about {:.1} would be, by chance: an \
                 interval misses the truth once in {:.0} times ({sure:.0} %).",
                plural(chance.made, "verdict"),
                chance.differ,
                chance.by_chance,
                1.0 / results.doubt
            ));
        }
    }
    if results.rounds < 6 {
        let few = plural(results.rounds as usize, "round");
        let is = if results.rounds == 1 { "is" } else { "are" };
        caveats.push(format!(
            "{few} {is} too few for an interval: from 6 rounds on there are verdicts."
        ));
    }
    if !results.failed.is_empty() {
        caveats.push(format!(
            "{} failed; they are named below.",
            plural(results.failed.len(), "trial")
        ));
    }
    if !results.not_tried.is_empty() {
        caveats.push(format!(
            "{} not made yet: the experiment was interrupted.",
            plural(results.not_tried.len(), "trial")
        ));
    }
    if results.strangers > 0 {
        caveats.push(format!(
            "{} of settings, loads or rounds that this experiment does not have; they count nowhere.",
            plural(results.strangers, "record")
        ));
    }
    if results.loads.iter().any(|load| load.both_ends) {
        caveats.push(
            "Both ends ran on one machine: what is told of its CPUs is the work of both.".into(),
        );
    }
    caveats
}

/// What speaks against single figures.
pub(super) fn doubts(results: &Results) -> Vec<String> {
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
            if steadiness.neighbours_alike.is_some() {
                doubts.push(format!("{who}: comes in waves, neighbouring rounds are alike"));
            }
            if !steadiness.outliers.is_empty() {
                doubts
                    .push(format!("{who}: {} far off", plural(steadiness.outliers.len(), "round")));
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
