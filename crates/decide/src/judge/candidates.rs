//! The candidates of `netsilo tune`: every placement and every knob that may help here, singly and
//! together, with what the model expects of each.

use netsilo_model::change::{Change, Value, ordered};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use serde::{Deserialize, Serialize};

use crate::judge::annotate::plan_with_verdicts;
use crate::judge::findings::check;
use crate::judge::fix::{FixRequest, fix};
use crate::judge::verdict::{FLOW_ENTRIES, Outcome, RemedyName, RemedyVerdict};
use crate::plan::{AlgorithmName, Goal, Plan, Predicted, Unchanged, Xps};

/// A placement is left out if the model expects this many times the present cost. Distances differ
/// between machines by a factor of two (`docs/costs.md`), so a smaller factor proves nothing.
const HOPELESS_COST: u64 = 2;

/// Which candidates to make.
#[derive(Debug, Clone, Default)]
pub struct CandidateOptions {
    /// Netdevs, CPUs and weights; the rest of the goal is replaced.
    pub goal: Goal,
    /// Whether changes may reset a device.
    pub allow_interruption: bool,
    /// Only these, even those of which the model expects no gain; empty means all.
    pub only: Vec<String>,
    /// Not these.
    pub except: Vec<String>,
}

/// A state to try.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidate {
    /// Name (`auto`, `rps`, `auto+rps`, `nic-drops:eth0`).
    pub name: String,
    /// What it writes.
    pub plan: Plan,
    /// What the model expects.
    pub expected: Expected,
}

/// What the model expects of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// The cost of the placement.
    Cost(Predicted),
    /// The verdict on the remedy, with its reason.
    Verdict(Outcome, String),
    /// The model says nothing.
    NotEstimated,
}

/// The candidates of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidates {
    /// What to try, without the present state.
    pub tried: Vec<Candidate>,
    /// What was requested and is not tried, with the reason.
    pub left_out: Vec<Unchanged>,
}

/// No candidate has a requested name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no candidate is called {name}; known here are {}", known.join(", "))]
pub struct UnknownCandidate {
    /// The requested name.
    pub name: String,
    /// All names.
    pub known: Vec<String>,
}

/// A knob, and what the model expects of it.
struct Remedy {
    name: String,
    /// The goal whose plan sets the knob; `None` if `plan` is made otherwise.
    goal: Option<Goal>,
    plan: Plan,
    expected: Expected,
}

/// Makes the candidates of a machine.
pub fn candidates(
    analysis: &Analysis<'_>,
    options: &CandidateOptions,
) -> Result<Candidates, UnknownCandidate> {
    let mut made = Collector { options, all: Candidates::default(), names: Vec::new() };
    for algorithm in AlgorithmName::ALL {
        let plan = plan_with_verdicts(analysis, &placing(options.goal.clone(), *algorithm));
        let expected = plan.predicted.clone().map_or(Expected::NotEstimated, Expected::Cost);
        made.consider(algorithm.as_str(), plan, expected);
    }
    let best = made.best_placement();
    let remedies = remedies(analysis, &options.goal);
    for remedy in &remedies {
        made.consider(&remedy.name, remedy.plan.clone(), remedy.expected.clone());
    }
    if let Some((algorithm, placement)) = best {
        for remedy in &remedies {
            let Some(plan) = combined(analysis, algorithm, &placement, remedy) else { continue };
            made.consider(&format!("{algorithm}+{}", remedy.name), plan, remedy.expected.clone());
        }
    }
    made.finish()
}

/// The goal with an algorithm that places interrupts.
fn placing(goal: Goal, algorithm: AlgorithmName) -> Goal {
    Goal { irqs: true, algorithm, ..goal }
}

/// Placement and knob in one plan; `None` where one of them is empty or undoes the other.
fn combined(
    analysis: &Analysis<'_>,
    algorithm: AlgorithmName,
    placement: &Plan,
    remedy: &Remedy,
) -> Option<Plan> {
    if remedy.plan.changes.is_empty() {
        return None;
    }
    if let Some(goal) = &remedy.goal {
        return Some(plan_with_verdicts(analysis, &placing(goal.clone(), algorithm)));
    }
    let clashes = |a: &Change, b: &Change| {
        a.target == b.target || a.target.voids(&b.target) || b.target.voids(&a.target)
    };
    let knobs = &remedy.plan.changes;
    if placement.changes.iter().any(|a| knobs.iter().any(|b| clashes(a, b))) {
        return None;
    }
    let changes = ordered([placement.changes.clone(), knobs.clone()].concat());
    Some(Plan { changes, ..placement.clone() })
}

/// All knobs that `check` judges, as plans.
fn remedies(analysis: &Analysis<'_>, base: &Goal) -> Vec<Remedy> {
    let check = check(analysis);
    let judged = check.verdicts.iter().filter(|it| !is_steering(it)).map(|verdict| {
        let changes = verdict.changes.clone();
        Remedy {
            name: format!("{}:{}", verdict.remedy.to_string().replace(' ', "-"), verdict.subject)
                .to_lowercase(),
            goal: None,
            plan: Plan { changes, even_if_owned: base.even_if_owned, ..Plan::default() },
            expected: expected_of(verdict),
        }
    });
    let fixed = check.findings.iter().map(|finding| {
        let request = FixRequest::of(finding);
        Remedy {
            name: request.to_string(),
            goal: None,
            plan: fix(&check, &[request], analysis.after(), base.even_if_owned),
            expected: Expected::NotEstimated,
        }
    });
    let allowed = |it: &Remedy| {
        let mut changes = it.plan.changes.iter();
        let is_empty = it.plan.changes.is_empty() && it.plan.refusals.is_empty();
        !is_empty && changes.all(|change| is_within(change, base, analysis))
    };
    let mut all = steering(analysis, base, &check.verdicts);
    all.extend(judged.chain(fixed).filter(allowed));
    all
}

/// Whether a change is of the goal's netdevs, and onto its CPUs.
fn is_within(change: &Change, goal: &Goal, analysis: &Analysis<'_>) -> bool {
    let of_netdev =
        goal.netdevs.is_empty() || goal.netdevs.iter().any(|it| change.target.is_of(it));
    let on_cpus = match &change.new {
        Value::Cpus(cpus) => cpus.is_subset(&allowed_cpus(goal, analysis)),
        _ => true,
    };
    of_netdev && on_cpus
}

/// The CPUs that a goal may use.
fn allowed_cpus(goal: &Goal, analysis: &Analysis<'_>) -> CpuSet {
    let all = || analysis.after().topology.housekeeping();
    goal.cpus.clone().unwrap_or_else(all).minus(&goal.exclude)
}

/// Packet steering by the kernel and the device, on all netdevs of the goal.
fn steering(analysis: &Analysis<'_>, base: &Goal, verdicts: &[RemedyVerdict]) -> Vec<Remedy> {
    let cpus = allowed_cpus(base, analysis);
    let base = Goal { irqs: false, ..base.clone() };
    let rps = Goal { rps: Some(cpus), ..base.clone() };
    let rfs = Goal { rfs: Some(FLOW_ENTRIES), ..base.clone() };
    let both = Goal { rfs: Some(FLOW_ENTRIES), ..rps.clone() };
    let arfs = Goal { arfs: Some(true), ..rfs.clone() };
    let off = Goal { rps: Some(CpuSet::new()), ..base.clone() };
    let xps = Goal { xps: Some(Xps::Near), ..base };
    let goals = [
        ("rps", Some(RemedyName::Rps), rps),
        ("rfs", Some(RemedyName::Rfs), rfs),
        ("rps-rfs", Some(RemedyName::RpsAndRfs), both),
        ("arfs", Some(RemedyName::Arfs), arfs),
        ("rps-off", None, off),
        ("xps", None, xps),
    ];
    let remedy = |(name, remedy, goal): (&str, Option<RemedyName>, Goal)| Remedy {
        name: name.into(),
        plan: plan_with_verdicts(analysis, &goal),
        expected: verdict_on(remedy, &goal, verdicts),
        goal: Some(goal),
    };
    goals.into_iter().map(remedy).collect()
}

/// The verdict on a remedy of the goal's netdevs: the best one, as a knob of one of them may help.
fn verdict_on(remedy: Option<RemedyName>, goal: &Goal, verdicts: &[RemedyVerdict]) -> Expected {
    let is_of_goal = |verdict: &&RemedyVerdict| {
        let of = |name: &String| verdict.subject.to_string() == *name;
        Some(verdict.remedy) == remedy && (goal.netdevs.is_empty() || goal.netdevs.iter().any(of))
    };
    let rank = |verdict: &&RemedyVerdict| match verdict.outcome {
        Outcome::Help => 0,
        Outcome::NoClearChange => 1,
        Outcome::Unknown => 2,
        Outcome::Hurt => 3,
    };
    let best = verdicts.iter().filter(is_of_goal).min_by_key(rank);
    best.map_or(Expected::NotEstimated, expected_of)
}

fn expected_of(verdict: &RemedyVerdict) -> Expected {
    Expected::Verdict(verdict.outcome, verdict.reason.clone())
}

/// Whether [`steering`] makes the candidates of this remedy, or an algorithm does.
fn is_steering(verdict: &RemedyVerdict) -> bool {
    matches!(
        verdict.remedy,
        RemedyName::Rps
            | RemedyName::Rfs
            | RemedyName::RpsAndRfs
            | RemedyName::Arfs
            | RemedyName::SpreadInterrupts
    )
}

/// Candidates as they are made; keeps each set of writes once.
struct Collector<'a> {
    options: &'a CandidateOptions,
    all: Candidates,
    /// All names so far, tried or not.
    names: Vec<String>,
}

impl Collector<'_> {
    fn consider(&mut self, name: &str, plan: Plan, expected: Expected) {
        if self.names.iter().any(|known| known == name) {
            return;
        }
        self.names.push(name.to_owned());
        let CandidateOptions { only, except, .. } = self.options;
        let is_in = |names: &[String]| names.iter().any(|it| is_named(name, it));
        if is_in(except) || !(only.is_empty() || is_in(only)) {
            return;
        }
        match self.why_not(&plan, &expected) {
            None => self.all.tried.push(Candidate { name: name.into(), plan, expected }),
            Some(reason) => self.all.left_out.push(Unchanged { subject: name.into(), reason }),
        }
    }

    /// Why a requested candidate is not tried.
    fn why_not(&self, plan: &Plan, expected: &Expected) -> Option<String> {
        let CandidateOptions { only, allow_interruption, .. } = self.options;
        if plan.changes.is_empty() {
            let refusal = plan.refusals.first().map(|it| format!("{}: {}", it.subject, it.reason));
            return Some(refusal.unwrap_or_else(|| "it changes nothing here".into()));
        }
        let resets = plan.changes.iter().find(|it| it.target.interrupts_traffic().is_some());
        if let Some(change) = resets.filter(|_| !allow_interruption) {
            let target = &change.target;
            return Some(format!("{target} may interrupt traffic; --allow-interruption tries it"));
        }
        if let Some(same) = self.all.tried.iter().find(|it| writes_the_same(&it.plan, plan)) {
            return Some(format!("it writes the same as {}", same.name));
        }
        expected.excluded().filter(|_| only.is_empty())
    }

    /// The placement of which the model expects the least cost.
    fn best_placement(&self) -> Option<(AlgorithmName, Plan)> {
        let cost = |candidate: &&Candidate| match &candidate.expected {
            Expected::Cost(predicted) => predicted.after_ns_per_s,
            _ => u64::MAX,
        };
        let best = self.all.tried.iter().min_by_key(cost)?;
        let algorithm = AlgorithmName::ALL.iter().find(|it| it.as_str() == best.name)?;
        Some((*algorithm, best.plan.clone()))
    }

    /// Checks that each requested name exists.
    fn finish(self) -> Result<Candidates, UnknownCandidate> {
        let Self { options, all, names } = self;
        let known = |wanted: &&String| !names.iter().any(|name| is_named(name, wanted));
        match options.only.iter().chain(&options.except).find(known) {
            Some(name) => Err(UnknownCandidate { name: name.clone(), known: names }),
            None => Ok(all),
        }
    }
}

impl Expected {
    /// Why the model excludes a candidate.
    fn excluded(&self) -> Option<String> {
        match self {
            Self::Cost(Predicted { before_ns_per_s: before, after_ns_per_s: after, .. })
                if *after > before.saturating_mul(HOPELESS_COST) =>
            {
                let percent = |ns: u64| ns as f64 / 1e7;
                Some(format!(
                    "the model expects it to cost {:.1}% of a cpu instead of {:.1}%",
                    percent(*after),
                    percent(*before)
                ))
            }
            Self::Verdict(Outcome::Hurt, reason) => {
                Some(format!("the model expects that it hurts: {reason}"))
            }
            _ => None,
        }
    }
}

/// Whether a request names a candidate: its whole name, or the part before the netdev.
fn is_named(name: &str, request: &str) -> bool {
    name == request || name.split_once(':').is_some_and(|(id, _)| id == request)
}

/// Whether two plans write the same values, whatever their reasons and order.
fn writes_the_same(a: &Plan, b: &Plan) -> bool {
    let is_in = |change: &Change, other: &Plan| {
        other.changes.iter().any(|it| it.target == change.target && it.new == change.new)
    };
    a.changes.len() == b.changes.len() && a.changes.iter().all(|change| is_in(change, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(before_ns_per_s: u64, after_ns_per_s: u64) -> Expected {
        Expected::Cost(Predicted {
            before_ns_per_s,
            after_ns_per_s,
            before_cpu_ns_per_s: 0,
            after_cpu_ns_per_s: 0,
            distances: String::new(),
        })
    }

    #[test]
    fn the_placement_of_least_cost_is_tried_with_each_knob() {
        let mut collector = Collector {
            options: &CandidateOptions::default(),
            all: Candidates::default(),
            names: Vec::new(),
        };
        let candidates = [
            ("rps", Expected::NotEstimated),
            ("auto", cost(50, 30)),
            ("spread", cost(50, 20)),
            ("same-cpu", cost(50, 40)),
        ];
        collector.all.tried = candidates
            .map(|(name, expected)| Candidate {
                name: name.into(),
                plan: Plan::default(),
                expected,
            })
            .into();
        assert_eq!(collector.best_placement().unwrap().0, AlgorithmName::Spread);
    }

    #[test]
    fn what_costs_more_than_twice_as_much_is_left_out_and_the_reason_has_both_costs() {
        assert_eq!(cost(10_000_000, 20_000_000).excluded(), None);
        assert_eq!(
            cost(15_000_000, 35_000_000).excluded().unwrap(),
            "the model expects it to cost 3.5% of a cpu instead of 1.5%"
        );
    }
}
