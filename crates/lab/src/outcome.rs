//! `make bench-outcome`: what the default chooses, held to what measured best on this machine's own
//! kernel, at true speed.
//!
//! A veth with GRO and threaded NAPI stands for a NIC: its kthread polls the packets, and can be
//! placed as an interrupt can. The server is on CPU 1, its clients on CPU 0; the kthread is on the
//! server's CPU or on the other one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use netsilo_stats::median;

use crate::built;
use crate::say::say;

/// The CPU of the server, and the one of its clients.
const SERVER_CPU: u32 = 1;
const CLIENT_CPU: u32 = 0;

/// The kthread's places.
const PLACES: [u32; 2] = [SERVER_CPU, CLIENT_CPU];

const ADDRESS: &str = "10.79.0.2";

/// The loads: a name, arguments of `bench run`, and the server's work per request in microseconds.
const LOADS: [(&str, &str, u32); 10] = [
    ("TCP_RR x 1", "-t TCP_RR -n 1", 0),
    ("TCP_RR x 16", "-t TCP_RR -n 16", 0),
    ("TCP_RR x 64", "-t TCP_RR -n 64", 0),
    ("TCP_RR x 16, 5 us of work", "-t TCP_RR -n 16", 5),
    ("TCP_RR x 16, 50 us of work", "-t TCP_RR -n 16", 50),
    ("TCP_RR x 16, 200 us of work", "-t TCP_RR -n 16", 200),
    ("UDP_RR x 1", "-t UDP_RR -n 1", 0),
    ("UDP_RR x 16", "-t UDP_RR -n 16", 0),
    ("UDP_RR x 16, 50 us of work", "-t UDP_RR -n 16", 50),
    ("TCP_STREAM x 1", "-t TCP_STREAM -n 1", 0),
];

/// Arguments of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outcome {
    /// Rounds of each load; odd ones tell which place is best, even ones by how much
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u32,
}

/// Measures all loads and prints a table.
pub(crate) fn run(args: &Outcome) -> Result<()> {
    ensure!(args.rounds >= 2, "--rounds {}: two or more are needed", args.rounds);
    let wire = Wire::new()?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "load",
        "kthread on the server's cpu",
        "on the other cpu",
        "from there, the default chooses",
        "from the other",
        "regret",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut regrets = Vec::new();
    for (name, load, work) in LOADS {
        let measured = wire.measure(load, work, args).with_context(|| name.to_owned())?;
        let rate = |place: usize| format!("{:.0}/s", middle(&measured.rates[place]));
        let [from_same, from_other] = measured.chosen.map(|place| match place {
            0 => "the server's",
            _ => "the other",
        });
        let regret = measured.regret();
        regrets.push(regret);
        let regret = format!("{:.1}%", regret * 100.0);
        table.add_row([name, &rate(0), &rate(1), from_same, from_other, &regret]);
        say(&format!("measured: {name}"))?;
    }
    say(&format!("\n{table}"))?;
    let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
    let worst = regrets.iter().copied().fold(0.0, f64::max);
    say(&format!("regret: {:.1}% on average, {:.1}% at most", mean * 100.0, worst * 100.0))
}

fn middle(rates: &[f64]) -> f64 {
    median(rates).unwrap_or(f64::NAN)
}

/// What came of one load.
struct Measured {
    /// Transactions or bytes per second at each place, by round.
    rates: [Vec<f64>; 2],
    /// The place that the default chooses, by the place from which it starts.
    chosen: [usize; 2],
}

impl Measured {
    /// How much less the default's choice does than the better place, from the worse of the two
    /// starts. The better place is the one of the odd rounds; the even rounds tell by how much.
    fn regret(&self) -> f64 {
        let rounds = |place: usize, first: usize| -> Vec<f64> {
            self.rates[place].iter().copied().skip(first).step_by(2).collect()
        };
        let best = if middle(&rounds(0, 0)) >= middle(&rounds(1, 0)) { 0 } else { 1 };
        let lost = |chosen: &usize| 1.0 - middle(&rounds(*chosen, 1)) / middle(&rounds(best, 1));
        self.chosen.iter().map(lost).fold(0.0, f64::max)
    }
}

/// Two network namespaces with a veth between them; removed when dropped.
struct Wire {
    client: String,
    server: String,
    device: String,
    kthread: u32,
    netsilo: PathBuf,
}

impl Wire {
    fn new() -> Result<Self> {
        let netsilo = built::netsilo()?;
        let id = std::process::id();
        let (client, server) = (format!("netsilo-client-{id}"), format!("netsilo-server-{id}"));
        let device = format!("nv{id}");
        let mut wire = Self { client, server, device, kthread: 0, netsilo };
        let Self { client, server, device, .. } = &wire;
        // A sender that segments hands over packets that GRO need not merge.
        sh(&format!(
            "ip netns add {client} && ip netns add {server} &&
             ip -n {client} link add wire type veth peer name {device} netns {server} &&
             ip -n {client} addr add 10.79.0.1/24 dev wire && ip -n {client} link set wire up &&
             ip -n {server} addr add {ADDRESS}/24 dev {device} &&
             ip -n {server} link set {device} up &&
             ip netns exec {client} ethtool -K wire tso off gso off &&
             ip netns exec {server} ethtool -K {device} gro on &&
             ip netns exec {server} sh -c 'echo 1 >/sys/class/net/{device}/threaded'"
        ))?;
        wire.kthread = kthread_of(&wire.device)?;
        Ok(wire)
    }

    fn measure(&self, load: &str, work: u32, args: &Outcome) -> Result<Measured> {
        let server = self.server(work)?;
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..args.rounds {
            for turn in 0..PLACES.len() {
                let place = (round + turn) % PLACES.len();
                self.put(place)?;
                rates[place].push(self.rate(load, args.seconds)?);
            }
        }
        let mut chosen = [0; 2];
        for (start, chosen) in chosen.iter_mut().enumerate() {
            self.put(start)?;
            *chosen = self.chosen(load, start)?;
        }
        drop(server);
        Ok(Measured { rates, chosen })
    }

    fn put(&self, place: usize) -> Result<()> {
        sh(&format!("taskset -cp {} {}", PLACES[place], self.kthread)).map(drop)
    }

    /// Starts the server and waits until it listens.
    fn server(&self, work: u32) -> Result<Running> {
        let server = self.spawn(
            &self.server,
            SERVER_CPU,
            &format!("bench serve --bind {ADDRESS} --workers 1 --work-usecs {work}"),
        )?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(server)
    }

    fn client(&self, load: &str, seconds: u32) -> String {
        format!(
            "bench run {ADDRESS} {load} --workers 1 --instances-as multiplexed \
             --duration {seconds}s --warm-up 300ms --rate-only"
        )
    }

    fn rate(&self, load: &str, seconds: u32) -> Result<f64> {
        let text = self.spawn(&self.client, CLIENT_CPU, &self.client(load, seconds))?.output()?;
        text.trim().parse().with_context(|| format!("bench run printed: {text}"))
    }

    /// The place that the default chooses under this load.
    fn chosen(&self, load: &str, start: usize) -> Result<usize> {
        let client = self.spawn(&self.client, CLIENT_CPU, &self.client(load, 6))?;
        std::thread::sleep(Duration::from_secs(1));
        let plan = sh(&format!(
            "ip netns exec {} {} plan --json --interval 3s --netdev {}",
            self.server,
            self.netsilo.display(),
            self.device
        ))?;
        client.output()?;
        let plan: serde_json::Value = serde_json::from_str(&plan)?;
        match plan["placements"][0]["cpus"].as_str().map(str::parse::<u32>) {
            Some(Ok(cpu)) => PLACES.iter().position(|place| *place == cpu).context("another cpu"),
            // Left alone.
            _ => Ok(start),
        }
    }

    /// Starts netsilo on a CPU in a namespace.
    fn spawn(&self, namespace: &str, cpu: u32, arguments: &str) -> Result<Running> {
        let netsilo = self.netsilo.display();
        let command =
            format!("exec ip netns exec {namespace} taskset -c {cpu} {netsilo} {arguments}");
        let child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run sh")?;
        Ok(Running { child: Some(child), command })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = sh(&format!("ip netns del {}; ip netns del {}", self.client, self.server));
    }
}

/// A program; killed when dropped.
struct Running {
    child: Option<Child>,
    command: String,
}

impl Running {
    /// Waits for its end, and returns what it printed.
    fn output(mut self) -> Result<String> {
        let child = self.child.take().context("already ended")?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}: {}", self.command, output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The kthread that polls this device.
fn kthread_of(device: &str) -> Result<u32> {
    for entry in Path::new("/proc").read_dir()? {
        let path = entry?.path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.starts_with(&format!("napi/{device}-")) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            return name.parse().context("a process without a number");
        }
    }
    bail!("{device} has no NAPI kthread: this kernel's veth has no threaded NAPI")
}

fn sh(command: &str) -> Result<String> {
    let output = Command::new("sh").args(["-c", command]).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_what_the_worse_start_loses_in_the_even_rounds() {
        let rates = [vec![200.0, 100.0, 220.0, 100.0], vec![100.0, 50.0, 90.0, 60.0]];
        let measured = |chosen| Measured { rates: rates.clone(), chosen };
        assert_eq!(measured([0, 0]).regret(), 0.0);
        assert!((measured([0, 1]).regret() - 0.45).abs() < 1e-9);
    }
}
