//! Measures placements on this machine's own kernel, at true speed.
//!
//! A veth with GRO and threaded NAPI stands for a NIC: its kthread polls the packets, and can be
//! placed as an interrupt can. The server is on CPU 1, its clients on CPU 0; each kthread is on one
//! of the two. Without kthreads the packets are polled on the sender's CPU, or where RPS steers
//! them; the default cannot choose that.

use std::path::Path;

use anyhow::{Context, Result};
use netsilo_lab::exact::Asked;
use netsilo_trial::traffic::LoadResult;

use crate::experiment::record::{Load, Measured, Setting, Start};
use crate::experiment::study::{Scene, Study};
use crate::outcome::times::{Times, family, until_quiet};
use crate::outcome::veth_loads::{LOADS, Server, VethLoad};
use crate::wire::{CLIENT_CPU, Kthread, Running, SERVER_CPU, WARM_UP, Wire, cpus_of, kernel};

/// The kthreads' places.
const PLACES: [u32; 2] = [SERVER_CPU, CLIENT_CPU];

/// The masks of RPS in softirqs: none, the reader's CPU, both.
const MASKS: [u32; 3] = [0b00, 0b10, 0b11];

/// How much longer than its warm-up a client takes to its first counted request; the window of CPU
/// times begins after this and ends before the client does.
const MARGIN: f64 = 0.05;

/// The veths of this machine; each load has its own.
pub(super) struct Veths {
    pub(super) looks: u16,
}

/// A load with its server running.
struct VethScene {
    load: VethLoad,
    looks: u16,
    wire: Wire,
    server: Running,
    /// Those of the present setting.
    kthreads: Vec<Kthread>,
}

/// A setting to be measured.
#[derive(Debug, Clone, PartialEq)]
enum Way {
    /// Kthreads poll on these CPUs.
    Kthreads(Vec<u32>),
    /// Softirqs poll, and RPS steers to these CPUs.
    Softirqs { rps: u32 },
}

impl Study for Veths {
    fn folder(&self) -> &'static str {
        "veth"
    }

    fn loads(&self) -> Vec<String> {
        LOADS.map(|load| load.name.to_owned()).to_vec()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(format!("Linux {}", kernel()?))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let load = LOADS.into_iter().find(|known| known.name == load).context("unknown load")?;
        until_quiet()?;
        let wire = Wire::along(load.course)?;
        let server = match load.server {
            Server::Threads { count, cpus, work } => wire.readers(work, count, cpus)?,
            Server::Pipeline { second, work, .. } => wire.pipeline(work, second)?,
        };
        Ok(Box::new(VethScene { load, looks: self.looks, wire, server, kthreads: Vec::new() }))
    }
}

impl Scene for VethScene {
    fn plan(&mut self, folder: &Path) -> Result<Load> {
        let ways = self.ways();
        let settings: Vec<Setting> = ways.iter().map(Way::setting).collect();
        let mut starts = Vec::new();
        for look in 0..self.looks {
            let placements = settings.iter().enumerate().filter(|(_, it)| it.is_placement());
            for (placement, setting) in placements {
                self.set(&ways[placement])?;
                let bundle = format!(
                    "{}-from-{}-{look}.tar.zst",
                    slug(self.load.name),
                    setting.cpus.join("-")
                );
                self.wire.capture_during(self.clients(6.0)?, &folder.join(&bundle))?;
                starts.push(Start { placement, bundle });
            }
        }
        let unit = if self.load.client.contains("STREAM") { "byte" } else { "transaction" };
        Ok(Load {
            name: self.load.name.to_owned(),
            unit: unit.to_owned(),
            netdevs: self.wire.netdevs().iter().map(|it| (*it).to_owned()).collect(),
            settings,
            starts,
            ..Load::default()
        })
    }

    fn apply(&mut self, setting: &Setting) -> Result<()> {
        let ways = self.ways();
        let way = ways.iter().find(|way| way.setting().label() == setting.label());
        self.set(way.context("not a setting of this load")?)
    }

    /// Lets the clients run, and reads CPU and waiting times while they count.
    fn measure(&mut self, seconds: f64) -> Result<Measured> {
        let mut pids = family(self.server.pid().context("the server has ended")?);
        pids.extend(self.kthreads.iter().map(|kthread| kthread.pid()));
        let clients = self.clients(seconds)?;
        let pause = |seconds: f64| std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
        pause(WARM_UP.as_secs_f64() + MARGIN);
        let before = Times::read(&pids)?;
        pause(seconds - 2.0 * MARGIN);
        let passed = Times::read(&pids)?.since(&before);
        let (mut rate, mut p50_us, mut p99_us) = (0.0, 0.0_f64, 0.0_f64);
        for client in clients {
            let text = client.output()?;
            let client = ClientFigures::new(&text).with_context(|| text.clone())?;
            rate += client.rate;
            p50_us = p50_us.max(client.p50_us.unwrap_or(f64::NAN));
            p99_us = p99_us.max(client.p99_us.unwrap_or(f64::NAN));
        }
        // Per megabyte of a stream.
        let each = if rate > 1e7 { rate / 1e6 } else { rate };
        let mut figures =
            vec![("cpu_us", passed.busy_us / each), ("run_queue_us", passed.waited_us / each)];
        if p50_us > 0.0 {
            figures.extend([("p50_us", p50_us), ("p99_us", p99_us)]);
        }
        Ok(Measured::new(rate, figures))
    }

    fn finish(&mut self) -> Result<()> {
        until_quiet()
    }
}

/// Each placement of these kthreads, and the settings without them.
fn ways(kthreads: usize, has_others: bool) -> Vec<Way> {
    let mut all = vec![Vec::new()];
    for _ in 0..kthreads {
        let longer = |cpus: &Vec<u32>| PLACES.map(|cpu| [cpus.as_slice(), &[cpu]].concat());
        all = all.iter().flat_map(longer).collect();
    }
    let others = MASKS.into_iter().filter(|_| has_others).map(|rps| Way::Softirqs { rps });
    all.into_iter().map(Way::Kthreads).chain(others).collect()
}

impl Way {
    fn setting(&self) -> Setting {
        match self {
            Self::Kthreads(cpus) => {
                Setting::new("", &cpus.iter().map(u32::to_string).collect::<Vec<_>>())
            }
            Self::Softirqs { rps: 0 } => Setting::new("softirq", &[]),
            Self::Softirqs { rps } => {
                Setting::new(&format!("softirq, RPS onto {}", cpus_of(*rps)), &[])
            }
        }
    }
}

impl VethScene {
    fn ways(&self) -> Vec<Way> {
        ways(self.wire.netdevs().len(), self.load.has_others)
    }

    /// Makes a setting.
    fn set(&mut self, way: &Way) -> Result<()> {
        match way {
            Way::Kthreads(cpus) => {
                self.wire.set_rps(0)?;
                if self.kthreads.is_empty() {
                    self.kthreads = self.wire.kthreads()?;
                }
                self.kthreads.iter().zip(cpus).try_for_each(|(kthread, cpu)| kthread.put(*cpu))
            }
            Way::Softirqs { rps } => {
                self.kthreads.clear();
                self.wire.polled()?;
                self.wire.set_rps(*rps)
            }
        }
    }

    fn clients(&self, seconds: f64) -> Result<Vec<Running>> {
        match self.load.server {
            Server::Threads { .. } => self.wire.load(self.load.client, seconds),
            Server::Pipeline { connections, .. } => {
                self.wire.pipeline_load(connections, seconds + WARM_UP.as_secs_f64())
            }
        }
    }
}

/// What a client reports.
#[derive(Debug, PartialEq)]
struct ClientFigures {
    rate: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl ClientFigures {
    /// Reads the report of `netsilo-bench run`, or of the lab's own client.
    fn new(report: &str) -> Result<Self> {
        if let Ok(own) = serde_json::from_str::<Asked>(report) {
            let Asked { transactions_per_second: rate, p50_us, p99_us, .. } = own;
            return Ok(Self { rate, p50_us: Some(p50_us), p99_us: Some(p99_us) });
        }
        let result: LoadResult = serde_json::from_str(report)?;
        let figures = result.figures();
        let latency = result.latency.unwrap_or_default().percentiles_ns;
        let of = |percent: &str| latency.get(percent).map(|ns| *ns as f64 / 1e3);
        let rate = figures.transactions_per_s.unwrap_or(figures.bytes_per_s);
        Ok(Self { rate, p50_us: of("50"), p99_us: of("99") })
    }
}

/// A name as part of a file name.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = name.chars().map(kept).collect();
    words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_of_two_kthreads_is_measured() {
        let all = ways(2, false);
        let expected = [[1, 1], [1, 0], [0, 1], [0, 0]].map(|cpus| Way::Kthreads(cpus.to_vec()));
        assert_eq!(all, expected);
        let labels: Vec<String> = ways(1, true).iter().map(|way| way.setting().label()).collect();
        let expected = ["1", "0", "softirq", "softirq, RPS onto 1", "softirq, RPS onto 0-1"];
        assert_eq!(labels, expected);
    }

    #[test]
    fn the_report_of_the_labs_own_client_is_read() {
        let own = r#"{"transactions":9,"transactions_per_second":5.0,"p50_us":1.0,"p99_us":2.0}"#;
        let expected = ClientFigures { rate: 5.0, p50_us: Some(1.0), p99_us: Some(2.0) };
        assert_eq!(ClientFigures::new(own).unwrap(), expected);
    }

    #[test]
    fn a_name_is_a_file_name() {
        assert_eq!(slug("TCP_RR x 16, 5 us of work"), "tcp-rr-x-16-5-us-of-work");
    }
}
