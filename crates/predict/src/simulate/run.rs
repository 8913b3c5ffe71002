//! One simulation, from the scenario to what it shows.

use fastrand::Rng;

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::request_response;
use crate::scenario::{Kernel, Load, Scenario, Setting};
use crate::shares::siblings;
use crate::simulate::costs::Work;
use crate::simulate::events::{SECOND, Time, time};
use crate::simulate::host::{Counts, Host};
use crate::simulate::instances::{Instances, reader_cpus};
use crate::simulate::latency::Latency;
use crate::simulate::ports::Ports;
use crate::simulate::scheduler::Domain;
use crate::simulate::timeline::{Collector, Timeline};

/// Slices of a timeline.
const SLICES: usize = 50;

/// Time before the measured time, as a share of it; transactions that take long get more.
const WARM_UP: f64 = 0.25;

/// More instances than this need too much memory.
const MOST_INSTANCES: f64 = 1e6;

/// How to simulate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Simulated time that is measured (s).
    pub seconds: f64,
    /// Seed of all that is random.
    pub seed: u64,
}

/// Why a load cannot be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a load of kind {0} cannot be simulated: {1}")]
pub struct NotSimulated(&'static str, &'static str);

/// What a simulation shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// The same as the analytic form says.
    pub prediction: Prediction,
    /// Standard error of the rate, because the simulated time is short.
    pub rate_error: f64,
    /// From request to next request, or from arrival to departure; `None` if nothing got through.
    pub latency: Option<Latency>,
    /// Packets lost per second.
    pub lost: f64,
    /// How each CPU spends its time.
    pub timeline: Timeline,
    /// Where the packets went, from the start on.
    pub packets: Packets,
}

/// Where packets went: `arrived` is the sum of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packets {
    /// Packets that arrived at a ring, full or not.
    pub arrived: u64,
    /// Packets that a reader got or that left by a port.
    pub handled: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Packets in rings, in backlogs and in work at the end.
    pub inside: u64,
}

/// A simulation under way.
pub struct Simulation {
    host: Host,
    from: Time,
    until: Time,
    /// Counts at `from`; `None` before.
    before: Option<Counts>,
}

impl Simulation {
    /// Prepares to simulate `scenario` under `setting`.
    ///
    /// # Errors
    /// The load is not one that can be simulated.
    pub fn new(
        scenario: &Scenario,
        setting: &Setting,
        values: &Values,
        options: &Options,
    ) -> Result<Self, NotSimulated> {
        let scenario = &*scenario.under(setting);
        let mut rng = Rng::with_seed(options.seed);
        let (work, readers, latency) = prepare(scenario, setting, values, &mut rng)?;
        let cpus = scenario.machine.cpu_count();
        let slice = (time(options.seconds) / SLICES as Time).max(1);
        let domain = Domain {
            may_read: (0..cpus).map(|cpu| readers.contains(&cpu)).collect(),
            siblings: siblings(&scenario.machine),
            prefers_own_core: scenario.machine.kernel == Kernel::Old,
        };
        let from = time(options.seconds * WARM_UP + 2.0 * latency);
        let collector = Collector::new(from, slice, SLICES, cpus);
        let mut host = Host::new(scenario, setting, values, (work, domain, collector), rng);
        host.begin(latency);
        Ok(Self { host, from, until: from + slice * SLICES as Time, before: None })
    }

    /// Simulates up to `share` of all, warm-up included.
    pub fn advance(&mut self, share: f64) {
        let end =
            if share >= 1.0 { self.until } else { (self.until as f64 * share.max(0.0)) as Time };
        if self.before.is_none() && end >= self.from {
            self.host.run(self.from);
            self.before = Some(self.host.counts);
            self.host.work.forget();
        }
        self.host.run(end);
    }

    /// Simulates the rest and returns what it shows.
    pub fn finish(mut self) -> Simulated {
        self.advance(1.0);
        for cpu in 0..self.host.cpus.len() {
            self.host.account(cpu);
        }
        let (rate, rate_error) = self.host.collector.rate();
        let (now, before) = (self.host.counts, self.before.unwrap_or_default());
        let seconds = (self.until - self.from) as f64 / SECOND;
        let per_second = |now: u64, before: u64| (now - before) as f64 / seconds;
        let latency = Latency::new(self.host.work.latencies());
        let cpus = self.host.collector.totals();
        Simulated {
            prediction: Prediction {
                rate,
                latency_us: latency.map(|latency| latency.mean_us),
                bottleneck: self.bottleneck(&cpus),
                cpus,
                ipis: Some(per_second(now.ipis, before.ipis)),
                interrupts: Some(per_second(now.interrupts, before.interrupts)),
            },
            rate_error,
            latency,
            lost: per_second(now.lost, before.lost),
            timeline: self.host.collector.timeline(),
            packets: Packets {
                arrived: now.arrived,
                handled: now.handled,
                lost: now.lost,
                inside: self.host.inside(),
            },
        }
    }

    fn bottleneck(&self, cpus: &[CpuTime]) -> Bottleneck {
        let softirqs = cpus.iter().map(|cpu| cpu.softirq);
        let time = (self.until - self.from) as f64;
        match &self.host.work {
            Work::RequestResponse(instances) => {
                let links = instances.to_server.used.max(instances.to_client.used);
                let client = instances.client.used as f64 / cpus.len() as f64;
                let readers = self.host.readers_busy(cpus);
                Bottleneck::fullest(softirqs, links as f64 / time, readers, client / time)
            }
            Work::Forward(_) => Bottleneck::fullest(softirqs, 0.0, 0.0, 0.0),
        }
    }
}

/// Returns the load, the CPUs of its readers, and how long a transaction takes (s).
fn prepare(
    scenario: &Scenario,
    setting: &Setting,
    values: &Values,
    rng: &mut Rng,
) -> Result<(Work, Vec<usize>, f64), NotSimulated> {
    match &scenario.load {
        Load::RequestResponse(load) if load.instances > MOST_INSTANCES => {
            let why = "set load.instances to at most 1000000";
            Err(NotSimulated("request and response", why))
        }
        Load::RequestResponse(load) => {
            let analytic = request_response::predict(scenario, load, setting, values);
            let instances = Instances::new(scenario, load, setting, values, rng);
            let latency = analytic.latency_us.unwrap_or_default() * 1e-6;
            let work = Work::RequestResponse(Box::new(instances));
            Ok((work, reader_cpus(scenario, load), latency))
        }
        Load::Forward(load) => {
            let ports = Ports::new(scenario, load, setting, values);
            Ok((Work::Forward(Box::new(ports)), Vec::new(), 0.0))
        }
        Load::Send(_) => Err(NotSimulated("send", "its sends are known by their mean costs alone")),
        Load::Service(_) => {
            let why = "its packets and requests are unknown, only its shares of CPU time are known";
            Err(NotSimulated("service", why))
        }
    }
}

/// Simulates `scenario` under `setting`.
///
/// # Errors
/// The load is not one that can be simulated.
pub fn simulate(
    scenario: &Scenario,
    setting: &Setting,
    values: &Values,
    options: &Options,
) -> Result<Simulated, NotSimulated> {
    Simulation::new(scenario, setting, values, options).map(Simulation::finish)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use crate::parameters::Table;

    /// Runs 10 ms of each setting of a scenario.
    fn run(text: &str) -> Vec<Simulation> {
        let described = file::parse(text, &[], &[]).unwrap();
        let values = Table::built_in().unwrap().values();
        let options = Options { seconds: 0.01, seed: 1 };
        let run = |setting| {
            let mut simulation =
                Simulation::new(&described.scenario, setting, &values, &options).unwrap();
            simulation.advance(1.0);
            (0..simulation.host.cpus.len()).for_each(|cpu| simulation.host.account(cpu));
            simulation
        };
        described.settings.values().map(run).collect()
    }

    #[test]
    fn all_time_of_each_cpu_is_used_for_one_thing() {
        for text in [
            include_str!("../../../../cases/predict/request-response.toml"),
            include_str!("../../../../cases/predict/forward.toml"),
        ] {
            for simulation in run(text) {
                let slice = (simulation.until - simulation.from) / SLICES as Time;
                for spent in simulation.host.collector.spent.iter().flatten() {
                    assert_eq!(spent.all(), slice, "{spent:?}");
                }
            }
        }
    }
}
