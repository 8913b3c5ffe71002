//! A small virtual machine monitor: takes all packets of a tap, itself or by vhost-net.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::exact::peer::PATIENCE;
use crate::exact::pin::pin;
use crate::exact::vhost::{Ring, take_tap};

/// Take all packets of a tap, as the program of a virtual machine does.
#[derive(Debug, Clone, Args)]
pub struct Vmm {
    /// Name of the tap, or device of the macvtap (`/dev/tap7`)
    #[arg(long)]
    pub tap: PathBuf,
    /// Have the kernel copy the packets to the virtual machine's memory (vhost-net)
    #[arg(long)]
    pub vhost: bool,
    /// Number of UDP datagrams to wait for; then take what else is there
    #[arg(long)]
    pub datagrams: u64,
    /// CPU of the threads that stand for the virtual machine's CPUs
    #[arg(long)]
    pub cpu: usize,
    /// Number of queues of the tap, each with a CPU of the virtual machine
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
}

/// What was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Process id of the program.
    pub pid: u32,
    /// Packets of any kind.
    pub packets: u64,
    /// Their bytes, with Ethernet headers.
    pub bytes: u64,
    /// Those packets that were UDP datagrams over IPv4.
    pub datagrams: u64,
}

/// The tap is empty if it was for so long.
const IDLE: Duration = Duration::from_millis(300);

impl Vmm {
    /// Runs in threads that are named like QEMU's.
    pub(crate) fn run(&self) -> Result<Taken> {
        let taps: Vec<File> = (0..self.queues).map(|_| self.open()).collect::<Result<_>>()?;
        let datagrams = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            let start = |(cpu, tap)| {
                let thread = std::thread::Builder::new().name(format!("CPU {cpu}/KVM"));
                let run = move || {
                    pin(self.cpu)?;
                    if self.vhost {
                        self.by_vhost(tap, datagrams)
                    } else {
                        self.by_read(tap, datagrams)
                    }
                };
                thread.spawn_scoped(scope, run)
            };
            let threads: Vec<_> =
                taps.iter().enumerate().map(start).collect::<std::io::Result<_>>()?;
            let mut all = Taken { pid: std::process::id(), ..Taken::default() };
            for thread in threads {
                let taken = thread.join().unwrap_or_else(|_| bail!("a thread panicked"))?;
                all.packets += taken.packets;
                all.bytes += taken.bytes;
                all.datagrams += taken.datagrams;
            }
            Ok(all)
        })
    }

    fn open(&self) -> Result<File> {
        let name = self.tap.to_string_lossy();
        let (path, name) = if name.starts_with('/') {
            (self.tap.clone(), "")
        } else {
            (PathBuf::from("/dev/net/tun"), name.as_ref())
        };
        let mut options = File::options();
        let flags = OFlags::NONBLOCK.bits();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.cast_signed());
        let opened = options.read(true).write(true).open(&path);
        let tap = opened.with_context(|| format!("cannot open {}", path.display()))?;
        take_tap(&tap, name, self.vhost, self.queues > 1)
            .with_context(|| format!("cannot take the tap {name}"))?;
        Ok(tap)
    }

    fn by_read(&self, mut tap: &File, datagrams: &AtomicU64) -> Result<Taken> {
        let mut packet = vec![0; 65536];
        self.take(tap, datagrams, |taken| match tap.read(&mut packet) {
            Ok(bytes) => {
                taken.add(&packet[..bytes]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        })
    }

    fn by_vhost(&self, tap: &File, datagrams: &AtomicU64) -> Result<Taken> {
        let mut ring = Ring::new(tap.as_raw_fd()).context("cannot use vhost-net")?;
        let call = ring.call.try_clone()?;
        self.take(&call, datagrams, |taken| ring.take(|packet| taken.add(packet)))
    }

    /// Takes the packets of a queue until all datagrams have come in all queues and nothing more
    /// arrives. `next` returns false if nothing is there.
    fn take(
        &self,
        wait: &File,
        datagrams: &AtomicU64,
        mut next: impl FnMut(&mut Taken) -> Result<bool>,
    ) -> Result<Taken> {
        let mut taken = Taken::default();
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let before = taken.datagrams;
            while next(&mut taken)? {}
            let new = taken.datagrams - before;
            let all = datagrams.fetch_add(new, Ordering::Relaxed) + new;
            let mut descriptors = [PollFd::from_borrowed_fd(wait.as_fd(), PollFlags::IN)];
            let is_idle = poll(&mut descriptors, Some(&Timespec::try_from(IDLE)?))? == 0;
            if is_idle && all >= self.datagrams {
                return Ok(taken);
            }
            if Instant::now() > deadline {
                bail!("only {all} of {} datagrams arrived", self.datagrams);
            }
        }
    }
}

impl Taken {
    fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        let is_udp = packet.get(12..14) == Some(&[8, 0]) && packet.get(23) == Some(&17);
        self.datagrams += u64::from(is_udp);
    }
}
