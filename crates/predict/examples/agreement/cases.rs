//! Random scenarios, and how the two forms of the model agree on them.

use fastrand::Rng;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;
use netsilo_predict::scenario::{
    Filter, Forward, Kernel, Load, Machine, Nic, Protocol, RequestResponse, Scenario, Setting,
};
use netsilo_predict::simulate::{Options, Simulated, simulate};
use netsilo_stats::Estimate;

/// A scenario with a setting.
pub(crate) struct Case {
    pub(crate) scenario: Scenario,
    pub(crate) setting: Setting,
}

/// What both forms say of a case.
pub(crate) struct Compared {
    /// The analytic rate.
    pub(crate) rate: Estimate,
    pub(crate) simulated: Simulated,
}

impl Compared {
    /// Whether the simulated rate is in the analytic 90 % interval, widened by the same interval of
    /// the simulation's own noise.
    pub(crate) fn agrees(&self) -> bool {
        let (rate, noise) = (self.simulated.prediction.rate, 1.645 * self.simulated.rate_error);
        (self.rate.low - noise..=self.rate.high + noise).contains(&rate)
    }
}

impl Case {
    /// A random case: a machine with 1 to 32 cores, requests and responses in three of four, else
    /// forwarding.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let cores = between(rng, 1.0, 32.0).round() as u32;
        let threads = rng.u32(1..=2);
        let cpus = (cores * threads) as usize;
        let machine = Machine {
            cores: (0..cores * threads).map(|cpu| cpu % cores).collect(),
            ghz: 2.0 + 2.0 * rng.f64(),
            kernel: if rng.bool() { Kernel::Old } else { Kernel::Recent },
            is_virtual: rng.u8(..4) == 0,
        };
        let queue_count = rng.usize(1..=cpus.min(16));
        let nic = Nic {
            queue_count,
            first_rss_queue: 0,
            hashes_udp_ports: rng.bool(),
            gbit: [1.0, 10.0, 25.0, 100.0][rng.usize(..4)],
            coalesce_us: 50.0 * rng.f64(),
            coalesce_frames: between(rng, 1.0, 64.0).round(),
            mtu: 1500.0,
            bus_gbit: f64::INFINITY,
        };
        let is_forward = rng.u8(..4) == 0;
        let load = if is_forward { forward(rng) } else { request_response(rng) };
        let rps = rng.bool();
        let setting = Setting {
            irq: (0..rng.usize(1..=cpus)).collect(),
            rps: if rps { (0..cpus).collect() } else { Vec::new() },
            rfs: rng.bool(),
            ..Setting::default()
        };
        Self { scenario: Scenario { machine, nic, load }, setting }
    }

    /// Simulates it for `seconds`.
    pub(crate) fn compare(
        &self,
        table: &Table,
        draws: &Draws,
        seconds: f64,
    ) -> Result<Compared, Box<dyn std::error::Error>> {
        let options = Options { seconds, seed: 1 };
        Ok(Compared {
            rate: draws.expect(&self.scenario, &self.setting, &self.setting).rate,
            simulated: simulate(&self.scenario, &self.setting, &table.values(), &options)?,
        })
    }
}

/// A number at equal factors between two.
fn between(rng: &mut Rng, from: f64, to: f64) -> f64 {
    from * (to / from).powf(rng.f64())
}

fn request_response(rng: &mut Rng) -> Load {
    Load::RequestResponse(RequestResponse {
        protocol: if rng.bool() { Protocol::Tcp } else { Protocol::Udp },
        instances: between(rng, 1.0, 3000.0).round(),
        bytes: between(rng, 1.0, 20_000.0).round(),
        work_us: if rng.bool() { 0.0 } else { between(rng, 1.0, 1000.0) },
        cpus: CpuSet::default(),
        connected: rng.bool(),
    })
}

fn forward(rng: &mut Rng) -> Load {
    Load::Forward(Forward {
        offered: between(rng, 10_000.0, 900_000.0),
        two_way: rng.bool(),
        frame_bytes: 64.0,
        filter: [Filter::None, Filter::Conntrack, Filter::RawDrop][rng.usize(..3)],
    })
}
