//! Attribution without eBPF, from two samples of all TCP sockets and their owners.
//!
//! Bytes are exact for connections open at the second sample. CPUs are those at that moment, not an
//! average over time.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::machine::cpuset::CpuId;
use crate::machine::ids::NapiId;
use crate::rss::model::{NicSteering, RssModel};
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Consumer, Consumption, Hook, Protocol, QueueResolution,
};
use crate::snapshot::netdev::{Netdev, RxQueue};

/// All TCP sockets of one network namespace at one moment, and the processes that hold them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketSample {
    /// Time since boot.
    pub at: Duration,
    /// Inode of the network namespace.
    pub netns: u32,
    /// Addresses of this namespace's netdevs, by interface index.
    pub addresses: BTreeMap<u32, Vec<IpAddr>>,
    /// Sockets by cookie; cookies are never reused.
    pub sockets: BTreeMap<u64, TcpSocket>,
    /// Thread groups that hold a socket, by the socket's inode.
    pub owners: BTreeMap<u32, BTreeSet<u32>>,
    /// Those thread groups, by thread group id.
    pub processes: BTreeMap<u32, Process>,
    /// Why the sockets of other processes cannot be queried for their NAPI id.
    pub refused: Option<String>,
}

/// One connected TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Inode, as in `/proc/<pid>/fd`; 0 when no process holds the socket any more.
    pub inode: u32,
    /// Local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Payload bytes that the application has read since the connection began.
    pub read_bytes: u64,
    /// Socket options about the last packets; `None` when not queried or refused.
    pub incoming: Option<Incoming>,
}

/// Socket options about the last received packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Incoming {
    /// `SO_INCOMING_NAPI_ID`.
    pub napi: Option<NapiId>,
    /// `SO_INCOMING_CPU`: the CPU that ran the protocol.
    pub cpu: Option<CpuId>,
}

/// A thread group that holds sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Name.
    pub comm: String,
    /// Path of its cgroup (v2).
    pub cgroup: Option<String>,
    /// Its threads, by thread id.
    pub threads: BTreeMap<u32, Thread>,
}

/// A thread of such a thread group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// The CPU on which it last ran.
    pub cpu: CpuId,
    /// Run time in nanoseconds; `None` on kernels without schedstat.
    pub run_ns: Option<u64>,
}

/// Bytes that the application has read, from fields of `struct tcp_info` and `struct
/// inet_diag_msg`.
///
/// `bytes_received` and `rqueue` (received, not yet read) both count a FIN as one byte. That byte
/// stays unread until the application has seen the end of the stream.
pub fn read_bytes(bytes_received: u64, rqueue: u32, fin_received: bool) -> u64 {
    let unread = u64::from(rqueue).max(u64::from(fin_received));
    bytes_received.saturating_sub(unread)
}

/// Attributes the bytes read between two samples to consumers and queues.
///
/// `steerings` predict the queue of sockets without a NAPI id from the kernel; may be empty.
pub fn attribute_reads(
    before: &SocketSample,
    after: &SocketSample,
    steerings: &[NicSteering],
) -> Attribution {
    let mut sums: BTreeMap<Consumption, u64> = BTreeMap::new();
    let mut orphans = Orphans::default();
    for (cookie, socket) in &after.sockets {
        // a socket missing from the first sample has read all its bytes since then
        let earlier = before.sockets.get(cookie).map_or(0, |socket| socket.read_bytes);
        let bytes = socket.read_bytes.saturating_sub(earlier);
        if bytes == 0 {
            continue;
        }
        match consumption(before, after, socket, steerings) {
            Some(key) => {
                let sum = sums.entry(key).or_default();
                *sum = sum.saturating_add(bytes);
            }
            None => orphans.add(bytes),
        }
    }
    let ended = before.sockets.keys().filter(|cookie| !after.sockets.contains_key(cookie)).count();
    Attribution {
        source: AttributionSource::SockDiag,
        elapsed: after.at.saturating_sub(before.at),
        consumption: sums.into_iter().map(|(key, bytes)| Consumption { bytes, ..key }).collect(),
        hooks: hooks(after, ended, &orphans),
        ..Attribution::default()
    }
}

/// Bytes that no visible process read.
#[derive(Default)]
struct Orphans {
    sockets: u64,
    bytes: u64,
}

impl Orphans {
    fn add(&mut self, bytes: u64) {
        self.sockets += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The attribution of a socket, with 0 bytes; `None` when no known process holds the socket.
fn consumption(
    before: &SocketSample,
    after: &SocketSample,
    socket: &TcpSocket,
    steerings: &[NicSteering],
) -> Option<Consumption> {
    let owners = after.owners.get(&socket.inode)?;
    let (tgid, thread, sure) = reader(before, after, owners)?;
    let process = after.processes.get(&tgid)?;
    let (napi, rx_queue, resolved) = resolve(after, socket, steerings);
    let consumer = Consumer {
        tgid,
        comm: process.comm.clone(),
        work: false,
        cgroup: process.cgroup.clone(),
        netns: after.netns,
    };
    Some(Consumption {
        napi,
        rx_queue,
        resolved,
        poll_cpu: None,
        protocol_cpu: socket.incoming.and_then(|incoming| incoming.cpu),
        consumer_cpu: thread.cpu,
        consumer,
        protocol: Protocol::Tcp,
        bytes: 0,
        events: 0,
        first_reads: 0,
        approximate: !sure,
        connected: None,
    })
}

/// The most likely reader: of all threads of all holders, the one with the longest run time between
/// the samples. The last value is true when there was only one thread.
fn reader(
    before: &SocketSample,
    after: &SocketSample,
    owners: &BTreeSet<u32>,
) -> Option<(u32, Thread, bool)> {
    let ran = |tgid: u32, tid: u32, thread: &Thread| {
        let earlier = before.processes.get(&tgid).and_then(|process| process.threads.get(&tid));
        let earlier_ns = earlier.and_then(|thread| thread.run_ns).unwrap_or(0);
        thread.run_ns.unwrap_or(0).saturating_sub(earlier_ns)
    };
    let of_process = |tgid: &u32| after.processes.get(tgid).map(|process| (*tgid, process));
    let threads = owners.iter().filter_map(of_process).flat_map(|(tgid, process)| {
        process.threads.iter().map(move |(tid, thread)| (tgid, *thread, ran(tgid, *tid, thread)))
    });
    let mut count = 0_u32;
    // on a tie the first: the lowest tgid, then its main thread
    let best = threads
        .inspect(|_| count += 1)
        .reduce(|best, next| if next.2 > best.2 { next } else { best });
    best.map(|(tgid, thread, _)| (tgid, thread, count == 1))
}

fn resolve(
    after: &SocketSample,
    socket: &TcpSocket,
    steerings: &[NicSteering],
) -> (Option<NapiId>, Option<u32>, QueueResolution) {
    if let Some(napi) = socket.incoming.and_then(|incoming| incoming.napi) {
        return (Some(napi), None, QueueResolution::Direct);
    }
    let remote = socket.remote.ip();
    if remote.is_loopback() || after.addresses.values().flatten().any(|address| *address == remote)
    {
        return (None, None, QueueResolution::Local);
    }
    let steering =
        steerings.iter().find(|steering| steering.addresses.contains(&socket.local.ip()));
    let queue = steering
        .and_then(|steering| Some((steering, steering.tcp_queue(socket.remote, socket.local)?)));
    match queue {
        Some((steering, queue)) => {
            (steering.napis.get(&queue).copied(), Some(queue), QueueResolution::Toeplitz)
        }
        None => (None, None, QueueResolution::Unresolved),
    }
}

/// What was counted and what was not, as hooks.
fn hooks(after: &SocketSample, ended: usize, orphans: &Orphans) -> Vec<Hook> {
    let hook = |quantity: &str, hook: &str, refused: Option<String>| Hook {
        quantity: quantity.to_owned(),
        hook: hook.to_owned(),
        refused,
    };
    let ended = format!(
        "sock_diag shows open sockets only ({ended} open at the start were closed by the end)"
    );
    let orphans = (orphans.sockets > 0).then(|| {
        let Orphans { sockets, bytes } = orphans;
        format!(
            "{bytes} bytes of {sockets} sockets belong to no visible process: run as root, with \
             CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        )
    });
    let udp = "the kernel counts no bytes per UDP socket: this needs eBPF".to_owned();
    vec![
        hook("tcp bytes", "sock_diag/tcp_info", None),
        hook("tcp bytes of ended connections", "sock_diag/tcp_info", Some(ended)),
        hook("consumer", "/proc/<pid>/fd", orphans),
        hook("napi and protocol cpu", "pidfd_getfd/SO_INCOMING_NAPI_ID", after.refused.clone()),
        hook("udp bytes", "sock_diag", Some(udp)),
    ]
}

/// The steering model of each netdev that reports enough to build one, with the NAPIs of its rx
/// queues.
pub fn steerings(
    netdevs: &[Netdev],
    addresses: &BTreeMap<u32, Vec<IpAddr>>,
    netdev_rss_key: &str,
) -> Vec<NicSteering> {
    let steering = |netdev: &Netdev| {
        let napi = |queue: &RxQueue| Some((queue.index, queue.napi.as_ref()?.to));
        Some(NicSteering {
            addresses: addresses.get(&netdev.ifindex)?.clone(),
            napis: netdev.rx_queues.iter().filter_map(napi).collect(),
            model: RssModel::from_ethtool(netdev.ethtool.as_ref()?, netdev_rss_key).ok()?,
        })
    };
    netdevs.iter().filter_map(steering).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(
        at: u64,
        read_bytes: u64,
        incoming: Option<Incoming>,
        remote: &str,
        run_ns: [u64; 2],
    ) -> SocketSample {
        let socket = TcpSocket {
            inode: 81,
            local: "192.0.2.1:5201".parse().unwrap(),
            remote: remote.parse().unwrap(),
            read_bytes,
            incoming,
        };
        let thread = |cpu, ns| Thread { cpu: CpuId(cpu), run_ns: Some(ns) };
        let threads = BTreeMap::from([(77, thread(1, run_ns[0])), (78, thread(5, run_ns[1]))]);
        SocketSample {
            at: Duration::from_secs(at),
            netns: 4026531840,
            addresses: BTreeMap::from([(2, vec!["192.0.2.1".parse().unwrap()])]),
            sockets: BTreeMap::from([(1001, socket)]),
            owners: BTreeMap::from([(81, BTreeSet::from([77]))]),
            processes: BTreeMap::from([(
                77,
                Process { comm: "server".into(), cgroup: None, threads },
            )]),
            refused: None,
        }
    }

    const INCOMING: Option<Incoming> =
        Some(Incoming { napi: Some(NapiId(8193)), cpu: Some(CpuId(3)) });

    #[test]
    fn the_thread_that_ran_longest_is_chosen_and_marked_approximate() {
        let before = sample(10, 1000, None, "192.0.2.9:4000", [50, 10]);
        let after = sample(12, 5000, INCOMING, "192.0.2.9:4000", [60, 900]);
        let attribution = attribute_reads(&before, &after, &[]);
        assert_eq!(
            (attribution.source, attribution.elapsed),
            (AttributionSource::SockDiag, Duration::from_secs(2))
        );
        let [read] = &attribution.consumption[..] else { panic!("{attribution:?}") };
        assert_eq!(
            (read.bytes, read.napi, read.resolved),
            (4000, Some(NapiId(8193)), QueueResolution::Direct)
        );
        assert_eq!((read.protocol_cpu, read.consumer_cpu), (Some(CpuId(3)), CpuId(5)));
        assert!(read.approximate);
    }

    #[test]
    fn a_connection_opened_between_the_samples_counts_from_its_first_byte() {
        let after = sample(12, 5000, INCOMING, "192.0.2.9:4000", [60, 900]);
        let attribution = attribute_reads(&SocketSample::default(), &after, &[]);
        assert_eq!(attribution.consumption[0].bytes, 5000);
    }

    #[test]
    fn a_local_peer_is_local_and_a_remote_peer_without_napi_is_unresolved() {
        let resolved = |remote| {
            let after = sample(12, 5000, Some(Incoming::default()), remote, [1, 2]);
            attribute_reads(&SocketSample::default(), &after, &[]).consumption[0].resolved
        };
        assert_eq!(resolved("127.0.0.1:4000"), QueueResolution::Local);
        assert_eq!(resolved("192.0.2.1:4000"), QueueResolution::Local);
        assert_eq!(resolved("192.0.2.9:4000"), QueueResolution::Unresolved);
    }

    #[test]
    fn bytes_without_a_visible_process_are_reported() {
        let mut after = sample(12, 5000, None, "192.0.2.9:4000", [1, 2]);
        after.owners.clear();
        let attribution = attribute_reads(&SocketSample::default(), &after, &[]);
        assert!(attribution.consumption.is_empty());
        let hook = attribution.hooks.iter().find(|hook| hook.quantity == "consumer").unwrap();
        assert!(hook.refused.as_deref().unwrap().starts_with("5000 bytes of 1 sockets"));
    }

    #[test]
    fn a_fin_is_not_a_byte_read() {
        assert_eq!(read_bytes(100, 30, false), 70);
        // FIN received but not seen by the application: it is one of the unread bytes
        assert_eq!(read_bytes(101, 31, true), 70);
        assert_eq!(read_bytes(101, 1, true), 100);
        // FIN seen: nothing is unread, but bytes_received still counts it
        assert_eq!(read_bytes(101, 0, true), 100);
    }
}
