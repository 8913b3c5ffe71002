//! Sockets that share a port: which of them gets the data.

use std::net::UdpSocket;

use netsilo_model::snapshot::attribution::GroupReads;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, socket};

use super::{at, in_own_netns, netns};

const PORT: u16 = 7400;

#[test]
fn each_socket_of_a_group_has_its_reads_and_the_size_of_the_group() {
    in_own_netns(|| {
        let member = || {
            let member = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            set_socket_reuseport(&member, true).unwrap();
            bind(&member, &at(PORT)).unwrap();
            let member = UdpSocket::from(member);
            member.set_nonblocking(true).unwrap();
            member
        };
        let alone = UdpSocket::bind(at(PORT + 1)).unwrap();
        let group = [member(), member(), member()];
        let mut tracer = Tracer::attach(Options::exact());
        let sender = UdpSocket::bind(at(0)).unwrap();
        for _ in 0..100 {
            sender.send_to(&[0; 64], at(PORT)).unwrap();
            sender.send_to(&[0; 64], at(PORT + 1)).unwrap();
            alone.recv(&mut [0; 64]).unwrap();
        }
        let mut counted = group.each_ref().map(|member| {
            std::iter::repeat_with(|| member.recv(&mut [0; 64])).take_while(Result::is_ok).count()
        });
        counted.sort_unstable();
        assert_eq!(counted, [0, 0, 100], "one source port");
        let attribution = tracer.read().unwrap();
        let own: Vec<&GroupReads> =
            attribution.group_reads.iter().filter(|it| it.netns == netns()).collect();
        let [row] = own[..] else { panic!("{own:?}") };
        assert_eq!((row.port, row.sockets, row.reads), (PORT, 3, 100));
        assert_eq!(row.tgid, std::process::id());
    });
}
