//! The candidates of `tune`, its progress, and its result, as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use netsilo_decide::judge::candidates::{self, Candidate, CandidateEstimate};
use netsilo_predict::live::forecast::Forecast;
use netsilo_trial::comparison::Scale;
use netsilo_trial::race::rails::{Breach, Rail};
use netsilo_trial::race::{
    CountChange, OutReason, Outlook, Race, RacePlan, RaceResult, RaceRules, Standing, Status,
};
use serde::Serialize;

use crate::tell::words::plural;
use crate::views::ab::{interval, number, signed};
use crate::views::forecast::gain;
use crate::views::plan::section;
use crate::views::table::{table, trim_lines};
use crate::views::units;

/// The result of a search.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TuneResult<'a> {
    pub(crate) schema: u32,
    pub(crate) objective: &'a str,
    /// The command; empty for the live workload.
    pub(crate) load: &'a [String],
    /// Unit of the objective: `ns`, or `None` when unknown.
    pub(crate) unit: Option<&'a str>,
    pub(crate) rules: RaceRules,
    /// Number of windows that were measured.
    pub(crate) windows: usize,
    pub(crate) interrupted: bool,
    pub(crate) result: RaceResult,
    /// The result in words.
    pub(crate) words: String,
    /// All candidates; the first is the current state.
    pub(crate) candidates: Vec<CandidateResult<'a>>,
    /// Counts that differ from the current state's, whoever won.
    pub(crate) counts: Vec<CountChange>,
    /// The transaction that keeps the winner; `None` if nothing was kept.
    pub(crate) transaction: Option<u64>,
}

/// The result of one candidate.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CandidateResult<'a> {
    pub(crate) name: &'a str,
    /// What the model predicted.
    pub(crate) expected: &'a str,
    #[serde(flatten)]
    pub(crate) standing: Standing,
    /// The status in words.
    pub(crate) words: String,
}

impl<'a> TuneResult<'a> {
    /// The result of a race.
    pub(crate) fn new(
        plan: &'a RacePlan,
        race: &Race,
        interrupted: bool,
        transaction: Option<u64>,
    ) -> Self {
        let candidate = |standing: Standing| {
            let setting = &plan.candidates[standing.candidate];
            let words = words(plan, &standing);
            CandidateResult { name: &setting.name, expected: &setting.what, standing, words }
        };
        let mut result = Self {
            schema: 1,
            objective: &plan.objective,
            load: &plan.load,
            unit: plan.unit.as_deref(),
            rules: plan.rules,
            windows: race.turns(),
            interrupted,
            result: race.result(),
            words: String::new(),
            candidates: race.standings().into_iter().map(candidate).collect(),
            counts: race.counts(),
            transaction,
        };
        result.words = result.outcome();
        result
    }

    /// What was measured: `cpu-per-megabyte`, `latency of ./load.sh`.
    pub(crate) fn measured(&self) -> String {
        match self.load {
            [] => self.objective.to_owned(),
            load => format!("{} of {}", self.objective, load.join(" ")),
        }
    }

    /// The result in one line.
    fn outcome(&self) -> String {
        let RaceResult::Won { candidate, change } = &self.result else {
            let is_in = |it: &&CandidateResult<'_>| it.standing.status == Status::In;
            let mut left = self.candidates.iter().skip(1).filter(is_in).peekable();
            let none = left.peek().is_some() && left.all(|it| it.standing.change.is_none());
            let why =
                if none { ": too few windows for an interval; search longer (--for)" } else { "" };
            let counts = self.counts.iter().map(|it| self.by_count(it)).collect::<String>();
            let objective =
                if counts.is_empty() { String::new() } else { format!(" in {}", self.objective) };
            return format!("no difference shown{objective}{why}{counts}");
        };
        let name = self.candidates[*candidate].name;
        let sure = 100.0 * (1.0 - self.rules.error_rate);
        let change = interval(change, self.rules.scale);
        format!("{name} is better than the current state ({change}, {sure:.0}%)")
    }

    /// A difference by a count, as a further part of a line.
    fn by_count(&self, count: &CountChange) -> String {
        let name = self.candidates[count.candidate].name;
        let better = if count.is_better { "better" } else { "worse" };
        let change = interval(&count.change, count.measure.scale());
        format!("; by {} {name} is {better} ({change})", count.measure)
    }

    /// The median of a candidate with its unit.
    pub(crate) fn median(&self, standing: &Standing) -> Option<String> {
        let number = if self.unit == Some("ns") { units::nanoseconds } else { number };
        standing.median.map(number)
    }
}

/// Renders the state of each candidate, and the result.
pub(crate) fn render(result: &TuneResult<'_>, undo: &str) -> String {
    let windows = plural(result.windows, "window");
    let mut text = format!("{}: {windows}, seed {}\n", result.measured(), result.rules.seed);
    let mut rows = table(&["candidate", "windows", "median", "change", ""], |name| {
        matches!(name, "windows" | "median")
    });
    for CandidateResult { name, standing, words, .. } in &result.candidates {
        let change =
            standing.change.map_or_else(String::new, |it| interval(&it, result.rules.scale));
        let median = result.median(standing).unwrap_or_default();
        rows.add_row([*name, &standing.windows.to_string(), &median, &change, words]);
    }
    let _ = writeln!(text, "{}", trim_lines(&rows));
    if result.interrupted {
        text += "interrupted: everything is restored\n";
        return text;
    }
    let _ = writeln!(text, "{}", result.words);
    if result.transaction.is_none() {
        text += "everything is restored\n";
    }
    if let Some(transaction) = result.transaction {
        let _ = writeln!(
            text,
            "transaction {transaction} keeps it; `{undo}` restores the state before"
        );
    }
    text
}

/// The candidates, and what each would do to the observed load.
#[derive(Debug, Clone, Copy, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Candidates<'a> {
    #[serde(flatten)]
    pub(crate) candidates: &'a candidates::Candidates,
    /// What each candidate would do, if the model has enough data. The candidates are ranked by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forecast: Option<&'a Forecast>,
}

/// Lists what would be tried and what would not, with the model's predictions.
pub(crate) fn candidates(shown: &Candidates<'_>) -> String {
    let Candidates { candidates: all, forecast } = shown;
    let mut text = format!("{} and the current state\n", plural(all.tried.len(), "candidate"));
    for candidate in &all.tried {
        let _ = writeln!(text, "  {}: {}", candidate.name, expected(candidate, *forecast));
        for change in &candidate.plan.changes {
            let (old, new) = change.from_to();
            let _ = writeln!(text, "    {}: {old} -> {new}", change.target);
        }
    }
    let left_out = all.left_out.iter().map(|it| (it.subject.as_str(), it.reason.as_str()));
    text += section("not tried".to_owned().into(), left_out).as_str();
    text
}

/// The model's predictions for a candidate, in words.
pub(crate) fn expected(candidate: &Candidate, forecast: Option<&Forecast>) -> String {
    let cost = expected_cost(&candidate.expected);
    match forecast.and_then(|forecast| gain(forecast, &candidate.name)) {
        Some(gain) => format!("forecast {}; {cost}", gain.as_str()),
        None => cost,
    }
}

/// The prediction of the cost model or of a verdict, in words.
fn expected_cost(expected: &CandidateEstimate) -> String {
    match expected {
        CandidateEstimate::Cost(cost) => {
            let percent = |ns: u64| format!("{:.1}%", ns as f64 / 1e7);
            format!(
                "expected cost {} -> {} of a cpu",
                percent(cost.before_ns_per_s),
                percent(cost.after_ns_per_s)
            )
        }
        CandidateEstimate::Verdict(outcome, reason) => format!("{outcome}: {reason}"),
        CandidateEstimate::NotEstimated => "the model gives no estimate".into(),
    }
}

/// The remaining candidates, and the leader.
pub(crate) fn so_far(plan: &RacePlan, race: &Race) -> String {
    let left = format!("{} of {} in", race.candidates_in(), plan.candidates.len());
    match race.result() {
        RaceResult::Won { candidate, change } => format!(
            "{left}, {} {}",
            plan.candidates[candidate].name,
            interval(&change, plan.rules.scale)
        ),
        RaceResult::NoDifferenceShown => left,
    }
}

/// What the rest of a search can show, and how long it takes.
pub(crate) fn outlook(plan: &RacePlan, race: &Race, left: Duration) -> String {
    let Outlook { windows, least_gain } = race.outlook();
    let seconds = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs()));
    let rest = format!("at most {} more ({})", plural(windows, "window"), seconds(left));
    let size = |gain: f64| match plan.rules.scale {
        Scale::Ratio => units::percent(gain),
        Scale::Difference => format!("{gain:.3}"),
    };
    match least_gain {
        Some(gain) => format!(
            "{rest}; a gain of {} or more in {} will probably be shown, and half of that with \
             --for {}",
            size(gain),
            plan.objective,
            seconds(4 * plan.budget)
        ),
        None => format!("{rest}; how small a gain they show is not known yet"),
    }
}

/// A line for each candidate that was dropped since the previous standings.
pub(crate) fn newly_out(plan: &RacePlan, before: &[Standing], after: &[Standing]) -> Vec<String> {
    let changed = before.iter().zip(after).filter(|(before, after)| before.status != after.status);
    let line = |(_, after): (&Standing, &Standing)| {
        format!("{}: {}", plan.candidates[after.candidate].name, words(plan, after))
    };
    changed.map(line).collect()
}

/// The status of a candidate in words.
fn words(plan: &RacePlan, standing: &Standing) -> String {
    match &standing.status {
        Status::In if standing.candidate == 0 => "reference".into(),
        Status::In if standing.is_better => "better".into(),
        Status::In => "no difference shown".into(),
        Status::Out { round, why } => {
            format!("out after {}: {}", plural(*round as usize, "round"), why_out(plan, why))
        }
    }
}

fn why_out(plan: &RacePlan, why: &OutReason) -> String {
    let scale = plan.rules.scale;
    match why {
        OutReason::Rail(breach) => broke(plan, breach),
        OutReason::WorseThanPresent(change) => {
            format!("worse than the current state ({})", interval(change, scale))
        }
        OutReason::Outranked { change } => {
            format!("others were better (estimate {})", signed(*change, scale))
        }
        OutReason::NothingToGain(change) => {
            format!("nothing to gain ({})", interval(change, scale))
        }
        OutReason::Failed(why) => why.clone(),
    }
}

fn broke(plan: &RacePlan, breach: &Breach) -> String {
    let value = |value: f64| match breach.rail {
        Rail::Objective if plan.unit.as_deref() == Some("ns") => units::nanoseconds(value),
        Rail::Objective if plan.rules.scale == Scale::Difference => format!("{value:.3}"),
        Rail::Objective | Rail::Traffic => number(value),
        Rail::Drops | Rail::Retransmits => units::percent(value),
        Rail::RunqueueLatency => units::nanoseconds(value),
    };
    let rail = match breach.rail {
        Rail::Objective => plan.objective.clone(),
        other => other.to_string(),
    };
    format!("{rail} {} breaks the guard rail {}", value(breach.value), value(breach.limit))
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::verdict::Claim;
    use netsilo_decide::plan::PlacementCost;
    use netsilo_trial::experiment::{MachineSummary, Setting};
    use netsilo_trial::stats::Estimate;
    use netsilo_trial::workload::WorkloadMeasure;

    use super::*;

    fn plan(names: &[&str]) -> RacePlan {
        let setting = |name: &&str| Setting {
            name: (*name).into(),
            what: "the model gives no estimate".into(),
            changes: vec![],
            command: None,
        };
        RacePlan {
            schema: 1,
            netsilo: "0".into(),
            command: vec![],
            started_s: 0,
            machine: MachineSummary::default(),
            objective: "cpu-per-megabyte".into(),
            load: vec![],
            unit: Some("ns".into()),
            budget: Duration::from_secs(600),
            window: Duration::from_secs(2),
            peek: Duration::from_millis(250),
            settle: Duration::ZERO,
            rules: RaceRules::default(),
            workload: None,
            candidates: names.iter().map(setting).collect(),
        }
    }

    fn change(percent: f64) -> Estimate {
        let share = percent / 100.0;
        Estimate { value: share, low: share - 0.01, high: share + 0.01 }
    }

    #[test]
    fn each_candidate_has_its_numbers_and_the_reason_why_it_is_out() {
        let names = ["present", "auto", "spread", "rps", "rfs", "xps", "arfs"];
        let plan = plan(&names);
        let breach = |rail, value, limit| OutReason::Rail(Breach { rail, value, limit });
        let out = [
            OutReason::WorseThanPresent(change(6.0)),
            breach(Rail::Objective, 1.4e6, 1.1e6),
            OutReason::Outranked { change: 0.04 },
            OutReason::NothingToGain(change(-0.2)),
            breach(Rail::Drops, 0.02, 0.001),
        ];
        let standing = |candidate, change, status| Standing {
            candidate,
            status,
            windows: 24 - candidate,
            median: Some(1e6),
            change,
            is_better: candidate == 1,
        };
        let present = standing(0, None, Status::In);
        let auto = standing(1, Some(change(-7.0)), Status::In);
        let others = (2..).zip(out).map(|(candidate, why)| {
            standing(candidate, Some(change(1.0)), Status::Out { round: 8, why })
        });
        let standings: Vec<Standing> = [present, auto].into_iter().chain(others).collect();
        let candidates = standings.into_iter().map(|standing| CandidateResult {
            name: names[standing.candidate],
            expected: "",
            words: words(&plan, &standing),
            standing,
        });
        let mut result = TuneResult {
            schema: 1,
            objective: "cpu-per-megabyte",
            load: &[],
            unit: Some("ns"),
            rules: plan.rules,
            windows: 120,
            interrupted: false,
            result: RaceResult::Won { candidate: 1, change: change(-7.0) },
            words: String::new(),
            candidates: candidates.collect(),
            counts: vec![CountChange {
                candidate: 1,
                measure: WorkloadMeasure::IpisPerPacket,
                change: Estimate { value: -0.5, low: -0.55, high: -0.45 },
                is_better: true,
            }],
            transaction: Some(3),
        };
        result.words = result.outcome();
        let won = render(&result, "netsilo undo --last");
        (result.result, result.transaction) = (RaceResult::NoDifferenceShown, None);
        result.words = result.outcome();
        let none = render(&result, "netsilo undo --last");
        result.interrupted = true;
        let interrupted = render(&result, "netsilo undo --last");
        result.candidates.iter_mut().for_each(|it| it.standing.change = None);
        let short = result.outcome();
        let end = |text: &str| {
            let lines: Vec<&str> = text.lines().skip(names.len() + 2).collect();
            lines.join("\n")
        };
        let texts = format!("{won}\n{}\n\n{}\n\n{short}", end(&none), end(&interrupted));
        insta::assert_snapshot!(texts);
    }

    #[test]
    fn the_list_of_candidates_has_expectations_and_what_is_left_out() {
        let predicted = PlacementCost {
            before_ns_per_s: 474_000_000,
            after_ns_per_s: 169_000_000,
            before_cpu_ns_per_s: 0,
            after_cpu_ns_per_s: 0,
            distances: String::new(),
        };
        let cost = expected_cost(&CandidateEstimate::Cost(predicted));
        assert_eq!(cost, "expected cost 47.4% -> 16.9% of a cpu");
        let verdict = CandidateEstimate::Verdict(Claim::Help, "two queues share a cpu".into());
        assert_eq!(expected_cost(&verdict), "helps: two queues share a cpu");
        let left_out = |subject: &str, reason: &str| netsilo_decide::plan::Unchanged {
            subject: subject.into(),
            reason: reason.into(),
        };
        let all = candidates::Candidates {
            tried: vec![],
            left_out: vec![
                left_out("rps", "it changes nothing"),
                left_out("arfs", "it changes nothing"),
            ],
        };
        let list =
            "0 candidates and the current state\nnot tried\n  rps, arfs: it changes nothing\n";
        let shown = Candidates { candidates: &all, forecast: None };
        assert_eq!(candidates(&shown), list);
    }
}
