//! `netsilo apply`: shows the plan, asks, applies it as one transaction and reports the outcome.
//! Also the hidden `netsilo guard`.

use std::fmt::Display;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_sys::files::root::Root;
use netsilo_sys::transaction::apply::{Applied, Event, Options};
use netsilo_sys::transaction::guard::{self, End};
use netsilo_sys::transaction::journal::STATE_DIR;
use netsilo_sys::transaction::kernel::Live;
use netsilo_sys::transaction::verify::{self, Arrival};
use serde_json::json;

use crate::args::look;
use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::ab;
use crate::verbs::plan::GoalArgs;
use crate::verbs::undo::{fate, report};
use crate::views;

/// The journal's folder and the kernel that a verb works on.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// Folder of the journal; it must not outlive a boot, as the settings do not
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Directory that stands for the running kernel, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

impl Place {
    /// Returns the root of the kernel's files.
    pub(crate) fn root(&self) -> Result<Root> {
        Ok(if self.root == Path::new("/") { Root::live() } else { Root::at(&self.root)? })
    }

    /// Returns the kernel whose settings are read and written.
    pub(crate) fn kernel(&self) -> Result<Live> {
        Ok(Live::new(self.root()?))
    }

    /// Returns the folder of the journal.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}

/// Arguments of `netsilo apply`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Apply exactly the plan in this file, as printed by `netsilo plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["GoalArgs", "Live"])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    look: look::Live,
    #[command(flatten)]
    how: How,
}

/// Options for applying a plan.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct How {
    /// Write without asking first
    #[arg(short, long)]
    yes: bool,
    /// Restore everything unless `netsilo confirm` runs within this time (1s to 1day)
    #[arg(long, value_name = "DURATION", value_parser = within)]
    confirm_within: Option<Duration>,
    /// First measure with and without the plan, up to 12 times each for TIME (1s if not given), and
    /// do not apply the plan if it raises CPU time per received megabyte
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = humantime::parse_duration
    )]
    verify: Option<Duration>,
    /// Print the outcome as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

impl How {
    /// Whether the changes are restored unless confirmed.
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.confirm_within.is_some()
    }

    /// The same options, without the question.
    pub(crate) fn without_asking(&self) -> Self {
        Self { yes: true, ..self.clone() }
    }
}

/// Parses a confirmation time between one second and one day.
fn within(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
    if (least..=most).contains(&time) { Ok(time) } else { Err("choose between 1s and 1day".into()) }
}

/// Reads a plan from a file that `plan --json` printed or a person wrote.
pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text =
        std::fs::read(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a plan", path.display()))
}

/// Makes or reads a plan, shows it and applies it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plan = match &args.plan {
        Some(path) => load(path)?,
        None => args.goal.plan(
            &args.look.unless_told(args.goal.interval()).observe_with(args.goal.options())?,
            false,
        )?,
    };
    apply(&plan, &args.how)
}

/// Shows a plan, asks, applies it and reports the outcome.
pub(crate) fn apply(plan: &Plan, how: &How) -> Result<Exit> {
    if !how.json {
        out::text(&views::plan::render(plan))?;
    }
    if plan.changes.is_empty() {
        return Ok(crate::verbs::plan::exit(plan, false));
    }
    if how.json {
        views::plan::interruptions(plan).iter().for_each(say);
    }
    refuse_void(plan)?;
    refuse_owned(plan, &how.place)?;
    if !how.yes && !agreed(&format!("apply {}", count(plan.changes.len(), "change")))? {
        say("nothing was written");
        return Ok(Exit::Refused);
    }
    if let Some(window) = how.verify
        && !is_no_worse(plan, how, window)?
    {
        return Ok(Exit::Refused);
    }
    let kernel = how.place.kernel()?;
    let dir = std::path::absolute(&how.place.state_dir)
        .context("cannot make the path of the state folder absolute")?;
    let mut start_guard =
        |transaction: u64| guard::start(&mut guard_command(&how.place, &dir, transaction), &dir);
    let mut options = Options {
        confirm_within: how.confirm_within,
        start_guard: &mut start_guard,
        wait: verify::LIMIT,
    };
    let applied = netsilo_sys::transaction::apply::apply(
        &kernel,
        &dir,
        &plan.changes,
        &mut options,
        &mut |event| progress(&event, plan, &dir),
    )?;
    // Output may fail if the terminal is gone; the changes are applied nevertheless.
    let _ = outcome(&applied, how);
    Ok(Exit::Ok)
}

/// Tries a plan under the live workload and restores everything; `false` if it made it worse.
fn is_no_worse(plan: &Plan, how: &How, window: Duration) -> Result<bool> {
    let comparison = ab::verify(plan, &how.place, window)?;
    let (words, may_stay) = ab::verified(comparison.as_ref());
    say(words);
    if !may_stay {
        say("netsilo: the plan is worse and is not applied");
    }
    if !may_stay && how.json {
        out::json(&json!({ "version": 1, "transaction": null, "verified": comparison }))?;
    }
    Ok(may_stay)
}

/// Refuses a plan where one change resets a device and so voids another change.
fn refuse_void(plan: &Plan) -> Result<()> {
    let targets = || plan.changes.iter().map(|change| &change.target);
    let void = targets().find_map(|by| Some((by, targets().find(|other| by.voids(other))?)));
    let Some((by, void)) = void else { return Ok(()) };
    let todo = "apply the first alone, then make a new plan; nothing was written";
    Err(Stop(
        Exit::Refused,
        format!("the plan sets {by}, which would reset its change of {void}: {todo}"),
    )
    .into())
}

/// Refuses a plan if another program now owns one of its settings; a saved plan may be old.
pub(crate) fn refuse_owned(plan: &Plan, place: &Place) -> Result<()> {
    let writers = netsilo_sys::read::knob_owners::running(&place.root()?)
        .context("cannot look for other programs that write these settings")?;
    let owners = plan.knob_owners(&writers);
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{} (pid {})", owner.name, owner.pid)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let todo = "stop it first, or make the plan with --even-if-owned; nothing was written";
    Err(Stop(Exit::OtherOwner, format!("{} writes these settings too: {todo}", names.join(", ")))
        .into())
}

/// The command that runs this same executable as the guard, even if its file was replaced.
fn guard_command(place: &Place, dir: &Path, transaction: u64) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("guard")
        .arg(transaction.to_string())
        .arg("--state-dir")
        .arg(dir)
        .arg("--root")
        .arg(&place.root);
    command
}

/// Asks on the terminal; an error if standard input is none.
pub(crate) fn agreed(to: &str) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let message =
            "cannot ask: standard input is not a terminal; use --yes to apply without asking";
        return Err(Stop(Exit::Usage, message.into()).into());
    }
    let _ = write!(io::stderr(), "{to}? [y/N] ");
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Reports progress on stderr. It never fails and never ends the program: the changes may cut off
/// the terminal itself.
fn progress(event: &Event<'_>, plan: &Plan, dir: &Path) {
    match event {
        Event::Journalled { transaction } => {
            say(format_args!("transaction {transaction} is recorded in {}/journal", dir.display()))
        }
        Event::Wrote { index, change, settled } => {
            let rounded = if **settled == change.new {
                String::new()
            } else {
                format!(", which the kernel rounded to {settled}")
            };
            let (n, of) = (index + 1, plan.changes.len());
            let (old, new) = change.from_to();
            say(format_args!("{n}/{of} {}: {old} -> {new}{rounded}", change.target));
        }
        Event::Failed(why) => say(format_args!("{why}; restoring the changes written before")),
        Event::Restored(target, what) => say(format_args!("  {target}: {}", fate(what))),
        Event::Waiting { irqs: 0 } => {}
        Event::Waiting { irqs } => {
            say(format_args!(
                "waiting for {} to arrive on the new cpus",
                count(*irqs, "interrupt")
            ));
        }
        Event::Arrived(irq, arrival) => say(format_args!("  irq {irq}: {}", told(arrival))),
    }
}

fn told(arrival: &Arrival) -> String {
    match arrival {
        Arrival::Arrived(cpu) => format!("arrived on cpu {cpu}"),
        Arrival::NoTraffic => "no interrupt came; the next one arrives on the new cpu".into(),
        Arrival::StillElsewhere(cpu) => format!("still arrives on cpu {cpu}"),
        Arrival::Unknown(why) => format!("its counters cannot be read ({why})"),
    }
}

fn outcome(applied: &Applied, how: &How) -> Result<()> {
    for (target, now) in &applied.overwritten {
        say(format_args!(
            "netsilo: {target} is already {now} again: another program writes it; find and stop it"
        ));
    }
    if how.json {
        let changes = applied
            .settled
            .iter()
            .map(|(target, value)| json!({ "target": target, "value": value }));
        let arrivals =
            applied.arrivals.iter().map(|(irq, arrival)| json!({ "irq": irq, "arrival": arrival }));
        let overwritten = applied
            .overwritten
            .iter()
            .map(|(target, now)| json!({ "target": target, "value": now }));
        return out::json(&json!({
            "version": 1,
            "transaction": applied.transaction,
            "changes": changes.collect::<Vec<_>>(),
            "arrivals": arrivals.collect::<Vec<_>>(),
            "overwritten": overwritten.collect::<Vec<_>>(),
            "confirm_within_seconds": how.confirm_within.map(|time| time.as_secs()),
        }));
    }
    let Some(transaction) = applied.transaction else {
        return out::text("nothing to do\n");
    };
    let done = count(applied.settled.len(), "change");
    out::text(&match how.confirm_within {
        None => {
            format!("transaction {transaction}: {done} applied; `netsilo undo` restores them\n")
        }
        Some(time) => format!(
            "transaction {transaction}: {done} applied; \
             run `netsilo confirm` within {} or they are restored\n",
            humantime::format_duration(time)
        ),
    })
}

/// A count with its noun: `1 change`, `3 changes`.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Prints a line on stderr and ignores failure.
pub(crate) fn say(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Arguments of the hidden `netsilo guard`.
#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    /// Transaction to restore unless it is confirmed
    transaction: u64,
    #[command(flatten)]
    place: Place,
}

/// Restores a transaction unless it is confirmed in time; `apply` starts it with standard error in
/// the state folder's `guard.log`.
pub(crate) fn guard(args: &GuardArgs) -> Result<Exit> {
    let GuardArgs { transaction, place } = args;
    let end = guard::watch(&place.kernel()?, place.state_dir(), *transaction, &mut io::stdout())?;
    let exit = match &end {
        End::Restored(undone) if !undone.is_complete() => Exit::RestoreIncomplete,
        _ => Exit::Ok,
    };
    match end {
        End::Confirmed => say(format_args!("transaction {transaction} was confirmed")),
        End::Undone(by) => say(format_args!("transaction {transaction} was restored by {by}")),
        End::Restored(undone) => {
            say("no confirmation in time");
            say(report(&[undone]).trim_end());
        }
    }
    Ok(exit)
}
