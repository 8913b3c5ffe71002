//! Each cause of a slow reader, by its evidence.

use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{
    AttributionSource, Consumer, Consumption, Hook, QueueResolution, Wakeup,
};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::socket_readers::{
    CpuQuota, SocketBuffer, SocketReader, SocketReaders, SocketThread,
};
use netsilo_model::snapshot::sockets::{Holder, LosingSocket};
use netsilo_model::snapshot::thread_time::ThreadTime;
use netsilo_model::synthetic::scene::Scene;
use proptest::prelude::*;

use super::*;
use crate::judge::evidence::Gain;
use crate::judge::findings::check::check;

const TGID: u32 = 812;
const INODE: u32 = 31337;
/// The window of a scene.
const SECONDS: u64 = 10;

/// What a reader with one thread did in a window, and its losses.
#[derive(Debug, Clone)]
struct Did {
    ran: f64,
    waited: f64,
    sleeps: u64,
    woken: u64,
    reads: u64,
    lost: u64,
    /// Periods throttled, of 100.
    throttled: u64,
    buffer: SocketBuffer,
}

impl Default for Did {
    fn default() -> Self {
        let buffer = SocketBuffer {
            bytes: Some(212_992),
            is_set: Some(false),
            group: 1,
            holders: vec![TGID],
        };
        Self {
            ran: 0.05,
            waited: 0.0,
            sleeps: 200,
            woken: 0,
            reads: 0,
            lost: 9000,
            throttled: 0,
            buffer,
        }
    }
}

impl Did {
    fn readers(&self, share: f64) -> SocketReaders {
        let ns = |part: f64| (part * share * 1e9 * SECONDS as f64) as u64;
        let time = ThreadTime { run_ns: ns(self.ran), wait_ns: ns(self.waited), runs: 0 };
        let thread = SocketThread { time, sleeps: (self.sleeps as f64 * share) as u64 };
        let quota = CpuQuota {
            quota_usec: 20_000,
            period_usec: 100_000,
            nr_periods: (100.0 * share) as u64,
            nr_throttled: (self.throttled as f64 * share) as u64,
            throttled_usec: (self.throttled as f64 * 60_000.0 * share) as u64,
        };
        let reader = SocketReader {
            comm: "dns".into(),
            cgroup: Some("/a/b".into()),
            ports: [53].into(),
            threads: [(TGID, thread)].into(),
        };
        SocketReaders {
            processes: [(TGID, reader)].into(),
            buffers: [(INODE, self.buffer.clone())].into(),
            quotas: [("/a".to_owned(), quota)].into(),
        }
    }

    fn observation(&self) -> Observation {
        let mut host = Scene::default().observation();
        host.before.protocols = [("UdpRcvbufErrors".to_owned(), 0)].into();
        host.after.protocols = [("UdpRcvbufErrors".to_owned(), self.lost)].into();
        let holder = Some(Holder { tgid: TGID, comm: "dns".into() });
        let socket = LosingSocket {
            kind: SocketKind::Udp,
            port: 53,
            inode: INODE,
            drops: self.lost,
            queued: 0,
            limit: None,
            holder,
        };
        host.before.losing_sockets = Some(vec![]);
        host.after.losing_sockets = Some(vec![socket]);
        host.before.socket_readers = Some(self.readers(0.0));
        host.after.socket_readers = Some(self.readers(1.0));
        for name in ["net.core.rmem_default", "net.core.rmem_max"] {
            host.after.net.sysctls.insert(name.into(), "212992".into());
        }
        host.after.net.rps_sock_flow_entries = Some(0);
        host.attribution.source = AttributionSource::Bpf;
        host.attribution.hooks =
            vec![Hook { quantity: "wakeups".into(), hook: "a".into(), refused: None }];
        host.attribution.consumption = vec![Consumption {
            napi: None,
            rx_queue: None,
            resolved: QueueResolution::Unresolved,
            poll_cpu: None,
            protocol_cpu: None,
            consumer_cpu: CpuId(0),
            consumer: Consumer {
                tgid: TGID,
                comm: "dns".into(),
                work: false,
                cgroup: None,
                netns: 0,
            },
            protocol: netsilo_model::snapshot::attribution::Protocol::Udp,
            bytes: self.reads * 300,
            events: self.reads,
            first_reads: 0,
            approximate: false,
            connected: None,
        }];
        host.attribution.wakeups = vec![Wakeup {
            tgid: TGID,
            waker_cpu: CpuId(0),
            sleeper_cpu: CpuId(0),
            count: self.woken,
            idle: None,
        }];
        host
    }
}

fn found(observation: &Observation, id: FindingId) -> Finding {
    let check = check(&Analysis::new(observation, &Costs::default()));
    check.findings.into_iter().find(|finding| finding.id == id).unwrap()
}

/// The title after the reader's name, and the first remedy.
fn says(did: &Did) -> (String, Remedy) {
    let finding = found(&did.observation(), FindingId::SocketBufferOverflow);
    let title = finding.title.strip_prefix("dns (pid 812) ").unwrap().to_owned();
    (title, finding.remedies[0].clone())
}

#[test]
fn a_reader_whose_cgroup_above_is_throttled_gets_the_quota_that_it_needs() {
    // throttled time counts as waiting
    let (title, remedy) = says(&Did { throttled: 70, waited: 0.6, ran: 0.2, ..Did::default() });
    let expected = "is throttled by the CPU quota of cgroup /a in 70 of 100 periods";
    assert!(title.starts_with(expected), "{title}");
    let expected =
        "raise the CPU quota of cgroup /a from 0.20 to 0.80 CPUs (cpu.max \"80000 100000\"";
    assert!(remedy.what.starts_with(expected), "{}", remedy.what);
}

#[test]
fn a_reader_that_waits_for_a_cpu_is_not_told_to_use_more_threads() {
    let (title, remedy) = says(&Did { waited: 0.45, ran: 0.5, ..Did::default() });
    assert!(title.starts_with("waits for a CPU 45% of the time"), "{title}");
    assert!(remedy.what.contains("a cpu with idle time"), "{}", remedy.what);
    assert!(!remedy.what.contains("more threads"), "{}", remedy.what);
}

#[test]
fn a_hypervisor_that_takes_the_readers_cpu_is_named() {
    let mut host = Did { ran: 0.9, reads: 100, ..Did::default() }.observation();
    let ticks = 100 * SECONDS;
    host.after.cpus.get_mut(&CpuId(0)).unwrap().stat.steal += ticks;
    let finding = found(&host, FindingId::SocketBufferOverflow);
    assert!(finding.title.contains("waits for a CPU 50% of the time"), "{}", finding.title);
    let what = &finding.remedies[0].what;
    assert!(what.starts_with("give this virtual machine more CPU time"), "{what}");
}

#[test]
fn waiting_is_no_cause_if_quotas_could_not_be_read() {
    let mut host = Did { waited: 0.45, ran: 0.5, ..Did::default() }.observation();
    let readers = host.after.socket_readers.as_mut().unwrap();
    readers.processes.get_mut(&TGID).unwrap().cgroup = None;
    let finding = found(&host, FindingId::SocketBufferOverflow);
    assert!(finding.title.contains("reads too slowly"), "{}", finding.title);
}

#[test]
fn a_reader_that_runs_all_the_time_needs_more_threads() {
    let (title, remedy) = says(&Did { ran: 0.97, ..Did::default() });
    assert!(title.starts_with("reads all the time (its thread uses 97% of a CPU)"), "{title}");
    assert!(remedy.what.contains("more threads or sockets"), "{}", remedy.what);
    assert!(!remedy.what.contains("idle"), "{}", remedy.what);
}

#[test]
fn one_socket_of_a_group_that_loses_all_is_named_with_the_group() {
    let mut did = Did { ran: 0.97, ..Did::default() };
    did.buffer.group = 4;
    let (title, remedy) = says(&did);
    assert!(title.starts_with("reads all the time: 1 of 4 sockets loses 100%"), "{title}");
    assert!(remedy.what.starts_with("spread the packets over the 4 sockets"), "{}", remedy.what);
}

#[test]
fn a_timers_tick_gets_a_buffer_for_one_period() {
    // 200 periods of 50 ms; each reads 250 packets, and 500 arrive
    let did = Did { reads: 50_000, lost: 50_000, ..Did::default() };
    let (title, remedy) = says(&did);
    assert!(title.starts_with("reads once in 50 ms, and 500 packets arrive"), "{title}");
    // twice the buffer, and half as much again
    assert!(remedy.what.contains("a default buffer of 638976 bytes"), "{}", remedy.what);
    assert!(matches!(remedy.gain, Gain::AtMost { .. }));
    assert!(remedy.cost.unwrap().contains("638976 bytes of memory"));
    let written: Vec<_> = remedy.changes.iter().map(|it| it.target.to_string()).collect();
    assert_eq!(written.len(), 2, "{written:?}");
    let woken = says(&Did { woken: 200, ..did.clone() }).0;
    assert!(woken.starts_with("sleeps, cause not known"), "packets wake it: {woken}");
    let few = says(&Did { reads: 500, ..did }).0;
    assert!(few.starts_with("sleeps, cause not known"), "it does not drain its buffer: {few}");
}

#[test]
fn a_buffer_set_by_the_program_is_not_changed_by_the_default() {
    let mut did = Did { reads: 50_000, lost: 50_000, ..Did::default() };
    did.buffer.is_set = Some(true);
    let (_, remedy) = says(&did);
    assert!(remedy.what.contains("net.core.rmem_default has no effect"), "{}", remedy.what);
    // the kernel doubles it
    assert!(remedy.what.contains("request 319488 bytes"), "{}", remedy.what);
    assert!(remedy.what.contains("net.core.rmem_max (212992) does not allow"), "{}", remedy.what);
    let written: Vec<_> = remedy.changes.iter().map(|it| it.target.to_string()).collect();
    assert_eq!(written, ["net.core.rmem_max"]);
    did.buffer.bytes = Some(16_384);
    did.woken = 200;
    let (title, remedy) = says(&did);
    assert!(title.starts_with("has set a small buffer of 16384 bytes"), "{title}");
    assert!(remedy.what.contains("doubles it to 212992"), "{}", remedy.what);
    assert!(remedy.changes.is_empty(), "rmem_max allows it: {:?}", remedy.changes);
}

#[test]
fn without_times_of_threads_the_cause_is_not_guessed() {
    let mut host = Did::default().observation();
    host.before.socket_readers = None;
    let finding = found(&host, FindingId::SocketBufferOverflow);
    assert!(finding.title.contains("reads too slowly"), "{}", finding.title);
    assert!(finding.evidence.iter().any(|it| it.quantity == "cause of its slowness"));
}

fn any_reader() -> impl Strategy<Value = Did> {
    let times = (0.0..1.0, 0.0..1.0, 0..100_000u64, 0..100_000u64);
    let buffer = (prop::option::of(0..1u32 << 30), prop::option::of(any::<bool>()), 0..5u32);
    (times, 0..10_000_000u64, 1..10_000_000u64, 0..=100u64, buffer).prop_map(
        |((ran, waited, sleeps, woken), reads, lost, throttled, (bytes, is_set, group))| Did {
            ran,
            waited,
            sleeps,
            woken,
            reads,
            lost,
            throttled,
            buffer: SocketBuffer { bytes, is_set, group, holders: vec![TGID] },
        },
    )
}

proptest! {
    #[test]
    fn exactly_one_cause_is_named(did in any_reader()) {
        let (title, remedy) = says(&did);
        let causes = [
            "is throttled", "waits for a CPU", "reads all the time", "reads once in",
            "has set a small", "sleeps, cause", "reads too slowly",
        ];
        prop_assert_eq!(causes.iter().filter(|it| title.starts_with(**it)).count(), 1, "{}", title);
        let advised = remedy.what.contains("a cpu with idle time");
        let waits = title.starts_with("waits") || title.starts_with("reads too slowly");
        prop_assert!(!advised || waits, "{}: {}", title, remedy.what);
    }

    /// The memory of a packet is at most what the full buffer takes for each packet read at once.
    #[test]
    fn the_offered_buffer_holds_what_one_period_brings(
        memory in 400..4000u64,
        bytes in 50_000..4_000_000u32,
        beyond in 1.01..20.0f64,
        ticks in 10..2000u64,
    ) {
        let holds = u64::from(bytes) / memory;
        let arrive = (holds as f64 * beyond).ceil() as u64;
        let buffer = SocketBuffer { bytes: Some(bytes), ..Did::default().buffer };
        let did = Did {
            sleeps: ticks,
            reads: holds * ticks,
            lost: (arrive - holds) * ticks,
            buffer,
            ..Did::default()
        };
        let what = says(&did).1.what;
        let size = what.strip_prefix("a default buffer of ").and_then(|it| it.split(' ').next());
        prop_assert!(size.unwrap().parse::<u64>().unwrap() >= arrive * memory, "{}", what);
    }
}

/// A listener whose requests or connections were dropped.
fn listener(overflows: u64, drops: u64, cookies: &str, backlog: u32) -> Finding {
    let mut host = Scene::default().observation();
    let socket = |drops| LosingSocket {
        kind: SocketKind::TcpListen,
        port: 80,
        inode: INODE,
        drops,
        queued: 0,
        limit: Some(backlog),
        holder: Some(Holder { tgid: TGID, comm: "web".into() }),
    };
    for (snapshot, grown) in [(&mut host.before, 0), (&mut host.after, 1)] {
        let counters = [("TcpExtListenOverflows", overflows), ("TcpExtListenDrops", drops)];
        snapshot.protocols =
            counters.iter().map(|(name, count)| ((*name).to_owned(), count * grown)).collect();
        snapshot.losing_sockets = Some(vec![socket(drops * grown)]);
        let sysctls = [
            ("net.core.somaxconn", "4096"),
            ("net.ipv4.tcp_syncookies", cookies),
            ("net.ipv4.tcp_max_syn_backlog", "256"),
        ];
        snapshot.net.sysctls =
            sysctls.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    }
    found(&host, FindingId::ListenOverflow)
}

#[test]
fn requests_and_connections_are_told_apart() {
    let written = |finding: &Finding| -> Vec<String> {
        let changes = finding.remedies.iter().flat_map(|it| &it.changes);
        changes.map(|it| it.target.to_string()).collect()
    };
    let accept = listener(600, 601, "0", 4096);
    assert!(accept.title.contains("accepts too slowly"), "{}", accept.title);
    let flood = listener(0, 600, "0", 4096);
    assert!(flood.title.starts_with("half-open connections fill the SYN queue"), "{}", flood.title);
    let both = ["net.ipv4.tcp_syncookies", "net.ipv4.tcp_max_syn_backlog"];
    assert_eq!(written(&flood), both, "not somaxconn");
    let short = listener(0, 600, "0", 128);
    assert_eq!(written(&short), both[..1], "the program's backlog limits its SYN queue");
    assert!(short.remedies[1].what.contains("a backlog of more than 128"));
    let answers = listener(0, 600, "1", 4096);
    assert!(answers.title.contains("cause not known"), "{}", answers.title);
    assert_eq!(written(&answers), Vec::<String>::new());
}

#[test]
fn a_flood_answered_with_cookies_is_reported_without_a_loss() {
    let mut host = Scene::default().observation();
    host.before.protocols = [("TcpExtTCPReqQFullDoCookies".to_owned(), 5)].into();
    host.after.protocols = [("TcpExtTCPReqQFullDoCookies".to_owned(), 9005)].into();
    let finding = found(&host, FindingId::ListenOverflow);
    assert_eq!(finding.severity, Severity::Info);
    assert!(
        finding.title.contains("9000 requests were answered with cookies"),
        "{}",
        finding.title
    );
}
