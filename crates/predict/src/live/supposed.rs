//! The observed machine with the packets on other queues of a netdev, under the same load.
//!
//! It is an observation, as if that machine had been observed. What had to be assumed is said in
//! words.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::CpuCounters;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;

use crate::live::work::{Queue, TooLittle, Work, room_of};
use crate::prediction::CpuTime;

/// Clock ticks of a second (USER_HZ).
const TICKS: f64 = 100.0;

/// Why nothing can be said of such a machine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum CannotSuppose {
    /// No netdev with traffic has interrupts for its queues.
    #[error(
        "no netdev that receives packets here has an interrupt for each queue: more queues have \
         no known place"
    )]
    NoInterrupts,
    /// Kthreads poll.
    #[error("kthreads poll the queues of {0}: the scheduler places those of other queues")]
    Kthreads(String),
    /// Which packets are UDP is not known.
    #[error("no UDP was seen on {0}: neither read, nor in the flows that arrived")]
    NoUdp(String),
    /// Too few flows were seen to take them as spread evenly.
    #[error("{0} {1}: {2} flows were seen, too few to spread evenly over {3} queues")]
    FewFlows(String, &'static str, usize, u32),
}

/// What the queues of a supposed machine cost: measured on those of the observed one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QueueCost {
    /// Softirq time of one packet (ns).
    pub(crate) ns: Option<f64>,
    /// Packets that arrive here, over those of an observed queue.
    pub(crate) crowd: f64,
}

/// A machine that the observed one could be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Supposed {
    /// As if it had been observed.
    pub observation: Observation,
    /// What was assumed, in words.
    pub assumed: Vec<String>,
    /// How each CPU would spend its time without further settings.
    pub(crate) cpus: BTreeMap<CpuId, CpuTime>,
    /// The share of each CPU's time that the hypervisor leaves, by its number.
    pub(crate) room: Vec<f64>,
    /// Of netdevs whose queues are others.
    pub(crate) queues: BTreeMap<(NetdevIdentity, u32), QueueCost>,
    protocol_share: Option<Bounds>,
}

impl Supposed {
    /// The observed machine itself.
    pub(crate) fn same(work: &Work<'_>) -> Self {
        Self {
            observation: work.analysis.observation.clone(),
            assumed: Vec::new(),
            cpus: work.cpus.clone(),
            room: work.room.clone(),
            queues: BTreeMap::new(),
            protocol_share: work.protocol_share,
        }
    }

    /// The receive work of this machine; `analysis` is of its observation.
    pub(crate) fn work<'a>(&self, analysis: &'a Analysis<'a>) -> Result<Work<'a>, TooLittle> {
        let mut work = Work::new(analysis)?.with_cpus(self.cpus.clone());
        work.room.clone_from(&self.room);
        work.protocol_share = self.protocol_share;
        for queue in &mut work.queues {
            if let Some(cost) = self.cost_of(queue) {
                (queue.ns, queue.crowd) = (cost.ns, cost.crowd);
            }
        }
        Ok(work)
    }

    fn cost_of(&self, queue: &Queue<'_>) -> Option<&QueueCost> {
        self.queues.get(&(queue.silo.netdev.clone(), queue.silo.queue?))
    }

    /// Writes the CPUs' times as clock ticks, from which algorithms take the load of a CPU.
    pub(crate) fn write_ticks(&mut self, work: &Work<'_>) {
        let all = work.analysis.rates.elapsed.as_secs_f64() * TICKS;
        let kthreads = work.kthreads();
        let Observation { before, after, .. } = &mut self.observation;
        for (cpu, time) in &self.cpus {
            let then = before.cpus.entry(*cpu).or_insert_with(|| CpuCounters {
                softnet: Some(netsilo_model::snapshot::host::Softnet::default()),
                ..CpuCounters::default()
            });
            let now = after.cpus.entry(*cpu).or_insert_with(|| then.clone());
            let ticks = |share: f64| (share.clamp(0.0, 1.0) * all).round() as u64;
            let kthread = kthreads.get(cpu).copied().unwrap_or(0.0);
            let steal = 1.0 - room_of(&self.room, *cpu);
            let mut stat = then.stat;
            stat.user += ticks(time.usr);
            stat.system += ticks(time.sys + kthread);
            stat.softirq += ticks(time.softirq - kthread);
            stat.steal += ticks(steal);
            stat.idle += ticks(1.0 - time.usr - time.sys - time.softirq - steal);
            now.stat = stat;
        }
    }
}

/// A count in equal parts; the first ones have what is left.
pub(crate) fn parts(count: u64, parts: usize) -> impl Iterator<Item = u64> {
    let parts = parts.max(1) as u64;
    (0..parts).map(move |part| count / parts + u64::from(part < count % parts))
}
