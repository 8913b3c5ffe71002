//! Measures placements on this machine's own kernel, at true speed.
//!
//! A veth with GRO and threaded NAPI stands for a NIC: its kthread polls the packets, and can be
//! placed as an interrupt can. The server is on CPU 1, its clients on CPU 0; the kthread is on the
//! server's CPU or on the other one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::built;
use crate::outcome::args::Measure;
use crate::outcome::recorded::{Load, Recorded, Start};
use crate::say::say;

/// The CPU of the server, and the one of its clients.
const SERVER_CPU: u32 = 1;
const CLIENT_CPU: u32 = 0;

/// The kthread's places.
const PLACES: [u32; 2] = [SERVER_CPU, CLIENT_CPU];

const ADDRESS: &str = "10.79.0.2";

/// The netdev of the server.
const NETDEV: &str = "nv0";

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

/// Measures all loads, and saves the results in a folder.
pub(super) fn record(args: &Measure, folder: &Path) -> Result<()> {
    let wire = Wire::new()?;
    let mut recorded = Recorded {
        about: format!(
            "netsilo-lab outcome --rounds {} --seconds {} --looks {}; Linux {}",
            args.rounds,
            args.seconds,
            args.looks,
            sh("uname -r")?.trim()
        ),
        netdev: NETDEV.to_owned(),
        placements: PLACES.iter().map(|cpu| vec![cpu.to_string()]).collect(),
        loads: Vec::new(),
    };
    for (name, load, work) in LOADS {
        let measured = wire.measure(name, (load, work), args, folder);
        recorded.loads.push(measured.with_context(|| name.to_owned())?);
        say(&format!("measured: {name}"))?;
    }
    recorded.write(folder)
}

/// A name as part of a file name.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = name.chars().map(kept).collect();
    words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

/// Two network namespaces with a veth between them; removed when dropped.
pub(super) struct Wire {
    client: String,
    server: String,
    device: String,
    kthread: u32,
    netsilo: PathBuf,
}

impl Wire {
    pub(super) fn new() -> Result<Self> {
        let netsilo = built::netsilo()?;
        let id = std::process::id();
        let (client, server) = (format!("netsilo-client-{id}"), format!("netsilo-server-{id}"));
        let device = NETDEV.to_owned();
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

    /// Measures one load in each place, by rounds, and saves bundles of each start.
    pub(super) fn measure(
        &self,
        name: &str,
        (load, work): (&str, u32),
        args: &Measure,
        folder: &Path,
    ) -> Result<Load> {
        let server = self.server(work)?;
        let mut rates = vec![Vec::new(); PLACES.len()];
        for round in 0..usize::from(args.rounds) {
            for turn in 0..PLACES.len() {
                let place = (round + turn) % PLACES.len();
                self.put(place)?;
                rates[place].push(self.rate(load, args.seconds)?);
            }
        }
        let mut starts = Vec::new();
        for (time, placement) in
            (0..args.looks).flat_map(|it| (0..PLACES.len()).map(move |place| (it, place)))
        {
            self.put(placement)?;
            let bundle = format!("{}-from-{}-{time}.tar.zst", slug(name), PLACES[placement]);
            self.capture(load, &folder.join(&bundle))?;
            starts.push(Start { placement, bundle });
        }
        drop(server);
        Ok(Load { name: name.to_owned(), rates, starts })
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

    /// Saves what netsilo sees under this load.
    fn capture(&self, load: &str, bundle: &Path) -> Result<()> {
        let client = self.spawn(&self.client, CLIENT_CPU, &self.client(load, 6))?;
        std::thread::sleep(Duration::from_secs(1));
        sh(&format!(
            "ip netns exec {} {} capture --interval 3s --output {}",
            self.server,
            self.netsilo.display(),
            bundle.display()
        ))?;
        client.output().map(drop)
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
