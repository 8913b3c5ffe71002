//! The candidates of `netsilo tune`: every placement and every knob that may help here, alone and
//! combined, each with the model's prediction.
//!
//! Files, each using only those before it: `candidate`, `combined` (placement and knobs in one
//! plan), `device` (the knobs of a netdev).

mod candidate;
mod combined;
mod device;

pub use candidate::{Candidate, CandidateEstimate, Ranking};

use netsilo_model::change::{Change, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;
use serde::{Deserialize, Serialize};

use crate::judge::annotate::plan_with_verdicts;
use crate::judge::candidates::candidate::rank;
use crate::judge::candidates::combined::{
    Best, COMBINED, KnobCandidate, interrupts, placing, ranked,
};
use crate::judge::candidates::device::{DeviceKnob, device_knobs};
use crate::judge::findings::check;
use crate::judge::fix::{FixRequest, fix};
use crate::judge::verdict::{FLOW_ENTRIES, RemedyName, RemedyVerdict};
use crate::plan::{AlgorithmName, Goal, Plan, Unchanged, Xps};

/// Which candidates to make.
#[derive(Debug, Clone, Default)]
pub struct CandidateOptions {
    /// Netdevs, CPUs and weights. The rest of the goal is replaced.
    pub goal: Goal,
    /// Whether changes may reset a device.
    pub allow_interruption: bool,
    /// Only these, even if the model predicts no gain. Empty means all.
    pub only: Vec<String>,
    /// Not these.
    pub except: Vec<String>,
}

/// The candidates of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidates {
    /// What to try, apart from the current state.
    pub tried: Vec<Candidate>,
    /// What was requested but is not tried, with the reason.
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

/// Makes the candidates of a machine: each placement, each knob, and the best placement together
/// with the knobs that rank first.
pub fn candidates(
    analysis: &Analysis<'_>,
    options: &CandidateOptions,
    ranking: Ranking<'_>,
) -> Result<Candidates, UnknownCandidate> {
    let mut made = Collector { options, all: Candidates::default(), names: Vec::new() };
    let mut placements = Vec::new();
    for algorithm in AlgorithmName::ALL.iter().filter(|it| it.algorithm().tried_by_tune) {
        let plan = plan_with_verdicts(analysis, &placing(options.goal.clone(), *algorithm));
        let expected =
            plan.predicted.clone().map_or(CandidateEstimate::NotEstimated, CandidateEstimate::Cost);
        // also one that was not requested, if it is a part of a requested one
        if made.why_not(&plan, &expected).is_none() {
            placements.push((*algorithm, plan.clone(), expected.clone()));
        }
        made.consider(algorithm.as_str(), plan, expected);
    }
    let best = least_cost(placements);
    let remedies = remedies(analysis, &options.goal);
    for remedy in &remedies {
        made.consider(&remedy.name, remedy.plan.clone(), remedy.expected.clone());
    }
    if let Some((algorithm, placement)) = best {
        let ranked = ranked(remedies, options.allow_interruption, ranking);
        let best = Best { analysis, algorithm, placement };
        for (rank, remedy) in ranked.iter().enumerate() {
            let Some(plan) = best.with(remedy) else { continue };
            let name = format!("{algorithm}+{}", remedy.name);
            made.combine(&name, rank, plan, remedy.expected.clone());
        }
        if let Some((name, plan, expected)) = best.with_two(&ranked) {
            made.consider(&name, plan, expected);
        }
    }
    made.finish()
}

/// The placement with the lowest cost by the model.
fn least_cost(
    placements: Vec<(AlgorithmName, Plan, CandidateEstimate)>,
) -> Option<(AlgorithmName, Plan)> {
    let cost = |(_, _, expected): &(AlgorithmName, Plan, CandidateEstimate)| match expected {
        CandidateEstimate::Cost(predicted) => predicted.after_ns_per_s,
        _ => u64::MAX,
    };
    placements.into_iter().min_by_key(cost).map(|(algorithm, plan, _)| (algorithm, plan))
}

/// All knobs that `check` judges and that the driver of a netdev can set, as plans.
fn remedies(analysis: &Analysis<'_>, base: &Goal) -> Vec<KnobCandidate> {
    let check = check(analysis);
    let plan = |changes| Plan { changes, even_if_owned: base.even_if_owned, ..Plan::default() };
    let judged = check.verdicts.iter().filter(|it| !is_steering(it)).map(|verdict| KnobCandidate {
        name: format!("{}:{}", verdict.remedy.to_string().replace(' ', "-"), verdict.subject)
            .to_lowercase(),
        goal: None,
        plan: plan(verdict.changes.clone()),
        expected: expected_of(verdict),
        may_gain: false,
    });
    let fixed = check.findings.iter().map(|finding| {
        let request = FixRequest::of(finding);
        KnobCandidate {
            name: request.to_string(),
            goal: None,
            plan: fix(&check, &[request], analysis.after(), base.even_if_owned),
            expected: CandidateEstimate::NotEstimated,
            may_gain: false,
        }
    });
    let devices = analysis.after().netdevs.iter().filter(|it| may_be_set(it, base));
    let set = devices.flat_map(|netdev| {
        let knobs = device_knobs(analysis.after(), netdev);
        knobs.into_iter().map(|DeviceKnob { name, remedy, changes }| KnobCandidate {
            name: format!("{name}:{}", netdev.name),
            goal: None,
            plan: plan(changes),
            expected: verdict_of(&check.verdicts, remedy, netdev),
            may_gain: false,
        })
    });
    let allowed = |it: &KnobCandidate| {
        let mut changes = it.plan.changes.iter();
        let is_empty = it.plan.changes.is_empty() && it.plan.refusals.is_empty();
        !is_empty && changes.all(|change| is_within(change, base, analysis))
    };
    let mut all = steering(analysis, base, &check.verdicts);
    all.extend(judged.chain(fixed).chain(set).filter(allowed));
    all
}

/// Whether the knobs of a netdev are tried: it is up, it has its own interrupts or kthreads that
/// poll it, and the goal does not limit itself to other netdevs.
fn may_be_set(netdev: &Netdev, goal: &Goal) -> bool {
    let polled = netdev.rx_queues.iter().any(|queue| queue.irq.is_some())
        || netdev.napis.iter().any(|napi| napi.thread.is_some());
    netdev.up && polled && (goal.netdevs.is_empty() || goal.netdevs.contains(&netdev.name))
}

/// The verdict on a remedy of one netdev.
fn verdict_of(
    verdicts: &[RemedyVerdict],
    remedy: Option<RemedyName>,
    netdev: &Netdev,
) -> CandidateEstimate {
    let of = |it: &&RemedyVerdict| Some(it.remedy) == remedy && it.is_on(&netdev.name);
    verdicts.iter().find(of).map_or(CandidateEstimate::NotEstimated, expected_of)
}

/// Whether a change is for the goal's netdevs, and onto its CPUs.
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
fn steering(
    analysis: &Analysis<'_>,
    base: &Goal,
    verdicts: &[RemedyVerdict],
) -> Vec<KnobCandidate> {
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
    let remedy = |(name, remedy, goal): (&str, Option<RemedyName>, Goal)| KnobCandidate {
        name: name.into(),
        plan: plan_with_verdicts(analysis, &goal),
        expected: verdict_on(remedy, &goal, verdicts),
        goal: Some(goal),
        may_gain: false,
    };
    goals.into_iter().map(remedy).collect()
}

/// The verdict on a remedy for the goal's netdevs. It is the best of their verdicts, because the
/// knob may help on one of them.
fn verdict_on(
    remedy: Option<RemedyName>,
    goal: &Goal,
    verdicts: &[RemedyVerdict],
) -> CandidateEstimate {
    let is_of_goal = |verdict: &&RemedyVerdict| {
        let of = |name: &String| verdict.is_on(name);
        Some(verdict.remedy) == remedy && (goal.netdevs.is_empty() || goal.netdevs.iter().any(of))
    };
    let best = verdicts.iter().filter(is_of_goal).min_by_key(|it| rank(it.claim));
    best.map_or(CandidateEstimate::NotEstimated, expected_of)
}

fn expected_of(verdict: &RemedyVerdict) -> CandidateEstimate {
    CandidateEstimate::Verdict(verdict.claim, verdict.reason.clone())
}

/// Whether this remedy's candidates are made by [`steering`] or by an algorithm.
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

/// Collects candidates as they are made. Keeps each set of writes only once.
struct Collector<'a> {
    options: &'a CandidateOptions,
    all: Candidates,
    /// All names so far, tried or not.
    names: Vec<String>,
}

impl Collector<'_> {
    fn consider(&mut self, name: &str, plan: Plan, expected: CandidateEstimate) {
        if self.names.iter().any(|known| known == name) {
            return;
        }
        self.names.push(name.to_owned());
        // Each list makes irqbalance place its interrupts again, which would disturb the
        // measurements: a search refuses what irqbalance may move.
        let plan = plan.without_bans();
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

    /// Considers a combination if its knob ranks high enough or its name was requested.
    fn combine(&mut self, name: &str, rank: usize, plan: Plan, expected: CandidateEstimate) {
        let requested = self.options.only.iter().any(|it| is_named(name, it));
        if rank < COMBINED || requested || self.names.iter().any(|known| known == name) {
            return self.consider(name, plan, expected);
        }
        self.names.push(name.to_owned());
        if self.options.only.is_empty() && !self.options.except.iter().any(|it| is_named(name, it))
        {
            let reason = format!("{COMBINED} other knobs rank before this one; --only tries it");
            self.all.left_out.push(Unchanged { subject: name.into(), reason });
        }
    }

    /// Why a requested candidate is not tried.
    fn why_not(&self, plan: &Plan, expected: &CandidateEstimate) -> Option<String> {
        let CandidateOptions { only, allow_interruption, .. } = self.options;
        if plan.changes.is_empty() {
            let refusal = plan.refusals.first().map(|it| format!("{}: {}", it.subject, it.reason));
            return Some(refusal.unwrap_or_else(|| "it changes nothing here".into()));
        }
        if let Some(change) = interrupts(plan).filter(|_| !allow_interruption) {
            let target = &change.target;
            return Some(format!("{target} may interrupt traffic; --allow-interruption tries it"));
        }
        if let Some(same) = self.all.tried.iter().find(|it| writes_the_same(&it.plan, plan)) {
            return Some(format!("it writes the same as {}", same.name));
        }
        expected.excluded().filter(|_| only.is_empty())
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

/// Whether a request names a candidate: its whole name, or the name without netdevs.
fn is_named(name: &str, request: &str) -> bool {
    let without = |part: &str| part.split_once(':').map_or(part.to_owned(), |(id, _)| id.into());
    name == request || name.split('+').map(without).collect::<Vec<String>>().join("+") == request
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
    use crate::plan::PlacementCost;

    fn cost(before_ns_per_s: u64, after_ns_per_s: u64) -> CandidateEstimate {
        CandidateEstimate::Cost(PlacementCost {
            before_ns_per_s,
            after_ns_per_s,
            before_cpu_ns_per_s: 0,
            after_cpu_ns_per_s: 0,
            distances: String::new(),
        })
    }

    #[test]
    fn the_placement_of_least_cost_is_tried_with_knobs() {
        let placements = [
            (AlgorithmName::Auto, cost(50, 30)),
            (AlgorithmName::Spread, cost(50, 20)),
            (AlgorithmName::SameCpu, cost(50, 40)),
        ];
        let with_plan = |(algorithm, expected)| (algorithm, Plan::default(), expected);
        let best = least_cost(placements.map(with_plan).into()).unwrap();
        assert_eq!(best.0, AlgorithmName::Spread);
        assert!(least_cost(Vec::new()).is_none());
    }

    #[test]
    fn a_name_without_netdevs_stands_for_all_but_not_for_more_knobs() {
        assert!(is_named("auto+ring-max:eth0", "auto+ring-max"));
        assert!(is_named("auto+ring-max:eth0+hash-ports:eth0", "auto+ring-max+hash-ports"));
        assert!(!is_named("auto+ring-max:eth0+hash-ports:eth0", "auto+ring-max"));
        assert!(!is_named("ring-max:eth0", "ring"));
    }

    #[test]
    fn what_costs_more_than_twice_as_much_is_left_out_and_the_reason_has_both_costs() {
        assert_eq!(cost(10_000_000, 20_000_000).excluded(), None);
        assert_eq!(
            cost(15_000_000, 35_000_000).excluded().unwrap(),
            "the model predicts a cost of 3.5% of a cpu instead of 1.5%"
        );
    }
}
