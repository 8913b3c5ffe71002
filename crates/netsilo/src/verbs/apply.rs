//! `netsilo apply`: shows the plan, asks, applies it as one transaction, and says what came of it;
//! and its guard.

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

/// Where the journal and the kernel are.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// Where the journal is kept; it ends with the boot, as the settings do
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// A directory that stands for the running kernel, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

impl Place {
    /// Where the kernel's files are.
    pub(crate) fn root(&self) -> Result<Root> {
        Ok(if self.root == Path::new("/") { Root::live() } else { Root::at(&self.root)? })
    }

    /// The kernel whose settings are meant.
    pub(crate) fn kernel(&self) -> Result<Live> {
        Ok(Live::new(self.root()?))
    }

    /// The folder of the journal.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}

/// Arguments of `netsilo apply`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Apply exactly this plan, as printed by `netsilo plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["GoalArgs", "Live"])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    look: look::Live,
    #[command(flatten)]
    how: How,
}

/// How a plan is applied.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct How {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Take everything back unless `netsilo confirm` comes within this time (60s, 5m)
    #[arg(long, value_name = "DURATION", value_parser = within)]
    confirm_within: Option<Duration>,
    /// First switch it on and off, up to 12 times each for so long, and leave it off if a received
    /// megabyte then costs more CPU time
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = humantime::parse_duration)]
    verify: Option<Duration>,
    /// Print the outcome as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

impl How {
    /// Whether what is applied is taken back unless it is confirmed.
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.confirm_within.is_some()
    }

    /// The same for what the operator has agreed to already.
    pub(crate) fn without_asking(&self) -> Self {
        Self { yes: true, ..self.clone() }
    }
}

/// A deadline that a person can keep.
fn within(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
    if (least..=most).contains(&time) { Ok(time) } else { Err("choose between 1s and 1day".into()) }
}

/// Reads a plan that `plan --json` has printed, or that was written by hand.
pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text =
        std::fs::read(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a plan", path.display()))
}

/// Plans, or reads a plan, and applies it after showing it.
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

/// Shows a plan, asks, applies it and says what came of it.
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
    let dir = std::path::absolute(&how.place.state_dir).context("resolving the state folder")?;
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
    // The terminal may be gone; what was applied is applied all the same.
    let _ = outcome(&applied, how);
    Ok(Exit::Ok)
}

/// Tries a plan under the live workload; nothing of it is left.
fn is_no_worse(plan: &Plan, how: &How, window: Duration) -> Result<bool> {
    let comparison = ab::verify(plan, &how.place, window)?;
    let (words, may_stay) = ab::verified(comparison.as_ref());
    say(words);
    if !may_stay {
        say("netsilo: the plan was taken back");
    }
    if !may_stay && how.json {
        out::json(&json!({ "version": 1, "transaction": null, "verified": comparison }))?;
    }
    Ok(may_stay)
}

/// One change may set a device up anew, and so take away what another one sets.
fn refuse_void(plan: &Plan) -> Result<()> {
    let targets = || plan.changes.iter().map(|change| &change.target);
    let void = targets().find_map(|by| Some((by, targets().find(|other| by.voids(other))?)));
    let Some((by, void)) = void else { return Ok(()) };
    let todo = "apply the first alone, then make a new plan; nothing was written";
    Err(Stop(
        Exit::Refused,
        format!("the plan sets {by}, which would make void what it sets as {void}: {todo}"),
    )
    .into())
}

/// A saved plan may be older than another owner: look again just before writing.
pub(crate) fn refuse_owned(plan: &Plan, place: &Place) -> Result<()> {
    let writers = netsilo_sys::read::knob_owners::running(&place.root()?)
        .context("cannot look for other programs that write")?;
    let owners = plan.owners(&writers);
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{} (pid {})", owner.name, owner.pid)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let todo = "stop it first, or make the plan with --even-if-owned; nothing was written";
    Err(Stop(Exit::OtherOwner, format!("{} writes these settings too: {todo}", names.join(", ")))
        .into())
}

/// This program itself, also where it was replaced since it started.
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

/// Asks on the terminal; without one the answer must be on the command line.
pub(crate) fn agreed(to: &str) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let message =
            "standard input is no terminal to ask on: say --yes to apply this plan without asking";
        return Err(Stop(Exit::Usage, message.into()).into());
    }
    let _ = write!(io::stderr(), "{to}? [y/N] ");
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("reading the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Tells what happens. Never fails and never ends the program: the terminal may be what a bad
/// placement cuts off.
fn progress(event: &Event<'_>, plan: &Plan, dir: &Path) {
    match event {
        Event::Journalled { transaction } => {
            say(format_args!("transaction {transaction} is in {}/journal", dir.display()))
        }
        Event::Wrote { index, change, settled } => {
            let rounded = if **settled == change.new {
                String::new()
            } else {
                format!(", which the kernel made {settled}")
            };
            let (n, of) = (index + 1, plan.changes.len());
            let (old, new) = change.from_to();
            say(format_args!("{n}/{of} {}: {old} -> {new}{rounded}", change.target));
        }
        Event::Failed(why) => say(format_args!("{why}; restoring what was written before")),
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
        Arrival::NoTraffic => "no interrupt came, so it moves with the next one".into(),
        Arrival::StillElsewhere(cpu) => format!("still arrives on cpu {cpu}"),
        Arrival::Unknown(why) => format!("its counters cannot be read ({why})"),
    }
}

fn outcome(applied: &Applied, how: &How) -> Result<()> {
    for (target, now) in &applied.overwritten {
        say(format_args!(
            "netsilo: {target} says {now} already: another program writes it too, find it and stop it"
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
            format!("transaction {transaction}: {done} applied; `netsilo undo` takes them back\n")
        }
        Some(time) => format!(
            "transaction {transaction}: {done} applied; run `netsilo confirm` within {} or they are taken back\n",
            humantime::format_duration(time)
        ),
    })
}

/// `1 change`, `3 changes`.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A line on stderr, whose failure is of no interest.
pub(crate) fn say(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Arguments of the hidden `netsilo guard`.
#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    /// The transaction to restore unless it is confirmed
    transaction: u64,
    #[command(flatten)]
    place: Place,
}

/// Watches over a transaction; started by `apply`, with its standard error in the state folder's
/// `guard.log`.
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
            say("no confirmation came in time");
            say(report(&[undone]).trim_end());
        }
    }
    Ok(exit)
}
