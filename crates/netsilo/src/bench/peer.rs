//! A setting that a command makes: run once, its changes told, taken back, and from then on written
//! by netsilo itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::thread::sleep;

use anyhow::{Context as _, Result, bail, ensure};
use netsilo_core::change::{Change, SYSCTLS, Target, Value, only_read, ordered};
use netsilo_core::experiment::Setting;
use netsilo_core::host::Snapshot;
use netsilo_sys::apply::expect_any;
use netsilo_sys::kernel::Kernel;
use netsilo_sys::knob;
use netsilo_sys::root::Root;
use netsilo_sys::transaction::By;
use netsilo_sys::undo::{Which, undo};
use rustix::process::{Pid, Signal, kill_process_group};

use super::experiment::Made;
use crate::exit::{Exit, Stop};
use crate::observe::LOOK;
use crate::out;
use crate::switch::complete;

/// Where the settings of the network stack lie.
const SYSCTL_NET: &str = "/proc/sys/net";

/// A name and a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    name: String,
    command: String,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('=')
            .filter(|(name, command)| !name.is_empty() && !command.trim().is_empty());
        let (name, command) = parts.ok_or("write NAME=COMMAND")?;
        Ok(Self { name: name.to_owned(), command: command.to_owned() })
    }
}

/// All that is set on this machine.
struct Settings {
    knobs: BTreeMap<Target, Value>,
    others: BTreeMap<String, String>,
}

impl Peer {
    /// Runs the command, sees what it changes, and takes that back. While it runs the journal has
    /// what every knob said before: whatever happens, `netsilo undo` restores it.
    pub(super) fn learn(&self, made: &Made<'_>) -> Result<Setting> {
        let Self { name, command } = self;
        out::note(&format!("{name}: running its command to see what it changes"));
        let (root, kernel) = (Root::live(), made.place.kernel()?);
        let dir =
            std::path::absolute(made.place.state_dir()).context("resolving the state folder")?;
        let (first, before) = (look(&root, &kernel)?, look(&root, &kernel)?);
        let targets = before.knobs.keys().cloned().collect();
        let reason = format!("before the command of {name}");
        let transaction = expect_any(&kernel, &dir, targets, &reason)?;
        let ran = self.run(made);
        let after = look(&root, &kernel);
        let undone =
            undo(&kernel, &dir, Which::Only(transaction), false, By::Undo, &mut |_, _| {})?;
        complete(&undone)?;
        ran?;
        let after = after?;
        let back = look(&root, &kernel)?;
        let lost = difference(&before.others, &back.others, &first.others);
        if !lost.is_empty() {
            let todo = "its knobs are as before, but these netsilo cannot put back: do so yourself";
            let message =
                format!("{name}: its command changes what netsilo has no knob for:\n{lost}{todo}");
            return Err(Stop(Exit::Refused, message).into());
        }
        for (target, was) in &before.knobs {
            let is = back.knobs.get(target);
            ensure!(
                is == Some(was),
                "{name}: {target} was {was} and is not any more after its command was undone"
            );
        }
        let changes = changes(&before.knobs, &after.knobs, name);
        refuse_void(name, &changes)?;
        ensure!(
            !changes.is_empty(),
            "{name}: its command changes nothing that netsilo reads: {command}"
        );
        Ok(Setting {
            name: name.clone(),
            what: format!("what `{command}` changes"),
            changes,
            command: Some(command.clone()),
        })
    }

    fn run(&self, made: &Made<'_>) -> Result<()> {
        let mut command = Command::new("sh");
        // a group of its own, so that all that it has started ends with it
        command
            .args(["-c", &self.command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().context("cannot start sh")?;
        let status = loop {
            if made.stop.load(Ordering::Relaxed) {
                end(&mut child);
                bail!("interrupted: all is as before");
            }
            match child.try_wait().context("cannot wait for the command")? {
                Some(status) => break status,
                None => sleep(LOOK),
            }
        };
        // what it has left running would go on writing
        end(&mut child);
        ensure!(
            status.success(),
            "{}: its command failed ({status}); all is as before: {}",
            self.name,
            self.command
        );
        Ok(())
    }
}

fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

/// Reads all settings; a knob that cannot be read is none.
fn look(root: &Root, kernel: &dyn Kernel) -> Result<Settings> {
    let snapshot: Snapshot =
        netsilo_sys::snapshot(root).context("cannot read this machine's settings")?;
    let value =
        |target: Target| knob::read(kernel, &target).ok().map(|reading| (target, reading.value));
    let knobs = Target::all_in(&snapshot).into_iter().filter_map(value).collect();
    let mut others = only_read(&snapshot);
    sysctls(root, SYSCTL_NET, &mut others);
    Ok(Settings { knobs, others })
}

/// All sysctls below a folder that netsilo does not write.
fn sysctls(root: &Root, folder: &str, all: &mut BTreeMap<String, String>) {
    let names = root.list(folder).unwrap_or_default();
    for name in names {
        let path = format!("{folder}/{name}");
        let sysctl = path.trim_start_matches("/proc/sys/").replace('/', ".");
        let ours = SYSCTLS.contains(&sysctl.as_str()) || sysctl.starts_with("net.core.rps_");
        match root.read(&path) {
            Ok(text) if !ours => {
                all.insert(sysctl, text.trim().to_owned());
            }
            Ok(_) => {}
            Err(_) => sysctls(root, &path, all),
        }
    }
}

/// What differs, a line each, without what changes by itself: what two looks before did not agree
/// on.
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
            let word = |it: Option<&String>| it.map_or("not there", String::as_str).to_owned();
            let _ = writeln!(text, "  {name} was {} and is {}", word(was), word(is));
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
        Change::untyped(target, old, new, format!("as the command of {name} does")).ok()
    });
    ordered(changed.collect())
}

fn refuse_void(name: &str, changes: &[Change]) -> Result<()> {
    let targets = || changes.iter().map(|change| &change.target);
    match targets().find_map(|by| Some((by, targets().find(|other| by.voids(other))?))) {
        None => Ok(()),
        Some((by, void)) => {
            bail!(
                "{name}: its command sets {by}, which would make void what it sets as {void}: split it in two"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_command_are_told_apart_at_the_first_sign() {
        let peer: Peer = "tuned=sysctl -w net.core.rmem_max=1".parse().unwrap();
        assert_eq!(
            (peer.name.as_str(), peer.command.as_str()),
            ("tuned", "sysctl -w net.core.rmem_max=1")
        );
        assert!(
            "tuned".parse::<Peer>().is_err()
                && "=x".parse::<Peer>().is_err()
                && "x= ".parse::<Peer>().is_err()
        );
    }

    #[test]
    fn what_changes_by_itself_is_no_difference() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        let first = map(&[("a", "1"), ("b", "1")]);
        let before = map(&[("a", "1"), ("b", "2")]);
        let after = map(&[("a", "9"), ("b", "3"), ("c", "1")]);
        assert_eq!(
            difference(&before, &after, &first),
            "  a was 1 and is 9\n  c was not there and is 1\n"
        );
    }
}
