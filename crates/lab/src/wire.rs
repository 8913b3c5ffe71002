//! A veth of this machine's own kernel between two network namespaces, with a server at one end and
//! clients at the other.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::built;

/// The CPU of the server, and the one of its clients.
pub(crate) const SERVER_CPU: u32 = 1;
pub(crate) const CLIENT_CPU: u32 = 0;

/// The netdev of the server.
pub(crate) const NETDEV: &str = "nv0";

const ADDRESS: &str = "10.79.0.2";

/// Two network namespaces with a veth between them; removed when dropped.
pub(crate) struct Wire {
    client: String,
    server: String,
    netsilo: PathBuf,
}

/// The kthread that polls the server's end of the veth.
pub(crate) struct Kthread(u32);

impl Wire {
    /// A veth as the kernel makes it.
    pub(crate) fn new() -> Result<Self> {
        let netsilo = built::netsilo()?;
        let id = std::process::id();
        let (client, server) = (format!("netsilo-client-{id}"), format!("netsilo-server-{id}"));
        let wire = Self { client, server, netsilo };
        let Self { client, server, .. } = &wire;
        sh(&format!(
            "ip netns add {client} && ip netns add {server} &&
             ip -n {client} link add wire type veth peer name {NETDEV} netns {server} &&
             ip -n {client} addr add 10.79.0.1/24 dev wire && ip -n {client} link set wire up &&
             ip -n {server} addr add {ADDRESS}/24 dev {NETDEV} &&
             ip -n {server} link set {NETDEV} up"
        ))?;
        Ok(wire)
    }

    /// Lets a kthread poll the packets, as one may poll those of a NIC.
    pub(crate) fn threaded(&self) -> Result<Kthread> {
        let Self { client, server, .. } = self;
        // A sender that segments hands over packets that GRO need not merge.
        sh(&format!(
            "ip netns exec {client} ethtool -K wire tso off gso off &&
             ip netns exec {server} ethtool -K {NETDEV} gro on &&
             ip netns exec {server} sh -c 'echo 1 >/sys/class/net/{NETDEV}/threaded'"
        ))?;
        kthread_of(NETDEV).map(Kthread)
    }

    /// Sets the CPUs of RPS, as a mask.
    pub(crate) fn set_rps(&self, mask: u32) -> Result<()> {
        let file = format!("/sys/class/net/{NETDEV}/queues/rx-0/rps_cpus");
        sh(&format!("ip netns exec {} sh -c 'echo {mask:x} >{file}'", self.server)).map(drop)
    }

    /// Starts the server and waits until it listens.
    pub(crate) fn server(&self, work: u32) -> Result<Running> {
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

    /// The transactions, or bytes of a stream, per second.
    pub(crate) fn rate(&self, load: &str, seconds: u32) -> Result<f64> {
        let text = self.spawn(&self.client, CLIENT_CPU, &self.client(load, seconds))?.output()?;
        text.trim().parse().with_context(|| format!("bench run printed: {text}"))
    }

    /// Saves what netsilo sees under this load.
    pub(crate) fn capture(&self, load: &str, bundle: &Path) -> Result<()> {
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

impl Kthread {
    /// Lets it run on this CPU only.
    pub(crate) fn put(&self, cpu: u32) -> Result<()> {
        sh(&format!("taskset -cp {cpu} {}", self.0)).map(drop)
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
        let _ = sh(&format!("ip netns del {}; ip netns del {}", self.client, self.server));
    }
}

/// A program; killed when dropped.
pub(crate) struct Running {
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
