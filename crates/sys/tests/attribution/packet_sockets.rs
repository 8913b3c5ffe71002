//! What packet sockets take and lose.

use std::net::UdpSocket;

use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};

use super::{at, in_own_netns, netns};

const SENT: u64 = 500;

#[test]
fn a_packet_socket_has_what_it_took_and_what_found_it_full() {
    in_own_netns(|| {
        // Of the loopback's packets it takes those that arrive, but not those that leave.
        let ipv4 = Protocol::from_raw(u32::from(0x0800_u16.to_be()).try_into().unwrap());
        let capture = socket(AddressFamily::PACKET, SocketType::RAW, Some(ipv4)).unwrap();
        let silent = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
        set_socket_recv_buffer_size(&capture, 65_536).unwrap();
        let (receiver, sender) =
            (UdpSocket::bind(at(7410)).unwrap(), UdpSocket::bind(at(0)).unwrap());
        let send = || {
            for _ in 0..SENT {
                sender.send_to(&[0; 64], at(7410)).unwrap();
                receiver.recv(&mut [0; 64]).unwrap();
            }
        };
        send();
        let options = Options { packet_sockets: true, ..Options::default() };
        let mut tracer = Tracer::attach(options);
        for _ in 0..2 {
            let waiting = || recv(&capture, &mut [0; 256][..], RecvFlags::DONTWAIT);
            let drain = || std::iter::repeat_with(waiting).take_while(Result::is_ok).count() as u64;
            drain();
            send();
            let mut counted = tracer.read().unwrap();
            assert!(counted.counts_packet_sockets());
            counted.packet_sockets.retain(|it| it.netns == netns());
            let [row] = &counted.packet_sockets[..] else { panic!("{counted:?}") };
            assert_eq!(row.holder.tgid, std::process::id());
            assert!(!row.ring && row.netdev.is_empty() && row.lost > 0, "{row:?}");
            assert_eq!(row.packets + row.lost, SENT);
            assert_eq!(row.packets, drain());
        }
        assert_eq!(recv(&silent, &mut [0; 256][..], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
    });
}
