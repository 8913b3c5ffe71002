//! [`Why`]: an explanation, with its causes and their steps.

use netsilo_model::derive::cpu_time::CpuTimeShares;
use netsilo_model::derive::thread_share::ThreadShare;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::Evidence;

/// The explanation of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Why {
    /// The subject, as it is printed (`cpu3`, `irq27`, `eth0 rx-3`).
    pub subject: Subject,
    /// Time between the two snapshots, in seconds.
    pub elapsed_s: f64,
    /// The CPU's time; `None` if the subject is not a CPU.
    pub cpu: Option<CpuWhy>,
    /// The causes. The one with the most CPU time comes first.
    pub causes: Vec<LoadCause>,
    /// Notes on the measurement.
    pub notes: Vec<String>,
}

/// How a CPU spent its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuWhy {
    /// The CPU.
    pub cpu: CpuId,
    /// The CPUs of its core, including itself.
    pub core: CpuSet,
    /// Its NUMA node.
    pub node: Option<NodeId>,
    /// Its time by clock ticks, and as measured.
    pub split: CpuTimeShares,
    /// How the two differ, if the clock ticks are misleading.
    pub difference: Option<String>,
    /// The activity of its ksoftirqd; `None` if not known.
    pub ksoftirqd: Option<ThreadShare>,
}

/// One cause of a CPU's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadCause {
    /// Its name (`eth0 rx-3`, `backlog (RPS, loopback, veth)`).
    #[serde(rename = "what")]
    pub name: String,
    /// Share of the CPU's time; `None` if not known.
    pub share: Option<f64>,
    /// Whether the share is not measured but estimated, by packets or interrupts.
    pub estimated: bool,
    /// The measurements of the cause.
    pub evidence: Vec<Evidence>,
    /// Why the work runs on this CPU.
    #[serde(rename = "because")]
    pub steps: Vec<Fact>,
}

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fact {
    /// The fact.
    pub text: String,
    /// Its source: a file, a hook, or a kernel function.
    pub source: String,
}

impl Fact {
    pub(super) fn new(text: impl Into<String>, source: impl Into<String>) -> Self {
        Self { text: text.into(), source: source.into() }
    }
}

/// The subject does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The CPU is not online.
    #[error("cpu {0} is not online: the online cpus are {1}")]
    NoCpu(CpuId, CpuSet),
    /// No driver has requested the interrupt.
    #[error("irq {0} does not exist: netsilo show lists the interrupts of netdevs")]
    NoIrq(Irq),
    /// There is no such netdev, and no process of this name was seen to read.
    #[error(
        "no finding (netsilo explain) and no netdev ({1}) is called {0:?}, and no process of this \
         name was seen to read"
    )]
    NoNetdev(String, String),
    /// The rx queue does not exist.
    #[error("{0} has no rx-{1}: its rx queues are {2}")]
    NoQueue(String, u32, CpuSet),
    /// Not a CPU, interrupt, netdev or rx queue.
    #[error("expected cpu3, irq27, eth0, eth0/rx-3 or a process, found {:?}", .0.to_string())]
    NotExplained(Subject),
}

/// Sorts causes by CPU time, largest first. Unknown shares come last.
pub(super) fn heaviest_first(causes: &mut [LoadCause]) {
    causes.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
}
