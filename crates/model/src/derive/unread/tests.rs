//! Tests of what no known reader took, on scenes.

use crate::derive::notes::notes;
use crate::derive::rates::rates;
use crate::derive::silo::Silo;
use crate::derive::silos::silos;
use crate::derive::silos::tests::{scene, silos_of};
use crate::snapshot::attribution::{Hook, OTHER_SOCKETS, Protocol, QueueResolution};
use crate::snapshot::drops::{self, DroppedPackets};
use crate::snapshot::ip_packets::{self, IpPackets};
use crate::snapshot::netdev::Xdp;
use crate::snapshot::observation::Observation;
use crate::snapshot::packet_sockets::{CaptureKind, PacketSocket};
use crate::snapshot::sockets::Holder;
use crate::synthetic::scene::{NETNS, SECONDS};

#[test]
fn the_shares_of_known_readers_are_of_all_that_the_queue_received() {
    let mut scene = scene();
    scene.netdevs[0].queues.truncate(1);
    let readers = &mut scene.netdevs[0].queues[0].readers;
    readers.iter_mut().for_each(|reader| reader.bytes_per_s *= 1000);
    let shares = |rx_bytes: u64, change: &dyn Fn(&mut Observation)| {
        let counters = [("rx_bytes", rx_bytes), ("rx_packets", 1000)];
        let mut scene = scene.clone();
        scene.netdevs[0].per_s = counters.map(|(name, rate)| (name.to_owned(), rate)).into();
        let mut observation = scene.observation();
        change(&mut observation);
        let silo = silos_of(&observation).queues[0].clone();
        let shares: Vec<f64> = silo.consumers.iter().map(|consumer| consumer.share).collect();
        (shares, silo.unknown_share, silo.readers_are_known())
    };
    let nothing = |_: &mut Observation| {};
    // 1 MB/s is read, and 10 MB/s arrived behind 120 kB/s of headers
    let (known, unknown, is_known) = shares(10_120_000, &nothing);
    assert!((unknown - 0.9).abs() < 1e-9 && !is_known, "{unknown}");
    assert!((known[0] - 0.075).abs() < 1e-9 && (known[1] - 0.025).abs() < 1e-9, "{known:?}");
    // headers and reads at the window's edges
    assert_eq!(shares(1_200_000, &nothing), (vec![0.75, 0.25], 0.0, true));
    // a count that is a lower bound says nothing of what is missing
    assert_eq!(shares(10_120_000, &|it| it.attribution.windowed = true).1, 0.0);
    assert_eq!(shares(10_120_000, &|it| it.attribution.lost_events = 1).1, 0.0);
}

/// What of the 1 MB/s that arrived on the first queue, of which 700 kB/s are read, has no counted
/// reader.
fn unread(change: impl Fn(&mut Observation)) -> (Silo, Vec<String>) {
    let mut scene = scene();
    let readers = &mut scene.netdevs[0].queues[0].readers;
    readers.iter_mut().for_each(|reader| reader.bytes_per_s *= 700);
    let mut observation = scene.observation();
    let hook = |quantity: &str| Hook { quantity: quantity.into(), hook: "".into(), refused: None };
    let reads = ["tcp bytes", "udp bytes", OTHER_SOCKETS];
    let quantities = [ip_packets::QUANTITY, drops::QUANTITY, "forwarded packets"];
    observation.attribution.hooks.extend(reads.map(hook));
    observation.attribution.hooks.extend(quantities.map(hook));
    let seconds = observation.attribution.elapsed.as_secs();
    observation.attribution.ip_packets = vec![IpPackets {
        netns: NETNS,
        ifindex: observation.after.netdevs[0].ifindex,
        rx_queue: Some(0),
        entered: 1000 * seconds,
        entered_bytes: 1_000_000 * seconds,
        ..IpPackets::default()
    }];
    change(&mut observation);
    let rates = rates(&observation.before, &observation.after);
    let silos = silos(&observation, &rates);
    (silos.queues[0].clone(), notes(&observation, &rates, &silos))
}

#[test]
fn what_arrived_on_a_queue_and_nobody_took_is_said_with_who_may_have_it() {
    let (silo, notes) = unread(|_| {});
    assert!((silo.unknown_share - 0.3).abs() < 1e-9, "{}", silo.unknown_share);
    assert!((silo.unread.unwrap().bytes_per_s - 300_000.0).abs() < 1e-6);
    let note = "eth0: 300.0 kB/s of the 1.0 MB/s that arrived on rx-0 were not read by a counted \
                reader: they wait in a buffer, or a sockmap or the kernel itself takes them";
    assert!(notes.iter().any(|it| it == note), "{notes:?}");
    let (_, notes) = unread(|host| {
        host.attribution.hooks.retain(|it| it.quantity != OTHER_SOCKETS);
        host.after.netdevs[0].xdp = Some(Xdp::Generic);
        host.attribution.packet_sockets = vec![PacketSocket {
            holder: Holder { tgid: 7, comm: "ids".into() },
            netns: NETNS,
            kind: CaptureKind::Xdp,
            packets: 40,
            ..PacketSocket::default()
        }];
    });
    let takers = "probably ids (pid 7, AF_XDP: 40 packets), the XDP program of eth0, a reader by \
                  MPTCP or raw sockets, which are not counted here";
    assert!(notes.iter().any(|it| it.ends_with(takers)), "{notes:?}");
}

#[test]
fn what_was_dropped_or_first_read_is_not_unread() {
    let rest = |change: &dyn Fn(&mut Observation)| unread(change).0.unread;
    assert_eq!(
        rest(&|host| host.attribution.ip_packets[0].entered_bytes = 700_000 * SECONDS),
        None
    );
    let lost = |netdev: &str, netns, sent| {
        let (netdev, bytes) = (netdev.to_owned(), 290_000 * SECONDS);
        vec![DroppedPackets { netdev, netns, sent, bytes, ..DroppedPackets::default() }]
    };
    // on a VLAN of it, too, but not elsewhere, or of what this machine sent
    assert_eq!(rest(&|host| host.attribution.drops = lost("eth0.10", NETNS, false)), None);
    assert!(rest(&|host| host.attribution.drops = lost("eth0", NETNS + 1, false)).is_some());
    assert!(rest(&|host| host.attribution.drops = lost("eth0", NETNS, true)).is_some());
    assert_eq!(rest(&|host| host.attribution.consumption[0].first_reads = 1), None);
    assert_eq!(rest(&|host| host.attribution.lost_events = 1), None);
    // another queue's
    assert_eq!(rest(&|host| host.attribution.ip_packets[0].rx_queue = Some(1)), None);
    // packets left that no hook counts by queue
    assert_eq!(
        rest(&|host| {
            host.attribution.ip_packets[0].left = 1;
            host.attribution.hooks.retain(|it| it.quantity != "forwarded packets");
        }),
        None
    );
}

#[test]
fn what_arrives_without_a_napi_is_judged_as_a_whole() {
    let rest = |read: u64| {
        let (_, notes) = unread(|host| {
            let on_lo =
                IpPackets { ifindex: 1, rx_queue: None, ..host.attribution.ip_packets[0].clone() };
            host.attribution.ip_packets = vec![on_lo];
            let mut local = host.attribution.consumption[0].clone();
            local.resolved = QueueResolution::Local;
            local.bytes = read * SECONDS;
            host.attribution.consumption.push(local);
        });
        notes.into_iter().find(|it| it.starts_with("lo: "))
    };
    let said = rest(400_000).unwrap();
    assert!(
        said.starts_with("lo: 600.0 kB/s of the 1.0 MB/s that arrived were not read"),
        "{said}"
    );
    assert_eq!(rest(990_000), None);
}

#[test]
fn a_reader_of_more_than_arrived_is_marked_as_approximate() {
    let (silo, _) = unread(|host| host.attribution.ip_packets[0].entered_bytes /= 10);
    assert!((silo.approximate_share - 6.0 / 7.0).abs() < 1e-9, "{}", silo.approximate_share);
    assert_eq!((silo.unread, silo.unknown_share), (None, 0.0));
}

#[test]
fn what_was_read_from_another_queue_beyond_its_own_is_not_unread() {
    let (silo, _) = unread(|host| {
        let mut all = host.attribution.ip_packets[0].clone();
        (all.rx_queue, all.entered_bytes) = (Some(1), 50_000 * SECONDS);
        host.attribution.ip_packets.push(all);
        let mut read = host.attribution.consumption[0].clone();
        (read.napi, read.rx_queue) = (host.attribution.polls[1].napi.into(), Some(1));
        read.bytes = 340_000 * SECONDS;
        host.attribution.consumption.push(read);
    });
    assert_eq!((silo.unread, silo.unknown_share), (None, 0.0));
}

#[test]
fn reads_of_protocols_that_are_not_counted_on_entry_fill_no_gap() {
    let read = |protocol| {
        let (silo, _) = unread(|host| {
            let mut row = host.attribution.consumption[0].clone();
            (row.protocol, row.bytes) = (protocol, 300_000 * SECONDS);
            host.attribution.consumption.push(row);
        });
        silo.unread.map(|it| it.bytes_per_s.round())
    };
    assert_eq!([Protocol::Udp, Protocol::Tap].map(read), [None; 2]);
    assert_eq!([Protocol::Sctp, Protocol::Icmp].map(read), [Some(300_000.0); 2]);
}
