//! Forwarding: the receiving port's softirq does everything but the completion, which the sending
//! port's interrupt does, and what RPS hands to other CPUs.

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::request_response::ipis_per_packet;
use crate::scenario::{Filter, Forward, Scenario, Setting};
use crate::shares::irq_cpu;

/// Packets of one `net_rx_action` (`net.core.netdev_budget`).
const BUDGET: f64 = 300.0;

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
    let mut ways = Ways::new(scenario, load, setting, values);
    for _ in 0..ROUNDS {
        ways.round();
    }
    let full = (0..ways.busy.len()).find(|cpu| ways.busy[*cpu] > 0.99);
    Prediction {
        rate: ways.flows.iter().map(|flow| flow.polled).sum::<f64>() * ways.kept(),
        latency_us: None,
        cpus: (ways.busy.iter())
            .map(|&softirq| CpuTime { softirq, booked_softirq: softirq, ..CpuTime::default() })
            .collect(),
        ipis: (!setting.rps.is_empty()).then_some(ways.ipis),
        interrupts: Some(ways.interrupts),
        bottleneck: full.map_or(Bottleneck::Load, Bottleneck::Softirq),
    }
}

/// Packets from one port to the other.
struct Flow {
    /// CPU that polls, and CPU that completes.
    poll: usize,
    complete: usize,
    /// Packets per second that arrive, and that are polled.
    offered: f64,
    polled: f64,
}

struct Ways<'a> {
    setting: &'a Setting,
    values: &'a Values,
    /// Longest time that an interrupt is held back (s), and most frames.
    coalesce: f64,
    most: f64,
    /// Seconds of one cycle.
    unit: f64,
    /// Factor on inter-processor interrupts.
    ipi: f64,
    /// Cycles after the poll, and of the completion.
    way: f64,
    completion: f64,
    /// 0 if a rule drops all packets, else 1.
    hands_on: f64,
    flows: Vec<Flow>,
    busy: Vec<f64>,
    /// Share of its polls and its backlog that each CPU has time for.
    shares: Vec<f64>,
    interrupts: f64,
    ipis: f64,
}

impl<'a> Ways<'a> {
    fn new(scenario: &Scenario, load: &Forward, setting: &'a Setting, values: &'a Values) -> Self {
        let (receive, completion) = cycles(load, values);
        let flow = |port: usize| Flow {
            poll: irq_cpu(setting, port),
            complete: irq_cpu(setting, 1 - port),
            offered: load.offered,
            polled: load.offered,
        };
        let cpus = scenario.machine.cpu_count();
        Self {
            setting,
            values,
            coalesce: scenario.nic.coalesce_us * 1e-6,
            most: scenario.nic.coalesce_frames.min(WEIGHT),
            unit: values.ns_per_cycle(&scenario.machine) * 1e-9,
            ipi: values.ipi_factor(&scenario.machine),
            way: receive - values.poll,
            completion,
            hands_on: f64::from(u8::from(load.filter != Filter::RawDrop)),
            flows: (0..if load.two_way { 2 } else { 1 }).map(flow).collect(),
            busy: vec![0.0; cpus],
            shares: vec![1.0; cpus],
            interrupts: 0.0,
            ipis: 0.0,
        }
    }

    /// Mean over RPS's CPUs.
    fn mean(&self, of: impl Fn(usize) -> f64) -> f64 {
        let targets = &self.setting.rps;
        targets.iter().map(|cpu| of(*cpu)).sum::<f64>() / targets.len() as f64
    }

    /// Share of the polled packets that the backlogs' CPUs have time for.
    fn kept(&self) -> f64 {
        if self.setting.rps.is_empty() { 1.0 } else { self.mean(|cpu| self.shares[cpu]) }
    }

    fn round(&mut self) {
        let (values, unit, targets) = (self.values, self.unit, &self.setting.rps);
        let (kept, has_rps) = (self.kept(), !targets.is_empty());
        let unscheduled = if has_rps { self.mean(|cpu| 1.0 - self.busy[cpu]) } else { 0.0 };
        // What each CPU must do, and what it does while there is time: polls and its backlog.
        let mut must = vec![0.0; self.busy.len()];
        let mut may = vec![0.0; self.busy.len()];
        let (mut interrupts, mut ipis, mut arriving) = (0.0, 0.0, 0.0);
        for flow in &self.flows {
            // A port that keeps its CPU busy has whole polls; one that does not has an interrupt
            // for the frames of one coalescing time.
            let held = (1.0 + flow.polled * self.coalesce).min(self.most);
            let receiving = (1.0 - self.busy[flow.poll]) / held;
            let completing = (1.0 - self.busy[flow.complete]) / held;
            let sent = self.hands_on * flow.polled * kept;
            interrupts += flow.polled * receiving + sent * completing;
            let mut poll = values.poll + receiving * values.interrupt;
            if has_rps {
                let others = targets.iter().filter(|cpu| **cpu != flow.poll).count() as f64;
                let batch = held / (1.0 - self.busy[flow.poll]).max(held / BUDGET);
                // No thread runs here: a CPU without softirqs sleeps.
                let each = unscheduled * ipis_per_packet(targets.len(), others, batch);
                poll +=
                    values.rps_enqueue + each * self.ipi * (values.ipi_send + values.ipi_sleeper);
                ipis += flow.polled * each;
                arriving += flow.polled;
            } else {
                poll += self.way;
            }
            // What is offered is polled until the CPU is full; what is sent is completed in any
            // case, before the next poll.
            may[flow.poll] += flow.offered * unit * poll;
            let far = if flow.poll == flow.complete { 0.0 } else { values.lines };
            must[flow.complete] +=
                sent * unit * (self.completion + far + completing * values.interrupt);
        }
        for cpu in targets {
            let share = unit / targets.len() as f64;
            may[*cpu] += share * arriving * (values.backlog + self.way);
            must[*cpu] += share * ipis * self.ipi * values.ipi_receive;
        }
        (self.interrupts, self.ipis) = (interrupts, ipis);
        for (cpu, (share, busy)) in self.shares.iter_mut().zip(&mut self.busy).enumerate() {
            let room = (1.0 - must[cpu]).max(0.0);
            let own = if may[cpu] > room { room / may[cpu] } else { 1.0 };
            *share = 0.5 * (*share + own);
            *busy = 0.5 * (*busy + (must[cpu] + may[cpu]).min(1.0));
        }
        for flow in &mut self.flows {
            flow.polled = flow.offered * self.shares[flow.poll];
        }
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
