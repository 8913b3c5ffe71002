//! Twenty-odd causes of drops at once, between two network namespaces. Each cause has its own port
//! or protocol. Shared by `tests/drops.rs` and `examples/losses.rs`.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use netsilo_lab::Cable;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

/// Packets of each cause.
pub(crate) const SENT: u64 = 200;
/// Packets that wait in the NFQUEUE of port 7025.
pub(crate) const IN_QUEUE: u32 = 10;
/// The machine that sends, and the one under test.
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Rules, routes and devices of the machine under test.
const OF_THE_HOST: &str = "
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.veth0.rp_filter=1
sysctl -qw net.ipv4.ipfrag_time=1 net.ipv4.neigh.veth0.unres_qlen_bytes=1
sysctl -qw net.ipv4.neigh.veth0.mcast_solicit=1 net.ipv4.neigh.veth0.retrans_time_ms=200
nft -f - <<'RULES'
table inet filter {
    chain input {
        type filter hook input priority 0
        udp dport 7002 drop
    }
    chain output { type filter hook output priority 0; udp sport 7021 drop; }
}
table ip translate {
    chain out { type nat hook postrouting priority 100; udp dport 7003 masquerade to :20000-20001; }
}
table netdev early {
    chain first { type filter hook ingress device veth0 priority 0; udp dport 7020 drop; }
}
RULES
iptables -A INPUT -p udp --dport 7004 -j NFQUEUE --queue-num 7
iptables -A INPUT -p udp --dport 7025 -j NFQUEUE --queue-num 8
tc qdisc add dev veth0 clsact
tc filter add dev veth0 ingress bpf direct-action object-file $OBJECT section tc/ingress
tc filter add dev veth0 egress bpf direct-action object-file $OBJECT section tc/egress
ip link set veth0 xdpgeneric object $OBJECT section xdp
ip link add slow0 type bridge
ip address add 198.51.100.1/24 dev slow0
ip link set slow0 up
ip neigh add 198.51.100.9 lladdr 02:00:00:00:00:09 dev slow0
tc qdisc add dev slow0 root tbf rate 40kbit burst 1600 limit 3000
ip tuntap add dev tap0 mode tap
ip link set tap0 txqueuelen 10 up
ip address add 10.10.0.1/24 dev tap0
ip neigh add 10.10.0.2 lladdr 02:00:00:00:00:02 dev tap0 nud permanent
ip route add blackhole 203.0.113.128/25
";

/// Programs that drop the UDP packets of one port, for tc and XDP, or keep them.
const PROGRAMS: &str = "
#define SECTION(name) __attribute__((section(name), used))
static long (*load)(void *skb, unsigned at, void *to, unsigned length) = (void *)26;
static int tc(void *skb, unsigned short wanted, int action)
{
    unsigned short port = 0;
    load(skb, 36, &port, 2);
    return port == __builtin_bswap16(wanted) ? action : -1;
}
SECTION(\"tc/ingress\") int on_ingress(void *skb) { return tc(skb, 7005, 2); }
SECTION(\"tc/egress\") int on_egress(void *skb) { return tc(skb, 7006, 2); }
SECTION(\"tc/stolen\") int steal(void *skb) { return tc(skb, 7030, 4); }
SECTION(\"xdp\") int early(unsigned *frame)
{
    unsigned char *data = (void *)(long)frame[0], *end = (void *)(long)frame[1];
    return data + 38 <= end && data[36] << 8 == (7023 & 0xff00) && data[37] == (7023 & 0xff) ? 1 : 2;
}
char _license[] SECTION(\"license\") = \"GPL\";
";

const OF_THE_PEER: &str = "
ip route add 203.0.113.0/24 via 192.0.2.2
ip route add 198.51.100.0/24 via 192.0.2.2
ip address add 198.18.0.1/32 dev lo
ip neigh add 192.0.2.50 lladdr 02:00:00:00:00:50 dev veth0 nud permanent
";

fn sh(netns: &str, script: &str, object: &Path) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "sh", "-ec", script]).env("OBJECT", object);
    assert!(command.status().unwrap().success(), "{script}");
}

/// Compiles [`PROGRAMS`].
pub(crate) fn programs(folder: &Path) -> PathBuf {
    let (source, object) = (folder.join("drop.c"), folder.join("drop.o"));
    std::fs::write(&source, PROGRAMS).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]).arg(&object).arg(&source);
    assert!(clang.status().unwrap().success());
    object
}

/// Runs in a thread of this network namespace.
pub(crate) fn within<T: Send>(netns: &str, run: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{netns}")).unwrap();
    thread::scope(|scope| {
        let run = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run()
        };
        scope.spawn(run).join().unwrap()
    })
}

fn udp(address: Ipv4Addr, port: u16) -> UdpSocket {
    UdpSocket::bind((address, port)).unwrap()
}

/// Sends packets to a port. A rule that drops them is an error of the sender, too.
fn send(socket: &UdpSocket, address: Ipv4Addr, port: u16) {
    for _ in 0..SENT {
        let _ = socket.send_to(&[0; 64], (address, port));
    }
}

/// How many packets wait to be read.
fn waiting(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    (0..).find(|_| socket.recv(&mut [0; 64]).is_err()).unwrap()
}

/// An IPv4 packet; the kernel adds length and checksum of its header.
fn packet(protocol: u8, id: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0];
    bytes.extend(id.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(PEER.octets());
    bytes.extend(HOST.octets());
    bytes.extend(payload);
    bytes
}

/// A UDP header with a checksum, and some data.
fn datagram(port: u16, checksum: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [7000, port, 24, checksum] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend([7; 16]);
    bytes
}

/// Sends damaged packets, packets of no known protocol, and first fragments without the others.
fn send_raw() {
    let raw = Some(Protocol::from_raw(255.try_into().unwrap()));
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::empty(), raw)
            .unwrap();
    let send = |bytes: &[u8]| {
        let to = SocketAddrV4::new(HOST, 0);
        rustix::net::sendto(&socket, bytes, SendFlags::empty(), &to).unwrap();
    };
    for id in 1..=SENT as u16 {
        send(&packet(17, id, 0, &datagram(7014, 0x1234)));
        send(&packet(253, id, 0, &[0; 16]));
    }
    const MORE_FRAGMENTS: u16 = 0x2000;
    for id in 1..=SENT as u16 {
        send(&packet(17, id, MORE_FRAGMENTS, &datagram(7015, 0)));
    }
}

/// Binds a socket to an NFQUEUE that holds so many packets (`linux/netfilter/nfnetlink_queue.h`).
fn bind_queue(number: u16, most: u32) -> OwnedFd {
    const NFQNL_MSG_CONFIG: u16 = 3 << 8 | 2;
    const REQUEST_WITH_ACK: u16 = 1 | 4;
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(rustix::net::netlink::NETFILTER);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap();
    // NFQA_CFG_CMD with BIND, NFQA_CFG_PARAMS with COPY_META, NFQA_CFG_QUEUE_MAXLEN
    let bound = most.to_be_bytes();
    for (kind, value) in [(1_u16, &[1, 0, 0, 0][..]), (2, &[0, 0, 0, 0, 1]), (3, &bound)] {
        let mut message = vec![0; 16];
        message.extend([0, 0]);
        message.extend(number.to_be_bytes());
        message.extend((value.len() as u16 + 4).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&NFQNL_MSG_CONFIG.to_ne_bytes());
        message[6..8].copy_from_slice(&REQUEST_WITH_ACK.to_ne_bytes());
        rustix::net::send(&socket, &message, SendFlags::empty()).unwrap();
        let mut answer = [0; 64];
        rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(answer[16..20], [0; 4], "the kernel refuses attribute {kind}");
    }
    socket
}

/// The machines with their rules, routes, devices and sockets.
pub(crate) struct Losses {
    cable: Cable,
    _programs: TempDir,
    /// Sockets with a small buffer or behind a translation that has too few ports.
    lossy: [UdpSocket; 3],
    /// Closed with packets in its buffer.
    closed: Option<UdpSocket>,
    senders: [(u16, UdpSocket); 6],
    /// Many sockets that share a translation.
    many: Vec<UdpSocket>,
    _listener: TcpListener,
    /// A program that gives no verdicts on what is in the NFQUEUE of port 7025.
    _queue: OwnedFd,
}

impl Losses {
    pub(crate) fn prepare() -> Self {
        let cable = Cable::new("drops").unwrap();
        let [peer, host] = &cable.0;
        let folder = tempfile::tempdir().unwrap();
        let object = programs(folder.path());
        sh(host, OF_THE_HOST, &object);
        sh(peer, OF_THE_PEER, &object);
        let small = |address, port| {
            let socket = udp(address, port);
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 2048).unwrap();
            socket
        };
        let (full, closed, senders, many) = within(host, || {
            let of = |port| (port, udp(Ipv4Addr::UNSPECIFIED, port));
            let senders = [7006, 7007, 7008, 7009, 7021, 7024].map(of);
            let many: Vec<_> = (0..SENT).map(|_| udp(HOST, 0)).collect();
            (small(HOST, 7000), udp(HOST, 7022), senders, many)
        });
        let (translated, elsewhere) = within(peer, || (udp(PEER, 7003), small(PEER, 7024)));
        let listener = within(host, || {
            let listener = TcpListener::bind((HOST, 7017)).unwrap();
            rustix::net::listen(&listener, 0).unwrap();
            listener
        });
        let _queue = within(host, || bind_queue(8, IN_QUEUE));
        let lossy = [full, translated, elsewhere];
        let (_programs, closed, _listener) = (folder, Some(closed), listener);
        Self { cable, _programs, lossy, closed, senders, many, _listener, _queue }
    }

    /// The namespaces of the machine that sends, and of the one under test.
    pub(crate) fn namespaces(&self) -> &[String; 2] {
        &self.cable.0
    }

    /// Sends all packets once.
    pub(crate) fn send(&mut self) {
        within(&self.cable.0[0], || {
            let sender = udp(PEER, 0);
            for port in [7000, 7001, 7002, 7004, 7005, 7020, 7022, 7023, 7025] {
                send(&sender, HOST, port);
            }
            send(&udp(Ipv4Addr::new(198, 18, 0, 1), 0), HOST, 7011);
            send(&sender, Ipv4Addr::new(203, 0, 113, 9), 7010);
            send(&sender, Ipv4Addr::new(203, 0, 113, 200), 7019);
            send(&sender, Ipv4Addr::new(192, 0, 2, 50), 7012);
            sender.set_ttl(1).unwrap();
            send(&sender, Ipv4Addr::new(198, 51, 100, 9), 7013);
            send_raw();
            for _ in 0..20 {
                assert!(TcpStream::connect((HOST, 7018)).is_err());
            }
            let connect = |_| {
                let address = (HOST, 7017).into();
                TcpStream::connect_timeout(&address, Duration::from_millis(20)).is_ok()
            };
            assert!((0..10).map(connect).filter(|connected| *connected).count() < 10);
        });
        self.closed = None;
        for (port, socket) in &self.senders {
            let to = match port {
                7007 => Ipv4Addr::new(198, 51, 100, 9),
                7008 => Ipv4Addr::new(10, 10, 0, 2),
                7009 => Ipv4Addr::new(192, 0, 2, 99),
                _ => PEER,
            };
            send(socket, to, *port);
        }
        for socket in &self.many {
            let _ = socket.send_to(&[0; 64], (PEER, 7003));
        }
    }

    /// How many packets to the ports 7000, 7003 and 7024 were lost: those that cannot be read.
    pub(crate) fn lost(&self) -> [u64; 3] {
        let read = self.lossy.each_ref().map(waiting);
        assert!(read.iter().all(|read| (1..SENT).contains(read)), "{read:?}");
        read.map(|read| SENT - read)
    }
}
