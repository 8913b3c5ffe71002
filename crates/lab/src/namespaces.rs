//! Namespaces that end when this process ends, however it ends, with all processes in them.
//!
//! The first process of the pid namespace reads from a pipe that only the lab holds. When the lab
//! closes the pipe or dies, that process ends. The kernel then kills every other process in the
//! namespace (QEMU, peers' programs) and frees the network namespaces with their taps. Nothing has
//! a name outside of them.

use crate::exact;
use crate::output::Output;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A pid, mount and network namespace, and one more network namespace per peer.
#[derive(Debug)]
pub(crate) struct GuestNamespaces {
    /// Process id of `unshare`, whose child is the pid namespace's first process.
    pid: u32,
    holder: Mutex<Child>,
}

impl GuestNamespaces {
    pub(crate) fn new() -> Result<Self> {
        // `ip netns` stores its names under /run, which is mounted only for these namespaces.
        let script = "mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /run && \
                      echo ready && exec cat >/dev/null";
        let mut holder = Command::new("unshare")
            .args(["--net", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot run unshare")?;
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() != "ready" {
            let _ = holder.kill();
            let _ = holder.wait();
            bail!("cannot create namespaces: the lab must be root and allowed to mount");
        }
        Ok(Self { pid: holder.id(), holder: Mutex::new(holder) })
    }

    /// Returns a command that runs `program` in the namespaces, in QEMU's network namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let holder = self.pid;
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{holder}/ns/net"));
        command.arg(format!("--mount=/proc/{holder}/ns/mnt"));
        // Without this, a lab in a chroot would run the program outside of it.
        command.arg(format!("--root=/proc/{holder}/root"));
        command.arg(format!("--pid=/proc/{holder}/ns/pid_for_children"));
        command.arg("--").arg(program).process_group(0);
        command
    }

    /// Ends all processes in these namespaces. Returns when none is left.
    pub(crate) fn end(&self) {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        drop(holder.stdin.take());
        // The first process of a pid namespace is the last to end.
        let _ = holder.wait();
    }
}

impl Drop for GuestNamespaces {
    fn drop(&mut self) {
        self.end();
    }
}

/// The other end of a guest's network cable: a network namespace with the tap in it.
#[derive(Debug, Clone)]
pub struct Peer {
    pub(crate) namespaces: Arc<GuestNamespaces>,
    pub(crate) netns: String,
}

impl Peer {
    /// Runs a shell command until it ends, for at most [`crate::time::RUN_TIMEOUT`].
    pub fn run(&self, command: &str) -> Result<Output> {
        self.run_for(command, crate::time::RUN_TIMEOUT)
    }

    /// Runs a shell command until it ends. After `timeout`, kills it and returns an error.
    pub fn run_for(&self, command: &str, timeout: Duration) -> Result<Output> {
        self.spawn(command)?.wait(timeout).with_context(|| format!("in {}: {command}", self.netns))
    }

    /// Runs a shell command and returns its standard output. Fails if the command fails.
    pub fn sh(&self, command: &str) -> Result<String> {
        let done =
            self.run(command)?.ok().with_context(|| format!("in {}: {command}", self.netns))?;
        Ok(done.text().into_owned())
    }

    /// Starts a program of [`exact`].
    pub fn exact(&self, words: &str) -> Result<PeerJob> {
        self.spawn(&exact::command(words)?)
    }

    /// Waits until all these TCP ports at `address` accept connections.
    pub fn until_open(&self, address: Ipv4Addr, ports: RangeInclusive<u16>) -> Result<()> {
        let (first, last) = ports.into_inner();
        let open = format!(
            "timeout 60 bash -c 'for port in $(seq {first} {last}); do \
             until (exec 3<>/dev/tcp/{address}/$port) 2>/dev/null; do sleep 0.1; done; done'"
        );
        self.sh(&open).map(drop)
    }

    /// Starts a shell command.
    pub fn spawn(&self, command: &str) -> Result<PeerJob> {
        let (stdout, stderr) = (unnamed_file()?, unnamed_file()?);
        let child = self
            .namespaces
            .command("ip")
            .args(["netns", "exec", &self.netns, "sh", "-c", command])
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .context("cannot run nsenter")?;
        Ok(PeerJob { child, stdout, stderr })
    }
}

/// A command that runs in a peer; killed when dropped.
#[derive(Debug)]
pub struct PeerJob {
    child: Child,
    stdout: File,
    stderr: File,
}

impl PeerJob {
    /// Waits for the command to end. After `timeout`, kills it and returns an error.
    pub fn wait(mut self, timeout: Duration) -> Result<Output> {
        let pid = self.pid().context("no process")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let timeout_spec =
            Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let ended = loop {
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout_spec)) {
                Err(rustix::io::Errno::INTR) => {}
                ended => break ended?,
            }
        };
        if ended == 0 {
            bail!("still running after {timeout:?}: killed; its output: {}", self.output());
        }
        let status = self.child.wait()?;
        Ok(Output {
            status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout: content(&self.stdout)?,
            stderr: content(&self.stderr)?,
        })
    }

    /// Sends a signal to the command and all processes that it started.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("no process")?;
        kill_process_group(pid, signal).context("cannot signal a command in a peer")
    }

    /// Terminates the command and returns its output.
    pub fn stop(self) -> Result<Output> {
        self.signal(Signal::TERM)?;
        // nsenter stops when it notices that the command is stopped, even if the command has
        // continued since
        self.signal(Signal::CONT)?;
        self.wait(crate::time::STOP_TIMEOUT)
    }

    fn output(&self) -> String {
        let bytes =
            [content(&self.stdout), content(&self.stderr)].map(Result::unwrap_or_default).concat();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }
}

impl Drop for PeerJob {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Creates an unnamed file to which several processes may append.
pub(crate) fn unnamed_file() -> Result<File> {
    let file =
        memfd_create("netsilo-lab", MemfdFlags::CLOEXEC).context("cannot create an output file")?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::APPEND)?;
    Ok(File::from(file))
}

/// Reads a file by position, because its offset is shared with processes that may still write.
pub(crate) fn content(file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
