//! Loads over veths of this machine's own kernel, at true speed.
//!
//! The server is on CPU 1, its clients on CPU 0. With a veth as the kernel makes it, packets are
//! processed on the sender's CPU. With GRO and threaded NAPI the veth stands in for a NIC: its
//! kthread polls the packets, and can be placed like an interrupt.

mod times;

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_lab::exact::Asked;
use netsilo_trial::traffic::LoadResult;
use serde::{Deserialize, Serialize};

use crate::experiment::record::RoundResult;
use crate::veths::times::{Times, family};
pub(crate) use crate::veths::times::{busy_cpus, until_quiet};
use crate::wire::{Course, Kthread, Running, WARM_UP, Wire};

/// How much longer than its warm-up a client takes until its first counted request. The window of
/// CPU times begins after this and ends before the client does.
const MARGIN: f64 = 0.05;

/// A load with its server running.
pub(crate) struct Veth {
    wire: Wire,
    answers: Server,
    /// Arguments of `netsilo-bench run`.
    client: String,
    server: Running,
    /// The kthreads of the current setting.
    kthreads: Vec<Kthread>,
}

/// The server that answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Server {
    /// `netsilo-bench serve` with `count` threads on these CPUs, and `work` microseconds for each
    /// request.
    Threads { count: u32, cpus: &'static str, work: u32 },
    /// Two processes. The second one is on this CPU and does the work.
    Pipeline { second: u32, work: u32, connections: u32 },
}

/// A setting of the veths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VethSetting {
    /// The CPU of each veth's kthread. None if softirqs poll.
    pub(crate) kthreads: Vec<u32>,
    /// The CPUs of RPS, as a mask.
    pub(crate) rps: u32,
}

impl Server {
    /// `netsilo-bench serve` with one thread, on the server's CPU.
    pub(crate) const fn works(work: u32) -> Self {
        Self::Threads { count: 1, cpus: "1", work }
    }
}

impl Veth {
    /// Starts a server behind veths as the kernel makes them.
    pub(crate) fn start(course: Course, answers: Server, client: &str) -> Result<Self> {
        let wire = Wire::along(course)?;
        let server = match answers {
            Server::Threads { count, cpus, work } => wire.readers(work, count, cpus)?,
            Server::Pipeline { second, work, .. } => wire.pipeline(work, second)?,
        };
        Ok(Self { wire, answers, client: client.to_owned(), server, kthreads: Vec::new() })
    }

    /// The netdevs whose receiving can be placed.
    pub(crate) fn netdevs(&self) -> &'static [&'static str] {
        self.wire.netdevs()
    }

    /// The unit of the load's rates.
    pub(crate) fn unit(&self) -> String {
        if self.client.contains("STREAM") { "byte" } else { "transaction" }.to_owned()
    }

    /// Sets the CPUs of RPS, as a mask, and nothing else.
    pub(crate) fn set_rps(&self, mask: u32) -> Result<()> {
        self.wire.set_rps(mask)
    }

    /// Makes a setting, with GRO.
    pub(crate) fn set(&mut self, setting: &VethSetting) -> Result<()> {
        let VethSetting { kthreads, rps } = setting;
        if kthreads.is_empty() {
            self.kthreads.clear();
            self.wire.polled()?;
        } else if self.kthreads.is_empty() {
            self.kthreads = self.wire.kthreads()?;
        }
        self.kthreads.iter().zip(kthreads).try_for_each(|(kthread, cpu)| kthread.put(*cpu))?;
        self.wire.set_rps(*rps)
    }

    /// Saves what netsilo observes under the load.
    pub(crate) fn capture(&self, bundle: &Path) -> Result<()> {
        self.wire.capture_during(self.clients(6.0)?, bundle)
    }

    fn clients(&self, seconds: f64) -> Result<Vec<Running>> {
        match self.answers {
            Server::Threads { .. } => self.wire.load(&self.client, seconds),
            Server::Pipeline { connections, .. } => {
                self.wire.pipeline_load(connections, seconds + WARM_UP.as_secs_f64())
            }
        }
    }

    /// Lets the clients run, and reads CPU and waiting times while they count.
    pub(crate) fn measure(&self, seconds: f64) -> Result<RoundResult> {
        let mut pids = family(self.server.pid().context("the server has ended")?);
        pids.extend(self.kthreads.iter().map(|kthread| kthread.pid()));
        let clients = self.clients(seconds)?;
        let pause = |seconds: f64| sleep(Duration::from_secs_f64(seconds));
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
        Ok(RoundResult::new(rate, figures))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_the_labs_own_client_is_read() {
        let own = r#"{"transactions":9,"transactions_per_second":5.0,"p50_us":1.0,"p99_us":2.0}"#;
        let expected = ClientFigures { rate: 5.0, p50_us: Some(1.0), p99_us: Some(2.0) };
        assert_eq!(ClientFigures::new(own).unwrap(), expected);
    }
}
