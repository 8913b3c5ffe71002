//! The settings that are compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What users run, and netsilo. `evidence/peers.md` has the rule and the source of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PeerSetting {
    /// Nothing changed
    AsBooted,
    /// Debian's irqbalance, once, under the workload
    Irqbalance,
    /// The sysctls of tuned's profile network-latency
    TunedLatency,
    /// The sysctls of tuned's profile network-throughput
    TunedThroughput,
    /// Queue i on CPU i, as in the scripts of NIC vendors
    Spread,
    /// All interrupts of the NIC on CPU 0
    Cpu0,
    /// As booted, with RPS to all CPUs
    Rps,
    /// The same with RFS
    RpsRfs,
    /// perftune.py in mode mq
    PerftuneMq,
    /// perftune.py in mode sq
    PerftuneSq,
    /// netsilo apply with its default options
    Netsilo,
    /// The placement by netsilo's daemon
    NetsiloRun,
    /// The best setting found by netsilo tune
    NetsiloTune,
}

impl PeerSetting {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AsBooted => "as-booted",
            Self::Irqbalance => "irqbalance",
            Self::TunedLatency => "tuned-latency",
            Self::TunedThroughput => "tuned-throughput",
            Self::Spread => "spread",
            Self::Cpu0 => "cpu0",
            Self::Rps => "rps",
            Self::RpsRfs => "rps-rfs",
            Self::PerftuneMq => "perftune-mq",
            Self::PerftuneSq => "perftune-sq",
            Self::Netsilo => "netsilo",
            Self::NetsiloRun => "netsilo-run",
            Self::NetsiloTune => "netsilo-tune",
        }
    }

    /// Whether it is not one of netsilo's settings.
    pub(crate) fn is_peer(self) -> bool {
        !matches!(self, Self::Netsilo | Self::NetsiloRun | Self::NetsiloTune)
    }
}

/// A state of the knobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// The settings that produce it.
    pub(crate) settings: Vec<PeerSetting>,
    /// The differences from the booted state, by file.
    pub(crate) changes: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_command_line() {
        for setting in PeerSetting::value_variants() {
            assert_eq!(setting.to_possible_value().unwrap().get_name(), setting.name());
            assert_eq!(serde_json::to_value(setting).unwrap(), setting.name());
        }
    }
}
