//! Searches of the daemon: `netsilo tune` as a child process, while the controller waits.
//!
//! When one may begin is decided in `netsilo_decide::control::SearchSchedule`. The child restores
//! all that it tries and keeps only the outcome, which the controller follows by its own rules. It
//! ends with the daemon, and its guard process restores what a killed one leaves.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netsilo_decide::control::{Moment, SearchPolicy, SearchSchedule, Waiting};
use netsilo_decide::plan::Goal;
use netsilo_decide::plan::outcomes::Recall;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::process::THIS_PROGRAM;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::outcomes::{OutcomesDir, signature, since_1970};
use crate::args::state_dir::StateDir;
use crate::daemon::outcomes::FollowedOutcomes;
use crate::tell::exit::Exit;
use crate::tell::status::{LastSearch, SearchStatus};

/// Time that a search may take longer than asked for: it also restores and keeps its outcome.
const GRACE: Duration = Duration::from_secs(120);

/// Packets per second that change by this factor during a search end it.
const FACTOR: f64 = 3.0;

/// How often the load is looked at while it has to be steady.
const LOOKS: u32 = 10;

/// Time that a candidate has to settle in each window, as by default.
const SETTLE: Duration = Duration::from_millis(300);

/// Bytes of a result that are read.
const RESULT: u64 = 1 << 20;

/// The searches of this daemon.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    schedule: SearchSchedule,
    running: Option<Running>,
    waiting: Option<Waiting>,
    /// When to look at the load again, which costs an analysis.
    look_at: Duration,
    last: Option<LastSearch>,
    begun: u64,
}

/// A search that is under way.
#[derive(Debug)]
struct Running {
    child: Child,
    since: Duration,
    /// Standard output of the child: its result as JSON.
    result: File,
    /// Packets per second when it began.
    packets_per_s: f64,
    /// Why it was asked to end.
    stopped: Option<&'static str>,
}

/// What the searches of a window need of the daemon.
pub(crate) struct Around<'a> {
    pub(crate) policy: &'a SearchPolicy,
    pub(crate) goal: &'a Goal,
    pub(crate) root: &'a Root,
    pub(crate) state: &'a StateDir,
    pub(crate) dir: &'a OutcomesDir,
    pub(crate) known: &'a FollowedOutcomes,
}

impl Searches {
    /// Whether a search is under way: the controller waits for its end.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a search if one may begin after this window; returns what to log.
    pub(crate) fn begin(
        &mut self,
        around: &Around<'_>,
        moment: &Moment,
        observation: &Observation,
    ) -> Option<String> {
        let policy = around.policy;
        if !policy.is_on() {
            (self.waiting, self.schedule) = (None, SearchSchedule::default());
            return None;
        }
        let load = match self.schedule.may_follow(policy, moment) {
            Ok(()) if moment.now < self.look_at => return None,
            Ok(()) => {
                self.look_at = moment.now + policy.steady / LOOKS;
                self.look(around, moment.now, observation)
            }
            Err(waiting) => Err(waiting),
        };
        let load = match load {
            Ok(load) => load,
            Err(waiting) => {
                self.waiting = Some(waiting);
                return None;
            }
        };
        self.waiting = None;
        // also a search that cannot be started takes its turn: the next one waits for the pause
        self.schedule.began(policy, moment.now);
        self.begun += 1;
        let netdevs = searched(&observation.after.netdevs, around.goal);
        match start(around, &netdevs) {
            Ok((child, result)) => {
                let packets_per_s = packets_per_s(&load);
                let since = moment.now;
                self.running = Some(Running { child, since, result, packets_per_s, stopped: None });
                Some(format!(
                    "no outcome is known of this workload: netsilo tune searches on {} for at most \
                     {}",
                    netdevs.join(", "),
                    humantime::format_duration(policy.length)
                ))
            }
            Err(error) => {
                self.schedule.made(0);
                Some(self.over(moment.now, format!("it cannot be started: {error:#}")))
            }
        }
    }

    /// The steady load on which a search may begin.
    fn look(
        &mut self,
        around: &Around<'_>,
        now: Duration,
        observation: &Observation,
    ) -> Result<Signature, Waiting> {
        let analysis = Analysis::new(observation, &around.goal.costs);
        let load = signature(&analysis, around.root);
        let known = match around.known.recall(&analysis) {
            Recall::Matches(recalled) => Some(recalled.id().to_owned()),
            Recall::Differs { .. } | Recall::Nothing => None,
        };
        self.schedule.may_begin(around.policy, now, load.clone(), known.as_deref())?;
        load.ok_or(Waiting::NoTraffic)
    }

    /// Follows the search that is under way; returns what to log when it has ended.
    pub(crate) fn follow(
        &mut self,
        around: &Around<'_>,
        now: Duration,
        observation: &Observation,
    ) -> Option<String> {
        self.schedule.lasts(now);
        let running = self.running.as_ref()?;
        let (since, before) = (running.since, running.packets_per_s);
        if now.saturating_sub(since) > around.policy.length + GRACE {
            self.stop("it took longer than asked for");
        }
        let analysis = Analysis::new(observation, &around.goal.costs);
        let load = signature(&analysis, around.root).map_or(0.0, |load| packets_per_s(&load));
        if load > before * FACTOR || load < before / FACTOR {
            self.stop("the load moved");
        }
        self.poll(now)
    }

    /// Asks the search to restore what it tries and to end.
    pub(crate) fn stop(&mut self, why: &'static str) {
        if let Some(running) = &mut self.running
            && running.stopped.is_none()
        {
            running.stopped = Some(why);
            // it may have ended just now
            let _ = kill_process(Pid::from_child(&running.child), Signal::TERM);
        }
    }

    /// Waits until a search that was asked to end has ended; returns what to log.
    pub(crate) fn wait(&mut self, now: Duration) -> Option<String> {
        let running = self.running.as_mut()?;
        // a failure means that there is no such child
        let _ = running.child.wait();
        self.poll(now)
    }

    /// What to log if the search has ended.
    fn poll(&mut self, now: Duration) -> Option<String> {
        let running = self.running.as_mut()?;
        let exit = match running.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(exit)) => Ok(exit),
            Err(error) => Err(error),
        };
        let mut running = self.running.take()?;
        if let Ok(Printed { windows, .. }) = printed(&mut running.result) {
            self.schedule.made(windows);
        }
        let words = match exit {
            Err(error) => format!("lost: {error}"),
            Ok(exit) => ended(exit, running.stopped, &mut running.result),
        };
        Some(self.over(now, words))
    }

    fn over(&mut self, now: Duration, words: String) -> String {
        self.schedule.lasts(now);
        self.last = Some(LastSearch { ended: now, words: words.clone() });
        format!("ended: {words}")
    }

    /// The state of the searches; `None` if the configuration has none.
    pub(crate) fn status(&self, policy: &SearchPolicy, now: Duration) -> Option<SearchStatus> {
        policy.is_on().then(|| SearchStatus {
            running_since: self.running.as_ref().map(|running| running.since),
            waiting: self.waiting.clone(),
            last: self.last.clone(),
            begun: self.begun,
            trials: self.schedule.trials_lately(now),
            trials_per_hour: policy.trials_per_hour,
        })
    }
}

/// How a search ended; `stopped` is why it was asked to.
fn ended(exit: ExitStatus, stopped: Option<&str>, result: &mut File) -> String {
    let is = |code: Exit| exit.code() == Some(code.code().into());
    match stopped {
        _ if is(Exit::RestoreIncomplete) => {
            "not all settings could be restored: run `netsilo undo`".into()
        }
        Some(why) => format!("{why}: nothing remains written"),
        None if is(Exit::OtherOwner) => "another program owns the settings".into(),
        None if !exit.success() => format!("it failed ({exit}), see above"),
        None => printed(result).map_or_else(
            |error| format!("its result cannot be read: {error:#}"),
            |printed| printed.words,
        ),
    }
}

/// The hour of the day (UTC).
pub(crate) fn hour() -> u8 {
    (since_1970().as_secs() / 3600 % 24) as u8
}

/// The netdevs to search on: those of the goal, or else those with a device; not those that a rule
/// of the configuration limits.
fn searched(netdevs: &[Netdev], goal: &Goal) -> Vec<String> {
    let named = |netdev: &Netdev| match goal.netdevs.as_slice() {
        [] => netdev.device_path.is_some(),
        names => names.contains(&netdev.name),
    };
    let limited = |netdev: &Netdev| goal.overrides.iter().any(|it| it.netdev == netdev.name);
    let chosen = |netdev: &&Netdev| netdev.up && named(netdev) && !limited(netdev);
    netdevs.iter().filter(chosen).map(|netdev| netdev.name.clone()).collect()
}

fn packets_per_s(load: &Signature) -> f64 {
    load.queues.iter().map(|queue| queue.packets_per_s).sum()
}

/// Starts `netsilo tune`, which ends with this process.
fn start(around: &Around<'_>, netdevs: &[String]) -> Result<(Child, File)> {
    ensure!(!netdevs.is_empty(), "a rule of the configuration limits every netdev");
    let result = memfd_create("netsilo-tune", MemfdFlags::CLOEXEC);
    let result = File::from(result.context("cannot make a file for the result")?);
    let goal = around.goal;
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["tune", "--yes", "--json", "--restore", "--parent"]);
    command.arg(std::process::id().to_string());
    command.args(["--for", &humantime::format_duration(around.policy.length).to_string()]);
    // A trial takes this long and its looks at the machine, so that the search makes no more
    // trials than the schedule expects.
    let window = around.policy.trial().saturating_sub(SETTLE).as_millis();
    command.args(["--settle", &format!("{}ms", SETTLE.as_millis())]);
    command.args(["--window", &format!("{window}ms")]);
    command.arg("--never-worse-than");
    command.arg(format!("{}%", 100.0 * around.policy.never_worse_than));
    command.args(["--netdev", &netdevs.join(",")]);
    if let Some(cpus) = &goal.cpus {
        command.args(["--cpus", &cpus.to_string()]);
    }
    if !goal.exclude.is_empty() {
        command.args(["--exclude", &goal.exclude.to_string()]);
    }
    if goal.even_if_owned {
        command.arg("--even-if-owned");
    }
    command.arg("--state-dir").arg(around.state.absolute()?);
    command.arg("--outcomes-dir").arg(around.dir.path());
    command.stdin(Stdio::null()).stdout(result.try_clone()?);
    Ok((command.spawn().context("cannot start netsilo tune")?, result))
}

/// What `netsilo tune` prints of a search, as far as it is needed here.
#[derive(Debug, serde::Deserialize)]
struct Printed {
    /// Its outcome in words.
    words: String,
    /// Windows that were measured.
    windows: u32,
}

/// The result of a search, from its JSON.
fn printed(result: &mut File) -> Result<Printed> {
    let mut text = String::new();
    result.rewind()?;
    result.take(RESULT).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use netsilo_decide::plan::Override;

    use super::*;

    #[test]
    fn netdevs_that_a_rule_limits_are_not_searched() {
        let netdev = |name: &str, up, device_path: Option<&str>| {
            let device_path = device_path.map(Into::into);
            Netdev { name: name.into(), up, device_path, ..Netdev::default() }
        };
        let on_a_device = |name, up| netdev(name, up, Some("/devices/x"));
        let netdevs = [
            on_a_device("eth0", true),
            on_a_device("eth1", true),
            on_a_device("eth2", false),
            netdev("veth0", true, None),
        ];
        let leave = Override { netdev: "eth1".into(), leave: true, ..Override::default() };
        let mut goal = Goal { overrides: vec![leave], ..Goal::default() };
        assert_eq!(searched(&netdevs, &goal), ["eth0"]);
        goal.netdevs = vec!["eth1".into(), "veth0".into()];
        assert_eq!(searched(&netdevs, &goal), ["veth0"]);
    }

    #[test]
    fn what_could_not_be_restored_is_told_whatever_ended_the_search() {
        use std::os::unix::process::ExitStatusExt as _;
        let end = |code: Exit, stopped| {
            let exit = ExitStatus::from_raw(i32::from(code.code()) << 8);
            ended(exit, stopped, &mut tempfile::tempfile().unwrap())
        };
        for stopped in [None, Some("the load moved")] {
            let words = end(Exit::RestoreIncomplete, stopped);
            assert!(words.ends_with("run `netsilo undo`"), "{words}");
        }
        let words = "the load moved: nothing remains written";
        assert_eq!(end(Exit::Refused, Some("the load moved")), words);
        assert_eq!(end(Exit::OtherOwner, None), "another program owns the settings");
        assert!(end(Exit::Refused, None).starts_with("it failed (exit status: 1)"));
    }

    #[test]
    fn the_outcome_is_read_from_what_the_child_printed() {
        let mut file = tempfile::tempfile().unwrap();
        let text = b"{\"schema\":1,\"words\":\"no difference shown\",\"windows\":26}";
        std::io::Write::write_all(&mut file, text).unwrap();
        let Printed { words, windows } = printed(&mut file).unwrap();
        assert_eq!((words.as_str(), windows), ("no difference shown", 26));
        assert!(printed(&mut tempfile::tempfile().unwrap()).is_err());
    }
}
