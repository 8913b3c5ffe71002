//! What a search tries. Observes the machine, makes the candidates, and makes the plan of the race.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netsilo_decide::judge::candidates::{Candidate, CandidateOptions, Candidates, candidates};
use netsilo_decide::plan::{Goal, Unchanged};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::schema::NETSILO;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::live::claim::Claim;
use netsilo_predict::live::forecast::{Expected, Forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_sys::bpf::tracer;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_trial::experiment::Setting;
use netsilo_trial::race::{RACE_SCHEMA, RacePlan, RaceRules};
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::costs::costs_for;
use crate::args::look::{CHECK_INTERVAL, wait_unless_stopped, wait_with_progress};
use crate::args::objective::Objective;
use crate::args::outcomes::signature;
use crate::forecast::forecast_or_why;
use crate::runs::{machine, same_machine};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::words::plural;
use crate::tune::args::Args;
use crate::tune::meter::{PEEK, while_running};
use crate::views;

/// A window breaks the limit of the objective if this many consecutive parts of it exceed the
/// limit. In a window of a command a single value is enough, because the window has only one.
const STREAK: usize = 2;

/// Maximum number of windows of a search. The time of a look grows with the square of their number.
const MOST_TURNS: usize = 2000;

/// What was observed before anything was written.
pub(super) struct Field {
    observation: Observation,
    /// The signature that distinguishes this workload from others.
    workload: Option<Signature>,
    /// Time that the command took while nothing was changed.
    command: Option<Duration>,
    /// Time to read the machine once. A window has several reads.
    look: Duration,
    pub(super) candidates: Candidates,
    /// What each candidate would do to the observed load, if the model has enough data.
    pub(super) forecast: Option<Forecast>,
}

impl Field {
    /// The candidates with their forecast, for display.
    pub(super) fn listing(&self) -> views::tune::Candidates<'_> {
        let Self { candidates, forecast, .. } = self;
        views::tune::Candidates { candidates, forecast: forecast.as_ref() }
    }

    /// Time of one window, including the settling time and all reads.
    fn time_of_window(&self, args: &Args) -> Duration {
        let window = self.command.unwrap_or(args.window);
        let looks = match self.command {
            // looks happen while the command runs
            Some(_) => 2.0,
            None => 1.0 + (args.window.as_secs_f64() / PEEK.as_secs_f64()).ceil(),
        };
        args.settle + window + self.look.mul_f64(looks)
    }
}

/// Observes the machine, while the command runs if there is one, and makes the candidates.
pub(super) fn field(args: &Args, objective: Objective, stop: &AtomicBool) -> Result<Field> {
    let (observation, command) = observe(&args.command, stop)?;
    let scope = &args.scope;
    let goal = Goal {
        netdevs: scope.netdev.clone(),
        cpus: scope.cpus.clone(),
        exclude: scope.exclude.clone().unwrap_or_default(),
        even_if_owned: scope.even_if_owned,
        costs: costs_for(false)?,
        ..Goal::default()
    };
    let analysis = Analysis::new(&observation, &goal.costs);
    let options = CandidateOptions {
        goal: goal.clone(),
        allow_interruption: args.allow_interruption,
        only: args.only.clone(),
        except: args.except.clone(),
    };
    let ranking = |all: &[Candidate]| match forecast(all, &analysis) {
        Ok(forecast) => all.iter().map(|it| gain(&forecast, it, objective)).collect(),
        Err(_) => Vec::new(),
    };
    let mut candidates = candidates(&analysis, &options, &ranking)
        .map_err(|unknown| ExitError(Exit::Usage, unknown.to_string()))?;
    let forecast = rank(&mut candidates, &analysis, objective)
        .map_err(|why| out::note(&format!("the candidates are not ranked by a forecast: {why}")))
        .ok();
    if let Some(forecast) = forecast.as_ref().filter(|_| args.only.is_empty()) {
        leave_out_hopeless(&mut candidates, forecast);
    }
    let started = Instant::now();
    netsilo_sys::snapshot_here(&Root::live()).context("cannot read this machine")?;
    let workload = signature(&analysis, &Root::live());
    let look = started.elapsed();
    Ok(Field { observation, workload, command, look, candidates, forecast })
}

/// Sorts the candidates by predicted gain. Those without a forecast count as no gain. The error is
/// the reason why there is no forecast.
fn rank(
    candidates: &mut Candidates,
    analysis: &Analysis<'_>,
    objective: Objective,
) -> Result<Forecast, String> {
    let forecast = forecast(&candidates.tried, analysis)?;
    let gain = |it: &Candidate| gain(&forecast, it, objective).unwrap_or(0.0);
    candidates.tried.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    Ok(forecast)
}

/// Leaves out the candidates that are predicted to hurt, or to change nothing at all.
fn leave_out_hopeless(candidates: &mut Candidates, forecast: &Forecast) {
    let tried = std::mem::take(&mut candidates.tried);
    for candidate in tried {
        match hopeless(forecast, &candidate.name) {
            None => candidates.tried.push(candidate),
            Some(reason) => {
                candidates.left_out.push(Unchanged { subject: candidate.name, reason });
            }
        }
    }
}

/// Why a forecast gives a candidate no chance.
fn hopeless(forecast: &Forecast, name: &str) -> Option<String> {
    let (now, settings) = forecast.settings.split_first()?;
    let it = settings.iter().find(|it| it.name == name)?;
    let gain = it.gain?;
    let is_same = it.not_modeled.is_empty()
        && (it.ipis_per_s, it.interrupts_per_s) == (now.ipis_per_s, now.interrupts_per_s)
        && (&it.path, &it.cpus) == (&now.path, &now.cpus);
    match it.claim {
        Some(Claim::Hurt) => {
            Some(format!("it is predicted to hurt: {}; --only tries it", gain.in_percent()))
        }
        _ if is_same => Some("it is predicted to change nothing; --only tries it".into()),
        _ => None,
    }
}

/// What each candidate would do to the observed load.
fn forecast(candidates: &[Candidate], analysis: &Analysis<'_>) -> Result<Forecast, String> {
    let proposal =
        |it: &Candidate| Proposal::new(it.name.as_str(), analysis.after(), &it.plan.changes);
    let proposals: Vec<Proposal> = candidates.iter().map(proposal).collect();
    forecast_or_why(analysis, &proposals)
}

/// The gain that a forecast predicts for a candidate: what is less of the objective, where a
/// forecast has it, or else the gain of the load that fits.
fn gain(forecast: &Forecast, candidate: &Candidate, objective: Objective) -> Option<f64> {
    let (now, settings) = forecast.settings.split_first()?;
    let expected = settings.iter().find(|it| it.name == candidate.name)?;
    let gain = expected.gain?.value;
    let less = |of: fn(&Expected) -> Option<f64>| {
        let before = of(now).filter(|it| *it > 0.0)?;
        Some(1.0 - of(expected)? / before)
    };
    let of_objective = match objective.live() {
        Some(WorkloadMeasure::CpuPerMegabyte) => less(|it| Some(it.cpu_time.value)),
        Some(WorkloadMeasure::IpisPerPacket) => less(|it| Some(it.ipis_per_s)),
        Some(WorkloadMeasure::SoftirqsPerPacket) => less(|it| it.interrupts_per_s),
        _ => None,
    };
    Some(of_objective.unwrap_or(gain))
}

/// Observes the live workload, without the data that only findings need.
pub(super) fn observe_live() -> Result<Observation> {
    let root = Root::live();
    let options = tracer::Options::default();
    let mut observer = Observer::start_with(&root, CountingMode::Continuous, options)?;
    Ok(observer.next(&root, CHECK_INTERVAL, wait_with_progress)?)
}

fn observe(command: &[String], stop: &AtomicBool) -> Result<(Observation, Option<Duration>)> {
    let root = Root::live();
    let options = tracer::Options::for_findings();
    let mut observer = Observer::start_with(&root, CountingMode::Continuous, options)?;
    if command.is_empty() {
        return Ok((observer.next(&root, CHECK_INTERVAL, wait_with_progress)?, None));
    }
    out::note("observing the command with nothing changed");
    let (started, mut took) = (Instant::now(), Duration::ZERO);
    let (observation, value) = while_running(command, |running| {
        let wait = |_| {
            while !running.over.load(std::sync::atomic::Ordering::Relaxed) {
                wait_unless_stopped(PEEK, &running.over);
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    running.kill();
                }
            }
            took = started.elapsed();
        };
        Ok(observer.next(&root, Duration::ZERO, wait)?)
    })?;
    value?;
    Ok((observation, Some(took)))
}

/// The plan of a race between the candidates. Fails if there is nothing to try, or if the time is
/// too short to distinguish them. If it is too short for all, those that rank last are left out,
/// unless the user named them.
pub(super) fn plan(args: &Args, objective: Objective, field: &mut Field) -> Result<RacePlan> {
    if field.candidates.tried.is_empty() {
        let message = "no candidate changes anything here, so there is nothing to try (name a \
                       netdev with --netdev? netsilo tune --dry-run gives the reasons)";
        return Err(ExitError(Exit::Refused, message.into()).into());
    }
    let each = field.time_of_window(args);
    let rules = RaceRules {
        turns: ((args.budget.as_secs_f64() / each.as_secs_f64()) as usize).min(MOST_TURNS),
        never_worse: args.never_worse_than,
        streak: if field.command.is_some() { 1 } else { STREAK },
        scale: objective.scale(),
        better: objective.better(),
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
        ..RaceRules::default()
    };
    if args.only.is_empty() {
        leave_out_last(&mut field.candidates, &rules);
    }
    let tried = &field.candidates.tried;
    enough_time(args, &rules, each, tried.len() + 1)?;
    Ok(RacePlan {
        schema: RACE_SCHEMA,
        netsilo: NETSILO.to_owned(),
        command: std::env::args().collect(),
        started_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine: machine(&field.observation)?,
        objective: objective.as_str().into(),
        load: args.command.clone(),
        unit: objective.unit().map(Into::into),
        budget: args.budget,
        window: args.window,
        peek: PEEK,
        settle: args.settle,
        rules,
        workload: field.workload.clone(),
        candidates: std::iter::once(present())
            .chain(tried.iter().map(|it| setting(it, field.forecast.as_ref())))
            .collect(),
    })
}

/// Leaves out the last candidates until the time is enough, or until one is left.
fn leave_out_last(candidates: &mut Candidates, rules: &RaceRules) {
    while candidates.tried.len() > 1 && rules.turns < rules.least_turns(candidates.tried.len() + 1)
    {
        let Some(last) = candidates.tried.pop() else { return };
        let better = plural(candidates.tried.len(), "other");
        let reason = format!("the time is too short (--for), and {better} rank higher");
        candidates.left_out.push(Unchanged { subject: last.name, reason });
    }
}

fn enough_time(args: &Args, rules: &RaceRules, each: Duration, candidates: usize) -> Result<()> {
    let least = rules.least_turns(candidates);
    if rules.turns >= least {
        return Ok(());
    }
    let seconds = (each * least as u32).as_secs() + 1;
    let message = format!(
        "{} allows {}, and {candidates} states need {least} to be distinguished: search --for {}, \
         or try fewer candidates (--only, --except)",
        humantime::format_duration(args.budget),
        plural(rules.turns, "window"),
        humantime::format_duration(Duration::from_secs(seconds))
    );
    Err(ExitError(Exit::Refused, message).into())
}

fn present() -> Setting {
    let what = "nothing changed".into();
    Setting { name: "present".into(), what, changes: Vec::new(), command: None }
}

fn setting(candidate: &Candidate, forecast: Option<&Forecast>) -> Setting {
    Setting {
        name: candidate.name.clone(),
        what: views::tune::expected(candidate, forecast),
        changes: candidate.plan.changes.clone(),
        command: None,
    }
}

/// Checks that a search began on this machine.
pub(super) fn is_this_machine(plan: &RacePlan) -> Result<()> {
    let after = netsilo_sys::snapshot_here(&Root::live()).context("cannot read this machine")?;
    same_machine(&plan.machine, &machine(&Observation { after, ..Observation::default() })?)
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::candidates::CandidateEstimate;
    use netsilo_decide::plan::Plan;
    use netsilo_predict::live::forecast::{AS_IT_IS, Limit, Path};
    use netsilo_trial::stats::Estimate;

    use super::*;

    fn candidate(name: &str) -> Candidate {
        let (plan, expected) = (Plan::default(), CandidateEstimate::NotEstimated);
        Candidate { name: name.into(), plan, expected }
    }

    fn expected(name: &str, gain: f64, cpu_time: f64) -> Expected {
        let exactly = |value| Estimate { value, low: value, high: value };
        Expected {
            name: name.into(),
            fits: exactly(1.0 + gain),
            gain: Some(exactly(gain)),
            claim: Some(if gain < 0.0 { Claim::Hurt } else { Claim::NoClearChange }),
            not_modeled: Vec::new(),
            cpu_time: exactly(cpu_time),
            ipis_per_s: 10.0 * cpu_time,
            interrupts_per_s: None,
            limit: Limit::Cpus,
            path: Path::default(),
            cpus: std::collections::BTreeMap::default(),
        }
    }

    #[test]
    fn the_objective_orders_candidates_and_hopeless_ones_are_left_out() {
        let settings = vec![
            expected(AS_IT_IS, 0.0, 2.0),
            expected("more-room", 0.5, 1.9),
            expected("less-time", 0.1, 1.0),
            expected("hurts", -0.3, 1.0),
            expected("nothing", 0.0, 2.0),
        ];
        let forecast = Forecast { packets_per_s: 1.0, load: 1.0, assumed: Vec::new(), settings };
        let gain_of = |name, objective| gain(&forecast, &candidate(name), objective);
        let cpu = Objective::Live(WorkloadMeasure::CpuPerMegabyte);
        assert!(gain_of("less-time", cpu) > gain_of("more-room", cpu));
        assert!(
            gain_of("less-time", Objective::Latency) < gain_of("more-room", Objective::Latency)
        );
        assert_eq!(gain_of("unknown", cpu), None);
        let tried = ["more-room", "hurts", "nothing", "unknown"].map(candidate).to_vec();
        let mut candidates = Candidates { tried, left_out: Vec::new() };
        leave_out_hopeless(&mut candidates, &forecast);
        let names: Vec<&str> = candidates.tried.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["more-room", "unknown"]);
        let why: Vec<&str> = candidates.left_out.iter().map(|it| it.reason.as_str()).collect();
        let hurts = "it is predicted to hurt: -30% (-30% to -30%); --only tries it";
        assert_eq!(why, [hurts, "it is predicted to change nothing; --only tries it"]);
    }

    #[test]
    fn the_last_candidates_are_left_out_until_the_time_is_enough() {
        let tried = ["spread", "rps", "xps", "auto"].map(candidate).to_vec();
        let mut candidates = Candidates { tried, left_out: Vec::new() };
        let rules = RaceRules::default();
        let rules = RaceRules { turns: rules.least_turns(3), ..rules };
        leave_out_last(&mut candidates, &rules);
        let names: Vec<&str> = candidates.tried.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["spread", "rps"]);
        let [auto, xps] = candidates.left_out.as_slice() else { panic!("{candidates:?}") };
        assert_eq!((auto.subject.as_str(), xps.subject.as_str()), ("auto", "xps"));
        assert_eq!(xps.reason, "the time is too short (--for), and 2 others rank higher");
        // one is left, and refused if the time is too short even for one
        leave_out_last(&mut candidates, &RaceRules { turns: 1, ..rules });
        assert_eq!(candidates.tried.len(), 1);
    }
}
