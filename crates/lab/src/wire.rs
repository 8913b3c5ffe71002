//! Veths of this machine's own kernel between network namespaces, with a server at one end and
//! clients at the other.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use netsilo_lab::exact;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::built;

/// The CPU of the server, and that of its clients.
pub(crate) const SERVER_CPU: u32 = 1;
pub(crate) const CLIENT_CPU: u32 = 0;

/// The netdev of the server, and the second netdev of a course with two.
pub(crate) const NETDEV: &str = "nv0";
const SECOND: &str = "nv1";

const ADDRESS: &str = "10.79.0.2";
const SECOND_ADDRESS: &str = "10.79.1.2";
const PIPELINE_PORT: u16 = 7400;

/// How long clients warm up before they count.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);

/// The path from the clients to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// One veth.
    One,
    /// Two veths to the same server, each with its own address.
    Two,
    /// Through a router that has a veth to each of them.
    Routed,
}

/// Network namespaces with veths between them. They are removed when dropped.
pub(crate) struct Wire {
    course: Course,
    client: String,
    server: String,
    router: String,
    netsilo: PathBuf,
    bench: PathBuf,
}

/// A kthread that polls a veth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kthread(u32);

impl Wire {
    /// The veths of a course, as the kernel makes them.
    pub(crate) fn along(course: Course) -> Result<Self> {
        let (netsilo, bench) = (built::netsilo()?, built::netsilo_bench()?);
        let name = |end: &str| format!("netsilo-{end}-{}", std::process::id());
        let [client, server, router] = ["client", "server", "router"].map(name);
        let wire = Self { course, client, server, router, netsilo, bench };
        let Self { client, server, router, .. } = &wire;
        let spaces: Vec<&String> = match course {
            Course::Routed => vec![client, server, router],
            Course::One | Course::Two => vec![client, server],
        };
        for space in spaces {
            sh(&format!("ip netns add {space} && ip -n {space} link set lo up"))?;
        }
        match course {
            Course::One => veth((client, "wire", "10.79.0.1"), (server, NETDEV, ADDRESS))?,
            Course::Two => {
                veth((client, "wire", "10.79.0.1"), (server, NETDEV, ADDRESS))?;
                veth((client, "wire1", "10.79.1.1"), (server, SECOND, SECOND_ADDRESS))?;
            }
            Course::Routed => {
                veth((client, "wire", "10.79.0.1"), (router, NETDEV, ADDRESS))?;
                veth((server, "wire", SECOND_ADDRESS), (router, SECOND, "10.79.1.1"))?;
                sh(&format!(
                    "ip -n {client} route add default via {ADDRESS} &&
                     ip -n {server} route add default via 10.79.1.1 &&
                     ip netns exec {router} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'"
                ))?;
            }
        }
        Ok(wire)
    }

    /// The netdevs whose receiving can be placed.
    pub(crate) fn netdevs(&self) -> &'static [&'static str] {
        match self.course {
            Course::One => &[NETDEV],
            Course::Two | Course::Routed => &[NETDEV, SECOND],
        }
    }

    /// The addresses to which clients send.
    fn addresses(&self) -> &'static [&'static str] {
        match self.course {
            Course::One => &[ADDRESS],
            Course::Two => &[ADDRESS, SECOND_ADDRESS],
            Course::Routed => &[SECOND_ADDRESS],
        }
    }

    /// The namespace of these netdevs.
    fn observed(&self) -> &str {
        if self.course == Course::Routed { &self.router } else { &self.server }
    }

    /// Lets NAPI poll the packets of each netdev, in softirqs on the CPUs that send.
    pub(crate) fn polled(&self) -> Result<()> {
        let Self { client, server, course, .. } = self;
        // If the sender segments, its packets need no merging by GRO.
        let senders = match course {
            Course::One => vec![(client, "wire")],
            Course::Two => vec![(client, "wire"), (client, "wire1")],
            Course::Routed => vec![(client, "wire"), (server, "wire")],
        };
        for (space, netdev) in senders {
            sh(&format!("ip netns exec {space} ethtool -K {netdev} tso off gso off"))?;
        }
        self.netdevs().iter().try_for_each(|netdev| {
            sh(&format!("ip netns exec {} ethtool -K {netdev} gro on", self.observed()))?;
            self.set_threaded(netdev, false)
        })
    }

    /// Lets a kthread poll the packets of each netdev.
    pub(crate) fn kthreads(&self) -> Result<Vec<Kthread>> {
        self.polled()?;
        let each = self.netdevs().iter().map(|netdev| {
            // Other veths of this machine may have the same name.
            let before = kthreads_of(netdev)?;
            self.set_threaded(netdev, true)?;
            let new = kthreads_of(netdev)?.difference(&before).copied().next();
            new.map(Kthread).with_context(|| {
                format!("{netdev} has no NAPI kthread: this kernel's veth has no threaded NAPI")
            })
        });
        each.collect()
    }

    fn set_threaded(&self, netdev: &str, is_on: bool) -> Result<()> {
        let (space, value) = (self.observed(), u8::from(is_on));
        let file = format!("/sys/class/net/{netdev}/threaded");
        sh(&format!("ip netns exec {space} sh -c 'echo {value} >{file}'")).map(drop)
    }

    /// Sets the CPUs of RPS, as a mask.
    pub(crate) fn set_rps(&self, mask: u32) -> Result<()> {
        self.netdevs().iter().try_for_each(|netdev| {
            let file = format!("/sys/class/net/{netdev}/queues/rx-0/rps_cpus");
            let space = self.observed();
            sh(&format!("ip netns exec {space} sh -c 'echo {mask:x} >{file}'")).map(drop)
        })
    }

    /// Starts a server with `threads` threads on these CPUs, and waits until it listens.
    pub(crate) fn readers(&self, work: u32, threads: u32, cpus: &str) -> Result<Running> {
        let bind = if self.course == Course::One { ADDRESS } else { "0.0.0.0" };
        let arguments = format!("serve --bind {bind} --workers {threads}");
        let command = format!("{} {arguments} --work-usecs {work}", self.bench.display());
        self.listening(spawn(&self.server, cpus, &command)?)
    }

    /// Starts two processes. The first one, on the server's CPU, reads and passes each request to
    /// the second.
    pub(crate) fn pipeline(&self, work: u32, second: u32) -> Result<Running> {
        let command = format!(
            "{} exact pipeline --port {PIPELINE_PORT} --cpu {SERVER_CPU} --second-cpu {second} \
             --work-usecs {work}",
            exact::program()?.display()
        );
        self.listening(spawn(&self.server, "0-1", &command)?)
    }

    fn listening(&self, server: Running) -> Result<Running> {
        std::thread::sleep(Duration::from_secs(1));
        Ok(server)
    }

    /// Starts a client for each address. It prints JSON and warms up for [`WARM_UP`].
    pub(crate) fn load(&self, load: &str, seconds: f64) -> Result<Vec<Running>> {
        let client = |address: &&str| {
            let command = format!(
                "{} run {address} {load} --workers 1 --instances-as multiplexed --duration \
                 {:.0}ms --warm-up {:.0}ms --json",
                self.bench.display(),
                seconds * 1e3,
                WARM_UP.as_secs_f64() * 1e3
            );
            spawn(&self.client, &CLIENT_CPU.to_string(), &command)
        };
        self.addresses().iter().map(client).collect()
    }

    /// Starts the client of a pipeline. It prints JSON and does not warm up.
    pub(crate) fn pipeline_load(&self, connections: u32, seconds: f64) -> Result<Vec<Running>> {
        let command = format!(
            "{} exact ask --udp --dest {ADDRESS} --port {PIPELINE_PORT} \
             --connections {connections} --duration {seconds}",
            exact::program()?.display()
        );
        Ok(vec![spawn(&self.client, &CLIENT_CPU.to_string(), &command)?])
    }

    /// Saves what netsilo observes while these clients run. They must run for six seconds.
    pub(crate) fn capture_during(&self, clients: Vec<Running>, bundle: &Path) -> Result<()> {
        std::thread::sleep(Duration::from_secs(1));
        sh(&format!(
            "ip netns exec {} {} capture --interval 3s --output {}",
            self.observed(),
            self.netsilo.display(),
            bundle.display()
        ))?;
        clients.into_iter().try_for_each(|client| client.output().map(drop))
    }
}

/// Starts a program on these CPUs in a namespace.
fn spawn(namespace: &str, cpus: &str, command: &str) -> Result<Running> {
    let command = format!("exec ip netns exec {namespace} taskset -c {cpus} {command}");
    let said = tempfile::tempfile()?;
    let child = Command::new("sh")
        .args(["-c", &command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(said.try_clone()?)
        .spawn()
        .context("cannot run sh")?;
    Ok(Running { child: Some(child), command, said })
}

/// A veth between two namespaces, each with a name and an address.
fn veth(one: (&str, &str, &str), other: (&str, &str, &str)) -> Result<()> {
    let ((a, a_name, a_address), (b, b_name, b_address)) = (one, other);
    sh(&format!(
        "ip -n {a} link add {a_name} type veth peer name {b_name} netns {b} &&
         ip -n {a} addr add {a_address}/24 dev {a_name} && ip -n {a} link set {a_name} up &&
         ip -n {b} addr add {b_address}/24 dev {b_name} && ip -n {b} link set {b_name} up"
    ))
    .map(drop)
}

impl Kthread {
    /// Makes it run on this CPU only.
    pub(crate) fn put(self, cpu: u32) -> Result<()> {
        sh(&format!("taskset -cp {cpu} {}", self.0)).map(drop)
    }

    /// Its process id.
    pub(crate) fn pid(self) -> u32 {
        self.0
    }
}

/// The CPUs of a mask.
pub(crate) fn cpus_of(mask: u32) -> CpuSet {
    (0..u32::BITS).filter(|cpu| mask & (1 << cpu) != 0).map(CpuId).collect()
}

/// The release of this machine's kernel.
pub(crate) fn kernel() -> Result<String> {
    sh("uname -r").map(|release| release.trim().to_owned())
}

impl Drop for Wire {
    fn drop(&mut self) {
        let mut spaces = vec![&self.client, &self.server];
        if self.course == Course::Routed {
            spaces.push(&self.router);
        }
        for space in spaces {
            let _ = sh(&format!("ip netns del {space}"));
        }
    }
}

/// A program; killed when dropped.
pub(crate) struct Running {
    child: Option<Child>,
    command: String,
    /// Its standard error.
    said: File,
}

impl Running {
    /// Its process id.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Waits for its end, and returns what it printed.
    pub(crate) fn output(mut self) -> Result<String> {
        let child = self.child.take().context("already ended")?;
        let output = child.wait_with_output()?;
        let mut said = String::new();
        self.said.rewind()?;
        self.said.read_to_string(&mut said)?;
        ensure!(output.status.success(), "{}: {}\n{said}", self.command, output.status);
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

/// The kthreads that poll netdevs of this name.
fn kthreads_of(netdev: &str) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in Path::new("/proc").read_dir()? {
        let path = entry?.path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let pid = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        if comm.starts_with(&format!("napi/{netdev}-")) {
            found.extend(pid);
        }
    }
    Ok(found)
}

fn sh(command: &str) -> Result<String> {
    let output = Command::new("sh").args(["-c", command]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command}: {}\n{said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
