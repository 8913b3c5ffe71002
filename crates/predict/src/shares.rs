//! Where the steps of a transaction run under a setting, as shares of all transactions.

use std::ops::Range;

use crate::scenario::{Machine, Nic, Protocol, RequestResponse, Scenario, Setting};

/// For each CPU, which share of the transactions has a step there.
pub(crate) struct Shares {
    pub(crate) poll: Vec<f64>,
    pub(crate) protocol: Vec<f64>,
    pub(crate) completion: Vec<f64>,
}

impl Shares {
    pub(crate) fn new(scenario: &Scenario, load: &RequestResponse, setting: &Setting) -> Self {
        let (nic, cpus) = (&scenario.nic, scenario.machine.cpu_count());
        let none = || vec![0.0; cpus];
        let (mut poll, mut completion, mut protocol) = (none(), none(), none());
        let receiving = receiving_queues(nic, load.protocol);
        for queue in receiving.clone() {
            poll[irq_cpu(setting, queue)] += 1.0 / receiving.len() as f64;
        }
        for queue in 0..nic.queue_count {
            completion[irq_cpu(setting, queue)] += 1.0 / nic.queue_count as f64;
        }
        if setting.rps.is_empty() {
            protocol.clone_from(&poll);
        }
        for &cpu in &setting.rps {
            protocol[cpu] += 1.0 / setting.rps.len() as f64;
        }
        Self { poll, protocol, completion }
    }

    /// Share of the received packets whose buffers are freed by CPUs that poll fewer.
    pub(crate) fn far(&self) -> f64 {
        (0..self.poll.len()).map(|cpu| self.far_of(cpu)).sum()
    }

    /// The part of [`Self::far`] that arrives at one CPU.
    pub(crate) fn far_of(&self, cpu: usize) -> f64 {
        (self.poll[cpu] - self.completion[cpu]).max(0.0)
    }
}

/// The queues that RSS spreads a load over.
pub(crate) fn receiving_queues(nic: &Nic, protocol: Protocol) -> Range<usize> {
    let hashed = protocol == Protocol::Tcp || nic.hashes_udp_ports;
    let first = nic.first_rss_queue.min(nic.queue_count - 1);
    if hashed { first..nic.queue_count } else { first..first + 1 }
}

/// The CPU of a queue's interrupt.
pub(crate) fn irq_cpu(setting: &Setting, queue: usize) -> usize {
    setting.irq[queue % setting.irq.len()]
}

/// Returns, for each CPU, the other hardware threads of its core.
pub(crate) fn siblings(machine: &Machine) -> Vec<Vec<usize>> {
    (0..machine.cpu_count())
        .map(|cpu| {
            (0..machine.cpu_count())
                .filter(|other| *other != cpu && machine.cores[*other] == machine.cores[cpu])
                .collect()
        })
        .collect()
}
