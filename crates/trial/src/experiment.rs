//! An experiment: settings compared under loads, in rounds. What is to be tried and in which order,
//! and what is written of it.
//!
//! In each round every setting meets every load once. A coin decides the order of the loads, and of
//! the settings under each load, so that what drifts meets all alike; what is compared was measured
//! within one load of one round, one right after the other. A run on disk is a folder:
//! [`EXPERIMENT`] is an [`Experiment`], [`RECORDS`] a [`Record`] a line in the order in which they
//! came.

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

/// The file that says what was to be tried: an [`Experiment`].
pub const EXPERIMENT: &str = "experiment.json";

/// The file of what came of it: JSON lines, each a [`Record`].
pub const RECORDS: &str = "records.jsonl";

/// The file with the exact commands, for people.
pub const COMMANDS: &str = "commands.txt";

/// The file that holds the machine under test as it was found, as `netsilo capture` writes it.
pub const MACHINE: &str = "machine.tar.zst";

/// Which experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Settings under requests and responses of several sizes and numbers of instances.
    Matrix,
    /// A machine between two others.
    Forward,
    /// One way, as much as goes: MTUs, sizes, offloads, buffers.
    Stream,
    /// One stream whose interrupt is put near its reader and far from it.
    Silo,
    /// RPS in a guest with few CPUs that a service keeps busy.
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

/// What is to be tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Of this form.
    pub version: u32,
    /// Which one.
    pub kind: Kind,
    /// netsilo's version.
    pub netsilo: String,
    /// The command as it was typed.
    pub command: Vec<String>,
    /// When it began, in seconds since 1970.
    pub started_s: u64,
    /// What is compared; the others are compared with the first.
    pub settings: Vec<Setting>,
    /// Under what.
    pub loads: Vec<Load>,
    /// How often each setting meets each load.
    pub rounds: u32,
    /// How long the machine rests before each trial.
    pub pause: Duration,
    /// Where the random numbers begin that put it in order.
    pub seed: u64,
    /// The machine under test.
    pub machine: Machine,
}

/// A few words about the machine under test; the bundle beside it has the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// Online CPUs.
    pub cpus: u32,
    /// The CPUs' model, as the kernel tells it.
    pub model: Option<String>,
    /// The netdevs under test with driver and rx queues (`eth0: igb, 8 rx queues`).
    pub netdevs: Vec<String>,
    /// Those of a machine between whose received packets are counted, by name.
    pub counted: Vec<String>,
    /// Why times and shares of time mean nothing here (`CPUs are emulated`), counts do; `None`
    /// where they mean something.
    pub times_mean_nothing: Option<String>,
}

/// A state of the machine under test: what is written before a trial, and taken back after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Its name (`rps+rfs`).
    pub name: String,
    /// What it does, in a line.
    pub what: String,
    /// What is written; of a command, what it was seen to change.
    pub changes: Vec<Change>,
    /// The command that changes it (`sh`'s words), where netsilo does not.
    pub command: Option<String>,
}

/// What the machine under test is put under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Its name (`TCP_RR 256 B x 500`, `bridge, two-way`).
    pub name: String,
    /// What is sent.
    pub spec: Spec,
    /// How many senders at once, each sending that: two for both ways, or for two senders to one
    /// receiver.
    pub senders: u32,
    /// The machine under test drops it where it comes in, before connection tracking, routing and
    /// bridging: nothing arrives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_drop: bool,
}

/// One line of [`RECORDS`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A setting met a load.
    Trial(Box<Trial>),
    /// Who processes and who reads, under a setting and a load; in a trial of its own that does not
    /// count.
    Map(Box<Map>),
    /// A setting met a load, and there is no result.
    Failed(Failed),
}

/// A place in the order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Step {
    /// Which round, from 0.
    pub round: u32,
    /// The load's name.
    pub load: String,
    /// The setting's name.
    pub setting: String,
}

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Which one.
    #[serde(flatten)]
    pub step: Step,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// What each sender and its receiver measured.
    pub runs: Vec<Run>,
    /// What the machine under test did meanwhile, where it is neither sender nor receiver; else it
    /// is the runs' server.
    pub between: Option<Side>,
}

/// The silos under a setting and a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The load's name.
    pub load: String,
    /// The setting's name.
    pub setting: String,
    /// Which queue is processed where, and who reads it.
    pub silos: Silos,
    /// Where receive work spends its time, seen in another such trial; `None` where that was not
    /// asked for.
    #[serde(default)]
    pub sampled: Option<Sampled>,
}

/// A step without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which one.
    #[serde(flatten)]
    pub step: Step,
    /// Why.
    pub why: String,
}

impl Experiment {
    /// All steps in the order in which they are to be made.
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

    /// What is left to do after these records, in order. One without a result is tried again.
    pub fn left(&self, records: &[Record]) -> Vec<Step> {
        let done: BTreeSet<&Step> = records.iter().filter_map(Record::done).collect();
        self.steps().into_iter().filter(|step| !done.contains(step)).collect()
    }

    /// Names that are there twice, or a form that is not known: such a file is of no use.
    pub fn check(&self) -> Result<(), String> {
        if self.version != 1 {
            return Err(format!("version {} is not known, 1 is", self.version));
        }
        let mut names = BTreeSet::new();
        let settings = self.settings.iter().map(|it| ("setting", &it.name));
        let twice = settings
            .chain(self.loads.iter().map(|it| ("load", &it.name)))
            .find(|name| !names.insert(*name));
        if let Some((what, name)) = twice {
            return Err(format!("the {what} {name} is there twice"));
        }
        if self.settings.is_empty() || self.loads.is_empty() || self.rounds == 0 {
            return Err("nothing is to be tried: it needs a setting, a load and a round".into());
        }
        self.loads.iter().try_for_each(|load| {
            load.spec.check().map_err(|why| format!("load {}: {why}", load.name))
        })
    }
}

impl Record {
    /// The step that it has a result of.
    fn done(&self) -> Option<&Step> {
        match self {
            Self::Trial(trial) => Some(&trial.step),
            Self::Map(_) | Self::Failed(_) => None,
        }
    }
}

impl Trial {
    /// What the machine under test did; `None` where nothing was measured of it.
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
            version: 1,
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
    fn each_setting_meets_each_load_once_a_round_and_those_of_a_load_are_neighbours() {
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
    fn what_has_a_result_is_not_done_again() {
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
    fn a_file_that_contradicts_itself_is_refused() {
        assert_eq!(experiment().check(), Ok(()));
        let wrong = |change: fn(&mut Experiment)| {
            let mut experiment = experiment();
            change(&mut experiment);
            experiment.check().unwrap_err()
        };
        assert_eq!(
            wrong(|it| it.settings[1].name = "none".into()),
            "the setting none is there twice"
        );
        assert_eq!(
            wrong(|it| it.loads.clear()),
            "nothing is to be tried: it needs a setting, a load and a round"
        );
        assert_eq!(
            wrong(|it| it.loads[2].spec.instances = 0),
            "load c: instances must be 1 to 20000, not 0"
        );
        assert_eq!(wrong(|it| it.version = 2), "version 2 is not known, 1 is");
    }

    #[test]
    fn a_record_is_a_line_that_is_read_back() {
        let step = Step { round: 1, load: "a".into(), setting: "none".into() };
        let failed = Record::Failed(Failed { step, why: "a\nb".into() });
        let line = serde_json::to_string(&failed).unwrap();
        assert_eq!(line, r#"{"failed":{"round":1,"load":"a","setting":"none","why":"a\nb"}}"#);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), failed);
        let text = serde_json::to_string(&experiment()).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), experiment());
    }
}
