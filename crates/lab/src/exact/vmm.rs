//! A small virtual machine monitor: takes all packets of a tap, itself or by vhost-net.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
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
    /// CPU of the thread that stands for the virtual machine's first CPU
    #[arg(long)]
    pub cpu: usize,
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
    /// Runs in a thread that is named like one of QEMU's.
    pub(crate) fn run(&self) -> Result<Taken> {
        let tap = self.open()?;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("CPU 0/KVM".into());
            let run = || {
                pin(self.cpu)?;
                if self.vhost { self.by_vhost(&tap) } else { self.by_read(&tap) }
            };
            thread.spawn_scoped(scope, run)?.join().unwrap_or_else(|_| bail!("a thread panicked"))
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
        take_tap(&tap, name, self.vhost).with_context(|| format!("cannot take the tap {name}"))?;
        Ok(tap)
    }

    fn by_read(&self, mut tap: &File) -> Result<Taken> {
        let mut packet = vec![0; 65536];
        self.take(tap, |taken| match tap.read(&mut packet) {
            Ok(bytes) => {
                taken.add(&packet[..bytes]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        })
    }

    fn by_vhost(&self, tap: &File) -> Result<Taken> {
        let mut ring = Ring::new(tap.as_raw_fd()).context("cannot use vhost-net")?;
        let call = ring.call.try_clone()?;
        self.take(&call, |taken| ring.take(|packet| taken.add(packet)))
    }

    /// Takes packets until all datagrams have come and nothing more arrives. `next` returns false
    /// if nothing is there.
    fn take(&self, wait: &File, mut next: impl FnMut(&mut Taken) -> Result<bool>) -> Result<Taken> {
        let mut taken = Taken { pid: std::process::id(), ..Taken::default() };
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            while next(&mut taken)? {}
            let mut descriptors = [PollFd::from_borrowed_fd(wait.as_fd(), PollFlags::IN)];
            let is_idle = poll(&mut descriptors, Some(&Timespec::try_from(IDLE)?))? == 0;
            if is_idle && taken.datagrams >= self.datagrams {
                return Ok(taken);
            }
            if Instant::now() > deadline {
                bail!("only {} of {} datagrams arrived", taken.datagrams, self.datagrams);
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
