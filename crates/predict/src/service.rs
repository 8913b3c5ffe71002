//! A service that takes all CPU time: what softirqs take more, it has less.

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::request_response::ipis_per_packet;
use crate::scenario::{Scenario, Service, Setting};

/// Returns what `load` gets under `setting`: its rate is packets/s.
pub fn predict(
    scenario: &Scenario,
    load: &Service,
    setting: &Setting,
    values: &Values,
) -> Prediction {
    let cpus = scenario.machine.cpu_count();
    let unit = values.ns_per_cycle(&scenario.machine) * 1e-9;
    let queues = scenario.nic.queue_count;
    let mut poll = vec![0.0; cpus];
    for queue in 0..queues {
        poll[setting.irq[queue % setting.irq.len()]] += 1.0 / queues as f64;
    }
    let protocol_cpus = if setting.rps.is_empty() {
        poll.clone()
    } else {
        let mut even = vec![0.0; cpus];
        setting.rps.iter().for_each(|cpu| even[*cpu] += 1.0 / setting.rps.len() as f64);
        even
    };

    // Without a setting, one packet's softirq work tells the rate.
    let softirq = load.softirq * cpus as f64;
    let busiest = poll.iter().copied().fold(0.0, f64::max) * softirq;
    let batch = 1.0 / (1.0 - busiest.min(0.95));
    let driver = values.interrupt / batch + values.poll + values.completion;
    let protocol = values.tcp + values.wakeup;
    let before = softirq / (unit * (driver + protocol));
    let task = (load.usr + load.sys) * cpus as f64 / before;

    let ipi = values.ipi_factor(&scenario.machine);
    let (mut more_here, mut more_there, mut ipis) = (0.0, 0.0, 0.0);
    if !setting.rps.is_empty() {
        ipis = (0..cpus)
            .map(|cpu| {
                let others = setting.rps.iter().filter(|target| **target != cpu).count() as f64;
                poll[cpu] * ipis_per_packet(setting.rps.len(), others, batch)
            })
            .sum();
        more_here = values.rps_enqueue + ipis * ipi * values.ipi_send;
        more_there = values.backlog + ipis * ipi * values.ipi_receive;
    }
    let here = unit * (driver + more_here);
    let there = unit * (protocol + more_there);
    let busy = (load.usr + load.sys + load.softirq) * cpus as f64;
    let rate = busy / (task + here + there);
    let softirqs: Vec<f64> =
        (0..cpus).map(|cpu| rate * (poll[cpu] * here + protocol_cpus[cpu] * there)).collect();
    let room: f64 = softirqs.iter().map(|softirq| 1.0 - softirq).sum();
    let user = load.usr / (load.usr + load.sys);
    let cpu_times = softirqs
        .iter()
        .map(|&softirq| {
            let task = rate * task * (1.0 - softirq) / room;
            let (usr, sys) = (task * user, task * (1.0 - user));
            CpuTime { usr, sys, softirq, booked_softirq: softirq * (softirq + task).min(1.0) }
        })
        .collect();
    Prediction {
        rate,
        latency_us: None,
        cpus: cpu_times,
        ipis: Some(rate * ipis),
        interrupts: Some(rate / batch),
        bottleneck: Bottleneck::Cpus,
    }
}
