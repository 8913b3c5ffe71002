//! Tests of dropped packets: each cause with its reason, class and exact count.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::snapshot::drops::DroppedPackets;
use netsilo_sys::bpf::tracer::{Options, Tracer};

use super::at;
use super::in_own_netns;
use super::ip;
use super::netns;

/// Hooks count drops of the whole machine, and after a scan there is no room for more ports.
static FLOODS: Mutex<()> = Mutex::new(());

/// Datagrams of each cause.
const SENT: u64 = 300;

/// The rows of this namespace with this port.
fn to_port(drops: &[DroppedPackets], port: u16) -> Vec<&DroppedPackets> {
    drops.iter().filter(|it| it.netns == netns() && (it.protocol, it.port) == (17, port)).collect()
}

fn nft(rules: &str) {
    assert!(Command::new("nft").arg(rules).status().unwrap().success(), "nft {rules}");
}

#[test]
fn each_dropped_packet_has_its_reason_port_and_class() {
    let _others = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    in_own_netns(|| {
        nft("add table inet t; add chain inet t c { type filter hook input priority 0; }; \
             add rule inet t c udp dport 7002 drop");
        let full = UdpSocket::bind(at(7000)).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&full, 2048).unwrap();
        let sender = UdpSocket::bind(at(0)).unwrap();
        let mut tracer = Tracer::attach(Options { drops: true, ..Options::exact() });
        for _ in 0..SENT {
            // 7001 has no socket: a send may report its ICMP error.
            for port in [7000, 7001, 7002] {
                let _ = sender.send_to(&[0; 64], at(port));
            }
        }
        let mut read = 0;
        full.set_nonblocking(true).unwrap();
        while full.recv(&mut [0; 64]).is_ok() {
            read += 1;
        }
        let attribution = tracer.read().unwrap();
        assert!(attribution.counts_drops(), "{:#?}", attribution.hooks);
        assert!(0 < read && read < SENT, "{read}");
        let found = [7000, 7001, 7002].map(|port| {
            let rows = to_port(&attribution.drops, port);
            let packets: u64 = rows.iter().map(|row| row.packets).sum();
            let class = rows.first().map(|row| DropClass::of(row));
            (class, packets)
        });
        let expected = [
            (Some(DropClass::Lost), SENT - read),
            (Some(DropClass::NotForUs), SENT),
            (Some(DropClass::Decided), SENT),
        ];
        assert_eq!(found, expected, "{:#?}", attribution.drops);
        let netdevs: Vec<_> =
            to_port(&attribution.drops, 7000).iter().map(|row| row.ifindex).collect();
        assert!(netdevs.iter().all(|ifindex| *ifindex == 1), "loopback: {netdevs:?}");
    });
}

/// No counter of this namespace's protocols counts them.
#[test]
fn packets_sent_to_a_tap_that_no_program_has_opened_are_lost() {
    let _others = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    in_own_netns(|| {
        ip("tuntap add dev tap-here mode tap");
        ip("link set tap-here txqueuelen 10 up");
        ip("addr add 10.10.0.1/24 dev tap-here");
        ip("neigh add 10.10.0.2 lladdr 02:00:00:00:00:02 dev tap-here nud permanent");
        let sender = UdpSocket::bind((Ipv4Addr::new(10, 10, 0, 1), 7100)).unwrap();
        let mut tracer = Tracer::attach(Options { drops: true, ..Options::exact() });
        for _ in 0..SENT {
            sender.send_to(&[0; 64], (Ipv4Addr::new(10, 10, 0, 2), 7101)).unwrap();
        }
        let drops = tracer.read().unwrap().drops;
        let rows = to_port(&drops, 7100);
        let lost: u64 = rows.iter().map(|row| row.packets).sum();
        assert_eq!(lost, SENT, "{drops:#?}");
        assert!(
            rows.iter().all(|row| row.sent && DropClass::of(row) == DropClass::Lost),
            "{rows:#?}"
        );
        assert!(rows.iter().all(|row| row.netdev == "tap-here"), "{rows:#?}");
    });
}

#[test]
fn dropped_packets_are_counted_in_a_pause_too() {
    let _others = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    in_own_netns(|| {
        let sender = UdpSocket::bind(at(0)).unwrap();
        let send = |packets: u64| {
            // No socket: a send may report its ICMP error.
            (0..packets).for_each(|_| _ = sender.send_to(&[0; 64], at(7001)));
        };
        let mut tracer = Tracer::attach(Options { drops: true, ..Options::exact() });
        tracer.pause();
        send(SENT);
        thread::sleep(Duration::from_millis(20));
        tracer.resume();
        send(7);
        let window = tracer.read().unwrap();
        let of_ours: u64 = to_port(&window.drops, 7001).iter().map(|it| it.packets).sum();
        assert_eq!(of_ours, SENT + 7);
        assert!(window.drops_elapsed > window.elapsed + Duration::from_millis(20));
    });
}

#[test]
fn a_flood_is_sampled_and_estimated_within_the_stated_error() {
    let _others = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    in_own_netns(|| {
        // Nobody reads it.
        let full = UdpSocket::bind(at(7000)).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&full, 2048).unwrap();
        let sender = UdpSocket::bind(at(0)).unwrap();
        let mut tracer = Tracer::attach(Options { drops: true, ..Options::default() });
        const FLOOD: u64 = 400_000;
        for _ in 0..FLOOD {
            sender.send_to(&[0; 8], at(7000)).unwrap();
        }
        let attribution = tracer.read().unwrap();
        let all = attribution.sampling.drops;
        let lost: u64 = to_port(&attribution.drops, 7000).iter().map(|it| it.packets).sum();
        // Few of all are of other tests. Up to 63 are not yet represented.
        let error = 2.0 * all.error(0.9) * lost as f64 + 100.0;
        assert!(all.examined < all.events, "{all:?}: the sender was too slow");
        assert!((lost as f64 - FLOOD as f64).abs() < error, "{lost}, {error}, {all:?}");
    });
}

#[test]
fn a_scan_of_all_ports_loses_no_count() {
    let _others = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    in_own_netns(|| {
        let sender = UdpSocket::bind(at(0)).unwrap();
        let mut tracer = Tracer::attach(Options { drops: true, ..Options::exact() });
        // 7001 is counted after the table of ports is full, too.
        for port in (20_000..23_000).chain([7001; 50]) {
            for _ in 0..2 {
                let _ = sender.send_to(&[0; 64], at(port));
            }
        }
        let attribution = tracer.read().unwrap();
        let udp = |it: &&DroppedPackets| it.netns == netns() && it.protocol == 17;
        let packets: u64 = attribution.drops.iter().filter(udp).map(|it| it.packets).sum();
        // A send that reports the error of an earlier one sends nothing.
        assert!((3_000..=6_100).contains(&packets), "{packets}");
        assert_eq!(attribution.lost_events, 0);
        let unnamed = attribution.drops.iter().filter(udp).any(|it| it.port == 0);
        assert!(unnamed, "there is room for 3,000 ports");
    });
}
