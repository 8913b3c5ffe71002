//! A thread that sends UDP packets over the loopback of its own network namespace, where an
//! nftables rule drops them, or a socket that nobody reads. With the kernel's usual accounting, the
//! packets' whole way counts as CPU time of the thread.

use std::error::Error;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;
use rustix::time::{ClockId, clock_gettime};

/// Packets sent in one go.
const BATCH: u64 = 100;
const RULES: &str = "
ip link set lo up
nft add table inet cost
nft 'add chain inet cost input { type filter hook input priority 0; }'
nft add rule inet cost input udp dport 9 drop
";

/// Sends until the program ends.
pub(crate) struct Flood {
    sent: Arc<AtomicU64>,
    /// CPU time of the thread.
    cpu_ns: Arc<AtomicU64>,
}

impl Flood {
    /// `per_s` packets per second; 0: as many as possible. They go to a full socket or to a rule.
    pub(crate) fn start(per_s: u64, to_socket: bool) -> Result<Self, Box<dyn Error>> {
        let flood = Self { sent: Arc::default(), cpu_ns: Arc::default() };
        let (sent, cpu_ns) = (flood.sent.clone(), flood.cpu_ns.clone());
        let (ready, started) = channel();
        std::thread::spawn(move || send(per_s, to_socket, &sent, &cpu_ns, &ready));
        started.recv()??;
        Ok(flood)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// The CPU time of a packet in the time that comes.
    pub(crate) fn cpu_ns_of_a_packet(&self, time: Duration) -> f64 {
        let now = || (self.sent(), self.cpu_ns.load(Ordering::Acquire));
        let (sent, cpu_ns) = now();
        sleep(time);
        let (sent_after, cpu_ns_after) = now();
        (cpu_ns_after - cpu_ns) as f64 / (sent_after - sent) as f64
    }
}

fn send(
    per_s: u64,
    to_socket: bool,
    sent: &AtomicU64,
    cpu_ns: &AtomicU64,
    ready: &Sender<Result<(), std::io::Error>>,
) {
    let (socket, _unread) = match prepare(to_socket) {
        Ok(sockets) => sockets,
        Err(error) => return ready.send(Err(error)).unwrap_or_default(),
    };
    let (start, mut batches) = (Instant::now(), 0);
    if ready.send(Ok(())).is_err() {
        return;
    }
    loop {
        for _ in 0..BATCH {
            let _ = socket.send(&[0; 64]);
        }
        batches += 1;
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        cpu_ns.store(cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, Ordering::Release);
        sent.store(batches * BATCH, Ordering::Release);
        if per_s > 0 {
            let due = Duration::from_secs_f64((batches * BATCH) as f64 / per_s as f64);
            sleep(due.saturating_sub(start.elapsed()));
        }
    }
}

/// The socket that sends, in a network namespace with [`RULES`], and one that nobody reads.
#[allow(unsafe_code)]
fn prepare(to_socket: bool) -> std::io::Result<(UdpSocket, UdpSocket)> {
    // SAFETY: CLONE_NEWNET alone changes no memory, descriptor or credential.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    if !Command::new("sh").args(["-ec", RULES]).status()?.success() {
        return Err(std::io::Error::other("cannot add the nftables rule"));
    }
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let unread = UdpSocket::bind("127.0.0.1:10")?;
    socket.connect(if to_socket { "127.0.0.1:10" } else { "127.0.0.1:9" })?;
    Ok((socket, unread))
}
