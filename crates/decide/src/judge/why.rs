//! Why a CPU is busy with softirqs and interrupts: what put the work there, and why exactly there.
//!
//! Causes are in the order of the time that they take; where time is not measured by cause, it is
//! shared out by packets and marked as estimated. A queue, a netdev or an interrupt can be asked
//! for as well.

mod chain;
mod cpu;

use std::fmt;
use std::str::FromStr;

use netsilo_model::derive::cpu_time::CpuSplit;
use netsilo_model::derive::rates::rates;
use netsilo_model::derive::silo::{Silo, silos};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::snapshot::observation::Observation;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::Evidence;

pub use chain::queue_chain;
pub(crate) use cpu::ksoftirqd;

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A CPU: `cpu3`, `3`.
    Cpu(CpuId),
    /// An interrupt: `irq27`.
    Irq(Irq),
    /// A netdev, or one of its rx queues: `eth0`, `eth0 rx-3`, `eth0/rx-3`.
    Netdev(String, Option<u32>),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// What was asked about, as people call it.
    pub subject: String,
    /// Time between the two looks, in seconds.
    pub elapsed_s: f64,
    /// What the CPU spent its time with; `None` when another thing was asked about.
    pub cpu: Option<CpuWhy>,
    /// What is done, where it takes most time first.
    pub causes: Vec<Cause>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// What a CPU spent its time with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuWhy {
    /// The CPU.
    pub cpu: CpuId,
    /// Its SMT siblings, itself included.
    pub core: CpuSet,
    /// Its NUMA node.
    pub node: Option<NodeId>,
    /// By clock ticks, and measured.
    pub split: CpuSplit,
    /// How the two differ, where that misleads.
    pub difference: Option<String>,
    /// What its ksoftirqd did; `None` when not known.
    pub ksoftirqd: Option<Ksoftirqd>,
}

/// What a ksoftirqd did, in shares of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ksoftirqd {
    /// It ran: softirq work that did not end where it began.
    pub ran: f64,
    /// It waited for its turn behind other threads, and all softirq work of the CPU with it.
    pub waited: f64,
}

/// Something that takes a CPU's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// What (`eth0 rx-3`, `packets of RPS, loopback and veth`).
    pub what: String,
    /// Share of the CPU's time; `None` when nothing tells.
    pub share: Option<f64>,
    /// The share is not measured but reckoned, by packets or interrupts.
    pub estimated: bool,
    /// Its numbers.
    pub evidence: Vec<Evidence>,
    /// Why it is there, step by step.
    pub because: Vec<Because>,
}

/// One step of a reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    /// What is so.
    pub text: String,
    /// Who says so: a file, a hook, or a function of the kernel.
    pub source: String,
}

impl Because {
    fn new(text: impl Into<String>, source: impl Into<String>) -> Self {
        Self { text: text.into(), source: source.into() }
    }
}

/// It is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhyError {
    /// A CPU that is not online.
    #[error("cpu {0} is not online: {1} are")]
    NoCpu(CpuId, CpuSet),
    /// An interrupt that nobody requested.
    #[error("irq {0} is not there: netsilo show lists those of netdevs")]
    NoIrq(Irq),
    /// A netdev that is not there.
    #[error("no netdev is called {0:?}: {1} are there")]
    NoNetdev(String, String),
    /// A queue that is not there.
    #[error("{0} has no rx-{1}: its rx queues are {2}")]
    NoQueue(String, u32, CpuSet),
}

/// Why it is busy, or where it is: by what was observed.
pub fn why(observation: &Observation, subject: &Subject) -> Result<Why, WhyError> {
    let rates = rates(&observation.before, &observation.after);
    let silos = silos(observation, &rates);
    let look = chain::Look { observation, rates: &rates, silos: &silos };
    let after = &observation.after;
    let (cpu, causes) = match subject {
        Subject::Cpu(cpu) if !after.topology.online.contains(*cpu) => {
            return Err(WhyError::NoCpu(*cpu, after.topology.online.clone()));
        }
        Subject::Cpu(cpu) => (Some(cpu::cpu_why(&look, *cpu)), cpu::causes(&look, *cpu)),
        Subject::Irq(irq) => {
            let of_irq = |silo: &&Silo| silo.irq.as_ref().is_some_and(|edge| edge.to == *irq);
            let mut causes = queues(&look, silos.queues.iter().filter(of_irq));
            if causes.is_empty() {
                causes.push(chain::interrupt(&look, *irq).ok_or(WhyError::NoIrq(*irq))?);
            }
            (None, causes)
        }
        Subject::Netdev(name, queue) => {
            let of_netdev = || silos.queues.iter().filter(|silo| silo.netdev.name == *name);
            if !after.netdevs.iter().any(|netdev| netdev.name == *name) {
                let names: Vec<&str> =
                    after.netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
                return Err(WhyError::NoNetdev(name.clone(), names.join(", ")));
            }
            let causes =
                queues(&look, of_netdev().filter(|silo| queue.is_none() || silo.queue == *queue));
            if let (Some(queue), true) = (queue, causes.is_empty()) {
                let queues = of_netdev().filter_map(|silo| silo.queue).map(CpuId).collect();
                return Err(WhyError::NoQueue(name.clone(), *queue, queues));
            }
            (None, causes)
        }
    };
    let notes = netsilo_model::derive::notes::notes(observation, &rates, &silos);
    Ok(Why {
        subject: subject.to_string(),
        elapsed_s: rates.elapsed.as_secs_f64(),
        cpu,
        causes,
        notes,
    })
}

/// Each queue where it is polled most, the dearest first.
fn queues<'a>(look: &chain::Look<'_>, silos: impl Iterator<Item = &'a Silo>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = silos.map(|silo| chain::queue_anywhere(look, silo)).collect();
    heaviest_first(&mut causes);
    causes
}

/// In the order of time taken; what is not known comes last.
fn heaviest_first(causes: &mut [Cause]) {
    causes.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
}

/// Neither a CPU nor an interrupt nor a netdev's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected cpu3, irq27, eth0 or eth0/rx-3, found {0:?}")]
pub struct UnknownSubject(String);

impl FromStr for Subject {
    type Err = UnknownSubject;

    fn from_str(text: &str) -> Result<Self, UnknownSubject> {
        let unknown = || UnknownSubject(text.to_owned());
        let number = |prefix: &str| {
            text.strip_prefix(prefix).map(str::trim).and_then(|rest| rest.parse().ok())
        };
        if let Some(cpu) = number("cpu").or_else(|| number("")) {
            return Ok(Self::Cpu(CpuId(cpu)));
        }
        if let Some(irq) = number("irq") {
            return Ok(Self::Irq(Irq(irq)));
        }
        match text.split_once(['/', ' ']) {
            Some((netdev, queue)) => {
                let queue = queue.trim().strip_prefix("rx-").and_then(|queue| queue.parse().ok());
                Ok(Self::Netdev(netdev.to_owned(), Some(queue.ok_or_else(unknown)?)))
            }
            None if text.is_empty() => Err(unknown()),
            None => Ok(Self::Netdev(text.to_owned(), None)),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "cpu{cpu}"),
            Self::Irq(irq) => write!(f, "irq{irq}"),
            Self::Netdev(netdev, Some(queue)) => write!(f, "{netdev} rx-{queue}"),
            Self::Netdev(netdev, None) => f.write_str(netdev),
        }
    }
}

#[cfg(test)]
mod tests;
