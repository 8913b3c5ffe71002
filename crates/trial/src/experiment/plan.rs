//! The plan of an experiment: its settings, its loads, and the order of its steps.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use netsilo_model::change::Change;
use serde::{Deserialize, Serialize};

use crate::traffic::Spec;

/// The newest schema of [`Experiment`] that this netsilo reads; the one that it writes.
pub const SCHEMA: u32 = 1;

/// The plan of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of its definition (`matrix`).
    pub kind: String,
    /// Version of netsilo.
    pub netsilo: String,
    /// The command line.
    pub command: Vec<String>,
    /// Start time, in seconds since 1970.
    pub started_s: u64,
    /// The settings. The others are compared with the first.
    pub settings: Vec<Setting>,
    /// The loads.
    pub loads: Vec<Load>,
    /// Number of rounds. Each setting meets each load once per round.
    pub rounds: u32,
    /// Idle time of the machine before each trial.
    pub pause: Duration,
    /// Seed of the random order.
    pub seed: u64,
    /// The machine under test.
    pub machine: MachineSummary,
}

/// A summary of the machine under test. The bundle in the same folder has the details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineSummary {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// Number of online CPUs.
    pub cpus: u32,
    /// CPU model, as the kernel reports it.
    pub model: Option<String>,
    /// Netdevs under test with driver and rx queues (`eth0: igb, 8 rx queues`).
    pub netdevs: Vec<String>,
    /// Names of the netdevs of a forwarding machine whose received packets are counted.
    pub counted: Vec<String>,
    /// Why times and time shares are meaningless here although counts are not (`CPUs are
    /// emulated`); `None` if times are valid.
    #[serde(rename = "times_invalid")]
    pub times_invalid: Option<String>,
}

/// A state of the machine under test, applied before a trial and reverted after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name (`rps+rfs`).
    pub name: String,
    /// One-line description.
    pub what: String,
    /// The changes to write. For a command, the changes that it was observed to make.
    pub changes: Vec<Change>,
    /// The command for `sh` that applies the setting, if netsilo does not.
    pub command: Option<String>,
}

/// The load on the machine under test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Name (`TCP_RR 256 B x 500`, `bridge, two-way`).
    pub name: String,
    /// The specification of each sender.
    pub spec: Spec,
    /// Number of concurrent senders with this specification: two for both directions, or for two
    /// senders to one receiver.
    pub senders: u32,
    /// Whether the machine under test drops the traffic at ingress, before connection tracking,
    /// routing and bridging. Nothing arrives then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_drop: bool,
}

/// One step of the plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// Round, from 0.
    pub round: u32,
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
}

/// Maximum number of rounds of an experiment, of trials in all rounds, and of senders of a load.
const MOST_ROUNDS: u32 = 10_000;
const MOST_TRIALS: u64 = 1_000_000;
const MOST_SENDERS: u32 = 2;

/// The order of trials as round, load and setting, by index. Each round has every load once, and
/// for each load all settings one after another. The order of both is random.
pub fn order(seed: u64, rounds: u32, loads: usize, settings: usize) -> Vec<(u32, usize, usize)> {
    let mut rng = Rng::with_seed(seed);
    let mut shuffled = |count: usize| {
        let mut all: Vec<usize> = (0..count).collect();
        rng.shuffle(&mut all);
        all
    };
    let mut steps = Vec::new();
    for round in 0..rounds {
        for load in shuffled(loads) {
            steps.extend(shuffled(settings).into_iter().map(|setting| (round, load, setting)));
        }
    }
    steps
}

impl Experiment {
    /// All steps in execution order.
    pub fn steps(&self) -> Vec<Step> {
        let order = order(self.seed, self.rounds, self.loads.len(), self.settings.len());
        let step = |(round, load, setting): (u32, usize, usize)| Step {
            round,
            load: self.loads[load].name.clone(),
            setting: self.settings[setting].name.clone(),
        };
        order.into_iter().map(step).collect()
    }

    /// Checks the plan, which may come from a stranger. Fails for duplicate names, nothing to run,
    /// or unreasonable numbers.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let settings = self.settings.iter().map(|it| ("setting", &it.name));
        let twice = settings
            .chain(self.loads.iter().map(|it| ("load", &it.name)))
            .find(|name| !names.insert(*name));
        if let Some((what, name)) = twice {
            return Err(format!("duplicate {what} {name}"));
        }
        if self.settings.is_empty() || self.loads.is_empty() || self.rounds == 0 {
            return Err("an experiment needs a setting, a load and a round".into());
        }
        let trials = self.settings.len() as u64 * self.loads.len() as u64 * u64::from(self.rounds);
        if self.rounds > MOST_ROUNDS || trials > MOST_TRIALS {
            return Err(format!(
                "{} rounds of {trials} trials: at most {MOST_ROUNDS} and {MOST_TRIALS} are read",
                self.rounds
            ));
        }
        self.loads.iter().try_for_each(|load| {
            if !(1..=MOST_SENDERS).contains(&load.senders) {
                return Err(format!("load {}: senders must be 1 or 2", load.name));
            }
            load.spec.check().map_err(|why| format!("load {}: {why}", load.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::samples::experiment;

    #[test]
    fn each_round_has_every_setting_and_load_once_grouped_by_load() {
        let steps = experiment().steps();
        assert_eq!(steps.iter().collect::<BTreeSet<_>>().len(), 3 * 3 * 4);
        assert!(steps.is_sorted_by_key(|step| step.round));
        assert!(steps.chunks(4).all(|four| four.iter().all(|step| step.load == four[0].load)));
        let orders: BTreeSet<Vec<&str>> = steps
            .chunks(4)
            .map(|four| four.iter().map(|step| step.setting.as_str()).collect())
            .collect();
        assert!(orders.len() > 4, "always in the same order: {orders:?}");
        assert_eq!(steps, experiment().steps());
        assert_ne!(steps, Experiment { seed: 8, ..experiment() }.steps());
    }

    #[test]
    fn an_inconsistent_file_is_an_error() {
        assert_eq!(experiment().check(), Ok(()));
        let wrong = |change: fn(&mut Experiment)| {
            let mut experiment = experiment();
            change(&mut experiment);
            experiment.check().unwrap_err()
        };
        assert!(wrong(|it| it.rounds = 1 << 31).contains("at most 10000 and 1000000 are read"));
        assert!(wrong(|it| it.loads[0].senders = u32::MAX).contains("senders must be 1 or 2"));
        assert_eq!(wrong(|it| it.settings[1].name = "none".into()), "duplicate setting none");
        assert_eq!(
            wrong(|it| it.loads.clear()),
            "an experiment needs a setting, a load and a round"
        );
        assert_eq!(
            wrong(|it| it.loads[2].spec.instances = 0),
            "load c: instances must be 1 to 20000, not 0"
        );
    }

    #[test]
    fn a_plan_round_trips() {
        let text = serde_json::to_string(&experiment()).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), experiment());
    }
}
