//! Forwarding: the receiving port's softirq does everything but the completion, which the sending
//! port's interrupt does.

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::scenario::{Filter, Forward, Scenario, Setting};

/// Rounds of the fixed point between what each direction gets and what it costs the other.
const ROUNDS: usize = 100;

/// Frames of one poll of a busy port (`NAPI_POLL_WEIGHT`, `include/linux/netdevice.h`).
const WEIGHT: f64 = 64.0;

/// Returns what `load` gets under `setting`.
pub fn predict(
    scenario: &Scenario,
    load: &Forward,
    setting: &Setting,
    values: &Values,
) -> Prediction {
    let unit = values.ns_per_cycle(&scenario.machine) * 1e-9;
    let (receive, complete) = cycles(load, values);
    let ports = [setting.irq[0], setting.irq[1 % setting.irq.len()]];
    let offered = [load.offered, if load.two_way { load.offered } else { 0.0 }];
    let hands_on = f64::from(u8::from(load.filter != Filter::RawDrop));
    let mut rates = offered;
    let mut busy = vec![0.0; scenario.machine.cpu_count()];
    let mut interrupts = 0.0;
    for _ in 0..ROUNDS {
        let mut wanted = vec![0.0; busy.len()];
        interrupts = 0.0;
        for (from, to) in [(0, 1), (1, 0)] {
            // A port that keeps its CPU busy has whole polls; one that does not has an interrupt
            // for the frames of one coalescing time.
            let held = |rate: f64| (1.0 + rate * scenario.nic.coalesce_us * 1e-6).min(WEIGHT);
            let receiving = (1.0 - busy[ports[from]]) / held(rates[from]);
            let completing = (1.0 - busy[ports[to]]) / held(rates[from]);
            interrupts += rates[from] * (receiving + hands_on * completing);
            // What is offered is polled until the CPU is full; what is sent is completed in any
            // case, before the next poll.
            wanted[ports[from]] += offered[from] * unit * (receive + receiving * values.interrupt);
            let far = if ports[from] == ports[to] { 0.0 } else { values.lines };
            wanted[ports[to]] +=
                hands_on * rates[from] * unit * (complete + far + completing * values.interrupt);
        }
        for port in [0, 1] {
            let share = (1.0 / wanted[ports[port]]).min(1.0);
            rates[port] = 0.5 * (rates[port] + offered[port] * share);
        }
        for (busy, wanted) in busy.iter_mut().zip(&wanted) {
            *busy = 0.5 * (*busy + f64::min(*wanted, 1.0));
        }
    }
    let full = ports.into_iter().find(|cpu| busy[*cpu] > 0.99);
    Prediction {
        rate: rates.iter().sum(),
        latency_us: None,
        cpus: (busy.into_iter())
            .map(|softirq| CpuTime { softirq, booked_softirq: softirq, ..CpuTime::default() })
            .collect(),
        ipis: None,
        interrupts: Some(interrupts),
        bottleneck: full.map_or(Bottleneck::Load, Bottleneck::Softirq),
    }
}

/// Cycles of one packet at the port where it arrives, and at the port that sent it.
pub(crate) fn cycles(load: &Forward, values: &Values) -> (f64, f64) {
    match load.filter {
        Filter::None => (values.poll + values.forward, values.completion),
        Filter::Conntrack => (values.poll + values.forward + values.conntrack, values.completion),
        Filter::RawDrop => (values.poll + values.drop, 0.0),
    }
}
