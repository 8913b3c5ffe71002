//! `netsilo apply`: shows the plan, asks, applies it as one transaction and reports the result.
//! Also the hidden `netsilo guard`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::{Plan, Refusal};
use netsilo_model::change::first_void;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::transaction::apply::{Applied, ApplyEvent, TransactionOptions};
use netsilo_sys::transaction::guard::{self, ConfirmResult};
use netsilo_sys::transaction::receiving::Receiving;
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{UndoScope, Undone, undo};
use netsilo_sys::transaction::verify::{self, Arrival};

use crate::args::apply_options::ApplyOptions;
use crate::args::goal::GoalArgs;
use crate::args::goal_keys::GoalKeys;
use crate::args::look;
use crate::args::plan::load;
use crate::args::state_dir::StateDir;
use crate::daemon::config;
use crate::tell::consent::{self, confirmed_by_user};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out::{self, eprint_line};
use crate::tell::versioned::Versioned;
use crate::tell::words::plural;
use crate::verbs::ab::comparison_run;
use crate::verbs::plan::predicted_loss;
use crate::views;
use crate::views::applied::ApplyResult;
use crate::views::undone::{report, restore_result};

/// Time that remains until the guard restores, when the netdevs had their time to receive.
const AFTER_CHECK: Duration = Duration::from_secs(30);

/// Arguments of `netsilo apply`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Apply exactly the plan in this file (-: standard input), as printed by `netsilo plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["GoalArgs", "GoalKeys", "LiveArgs"])]
    plan: Option<PathBuf>,
    /// Plan for the goal in this configuration of the daemon: a file, or a folder with netsilo.toml
    /// and conf.d/*.toml
    #[arg(
        long,
        value_name = "FILE|DIR",
        conflicts_with_all = ["GoalArgs", "GoalKeys", "plan"]
    )]
    config: Option<PathBuf>,
    /// Also write a new plan that is forecast to hurt; with --plan, also write changes that netsilo
    /// itself would not plan: work on isolated or offline CPUs, interrupts that cannot be moved,
    /// settings that another program owns
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    look: look::LiveArgs,
    #[command(flatten)]
    options: ApplyOptions,
}

impl Args {
    /// The keys of the goal, or why they are not all that was written, or not confirmed by anybody.
    pub(crate) fn storable(self) -> Result<GoalKeys, String> {
        let why = if let Some(path) = self.plan {
            format!("it wrote the values of the plan in {}, not a goal", path.display())
        } else if let Some(path) = self.config {
            format!("its goal is stored already, in {}", path.display())
        } else if self.options.receiving_within.is_some() {
            "nobody has confirmed it, it was kept because packets arrived".into()
        } else if self.force {
            "it was forced, and nobody can force it at boot".into()
        } else {
            return self.goal.storable();
        };
        Err(why)
    }
}

/// Makes or reads a plan, shows it and applies it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut phases = Phases::new(args.options.verbose);
    let plan = match &args.plan {
        Some(path) => {
            let plan = load(path)?;
            phases.end("read", "the plan").into_iter().for_each(eprint_line);
            plan
        }
        None => {
            let look = args.look.with_default_interval(args.goal.interval());
            let observation = look.observe_with(args.goal.options())?;
            let interval = humantime::format_duration(look.interval());
            let what = format!("this machine, counting for {interval}");
            phases.end("read", &what).into_iter().for_each(eprint_line);
            let given = args.goal.resolved(false)?;
            let config = args.config.as_deref().map(config::load).transpose()?;
            let goal = match &config {
                Some(config) => config.goal(&observation.after.netdevs, &given.costs),
                None => given,
            };
            let analysis = Analysis::new(&observation, &goal.costs);
            let plan = match &config {
                Some(config) if !config.follows_outcomes(&goal) => {
                    args.goal.plan_by_model(&analysis, &goal)
                }
                _ => args.goal.plan(&analysis, &goal, false)?,
            };
            let what = plural(plan.changes.len(), "change");
            phases.end("plan", &what).into_iter().for_each(eprint_line);
            refuse_harm(&analysis, &plan, args)?;
            plan
        }
    };
    apply(&plan, &args.options, args.force)
}

/// Refuses a plan that is forecast to hurt; with `--force`, says so.
fn refuse_harm(analysis: &Analysis<'_>, plan: &Plan, args: &Args) -> Result<()> {
    let Some(loss) = predicted_loss(analysis, plan) else { return Ok(()) };
    if args.force {
        eprint_line(format_args!("netsilo: forced: the forecast of this plan is {loss}"));
        return Ok(());
    }
    out::proposal(&views::plan::render(plan), args.options.json);
    let words = format!(
        "the forecast of this plan is {loss} of the load that fits: nothing was written; --force \
         writes it, netsilo ab measures it"
    );
    Err(ExitError(Exit::Refused, words).into())
}

/// How long each phase of an apply took, for users who asked for it.
pub(crate) struct Phases {
    told: bool,
    /// Whether each write is reported.
    writes: bool,
    since: Instant,
}

impl Phases {
    fn new(told: bool) -> Self {
        Self { told, writes: told, since: Instant::now() }
    }

    /// Reports no phases, only the writes.
    pub(crate) fn only_writes() -> Self {
        Self { writes: true, ..Self::new(false) }
    }

    /// Ends a phase and begins the next one. Returns a line about the ended phase.
    fn end(&mut self, phase: &str, what: &str) -> Option<String> {
        let took = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        self.told.then(|| format!("phase {phase}: {took:.2} s ({what})"))
    }
}

/// Shows a plan, asks, applies it and reports the result. With `force`, also writes what planning
/// would refuse.
pub(crate) fn apply(plan: &Plan, options: &ApplyOptions, force: bool) -> Result<Exit> {
    if !options.json || !options.yes {
        out::proposal(&views::plan::render(plan), options.json);
    }
    if plan.changes.is_empty() {
        if options.json && options.yes {
            out::json(&Versioned::first(ApplyResult::nothing()))?;
        }
        return Ok(match crate::verbs::plan::exit(plan, false) {
            Exit::Printed if options.yes => Exit::Done,
            exit => exit,
        });
    }
    if options.json && options.yes {
        views::plan::interruptions(plan).iter().for_each(eprint_line);
    }
    refuse(plan, &options.state, force)?;
    if !options.yes
        && !confirmed_by_user(&format!("apply {}", plural(plan.changes.len(), "change")))?
    {
        eprint_line("nothing was written");
        return Ok(Exit::Refused);
    }
    let mut phases = Phases::new(options.verbose);
    if let Some(window) = options.verify {
        let may_stay = is_no_worse(plan, options, window)?;
        phases.end("verify", "with and without the plan").into_iter().for_each(eprint_line);
        if !may_stay {
            return Ok(Exit::Refused);
        }
    }
    let receiving = options.receiving_within.map(|within| {
        let kernel = options.state.kernel()?;
        let receiving = Receiving::now(&kernel).context("cannot count what is received")?;
        anyhow::Ok((receiving, within))
    });
    let receiving = receiving.transpose()?;
    let guarded = options.confirm_within.or(options.receiving_within.map(|it| it + AFTER_CHECK));
    // Progress never fails and never ends the program, because the changes may cut off the terminal
    // itself.
    let tell = &mut |line: String| eprint_line(line);
    let applied = write(plan, &options.state, guarded, phases, tell)?;
    if let Some((receiving, within)) = &receiving
        && let Some(transaction) = applied.transaction
    {
        keep_if_received(receiving, *within, transaction, &options.state)?;
    }
    outcome(&applied, options)?;
    Ok(Exit::Done)
}

/// Confirms a transaction after which the netdevs that received packets before have received some
/// again. Otherwise restores it.
fn keep_if_received(
    receiving: &Receiving,
    within: Duration,
    transaction: u64,
    state: &StateDir,
) -> Result<()> {
    let (kernel, dir) = (state.kernel()?, state.absolute()?);
    let silent = receiving.still(&kernel, within).context("cannot count what is received")?;
    if silent.is_empty() {
        match guard::confirm(&kernel, &dir)? {
            ConfirmResult::Kept(id) | ConfirmResult::KeptBefore(id) if id == transaction => {}
            _ => {
                let why = format!("transaction {transaction} was undone while netsilo waited");
                return Err(ExitError(Exit::FailedAndRestored, why).into());
            }
        }
        eprint_line(match &*receiving.netdevs {
            [] => "no netdev received a packet before the writes: nothing shows whether any still \
                   can"
            .to_owned(),
            netdevs => format!("{} still receive packets", netdevs.join(", ")),
        });
        return Ok(());
    }
    let only = UndoScope::Only(transaction);
    let undone = undo(&kernel, &dir, only, false, RestoredBy::Apply, &mut |_, _| {})?;
    let is_complete = undone.iter().all(Undone::is_complete);
    eprint_line(report(&undone, true).trim_end());
    let (silent, within) = (silent.join(", "), humantime::format_duration(within));
    let (exit, now) = if is_complete {
        (Exit::FailedAndRestored, "everything is restored")
    } else {
        (Exit::RestoreIncomplete, "some values could not be restored: run `netsilo undo`")
    };
    let why = format!("{silent} received nothing for {within} after the writes: {now}");
    Err(ExitError(exit, why).into())
}

/// Refuses a plan that cannot be written as a whole, or that planning would refuse now. With
/// `force`, the latter is only reported.
pub(crate) fn refuse(plan: &Plan, state: &StateDir, force: bool) -> Result<()> {
    refuse_conflicting_changes(plan)?;
    let root = state.root()?;
    if !force {
        return consent::refuse(std::slice::from_ref(plan), &root);
    }
    for Refusal { subject, reason, .. } in consent::refused(std::slice::from_ref(plan), &root)? {
        eprint_line(format_args!("netsilo: forced: {subject}: {reason}"));
    }
    Ok(())
}

/// Writes a plan as one transaction. Its guard restores it unless it is confirmed. Reports the
/// steps that are worth a line.
pub(crate) fn write(
    plan: &Plan,
    state: &StateDir,
    confirm_within: Option<Duration>,
    mut phases: Phases,
    tell: &mut dyn FnMut(String),
) -> Result<Applied> {
    let (kernel, dir) = (state.kernel()?, state.absolute()?);
    let mut start_guard =
        |transaction: u64| guard::start(&mut state.guard_command(&dir, transaction), &dir);
    let mut options =
        TransactionOptions { confirm_within, start_guard: &mut start_guard, wait: verify::LIMIT };
    let applied = netsilo_sys::transaction::apply::apply(
        &kernel,
        &dir,
        &plan.changes,
        &mut options,
        &mut |event| {
            if matches!(event, ApplyEvent::Waiting { .. }) {
                let what = plural(plan.changes.len(), "change");
                phases.end("write", &what).into_iter().for_each(&mut *tell);
            }
            step(&event, plan, &dir, phases.writes).into_iter().for_each(&mut *tell);
        },
    )?;
    let what = format!("{}, all together", plural(applied.arrivals.len(), "interrupt"));
    arrived(&applied).into_iter().chain(phases.end("arrive", &what)).for_each(&mut *tell);
    for (target, now) in &applied.overwritten {
        tell(format!(
            "netsilo: {target} is already {now} again: another program writes it; find and stop it"
        ));
    }
    Ok(applied)
}

/// Tries a plan under the live workload and restores everything. Returns `false` if the plan made
/// the workload worse.
fn is_no_worse(plan: &Plan, options: &ApplyOptions, window: Duration) -> Result<bool> {
    let comparison = comparison_run::verify(plan, &options.state, window)?;
    let (words, may_stay) = comparison_run::verification_line(comparison.as_ref());
    eprint_line(words);
    if !may_stay {
        eprint_line("netsilo: the plan is worse and is not applied");
    }
    if !may_stay && options.json {
        out::json(&Versioned::first(ApplyResult::worse(comparison.as_ref())))?;
    }
    Ok(may_stay)
}

/// Refuses a plan in which one change resets a device and so undoes another change.
fn refuse_conflicting_changes(plan: &Plan) -> Result<()> {
    let Some((by, void)) = first_void(&plan.changes) else { return Ok(()) };
    let todo = "apply that change alone, then make a new plan; nothing was written";
    Err(ExitError(
        Exit::Refused,
        format!("the plan changes {by} and {void}, but a change of {by} resets {void}: {todo}"),
    )
    .into())
}

/// A step of a transaction in one line, or `None` if it is not worth a line. A write with the
/// planned result is worth a line only with `writes`.
fn step(event: &ApplyEvent<'_>, plan: &Plan, dir: &Path, writes: bool) -> Option<String> {
    Some(match event {
        ApplyEvent::Journalled { transaction } if writes => {
            format!("transaction {transaction} is recorded in {}/journal", dir.display())
        }
        ApplyEvent::Journalled { .. } => return None,
        ApplyEvent::Wrote { index, change, settled } => {
            let as_planned = **settled == change.new;
            if as_planned && !writes && change.target.interrupts_traffic().is_none() {
                return None;
            }
            let rounded = if as_planned {
                String::new()
            } else {
                format!(", which the kernel rounded to {settled}")
            };
            let (n, of) = (index + 1, plan.changes.len());
            let (old, new) = change.from_to();
            format!("{n}/{of} {}: {old} -> {new}{rounded}", change.target)
        }
        ApplyEvent::Failed(why) => format!("{why}; restoring the changes written before"),
        ApplyEvent::Restored(target, what) => format!("  {target}: {}", restore_result(what)),
        ApplyEvent::Attached(row) => format!("  {}: {}", row.name(), row.result),
        ApplyEvent::Waiting { irqs: 0, .. } => return None,
        ApplyEvent::Waiting { irqs, at_most } => format!(
            "waiting at most {} for {} on the new cpus",
            humantime::format_duration(*at_most),
            plural(*irqs, "interrupt")
        ),
        ApplyEvent::Arrived(irq, arrival) => format!("  irq {irq}: {}", elsewhere(arrival)?),
    })
}

/// Why an interrupt is not known to be on its new CPU. Interrupts that did not occur are only
/// counted.
fn elsewhere(arrival: &Arrival) -> Option<String> {
    match arrival {
        Arrival::Arrived(_) | Arrival::NoTraffic => None,
        Arrival::StillElsewhere(cpu) => Some(format!("still arrives on cpu {cpu}")),
        Arrival::Ignored(cpu) => Some(format!(
            "arrives on cpu {cpu} alone: its interrupt controller accepted the affinity and \
             ignores it; plan leaves it alone while that is so"
        )),
        Arrival::Unknown(why) => Some(format!("its counters cannot be read ({why})")),
    }
}

/// How many interrupts have arrived on their new CPUs; `None` if none was moved.
fn arrived(applied: &Applied) -> Option<String> {
    let all = applied.arrivals.len();
    let there = applied.arrivals.iter().filter(|(_, it)| matches!(it, Arrival::Arrived(_)));
    let silent = applied.arrivals.iter().filter(|(_, it)| matches!(it, Arrival::NoTraffic));
    let later = match silent.count() {
        0 => String::new(),
        count => format!("; {count} had none yet, their next one arrives there"),
    };
    (all > 0).then(|| format!("  {} of {all} arrived on their new cpus{later}", there.count()))
}

fn outcome(applied: &Applied, options: &ApplyOptions) -> Result<()> {
    if options.json {
        let result = ApplyResult::new(applied, options.confirm_within);
        return out::json(&Versioned::first(result));
    }
    let Some(transaction) = applied.transaction else {
        out::text("nothing to do\n");
        return Ok(());
    };
    let count = applied.settled.len();
    let (done, they) = (plural(count, "change"), if count == 1 { "it is" } else { "they are" });
    out::text(&match options.confirm_within {
        None => {
            let undo = options.state.command("undo");
            format!("transaction {transaction}: {done} applied; `{undo}` restores them\n")
        }
        Some(time) => format!(
            "transaction {transaction}: {done} applied; \
             run `{}` within {} or {they} restored\n",
            options.state.command("confirm"),
            humantime::format_duration(time)
        ),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    /// TCP_RR with 4 instances over a veth: RPS measured -49 % (evidence/verdicts.md).
    #[test]
    fn a_plan_that_is_forecast_to_hurt_is_refused_unless_forced() {
        let folder =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/verdicts/veth/01.tar.zst");
        let observation = netsilo_sys::bundle::open(Path::new(folder)).unwrap();
        let refused = |words: &str| {
            let args: Args = parsed(&format!("--yes {words}"));
            let goal = args.goal.goal().unwrap();
            let analysis = Analysis::new(&observation, &goal.costs);
            let plan = args.goal.plan_by_model(&analysis, &goal);
            refuse_harm(&analysis, &plan, &args).err().map(|error| error.to_string())
        };
        let words = refused("--rps 1").unwrap();
        assert!(words.starts_with("the forecast of this plan is -78% to -11%"), "{words}");
        assert_eq!((refused("--rps 1 --force"), refused("")), (None, None));
    }
}
