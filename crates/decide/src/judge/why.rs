//! Explains why a CPU is busy with softirqs and interrupts, or where the work of a queue, a netdev
//! or an interrupt runs.
//!
//! Causes are in descending order of their CPU time. Where time is not measured per cause, it is
//! divided by packets and marked as estimated.

mod chain;
mod cpu;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::cpu_time::CpuSplit;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::Evidence;

pub(crate) use cpu::ksoftirqd;

/// The explanation of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The subject, as it is printed (`cpu3`, `irq27`, `eth0 rx-3`).
    pub subject: Subject,
    /// Time between the two snapshots, in seconds.
    pub elapsed_s: f64,
    /// The CPU's time; `None` when the subject is not a CPU.
    pub cpu: Option<CpuWhy>,
    /// The causes, the one with the most CPU time first.
    pub causes: Vec<Cause>,
    /// Notes on the measurement.
    pub notes: Vec<String>,
}

/// How a CPU spent its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuWhy {
    /// The CPU.
    pub cpu: CpuId,
    /// The CPUs of its core, itself included.
    pub core: CpuSet,
    /// Its NUMA node.
    pub node: Option<NodeId>,
    /// Its time by clock ticks, and as measured.
    pub split: CpuSplit,
    /// How the two differ, when the clock ticks are misleading.
    pub difference: Option<String>,
    /// The activity of its ksoftirqd; `None` when not known.
    pub ksoftirqd: Option<Ksoftirqd>,
}

/// The activity of a ksoftirqd, as shares of the interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ksoftirqd {
    /// Time that it ran softirq work deferred to it.
    pub ran: f64,
    /// Time that it waited behind other threads, and delayed all softirq work of the CPU.
    pub waited: f64,
}

/// One cause of a CPU's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// The name of the cause (`eth0 rx-3`, `backlog (RPS, loopback, veth)`).
    pub what: String,
    /// Share of the CPU's time; `None` when not known.
    pub share: Option<f64>,
    /// Whether the share is estimated, by packets or interrupts, instead of measured.
    pub estimated: bool,
    /// The measurements of the cause.
    pub evidence: Vec<Evidence>,
    /// Why the work runs on this CPU, step by step.
    pub because: Vec<Because>,
}

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    /// The fact.
    pub text: String,
    /// Its source: a file, a hook, or a kernel function.
    pub source: String,
}

impl Because {
    fn new(text: impl Into<String>, source: impl Into<String>) -> Self {
        Self { text: text.into(), source: source.into() }
    }
}

/// The subject does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhyError {
    /// The CPU is not online.
    #[error("cpu {0} is not online: the online cpus are {1}")]
    NoCpu(CpuId, CpuSet),
    /// No driver has requested the interrupt.
    #[error("irq {0} does not exist: netsilo show lists the interrupts of netdevs")]
    NoIrq(Irq),
    /// The netdev does not exist.
    #[error("no netdev is called {0:?}: the netdevs are {1}")]
    NoNetdev(String, String),
    /// The rx queue does not exist.
    #[error("{0} has no rx-{1}: its rx queues are {2}")]
    NoQueue(String, u32, CpuSet),
    /// Not a CPU, interrupt, netdev or rx queue.
    #[error("expected cpu3, irq27, eth0 or eth0/rx-3, found {:?}", .0.to_string())]
    NotExplained(Subject),
}

/// Explains a subject. Fails when the subject does not exist.
pub fn why(analysis: &Analysis<'_>, subject: &Subject) -> Result<Why, WhyError> {
    let (after, silos) = (analysis.after(), &analysis.silos);
    let (cpu, causes) = match subject {
        Subject::Cpu(cpu) if !after.topology.online.contains(*cpu) => {
            return Err(WhyError::NoCpu(*cpu, after.topology.online.clone()));
        }
        Subject::Cpu(cpu) => (Some(cpu::cpu_why(analysis, *cpu)), cpu::causes(analysis, *cpu)),
        Subject::Irq(irq) => {
            let of_irq = |silo: &&Silo| silo.irq.as_ref().is_some_and(|edge| edge.to == *irq);
            let mut causes = queues(analysis, silos.queues.iter().filter(of_irq));
            if causes.is_empty() {
                causes.push(chain::interrupt(analysis, *irq).ok_or(WhyError::NoIrq(*irq))?);
            }
            (None, causes)
        }
        Subject::Netdev(name) => (None, netdev_causes(analysis, name, None)?),
        Subject::Queue(name, queue) => (None, netdev_causes(analysis, name, Some(*queue))?),
        other => return Err(WhyError::NotExplained(other.clone())),
    };
    let notes = netsilo_model::derive::notes::notes(analysis.observation, &analysis.rates, silos);
    Ok(Why {
        subject: subject.clone(),
        elapsed_s: analysis.rates.elapsed.as_secs_f64(),
        cpu,
        causes,
        notes,
    })
}

/// The causes of a netdev's rx queues, or of one of them.
fn netdev_causes(
    analysis: &Analysis<'_>,
    name: &str,
    queue: Option<u32>,
) -> Result<Vec<Cause>, WhyError> {
    let netdevs = &analysis.after().netdevs;
    if !netdevs.iter().any(|netdev| netdev.name == name) {
        let names: Vec<&str> = netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
        return Err(WhyError::NoNetdev(name.to_owned(), names.join(", ")));
    }
    let of_netdev = || analysis.silos.queues.iter().filter(|silo| silo.netdev.name == name);
    let causes =
        queues(analysis, of_netdev().filter(|silo| queue.is_none() || silo.queue == queue));
    match queue {
        Some(queue) if causes.is_empty() => {
            let queues = of_netdev().filter_map(|silo| silo.queue).map(CpuId).collect();
            Err(WhyError::NoQueue(name.to_owned(), queue, queues))
        }
        _ => Ok(causes),
    }
}

/// The cause of each queue on the CPU that polls it most, in descending order of CPU time.
fn queues<'a>(analysis: &Analysis<'_>, silos: impl Iterator<Item = &'a Silo>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = silos.map(|silo| chain::queue_anywhere(analysis, silo)).collect();
    heaviest_first(&mut causes);
    causes
}

/// Sorts causes in descending order of CPU time; unknown shares come last.
fn heaviest_first(causes: &mut [Cause]) {
    causes.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
}

#[cfg(test)]
mod tests;
