//! `netsilo keep` lets what was confirmed survive a reboot: it stores the goal, and enables the
//! unit that plans and writes it at boot. Never the values: at the next boot interrupts have other
//! numbers, and netdevs other queues.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use netsilo_sys::files::output;
use netsilo_sys::transaction::journal::read_without_lock;
use netsilo_sys::transaction::kernel::Kernel as _;
use netsilo_sys::transaction::record::{Origin, State, Transaction};
use serde::Serialize;

use crate::args::goal_keys::GoalKeys;
use crate::args::state_dir::StateDir;
use crate::daemon::config::{self, CONFIG_DIR};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::versioned::Versioned;
use crate::verbs::apply;

/// Arguments of `netsilo keep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep nothing over a reboot any more; settings stay until then
    #[arg(long, conflicts_with = "dry_run")]
    off: bool,
    /// Print what would be stored and enabled; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the outcome as JSON
    #[arg(short, long)]
    json: bool,
    /// Folder of the configuration
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIR, hide = true)]
    config_dir: PathBuf,
    #[command(flatten)]
    state: StateDir,
}

/// What is kept, or was.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeepResult {
    /// The transaction whose goal is stored; `null` with `--off`.
    transaction: Option<u64>,
    /// The goal, as in the daemon's configuration.
    goal: Option<String>,
    /// The file with the goal; with `--off` those that were removed.
    files: Vec<PathBuf>,
    /// The units that are enabled; with `--off` those that were disabled.
    units: Vec<&'static str>,
}

/// Whether a unit writes a stored goal again.
pub(crate) fn is_kept() -> bool {
    Path::new(CONFIG_DIR).join(BY_UNIT.file).exists()
}

/// Stores the goal of the newest confirmed transaction, or removes what was stored.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.off {
        return off(args);
    }
    let (transaction, keys) = kept_goal(&args.state)?;
    let goal = toml::to_string(&keys).context("cannot write the goal as TOML")?;
    let goal = format!("[goal]\n{goal}");
    let folder = &args.config_dir;
    let (way, other) = Way::of(&keys, BY_DAEMON.others_enabled_it(folder)?);
    let (file, unit) = (folder.join(way.file), way.unit);
    let text = header(&transaction, !way.others_enabled_it(folder)?) + &goal;
    if !args.dry_run {
        require(unit)?;
        let before = fs::read_to_string(&file).ok();
        store(&file, &text)?;
        if let Err(error) = way.check(folder).and_then(|()| way.enable()) {
            match before {
                Some(before) => store(&file, &before)?,
                // also disables a unit of which a part was enabled; the first error counts
                None => drop(way.forget(folder)),
            }
            return Err(error);
        }
        other.forget(folder)?;
    }
    if args.json {
        let transaction = Some(transaction.id);
        let result =
            KeepResult { transaction, goal: Some(goal), files: vec![file], units: vec![unit] };
        out::json(&Versioned::first(result))?;
    } else {
        let (is, file, id) =
            (if args.dry_run { "would be" } else { "is" }, file.display(), transaction.id);
        out::text(&format!(
            "the goal of transaction {id} {is} stored in {file}:\n\n{text}\n\
             {unit} {is} enabled: {}\n\
             `netsilo=off` on the kernel's command line skips it for one boot, `netsilo keep \
             --off` ends it\n",
            way.what
        ));
    }
    Ok(if args.dry_run { Exit::Printed } else { Exit::Done })
}

/// How a goal is kept.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    /// The file, in the folder of the configuration.
    file: &'static str,
    unit: &'static str,
    /// The unit that starts it when a netdev appears, which it enables too.
    watch: Option<&'static str>,
    /// What the unit does.
    what: &'static str,
}

/// For a goal that needs no load: it is written once.
const BY_UNIT: Way = Way {
    file: "keep.toml",
    unit: "netsilo-keep.service",
    watch: Some("netsilo-keep.path"),
    what: "at boot, and when a netdev appears, it plans and writes this goal, and restores \
           everything if a netdev then receives nothing for a minute",
};

/// For a goal that follows the load, which a boot does not show yet.
const BY_DAEMON: Way = Way {
    file: "conf.d/keep.toml",
    unit: "netsilo.service",
    watch: None,
    what: "from the next boot on the daemon places by the load",
};

impl Way {
    /// The daemon keeps all if it is enabled already: two programs would write the same settings.
    fn of(keys: &GoalKeys, daemon_enabled: bool) -> (&'static Self, &'static Self) {
        if daemon_enabled || keys.follow_the_load() {
            (&BY_DAEMON, &BY_UNIT)
        } else {
            (&BY_UNIT, &BY_DAEMON)
        }
    }

    /// Refuses what the daemon's configuration does not let it write.
    fn check(&self, folder: &Path) -> Result<()> {
        if *self == BY_DAEMON && !config::load(folder)?.writes() {
            let folder = folder.display();
            let why = format!(
                "the daemon would not write it: hints-only or goal.manage = false in {folder}; \
                 nothing was stored"
            );
            return Err(ExitError(Exit::Refused, why).into());
        }
        Ok(())
    }

    /// Enables the unit, and lets it run when a netdev appears from now on.
    fn enable(&self) -> Result<()> {
        systemctl(&["enable", self.unit])?;
        self.watch.map_or(Ok(()), |watch| systemctl(&["start", watch]))
    }

    /// Whether keep enabled the unit when it wrote the file; `None` if there is no file.
    fn enabled_by_keep(&self, folder: &Path) -> Result<Option<bool>> {
        let file = folder.join(self.file);
        match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.with_context(|| format!("cannot read {}", file.display()))?;
                Ok(Some(text.contains(ENABLED)))
            }
        }
    }

    fn others_enabled_it(&self, folder: &Path) -> Result<bool> {
        let is_enabled = systemctl(&["is-enabled", "--quiet", self.unit]).is_ok();
        Ok(is_enabled && self.enabled_by_keep(folder)? != Some(true))
    }

    /// Removes the file, without which the unit does nothing, and disables the unit if keep enabled
    /// it. Returns whether it disabled the unit; `None` if there is no file.
    fn forget(&self, folder: &Path) -> Result<Option<bool>> {
        let Some(is_ours) = self.enabled_by_keep(folder)? else { return Ok(None) };
        let file = folder.join(self.file);
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        if is_ours {
            systemctl(&["disable", self.unit])?;
            self.watch.map_or(Ok(()), |watch| systemctl(&["stop", watch]))?;
        }
        Ok(Some(is_ours))
    }
}

/// The first lines of a stored goal, with whether keep enables the unit.
fn header(transaction: &Transaction, enables: bool) -> String {
    let words = transaction.request.as_ref().map(|it| it.words.join(" ")).unwrap_or_default();
    let enabled = if enables { ENABLED } else { "" };
    format!("# Stored by netsilo keep, from: netsilo {words}\n{enabled}")
}

/// Says that the unit was not enabled before.
const ENABLED: &str = "# netsilo keep --off removes this file and disables the unit again.\n";

/// A command line of netsilo that wrote a goal.
#[derive(Debug, clap::Parser)]
struct Line {
    #[arg(long, global = true)]
    netns: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Apply(apply::Args),
}

/// The newest transaction that is in effect, and its goal. It must be confirmed.
fn kept_goal(state: &StateDir) -> Result<(Transaction, GoalKeys)> {
    let kernel = state.kernel()?;
    let transactions = read_without_lock(&kernel, state.path())?.unwrap_or_default().transactions;
    let mut open = transactions
        .into_iter()
        .rev()
        .filter(|it| it.is_open() && it.origin == Origin::Operator && !it.entries.is_empty());
    let refused = |why: String| ExitError(Exit::Refused, format!("{why}; nothing was stored"));
    let newest = open.next().ok_or_else(|| {
        refused("no apply since boot is in effect, so there is nothing to keep".into())
    })?;
    let others: Vec<String> = open.map(|it| it.id.to_string()).collect();
    let goal = goal_of(&newest, kernel.netns() == newest.netns)
        .map_err(|why| refused(format!("transaction {} cannot be kept: {why}", newest.id)))?;
    if !others.is_empty() {
        let others = others.join(", ");
        out::note(&format!(
            "only the newest is kept, not {others}: to keep all, undo, and apply all goals at once"
        ));
    }
    Ok((newest, goal))
}

/// The goal of a transaction, or why it cannot be kept.
fn goal_of(transaction: &Transaction, is_here: bool) -> Result<GoalKeys, String> {
    let again = "`netsilo undo`, then `netsilo apply --confirm-within 60s`, then `netsilo confirm`";
    match transaction.state {
        State::Confirmed => {}
        _ if transaction.awaits_confirmation().is_some() => {
            return Err("it awaits `netsilo confirm`".into());
        }
        _ => return Err(format!("nobody has confirmed it: run {again}")),
    }
    let Some(request) = transaction.request.as_ref().filter(|it| !it.words.is_empty()) else {
        return Err(format!("an older netsilo wrote it: run {again}"));
    };
    if request.verb != "apply" {
        let verb = &request.verb;
        return Err(format!("{verb} wrote it, and only a goal of `netsilo apply` can be stored"));
    }
    let words = ["netsilo"].into_iter().chain(request.words.iter().map(String::as_str));
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    if !is_here || line.netns.is_some() {
        return Err("another network namespace ends with this boot".into());
    }
    let Verb::Apply(args) = line.verb;
    args.storable()
}

/// Refuses if systemd does not run or has no such unit.
fn require(unit: &str) -> Result<()> {
    let why = if !Path::new("/run/systemd/system").is_dir() {
        "systemd does not run here, so nothing would write it at boot: let your own init run \
         `netsilo apply` with the same goal, --yes and --receiving-within 60s"
            .to_owned()
    } else if systemctl(&["cat", unit]).is_err() {
        format!("systemd has no {unit}: netsilo's packages and `make install` install it")
    } else {
        return Ok(());
    };
    Err(ExitError(Exit::Refused, format!("{why}; nothing was stored")).into())
}

/// Removes what was stored and disables the unit, if keep enabled it.
fn off(args: &Args) -> Result<Exit> {
    let mut result = KeepResult::default();
    for way in [&BY_UNIT, &BY_DAEMON] {
        let Some(disabled) = way.forget(&args.config_dir)? else { continue };
        result.files.push(args.config_dir.join(way.file));
        result.units.extend(disabled.then_some(way.unit));
    }
    if args.json {
        out::json(&Versioned::first(result))?;
    } else if result.files.is_empty() {
        out::text("nothing was kept\n");
    } else {
        let files: Vec<String> = result.files.iter().map(|it| it.display().to_string()).collect();
        let disabled: String =
            result.units.iter().map(|it| format!("; {it} is disabled")).collect();
        let still = "settings stay until the next boot, or `netsilo undo`";
        out::text(&format!("{} is removed{disabled}; {still}\n", files.join(", ")));
    }
    Ok(Exit::Done)
}

/// Writes a file, synced to the disk, with its folder.
fn store(file: &Path, text: &str) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| output::write_with_mode(file, 0o644, text.as_bytes()))
        .and_then(|()| fs::File::open(folder)?.sync_all())
        .with_context(|| format!("cannot write {}", file.display()))
}

fn systemctl(words: &[&str]) -> Result<()> {
    let shown = words.join(" ");
    let output = Command::new("systemctl")
        .args(words)
        .output()
        .with_context(|| format!("cannot run systemctl {shown}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        anyhow::bail!("systemctl {shown}: {why}");
    }
    Ok(())
}
