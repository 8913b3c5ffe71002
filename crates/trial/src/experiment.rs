//! An experiment: settings compared under loads, in rounds; its plan and its files.
//!
//! In each round every setting meets every load once. The order of the loads, and of the settings
//! under each load, is random, so that drift affects all settings alike. Only trials of one load in
//! one round are compared, which ran directly after each other. A run on disk is a folder:
//! [`EXPERIMENT`] is an [`Experiment`]; [`RECORDS`] has one [`Record`] per line in order of
//! completion.

pub mod flow_map;
pub mod latency;
pub mod measure;
pub mod results;
pub mod stage_costs;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use netsilo_model::change::Change;
use netsilo_model::derive::silo::Silos;
use serde::{Deserialize, Serialize};
use stage_costs::Sampled;

use crate::traffic::{Run, Side, Spec};

/// The file with the plan: an [`Experiment`].
pub const EXPERIMENT: &str = "experiment.json";

/// The file with the results: JSON lines, each a [`Record`].
pub const RECORDS: &str = "records.jsonl";

/// The file with the exact commands, for the user.
pub const COMMANDS: &str = "commands.txt";

/// The file with the initial state of the machine under test, as `netsilo capture` writes it.
pub const MACHINE: &str = "machine.tar.zst";

/// The kind of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Settings under requests and responses of several sizes and instance counts.
    Matrix,
    /// A machine that forwards between two others.
    Forward,
    /// One-way streams: MTUs, sizes, offloads, buffers.
    Stream,
    /// One stream whose interrupt is placed near its reader and far from it.
    Silo,
    /// RPS in a guest with few CPUs, busy with a service.
    RpsGuest,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Matrix => "matrix",
            Self::Forward => "forward",
            Self::Stream => "stream",
            Self::Silo => "silo",
            Self::RpsGuest => "rps-guest",
        })
    }
}

/// The plan of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Schema number of the JSON.
    pub schema: u32,
    /// Kind of experiment.
    pub kind: Kind,
    /// Version of netsilo.
    pub netsilo: String,
    /// The command line.
    pub command: Vec<String>,
    /// Start time, in seconds since 1970.
    pub started_s: u64,
    /// The settings; the others are compared with the first.
    pub settings: Vec<Setting>,
    /// The loads.
    pub loads: Vec<Load>,
    /// Number of rounds; each setting meets each load once per round.
    pub rounds: u32,
    /// Idle time of the machine before each trial.
    pub pause: Duration,
    /// Seed of the random order.
    pub seed: u64,
    /// The machine under test.
    pub machine: Machine,
}

/// A summary of the machine under test; the bundle in the same folder has the details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
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
    /// Why times and time shares are meaningless here, but counts are not (`CPUs are emulated`);
    /// `None` when times are valid.
    pub times_mean_nothing: Option<String>,
}

/// A state of the machine under test, applied before a trial and reverted after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name (`rps+rfs`).
    pub name: String,
    /// One-line description.
    pub what: String,
    /// The changes to write; for a command, the changes that it was observed to make.
    pub changes: Vec<Change>,
    /// The command for `sh` that applies it, when netsilo does not.
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
    /// routing and bridging: nothing arrives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_drop: bool,
}

/// One line of [`RECORDS`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The result of a trial.
    Trial(Box<Trial>),
    /// The silos under a setting and a load, from a separate trial that does not count.
    Map(Box<Map>),
    /// A trial without a result.
    Failed(Failed),
}

/// One step of the plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Step {
    /// Round, from 0.
    pub round: u32,
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// Start time, in milliseconds since 1970.
    pub started_ms: u64,
    /// The measurements of each sender and its receiver.
    pub runs: Vec<Run>,
    /// The machine under test when it is neither sender nor receiver; otherwise it is the server of
    /// the runs.
    pub between: Option<Side>,
}

/// The silos under a setting and a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
    /// Where each queue is processed and who reads it.
    pub silos: Silos,
    /// Where receive work spends its time, from another such trial; `None` when not requested.
    #[serde(default)]
    pub sampled: Option<Sampled>,
}

/// A step without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// The reason.
    pub why: String,
}

impl Experiment {
    /// All steps in execution order.
    pub fn steps(&self) -> Vec<Step> {
        let mut rng = Rng::with_seed(self.seed);
        let mut steps = Vec::new();
        for round in 0..self.rounds {
            let mut loads: Vec<&Load> = self.loads.iter().collect();
            rng.shuffle(&mut loads);
            for load in loads {
                let mut settings: Vec<&Setting> = self.settings.iter().collect();
                rng.shuffle(&mut settings);
                let step = |setting: &Setting| Step {
                    round,
                    load: load.name.clone(),
                    setting: setting.name.clone(),
                };
                steps.extend(settings.into_iter().map(step));
            }
        }
        steps
    }

    /// The remaining steps after these records, in order; a step without a result is repeated.
    pub fn left(&self, records: &[Record]) -> Vec<Step> {
        let done: BTreeSet<&Step> = records.iter().filter_map(Record::done).collect();
        self.steps().into_iter().filter(|step| !done.contains(step)).collect()
    }

    /// Checks the plan: error for an unknown schema, duplicate names, or nothing to run.
    pub fn check(&self) -> Result<(), String> {
        if self.schema != 1 {
            return Err(format!("unknown schema {}: this netsilo reads schema 1", self.schema));
        }
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
        self.loads.iter().try_for_each(|load| {
            load.spec.check().map_err(|why| format!("load {}: {why}", load.name))
        })
    }
}

impl Record {
    /// The step for which this record has a result.
    fn done(&self) -> Option<&Step> {
        match self {
            Self::Trial(trial) => Some(&trial.step),
            Self::Map(_) | Self::Failed(_) => None,
        }
    }
}

impl Trial {
    /// The machine under test; `None` when it was not measured.
    pub fn under_test(&self) -> Option<&Side> {
        self.between.as_ref().or_else(|| self.runs.first().map(|run| &run.server.side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Test;

    fn experiment() -> Experiment {
        let setting = |name: &str| Setting {
            name: name.into(),
            what: String::new(),
            changes: vec![],
            command: None,
        };
        let load = |name: &str| Load {
            name: name.into(),
            spec: Spec::usual(Test::TcpRr, Duration::from_secs(1)),
            senders: 1,
            early_drop: false,
        };
        Experiment {
            schema: 1,
            kind: Kind::Matrix,
            netsilo: "0".into(),
            command: vec![],
            started_s: 0,
            settings: ["none", "irq-affinity", "rps+rfs", "both"].map(setting).into(),
            loads: ["a", "b", "c"].map(load).into(),
            rounds: 3,
            pause: Duration::ZERO,
            seed: 7,
            machine: Machine::default(),
        }
    }

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
    fn a_step_with_a_result_is_not_repeated() {
        let experiment = experiment();
        let steps = experiment.steps();
        let done = |step: &Step| {
            let trial = Trial { step: step.clone(), started_ms: 0, runs: vec![], between: None };
            Record::Trial(Box::new(trial))
        };
        let failed = Record::Failed(Failed { step: steps[1].clone(), why: "it broke".into() });
        assert_eq!(
            experiment.left(&[done(&steps[0]), failed, done(&steps[2])])[..2],
            [steps[1].clone(), steps[3].clone()]
        );
    }

    #[test]
    fn an_inconsistent_file_is_an_error() {
        assert_eq!(experiment().check(), Ok(()));
        let wrong = |change: fn(&mut Experiment)| {
            let mut experiment = experiment();
            change(&mut experiment);
            experiment.check().unwrap_err()
        };
        assert_eq!(wrong(|it| it.settings[1].name = "none".into()), "duplicate setting none");
        assert_eq!(
            wrong(|it| it.loads.clear()),
            "an experiment needs a setting, a load and a round"
        );
        assert_eq!(
            wrong(|it| it.loads[2].spec.instances = 0),
            "load c: instances must be 1 to 20000, not 0"
        );
        assert_eq!(wrong(|it| it.schema = 2), "unknown schema 2: this netsilo reads schema 1");
    }

    #[test]
    fn a_record_round_trips_as_one_line() {
        let step = Step { round: 1, load: "a".into(), setting: "none".into() };
        let failed = Record::Failed(Failed { step, why: "a\nb".into() });
        let line = serde_json::to_string(&failed).unwrap();
        assert_eq!(line, r#"{"failed":{"round":1,"load":"a","setting":"none","why":"a\nb"}}"#);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), failed);
        let text = serde_json::to_string(&experiment()).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), experiment());
    }
}
