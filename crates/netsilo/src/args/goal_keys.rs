//! The keys of a goal, from the command line or from section `[goal]` of the configuration.

use std::fmt::Display;

use netsilo_decide::plan::{AlgorithmName, Goal, PortSteering, Xps, goal_text};
use netsilo_model::machine::cpuset::CpuSet;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use crate::args::named;
use crate::args::parse::{cpus_or_off, entries_or_off, on_or_off, some_cpus};

/// The keys that are given; the others keep their values.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct GoalKeys {
    /// Whether netdevs without a rule are placed. Only in a file.
    #[arg(skip)]
    pub(crate) manage: Option<bool>,
    /// Whether plans follow measured outcomes. Only in a file.
    #[arg(skip)]
    pub(crate) outcomes: Option<bool>,
    /// Place only the queues of these netdevs [default: all]
    #[arg(id = "netdev", short, long = "netdev", value_name = "DEV,..", value_delimiter = ',')]
    netdevs: Option<Vec<String>>,
    /// Place only queues that these mostly read: programs, pods (default/web-0), cgroups [default:
    /// all]
    #[arg(long, value_name = "READER,..", value_delimiter = ',')]
    readers: Option<Vec<String>>,
    /// Place only on these CPUs (list or mask) [default: all but isolated and nohz_full]
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    #[serde(deserialize_with = "file_cpus")]
    cpus: Option<CpuSet>,
    /// Never place on these CPUs (list or mask) [default: none]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    #[serde(deserialize_with = "file_cpus_or_off", serialize_with = "cpus_or_off_text")]
    exclude: Option<CpuSet>,
    /// Algorithm that places interrupts [default: auto]
    #[arg(short, long, value_name = "NAME", value_parser = named::algorithms())]
    algorithm: Option<AlgorithmName>,
    /// Do not move interrupts and NAPI kthreads
    #[arg(id = "no_irqs", long = "no-irqs", action = clap::ArgAction::SetFalse)]
    irqs: Option<bool>,
    /// Set RPS: CPUs for every rx queue, or off [default: unchanged]
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    #[serde(deserialize_with = "file_cpus_or_off", serialize_with = "cpus_or_off_text")]
    rps: Option<CpuSet>,
    /// Set RFS: entries of the flow table, divided among the queues, or off [default: unchanged]
    #[arg(long, value_name = "ENTRIES|off", value_parser = entries_or_off)]
    #[serde(deserialize_with = "goal_text::entries", serialize_with = "entries_or_off_text")]
    rfs: Option<u32>,
    /// Set aRFS, where the device steers flows by the RFS table [default: unchanged]
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    arfs: Option<bool>,
    /// Steer flows to a port to these rx queues by rules of the device (443/tcp=2-3) [default:
    /// unchanged]
    #[arg(long, value_name = "PORT/PROTO=QUEUES")]
    steer: Option<Vec<PortSteering>>,
    /// Set XPS: each CPU sends through the nearest tx queue, or off [default: unchanged]
    #[arg(long, value_name = "WHICH", value_parser = named::xps())]
    xps: Option<Xps>,
    /// Set the CPUs of interrupts that are activated later [default: unchanged]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    #[serde(deserialize_with = "file_cpus")]
    default_smp_affinity: Option<CpuSet>,
    /// Set the RPS CPUs of netdevs that appear later (a container's veth), or off [default:
    /// unchanged]
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    #[serde(deserialize_with = "file_cpus_or_off", serialize_with = "cpus_or_off_text")]
    rps_default_mask: Option<CpuSet>,
    /// Plan changes even if another program (irqbalance) writes the same knobs
    #[arg(long, action = clap::ArgAction::SetTrue)]
    even_if_owned: Option<bool>,
}

impl GoalKeys {
    /// Whether knobs that another program writes are planned too.
    pub(crate) fn even_if_owned(&self) -> bool {
        self.even_if_owned == Some(true)
    }

    /// Whether the keys only limit netdevs and CPUs, and let netsilo decide what to place and set.
    pub(crate) fn only_limit(&self) -> bool {
        let limits = Self {
            manage: self.manage,
            outcomes: self.outcomes,
            netdevs: self.netdevs.clone(),
            cpus: self.cpus.clone(),
            exclude: self.exclude.clone(),
            even_if_owned: self.even_if_owned,
            // --no-irqs sets it to false; without --no-irqs, the command line sets it to true
            irqs: self.irqs.filter(|irqs| *irqs),
            ..Self::default()
        };
        *self == limits
    }

    /// Whether interrupts are placed by what netsilo observes: who reads, and what the CPUs do.
    pub(crate) fn follow_the_load(&self) -> bool {
        let is_fixed = [AlgorithmName::Spread, AlgorithmName::DriverHint];
        let chosen = self.algorithm.unwrap_or_default();
        self.readers.is_some() || (self.irqs != Some(false) && !is_fixed.contains(&chosen))
    }

    /// The same keys without those that the command line sets to their defaults.
    pub(crate) fn given(self) -> Self {
        Self {
            irqs: self.irqs.filter(|irqs| !irqs),
            even_if_owned: self.even_if_owned.filter(|owned| *owned),
            ..self
        }
    }

    /// Applies these keys to a goal. Its other keys, overrides and weights stay.
    pub(crate) fn over(self, goal: Goal) -> Goal {
        let Goal { overrides, costs, .. } = goal;
        Goal {
            netdevs: self.netdevs.unwrap_or(goal.netdevs),
            readers: self.readers.unwrap_or(goal.readers),
            cpus: self.cpus.or(goal.cpus),
            exclude: self.exclude.unwrap_or(goal.exclude),
            algorithm: self.algorithm.unwrap_or(goal.algorithm),
            overrides,
            costs,
            irqs: self.irqs.unwrap_or(goal.irqs),
            rps: self.rps.or(goal.rps),
            rfs: self.rfs.or(goal.rfs),
            arfs: self.arfs.or(goal.arfs),
            steer: self.steer.unwrap_or(goal.steer),
            xps: self.xps.or(goal.xps),
            default_smp_affinity: self.default_smp_affinity.or(goal.default_smp_affinity),
            rps_default_mask: self.rps_default_mask.or(goal.rps_default_mask),
            even_if_owned: self.even_if_owned.unwrap_or(goal.even_if_owned),
        }
    }
}

/// Deserializes a text that the command line would parse with `parse`.
fn file_text<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |why| D::Error::custom(format!("{text:?}: {why}"));
    if text.is_empty() {
        return Err(D::Error::custom("\"\": write at least one cpu, or omit the key"));
    }
    parse(&text).map(Some).map_err(wrong)
}

fn file_cpus<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
    file_text(from, some_cpus)
}

fn file_cpus_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
    file_text(from, cpus_or_off)
}

fn cpus_or_off_text<S: Serializer>(cpus: &Option<CpuSet>, to: S) -> Result<S::Ok, S::Error> {
    match cpus {
        Some(cpus) if cpus.is_empty() => to.serialize_str("off"),
        _ => cpus.serialize(to),
    }
}

fn entries_or_off_text<S: Serializer>(entries: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
    if *entries == Some(0) { to.serialize_str("off") } else { entries.serialize(to) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        keys: GoalKeys,
    }

    #[test]
    fn what_is_placed_and_set_is_left_to_netsilo_if_only_netdevs_and_cpus_are_limited() {
        let only_limit = |words: &[&str]| {
            let line = [&["netsilo"], words].concat();
            Line::try_parse_from(line).unwrap().keys.only_limit()
        };
        assert!(only_limit(&[]));
        assert!(only_limit(&["-n", "eth0", "-c", "0-3", "--exclude", "1", "--even-if-owned"]));
        for more in [
            &["-a", "auto"][..],
            &["--readers", "nginx"],
            &["--no-irqs"],
            &["--rps", "off"],
            &["--rfs", "32768"],
            &["--arfs", "on"],
            &["--steer", "443/tcp=2-3"],
            &["--xps", "near"],
            &["--default-smp-affinity", "0-3"],
            &["--rps-default-mask", "off"],
        ] {
            assert!(!only_limit(more), "{more:?}");
        }
    }

    #[test]
    fn what_a_command_line_gives_reads_back_from_a_file() {
        for words in [
            &[][..],
            &["-n", "eth0,eth1", "--readers", "nginx", "-c", "0-3", "-a", "spread"],
            &["--no-irqs", "--rps", "off", "--rfs", "off", "--arfs", "on", "--xps", "near"],
            &["--rps", "0-1", "--rfs", "32k", "--steer", "443/tcp=2-3", "--even-if-owned"],
            &["--default-smp-affinity", "0-3", "--rps-default-mask", "off", "--exclude", "1"],
        ] {
            let line = [&["netsilo"], words].concat();
            let keys = Line::try_parse_from(line).unwrap().keys.given();
            let text = toml::to_string(&keys).unwrap();
            assert_eq!(toml::from_str::<GoalKeys>(&text).unwrap(), keys, "{text}");
        }
    }

    #[test]
    fn only_a_spread_and_what_moves_no_interrupt_needs_no_load() {
        let follows = |words: &[&str]| {
            let line = [&["netsilo"], words].concat();
            Line::try_parse_from(line).unwrap().keys.follow_the_load()
        };
        assert!(follows(&[]) && follows(&["--rps", "0-1"]) && follows(&["-a", "same-cpu"]));
        assert!(follows(&["--no-irqs", "--rps", "0-1", "--readers", "nginx"]));
        assert!(!follows(&["--no-irqs", "--rps", "0-1"]) && !follows(&["-a", "spread"]));
    }
}
