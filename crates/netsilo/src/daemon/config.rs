//! The daemon's configuration: defaults overridden by each file in turn, and the resulting goal for
//! a host.

pub mod file;

#[cfg(test)]
mod tests;

use std::mem::take;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_decide::control::Policy;
use netsilo_decide::plan::{Goal, Override};
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_sys::observe::CountingMode;

use crate::args::file::{read_configuration, refuse_foreign};
use file::Yield;
pub(crate) use file::{BpfWindow, Budget, Metrics};

/// Default folder of the configuration.
pub(crate) const CONFIG_DIR: &str = "/etc/netsilo";

/// The configuration, with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    /// Length of a cycle.
    pub(crate) interval: Duration,
    /// The part of each cycle in which eBPF is attached.
    pub(crate) window: BpfWindow,
    /// Share of the machine's CPU time that the daemon may use. The daemon shortens its windows to
    /// stay within it.
    pub(crate) budget: Budget,
    /// Whether eBPF is used at all.
    pub(crate) bpf: bool,
    /// Whether hints are published.
    pub(crate) hints: bool,
    /// Whether hints are the only output: no knob is written.
    pub(crate) hints_only: bool,
    /// Whether the daemon restores settings when it exits.
    pub(crate) restore_on_exit: bool,
    /// Where metrics are served.
    pub(crate) metrics: Metrics,
    /// The files that were read, in order.
    pub(crate) files: Vec<PathBuf>,
    costs: Option<Costs>,
    manage: bool,
    outcomes: bool,
    /// Whether `[goal]` only limits netdevs and CPUs.
    only_limits: bool,
    policy: Policy,
    netdevs: Vec<file::Netdev>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            window: BpfWindow::Last(Duration::from_secs(1)),
            budget: Budget::Share(0.003),
            bpf: true,
            hints: true,
            hints_only: false,
            restore_on_exit: false,
            metrics: Metrics::Off,
            files: Vec::new(),
            costs: None,
            manage: true,
            outcomes: true,
            only_limits: true,
            policy: Policy::default(),
            netdevs: Vec::new(),
        }
    }
}

/// Reads one file, or the `netsilo.toml` of a folder and then its `conf.d/*.toml` by name.
pub(crate) fn load(path: &Path) -> Result<Config> {
    let mut config = Config::default();
    for file in files(path)? {
        let text = read_configuration(&file)?;
        config.take(file::parse(&text, &file)?);
        config.files.push(file);
    }
    config.check()?;
    Ok(config)
}

/// Reads the configuration like [`load`]. If the path does not exist, returns the defaults.
pub(crate) fn load_if_there(path: &Path) -> Result<Config> {
    refuse_foreign(path)?;
    if path.try_exists().is_ok_and(|there| !there) { Ok(Config::default()) } else { load(path) }
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let kind =
        std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !kind.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let main = path.join("netsilo.toml");
    let mut files = if main.exists() { vec![main] } else { Vec::new() };
    let more = path.join("conf.d");
    refuse_foreign(&more)?;
    if more.is_dir() {
        let entries =
            std::fs::read_dir(&more).with_context(|| format!("cannot list {}", more.display()))?;
        let mut names =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
        names.retain(|name| name.extension().is_some_and(|extension| extension == "toml"));
        names.sort_unstable();
        files.append(&mut names);
    }
    Ok(files)
}

/// Replaces `value` if there is a new value.
fn set<T>(value: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *value = new;
    }
}

impl Config {
    /// Overrides values with those of one more file.
    fn take(&mut self, file: file::File) {
        set(&mut self.interval, file.interval);
        set(&mut self.window, file.window);
        set(&mut self.budget, file.budget);
        set(&mut self.bpf, file.bpf);
        set(&mut self.hints, file.hints);
        set(&mut self.hints_only, file.hints_only);
        set(&mut self.restore_on_exit, file.restore_on_exit);
        set(&mut self.metrics, file.metrics);
        let costs = file.costs.map(|costs| Costs { source: CostSource::Configured, ..costs });
        self.costs = costs.or(self.costs.take());
        set(&mut self.manage, file.goal.manage);
        set(&mut self.outcomes, file.goal.outcomes);
        self.only_limits &= file.goal.only_limit();
        self.policy.goal = file.goal.over(take(&mut self.policy.goal));
        self.take_controller(file.controller);
        self.netdevs.extend(file.netdev);
    }

    fn take_controller(&mut self, new: file::Controller) {
        let policy = &mut self.policy;
        set(&mut policy.min_gain, new.min_gain);
        set(&mut policy.dwell, new.dwell);
        set(&mut policy.calm, new.calm);
        set(&mut policy.hold_off, new.hold_off);
        set(&mut policy.hold_off_most, new.hold_off_most);
        set(&mut policy.changes_per_minute, new.changes_per_minute);
        set(&mut policy.verify_windows, new.verify_windows);
        set(&mut policy.worse_by, new.worse_by);
        let how_long = |leave| match leave {
            Yield::Forever => None,
            Yield::For(time) => Some(time),
        };
        set(&mut policy.yield_for, new.yield_for.map(how_long));
    }

    /// Checks conditions that involve more than one key.
    fn check(&self) -> Result<()> {
        if let BpfWindow::Last(window) = self.window {
            let shown = humantime::format_duration;
            anyhow::ensure!(
                window <= self.interval,
                "window ({}) is longer than interval ({}): shorten it, or set it to \"always\"",
                shown(window),
                shown(self.interval)
            );
        }
        if let Some(wrong) = self.costs.as_ref().and_then(|costs| costs.check().err()) {
            anyhow::bail!("costs: {wrong}");
        }
        let Policy { hold_off, hold_off_most, .. } = &self.policy;
        anyhow::ensure!(
            hold_off <= hold_off_most,
            "controller.hold-off is longer than controller.hold-off-most"
        );
        anyhow::ensure!(
            self.hints || !self.hints_only,
            "hints-only without hints writes nothing: set hints = true"
        );
        Ok(())
    }

    /// Whether the daemon writes knobs of netdevs that no rule names.
    pub(crate) fn writes(&self) -> bool {
        self.manage && !self.hints_only
    }

    /// Returns how eBPF is attached in each cycle.
    pub(crate) fn counting(&self) -> CountingMode {
        match self.window {
            _ if !self.bpf => CountingMode::WithoutBpf,
            BpfWindow::Always => CountingMode::Continuous,
            BpfWindow::Last(length) => CountingMode::Windows(length),
        }
    }

    /// Returns the maximum time that eBPF is attached in a cycle, and the share of the machine's
    /// CPU time that limits it. With `window = "always"` there is no limit.
    pub(crate) fn window_and_budget(&self) -> (Duration, Option<f64>) {
        match self.window {
            BpfWindow::Always => (self.interval, None),
            BpfWindow::Last(length) => (length, self.budget.limit()),
        }
    }

    /// Returns the policy of the controller, before any netdev is known.
    pub(crate) fn policy(&self) -> Policy {
        self.policy.clone()
    }

    /// Returns the goal for these netdevs. Its weights are the configured ones, or else `costs`.
    pub(crate) fn goal(&self, netdevs: &[Netdev], costs: &Costs) -> Goal {
        let costs = self.costs.as_ref().unwrap_or(costs);
        let overrides = netdevs.iter().flat_map(|netdev| self.overrides(netdev)).collect();
        Goal { overrides, costs: costs.clone(), ..self.policy.goal.clone() }
    }

    /// Whether plans of a goal for these netdevs follow measured outcomes. They do not if the
    /// configuration chooses an algorithm or sets knobs.
    pub(crate) fn follows_outcomes(&self, goal: &Goal) -> bool {
        let chooses = |it: &Override| it.algorithm.is_some();
        self.outcomes && self.only_limits && !goal.overrides.iter().any(chooses)
    }

    /// Overrides for one netdev. The last rule that matches it applies. The overrides of its queues
    /// come first, because the first matching override applies.
    fn overrides(&self, netdev: &Netdev) -> Vec<Override> {
        let all =
            Override { netdev: netdev.name.clone(), leave: !self.manage, ..Override::default() };
        let Some(rule) = self.netdevs.iter().rev().find(|rule| rule.fits(netdev)) else {
            return if self.manage { Vec::new() } else { vec![all] };
        };
        let leave = !rule.manage.unwrap_or(true);
        let all = Override { algorithm: rule.algorithm, cpus: rule.cpus.clone(), leave, ..all };
        let queues = rule.queue.iter().rev().map(|queue| Override {
            queues: Some(queue.queues.clone()),
            algorithm: queue.algorithm.or(all.algorithm),
            cpus: queue.cpus.clone().or(all.cpus.clone()),
            leave: queue.manage.map_or(all.leave, |manage| !manage),
            ..all.clone()
        });
        queues.chain([all.clone()]).collect()
    }
}

impl file::Netdev {
    /// Whether a netdev meets all conditions of the rule.
    fn fits(&self, netdev: &Netdev) -> bool {
        let fits = |pattern: &Option<glob::Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
        };
        fits(&self.name, Some(&netdev.name))
            && fits(&self.driver, netdev.driver.as_deref())
            && fits(&self.path, netdev.device_path.as_deref())
            && self.mac.as_ref().is_none_or(|mac| {
                netdev.mac.as_ref().is_some_and(|it| it.eq_ignore_ascii_case(mac))
            })
    }
}
