//! The definition of an experiment: a TOML file with the settings to compare, and the loads under
//! which to compare them. The published experiments are definitions inside the program.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use netsilo::args::file::read_configuration;
use netsilo::args::parse;
use netsilo_decide::plan::AlgorithmName;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_trial::experiment::Load;
use netsilo_trial::traffic::{InstancesAs, Spec, Test};
use serde::{Deserialize, Deserializer};

use crate::load_args::{TimeArgs, with_instances};
use crate::offload::Offload;

/// The published experiments by name.
const PUBLISHED: [(&str, &str); 5] = [
    ("matrix", include_str!("definitions/matrix.toml")),
    ("silo", include_str!("definitions/silo.toml")),
    ("stream", include_str!("definitions/stream.toml")),
    ("rps-guest", include_str!("definitions/rps-guest.toml")),
    ("forward", include_str!("definitions/forward.toml")),
];

/// Maximum work per request, in microseconds.
const MOST_WORK_USECS: u64 = 1_000_000;

/// What an experiment compares.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Definition {
    /// What this machine does with the loads.
    #[serde(default)]
    pub(crate) this_machine: Role,
    /// CPU time that this machine's server burns per request, in microseconds.
    #[serde(default)]
    pub(crate) work_usecs: u64,
    /// Whether to find the work per request that keeps the CPUs of this machine busy.
    #[serde(default)]
    pub(crate) work_until_busy: bool,
    /// The CPU on which this machine's server runs. Without it, the scheduler chooses.
    pub(crate) reader: Option<Cpus>,
    /// The settings. The first is the reference.
    #[serde(rename = "setting")]
    pub(crate) settings: Vec<SettingKeys>,
    #[serde(rename = "load")]
    loads: Vec<LoadKeys>,
}

/// What the machine under test does with the loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Its server answers the loads of the peers.
    #[default]
    Receives,
    /// It generates the loads, and the peers answer.
    Sends,
    /// It is between a sender and a receiver.
    Forwards,
}

/// A setting. A setting without further keys writes nothing.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SettingKeys {
    pub(crate) name: String,
    /// One-line description.
    pub(crate) what: Option<String>,
    /// The algorithm that places interrupts. Without it, they stay where they are.
    pub(crate) irqs: Option<AlgorithmName>,
    /// The CPUs on which interrupts are placed. Without it, those of the command line.
    pub(crate) cpus: Option<Cpus>,
    /// The CPUs of RPS for every rx queue.
    pub(crate) rps: Option<Cpus>,
    /// Entries of the RFS flow table, if this network namespace has one.
    pub(crate) rfs: Option<u32>,
    /// Whether each netdev gets as many queues as it supports.
    #[serde(default)]
    pub(crate) most_queues: bool,
    /// The offload that is switched to its opposite state.
    pub(crate) offload: Option<Offload>,
    /// A command for `sh`. The setting is what the command changes.
    pub(crate) command: Option<String>,
}

/// How a setting gets its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way<'a> {
    /// It has none.
    Nothing,
    /// `irqs`, `cpus`, `rps` and `rfs` are a goal.
    Planned,
    MostQueues,
    Offload(Offload),
    Command(&'a str),
}

impl SettingKeys {
    /// How the setting gets its changes. Fails if its keys exclude each other.
    pub(crate) fn way(&self) -> Result<Way<'_>> {
        let Self { name, irqs, cpus, rps, rfs, most_queues, offload, command, .. } = self;
        ensure!(cpus.is_none() || irqs.is_some(), "setting {name}: cpus needs irqs");
        let ways = [
            (irqs.is_some() || rps.is_some() || rfs.is_some()).then_some(Way::Planned),
            most_queues.then_some(Way::MostQueues),
            offload.map(Way::Offload),
            command.as_deref().map(Way::Command),
        ];
        let mut ways = ways.into_iter().flatten();
        let way = ways.next().unwrap_or(Way::Nothing);
        ensure!(
            ways.next().is_none(),
            "setting {name}: irqs, rps and rfs, most-queues, offload, and command exclude each \
             other: write one setting for each"
        );
        Ok(way)
    }
}

/// CPUs by name or number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Cpus {
    /// All CPUs on which receive work may run.
    All,
    /// The first of them.
    First,
    /// The last of them.
    Last,
    /// The one of these CPUs that is farthest from the reader.
    Farthest,
    /// A list or mask; empty for off.
    These(CpuSet),
}

impl TryFrom<String> for Cpus {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(match text.as_str() {
            "all" => Self::All,
            "first" => Self::First,
            "last" => Self::Last,
            "farthest" => Self::Farthest,
            _ => Self::These(parse::cpus_or_off(&text).map_err(|why| format!("{text:?}: {why}"))?),
        })
    }
}

/// Loads: each test with each size, number of instances and number of senders.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LoadKeys {
    /// Name, if it is a single load. Without it, the name is made from the test and the numbers.
    name: Option<String>,
    tests: Vec<Test>,
    /// Bytes of a request and of its response. For a stream, bytes of a send call.
    #[serde(default)]
    bytes: Vec<usize>,
    #[serde(default)]
    instances: Vec<usize>,
    /// Numbers of concurrent senders, 1 or 2.
    #[serde(default = "one_sender")]
    senders: Vec<u32>,
    instances_as: Option<InstancesAs>,
    #[serde(default)]
    zero_copy: bool,
    /// Datagrams per second of each sender. Without it, as many as possible.
    rate: Option<f64>,
    /// Time after which a UDP request counts as lost.
    #[serde(default, deserialize_with = "time")]
    lost_after: Option<Duration>,
    /// Whether this machine drops the packets on arrival.
    #[serde(default)]
    early_drop: bool,
}

fn one_sender() -> Vec<u32> {
    vec![1]
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse::duration(&text).map(Some).map_err(|why| {
        serde::de::Error::custom(format!("{text:?} is not a time (500ms, 2s, 1m): {why}"))
    })
}

/// The names of the published experiments.
pub(crate) fn published() -> String {
    PUBLISHED.map(|(name, _)| name).join(", ")
}

/// Returns the name and the text of a definition: a published one by its name, or a file.
pub(crate) fn text(name_or_file: &str) -> Result<(String, String)> {
    if let Some((name, text)) = PUBLISHED.iter().find(|(name, _)| *name == name_or_file) {
        return Ok(((*name).to_owned(), (*text).to_owned()));
    }
    let path = Path::new(name_or_file);
    let is_file = path.extension().is_some() || path.components().count() > 1;
    ensure!(
        is_file || path.exists(),
        "no published experiment is called {name_or_file}: choose one of {}, or name a file",
        published()
    );
    let name = path.file_stem().and_then(|stem| stem.to_str());
    let name = name.with_context(|| format!("{} has no name", path.display()))?;
    Ok((name.to_owned(), read_configuration(path)?))
}

impl Definition {
    /// Reads and checks a definition.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        let definition: Self = toml::from_str(text).with_context(|| name.to_owned())?;
        definition.check().with_context(|| name.to_owned())?;
        Ok(definition)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.work_usecs <= MOST_WORK_USECS, "work-usecs must be at most {MOST_WORK_USECS}");
        ensure!(
            !self.work_until_busy || (self.work_usecs == 0 && self.this_machine == Role::Receives),
            "work-until-busy needs a machine that receives, and no work-usecs"
        );
        self.settings.iter().try_for_each(|keys| keys.way().map(drop))?;
        let forwards = self.this_machine == Role::Forwards;
        for load in &self.loads {
            if load.early_drop && !forwards {
                bail!("early-drop needs this-machine = \"forwards\"");
            }
            ensure!(
                load.tests.iter().all(|test| !forwards || !test.has_responses()),
                "a machine that forwards is measured under loads in one direction"
            );
        }
        Ok(())
    }

    /// Returns all loads, each with the requested duration.
    pub(crate) fn loads(&self, times: &TimeArgs) -> Vec<Load> {
        self.loads.iter().flat_map(|keys| keys.loads(times)).collect()
    }
}

impl LoadKeys {
    fn loads(&self, times: &TimeArgs) -> Vec<Load> {
        fn each<T: Copy>(given: &[T]) -> Vec<Option<T>> {
            if given.is_empty() { vec![None] } else { given.iter().copied().map(Some).collect() }
        }
        let mut loads = Vec::new();
        for test in &self.tests {
            for bytes in each(&self.bytes) {
                for instances in each(&self.instances) {
                    for senders in &self.senders {
                        let spec = self.spec(*test, bytes, instances, times);
                        let name = || self.numbers(&spec, bytes, *senders);
                        let name = self.name.clone().unwrap_or_else(name);
                        let (senders, early_drop) = (*senders, self.early_drop);
                        loads.push(Load { name, spec, senders, early_drop });
                    }
                }
            }
        }
        loads
    }

    fn spec(
        &self,
        test: Test,
        bytes: Option<usize>,
        instances: Option<usize>,
        times: &TimeArgs,
    ) -> Spec {
        let usual = times.spec(test);
        let instances = instances.unwrap_or(usual.instances);
        let spec = with_instances(usual, instances, self.instances_as);
        let spec = match bytes {
            None => spec,
            Some(bytes) if test.has_responses() => {
                Spec { request_bytes: bytes, response_bytes: bytes, ..spec }
            }
            Some(bytes) => Spec { send_bytes: bytes, ..spec },
        };
        Spec {
            zero_copy: self.zero_copy,
            rate_per_s: self.rate,
            lost_after: self.lost_after.unwrap_or(spec.lost_after),
            ..spec
        }
    }

    /// A name with the numbers that differ between loads: `TCP_STREAM 1024 B x 1, two senders`.
    fn numbers(&self, spec: &Spec, bytes: Option<usize>, senders: u32) -> String {
        let bytes = bytes.map(|bytes| format!(" {bytes} B")).unwrap_or_default();
        let copied = if self.zero_copy { " without a copy" } else { "" };
        let senders = if senders == 2 { ", two senders" } else { "" };
        format!("{}{bytes} x {}{copied}{senders}", spec.test, spec.instances)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn times() -> TimeArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            times: TimeArgs,
        }
        Line::parse_from(["netsilo"]).times
    }

    #[test]
    fn every_published_definition_is_valid() {
        let numbers = PUBLISHED.map(|(name, text)| {
            let definition = Definition::parse(name, text).unwrap();
            let loads = definition.loads(&times());
            loads.iter().for_each(|load| load.spec.check().unwrap());
            (name, definition.settings.len(), loads.len())
        });
        let expected = [
            ("matrix", 5, 12),
            ("silo", 4, 1),
            ("stream", 7, 12),
            ("rps-guest", 4, 1),
            ("forward", 5, 3),
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn the_definition_in_the_documentation_is_valid() {
        let page = include_str!("../../../docs/bench.md");
        let text = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let definition = Definition::parse("docs/bench.md", text).unwrap();
        assert_eq!((definition.settings.len(), definition.loads(&times()).len()), (5, 8));
    }

    #[test]
    fn loads_are_all_combinations_with_a_name_each() {
        let text = "setting = []\n[[load]]\ntests = ['TCP_RR', 'TCP_STREAM']\nbytes = [256]\n\
                    instances = [1, 2]\nsenders = [1, 2]\nlost-after = '5s'";
        let loads = Definition::parse("mine", text).unwrap().loads(&times());
        let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
        assert_eq!(
            (names.len(), names[0], names[7]),
            (8, "TCP_RR 256 B x 1", "TCP_STREAM 256 B x 2, two senders")
        );
        let sizes = |load: &Load| (load.spec.request_bytes, load.spec.send_bytes);
        assert_eq!((sizes(&loads[0]), sizes(&loads[7])), ((256, 131_072), (1, 256)));
        assert_eq!(loads[0].spec.lost_after, Duration::from_secs(5));
    }

    #[test]
    fn a_definition_that_cannot_be_meant_is_refused() {
        let refused = |text: &str| format!("{:#}", Definition::parse("mine", text).unwrap_err());
        let setting = |keys: &str| refused(&format!("load = []\n[[setting]]\nname = 'x'\n{keys}"));
        assert!(setting("rps = '0-1'\ncommand = 'true'").contains("exclude each other"));
        assert!(setting("cpus = 'first'").contains("cpus needs irqs"));
        assert!(setting("irqs = 'magic'").contains("unknown variant `magic`"));
        assert!(setting("rps = 'some'").contains("\"some\""));
        assert!(setting("rpc = 'all'").contains("unknown field `rpc`"));
        let load = |keys: &str| refused(&format!("setting = []\n[[load]]\n{keys}"));
        assert!(load("tests = ['FORWARD']\nearly-drop = true").contains("\"forwards\""));
        assert!(load("tests = ['TCP_RR']\nlost-after = '5'").contains("is not a time"));
        let why = format!("{:#}", text("matrixx").unwrap_err());
        assert!(why.contains("choose one of matrix, silo, stream, rps-guest, forward"), "{why}");
    }
}
