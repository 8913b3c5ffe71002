//! redis and nginx in a guest, and their clients at its peer: servers that readers know.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_lab::{Lab, PeerJob, Program, nginx, redis, wrk};
use rustix::process::Signal;

use crate::counters::Counters;

/// The CPUs of the two redis servers (`server_cpulist`), on two cores of socket 0.
const REDIS_CPUS: [u32; 2] = [1, 2];

/// The CPUs of the two nginx workers (`worker_cpu_affinity`), 5 and 6 on two cores of socket 1.
const NGINX_CPUS: &str = "100000 1000000";

/// Port of the first redis server; the second has the next one.
const REDIS_PORT: u32 = 6379;

/// Requests to each redis server in one round.
const REDIS_REQUESTS: u64 = 1500;

/// Connections to each redis server, and to nginx, in a measurement.
const CONNECTIONS: [u32; 2] = [8, 16];

/// The same while netsilo or irqbalance observes. Emulated CPUs also have to run these, so the
/// clients send for `BURST` and rest for `PAUSE`.
const FEW_CONNECTIONS: [u32; 2] = [2, 4];
const BURST: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(300);

/// Longest time that the servers are busy while somebody observes them.
const WATCHED_SECONDS: u32 = 90;

/// Duration of the requests to nginx in one round.
const NGINX_SECONDS: u32 = 1;

/// The running servers, and their clients.
pub(crate) struct Servers<'a> {
    lab: &'a Lab,
    benchmark: Program,
    wrk: Program,
}

/// What the clients and the kernel counted.
pub(crate) struct Measured {
    /// Requests per second and 99th percentile in milliseconds, of redis and of nginx.
    pub(crate) redis: (f64, f64),
    pub(crate) nginx: (f64, f64),
    /// Function-call interrupts (`CAL`) per request: wakeups of other CPUs, mostly.
    pub(crate) ipis: f64,
    /// NET_RX softirqs per request.
    pub(crate) softirqs: f64,
}

impl<'a> Servers<'a> {
    /// Starts them in the guest.
    pub(crate) fn start(lab: &'a Lab) -> Result<Self> {
        let (server, benchmark) = redis()?;
        let (server, address) = (server.command(), Lab::guest_address(0));
        for (cpu, port) in REDIS_CPUS.iter().zip(REDIS_PORT..) {
            lab.sh(&format!(
                "env {server} --bind {address} --port {port} --protected-mode no --save '' \
                 --server_cpulist {cpu} --daemonize yes --logfile /tmp/redis-{port}.log"
            ))?;
        }
        let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path /tmp/nginx/{name};"));
        lab.sh(&format!(
            "mkdir -p /tmp/nginx/www /tmp/nginx/logs; echo hello >/tmp/nginx/www/index.html
             cat >/tmp/nginx/conf <<'END'
             user root; worker_processes 2; worker_cpu_affinity {NGINX_CPUS};
             pid /tmp/nginx/pid; error_log /tmp/nginx/error.log; events {{ }}
             http {{ {} access_log off; server {{ listen {address}:80; root /tmp/nginx/www; }} }}
END
             env {} -p /tmp/nginx -c /tmp/nginx/conf",
            folders.join(" "),
            nginx()?.command()
        ))?;
        Ok(Self { lab, benchmark, wrk: wrk()? })
    }

    /// Keeps all servers in use while `work` is done.
    pub(crate) fn while_busy<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let jobs = self.clients()?;
        let done = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            let pace = scope.spawn(|| pace(&jobs, &done));
            let result = work();
            done.store(true, Ordering::Relaxed);
            match pace.join() {
                Ok(paced) => paced.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        for job in jobs {
            job.stop()?;
        }
        Ok(result)
    }

    fn clients(&self) -> Result<Vec<PeerJob>> {
        let peer = self.lab.peer(0)?;
        let wrk = self.wrk(FEW_CONNECTIONS[1], WATCHED_SECONDS);
        let mut jobs = vec![peer.spawn(&format!("exec env {wrk}"))?];
        for port in (REDIS_PORT..).take(REDIS_CPUS.len()) {
            let requests = self.benchmark(port, FEW_CONNECTIONS[0], 1_000_000);
            jobs.push(peer.spawn(&format!("exec timeout {WATCHED_SECONDS} env {requests}"))?);
        }
        Ok(jobs)
    }

    /// Measures redis, then nginx.
    pub(crate) fn measure(&self) -> Result<Measured> {
        let peer = self.lab.peer(0)?;
        let before = self.counters()?;
        let both: Vec<String> = (REDIS_PORT..)
            .take(REDIS_CPUS.len())
            .map(|port| format!("env {} &", self.benchmark(port, CONNECTIONS[0], REDIS_REQUESTS)))
            .collect();
        let limit = Duration::from_secs(60);
        let redis = peer.run_for(&format!("{} wait", both.join(" ")), limit)?.ok()?;
        let rows = redis.text().lines().filter_map(redis_row).collect::<Vec<_>>();
        anyhow::ensure!(rows.len() == REDIS_CPUS.len(), "redis-benchmark said: {}", redis.text());
        let nginx = peer
            .run_for(&format!("env {}", self.wrk(CONNECTIONS[1], NGINX_SECONDS)), limit)?
            .ok()?;
        let (per_s, p99, requests) =
            wrk_report(&nginx.text()).with_context(|| format!("wrk said: {}", nginx.text()))?;
        let spent = self.counters()?.since(&before);
        let requests = requests + (REDIS_REQUESTS * rows.len() as u64) as f64;
        Ok(Measured {
            redis: (
                rows.iter().map(|row| row.0).sum(),
                rows.iter().map(|row| row.1).fold(0.0, f64::max),
            ),
            nginx: (per_s, p99),
            ipis: spent.ipis as f64 / requests,
            softirqs: spent.net_rx as f64 / requests,
        })
    }

    fn counters(&self) -> Result<Counters> {
        Counters::parse(&self.lab.sh("cat /proc/softirqs /proc/interrupts")?)
    }

    fn benchmark(&self, port: u32, connections: u32, requests: u64) -> String {
        format!(
            "{} -h {} -p {port} -t get -n {requests} -c {connections} --csv",
            self.benchmark.command(),
            Lab::guest_address(0)
        )
    }

    fn wrk(&self, connections: u32, seconds: u32) -> String {
        format!(
            "{} --threads 1 --connections {connections} --duration {seconds}s --latency http://{}/",
            self.wrk.command(),
            Lab::guest_address(0)
        )
    }
}

/// Lets the clients send in bursts until it is done.
fn pace(clients: &[PeerJob], done: &AtomicBool) -> Result<()> {
    let signal = |signal| clients.iter().try_for_each(|client| client.signal(signal));
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(BURST);
        signal(Signal::STOP)?;
        std::thread::sleep(PAUSE);
        signal(Signal::CONT)?;
    }
    Ok(())
}

/// Requests per second and 99th percentile of a row of redis-benchmark's CSV:
/// `"GET","rps","avg_latency_ms","min","p50","p95","p99","max"`.
fn redis_row(line: &str) -> Option<(f64, f64)> {
    let cells: Vec<f64> = line
        .strip_prefix("\"GET\",")?
        .split(',')
        .filter_map(|cell| cell.trim_matches('"').parse().ok())
        .collect();
    Some((*cells.first()?, *cells.get(5)?))
}

/// Requests per second, 99th percentile in milliseconds and number of requests of wrk's report.
fn wrk_report(text: &str) -> Option<(f64, f64, f64)> {
    let word = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name));
    let requests = text.lines().find_map(|line| line.split_once(" requests in "))?;
    let p99 = word("99%")?.trim();
    let p99 = match p99 {
        it if it.ends_with("us") => it.trim_end_matches("us").parse::<f64>().ok()? / 1e3,
        it if it.ends_with("ms") => it.trim_end_matches("ms").parse().ok()?,
        it => it.trim_end_matches('s').parse::<f64>().ok()? * 1e3,
    };
    Some((word("Requests/sec:")?.trim().parse().ok()?, p99, requests.0.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_the_clients_are_read() {
        let row = r#""GET","1886.79","4.149","0.488","3.567","8.983","23.679","32.767""#;
        assert_eq!(redis_row(row), Some((1886.79, 23.679)));
        assert_eq!(redis_row(r#""test","rps","avg_latency_ms""#), None);
        let report = "  Latency Distribution\n     50%   12.10ms\n     99%    1.25s\n  \
                      3475 requests in 3.01s, 825.31KB read\nRequests/sec:   1153.16\n";
        assert_eq!(wrk_report(report), Some((1153.16, 1250.0, 3475.0)));
    }
}
