//! A setting given as a command. netsilo runs the command once, reads what it changed, undoes the
//! changes, and later writes them itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::sleep;

use anyhow::{Context as _, Result, bail, ensure};
use netsilo::args::look::STOP_CHECK_INTERVAL;
use netsilo::tell::exit::{Exit, ExitError};
use netsilo::tell::out;
use netsilo::temporary_changes::complete;
use netsilo_model::change::{Change, SYSCTLS, Target, Value, first_void, only_read, ordered};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::sysctls::network_sysctls;
use netsilo_sys::transaction::apply::record_current_values;
use netsilo_sys::transaction::kernel::Kernel;
use netsilo_sys::transaction::knob;
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{UndoScope, undo};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::setup::Setup;

/// Every value that is read from this machine.
struct Settings {
    knobs: BTreeMap<Target, Value>,
    others: BTreeMap<String, String>,
}

/// Runs the command, reads what it changed, and undoes it. Meanwhile the journal has the previous
/// value of every knob, so `netsilo undo` can restore it in any case.
pub(crate) fn record(name: &str, command: &str, setup: &Setup<'_>) -> Result<Vec<Change>> {
    out::note(&format!("{name}: running its command once to find out what it changes"));
    let (root, kernel) = (Root::live(), setup.state.kernel()?);
    let dir = setup.state.absolute()?;
    let (first, before) = (look(&root, &kernel)?, look(&root, &kernel)?);
    let targets = before.knobs.keys().cloned().collect();
    let reason = format!("before the command of {name}");
    let transaction = record_current_values(&kernel, &dir, targets, &reason)?;
    let ran = run(name, command, setup);
    let after = look(&root, &kernel);
    let scope = UndoScope::Only(transaction);
    let undone = undo(&kernel, &dir, scope, false, RestoredBy::Undo, &mut |_, _| {})?;
    complete(&undone, setup.state)?;
    ran?;
    let after = after?;
    let back = look(&root, &kernel)?;
    let lost = difference(&before.others, &back.others, &first.others);
    if !lost.is_empty() {
        let todo = "its knobs are restored, but netsilo cannot restore these values: restore them \
                    yourself";
        let message =
            format!("{name}: its command changes values that netsilo cannot set:\n{lost}{todo}");
        return Err(ExitError(Exit::Refused, message).into());
    }
    for (target, was) in &before.knobs {
        let is = back.knobs.get(target);
        ensure!(
            is == Some(was),
            "{name}: {target} was {was} and has another value after undoing its command"
        );
    }
    let changes = changes(&before.knobs, &after.knobs, name);
    refuse_conflicting_changes(name, &changes)?;
    Ok(changes)
}

/// Runs a command with the names of the selected netdevs in `NETDEVS`.
fn run(name: &str, command: &str, setup: &Setup<'_>) -> Result<()> {
    let netdevs = setup.tuning.netdevs(&setup.observation.after);
    let netdevs: Vec<&str> = netdevs.map(|netdev| netdev.name.as_str()).collect();
    let mut shell = Command::new("sh");
    // its own process group, so that all processes it starts end with it
    shell
        .args(["-c", command])
        .env("NETDEVS", netdevs.join(" "))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0);
    let mut child = shell.spawn().context("cannot start sh")?;
    let status = loop {
        if setup.stop.load(Ordering::Relaxed) {
            end(&mut child);
            bail!("interrupted: everything is restored");
        }
        match child.try_wait().context("cannot wait for the command")? {
            Some(status) => break status,
            None => sleep(STOP_CHECK_INTERVAL),
        }
    };
    // background processes of the command would keep writing
    end(&mut child);
    ensure!(
        status.success(),
        "{name}: its command failed ({status}); its changes are undone: {command}"
    );
    Ok(())
}

fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

/// Reads all values. A knob that cannot be read is left out.
fn look(root: &Root, kernel: &dyn Kernel) -> Result<Settings> {
    let snapshot: Snapshot =
        netsilo_sys::snapshot_here(root).context("cannot read this machine's settings")?;
    let value =
        |target: Target| knob::read(kernel, &target).ok().map(|reading| (target, reading.value));
    let knobs = Target::all_in(&snapshot).into_iter().filter_map(value).collect();
    let mut others = only_read(&snapshot);
    let is_knob = |sysctl: &str| SYSCTLS.contains(&sysctl) || sysctl.starts_with("net.core.rps_");
    others.extend(network_sysctls(root).into_iter().filter(|(sysctl, _)| !is_knob(sysctl)));
    Ok(Settings { knobs, others })
}

/// Lists values that differ, one per line. Leaves out values that already differed between the two
/// reads before the command.
fn difference(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    first: &BTreeMap<String, String>,
) -> String {
    let mut text = String::new();
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (was, is) = (before.get(name), after.get(name));
        if was != is && first.get(name) == was {
            let shown = |it: Option<&String>| it.map_or("absent", String::as_str).to_owned();
            let _ = writeln!(text, "  {name} was {} and is {}", shown(was), shown(is));
        }
    }
    text
}

fn changes(
    before: &BTreeMap<Target, Value>,
    after: &BTreeMap<Target, Value>,
    name: &str,
) -> Vec<Change> {
    let changed = before.iter().filter_map(|(target, old)| {
        let new = after.get(target).filter(|new| *new != old)?;
        let (target, old, new) = (target.clone(), old.clone(), new.clone());
        Change::untyped(target, old, new, format!("set by the command of {name}")).ok()
    });
    ordered(changed.collect())
}

fn refuse_conflicting_changes(name: &str, changes: &[Change]) -> Result<()> {
    match first_void(changes) {
        None => Ok(()),
        Some((by, void)) => {
            bail!(
                "{name}: its command changes both {by} and {void}, but changing {by} resets \
                 {void}: split it into two commands"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_change_by_themselves_are_no_difference() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        let first = map(&[("a", "1"), ("b", "1")]);
        let before = map(&[("a", "1"), ("b", "2")]);
        let after = map(&[("a", "9"), ("b", "3"), ("c", "1")]);
        assert_eq!(
            difference(&before, &after, &first),
            "  a was 1 and is 9\n  c was absent and is 1\n"
        );
    }
}
