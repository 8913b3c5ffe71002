//! Tests of the ledger of loss on one machine with twenty-odd causes of drops at once: each packet
//! that was sent is read, forwarded or in the row of its cause.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use netsilo_lab::{Cable, Kernel, Lab, NicModel, Spec, until};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value as Json;

/// Packets of each cause.
const SENT: u64 = 200;
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
tc qdisc add dev veth0 clsact
tc filter add dev veth0 ingress bpf direct-action object-file $OBJECT section tc/ingress
tc filter add dev veth0 egress bpf direct-action object-file $OBJECT section tc/egress
ip link set veth0 xdpgeneric object $OBJECT section xdp
ip link add slow0 type bridge
ip address add 198.51.100.1/24 dev slow0
ip link set slow0 up
ip neigh add 198.51.100.9 lladdr 02:00:00:00:00:09 dev slow0
tc qdisc add dev slow0 root tbf rate 8kbit burst 1600 limit 3000
ip tuntap add dev tap0 mode tap
ip link set tap0 txqueuelen 10 up
ip address add 10.10.0.1/24 dev tap0
ip neigh add 10.10.0.2 lladdr 02:00:00:00:00:02 dev tap0 nud permanent
ip route add blackhole 203.0.113.128/25
";

/// Programs that drop the UDP packets of one port, for tc and XDP.
const PROGRAMS: &str = "
#define SECTION(name) __attribute__((section(name), used))
static long (*load)(void *skb, unsigned at, void *to, unsigned length) = (void *)26;
static int tc(void *skb, unsigned short wanted)
{
    unsigned short port = 0;
    load(skb, 36, &port, 2);
    return port == __builtin_bswap16(wanted) ? 2 : -1;
}
SECTION(\"tc/ingress\") int on_ingress(void *skb) { return tc(skb, 7005); }
SECTION(\"tc/egress\") int on_egress(void *skb) { return tc(skb, 7006); }
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
fn programs(folder: &Path) -> PathBuf {
    let (source, object) = (folder.join("drop.c"), folder.join("drop.o"));
    std::fs::write(&source, PROGRAMS).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]).arg(&object).arg(&source);
    assert!(clang.status().unwrap().success());
    object
}

/// Runs in a thread of this network namespace.
fn within<T: Send>(netns: &str, run: impl FnOnce() -> T + Send) -> T {
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

/// What dropped packets: `lost socket SOCKET_RCVBUFF`, with `elsewhere` in another namespace. If
/// the class is not known, the function.
fn cause(row: &Json) -> String {
    let netns = if row["netns"].is_null() { "" } else { "elsewhere" };
    let function = row["function"].as_str().filter(|_| row["class"] == "unknown");
    let reason = function.or(row["reason"].as_str());
    let parts = [row["class"].as_str(), row["stage"].as_str(), reason, Some(netns)];
    let known: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    known.join(" ")
}

/// The packets of each port by cause. Other tests lose packets in other namespaces than the peer's.
fn by_port(check: &Json, peer: u64) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut ports: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let rows = check["ledger"]["dropped"].as_array().unwrap();
    for row in rows.iter().filter(|row| row["netns"].is_null() || row["netns"] == peer) {
        let port = match row["port"].as_u64() {
            Some(port) => port.to_string(),
            None => format!("protocol {}", row["protocol"].as_str().unwrap()),
        };
        let causes = ports.entry(port).or_default();
        *causes.entry(cause(row)).or_default() += row["packets"].as_u64().unwrap();
    }
    ports
}

/// How many times longer all takes, in an emulated guest.
fn pace() -> u32 {
    std::env::var("PACE").map_or(1, |pace| pace.parse().unwrap())
}

/// Waits until the hooks of netsilo are attached and no others follow.
fn observes(netsilo: &Child) {
    let links = || {
        let folder = std::fs::read_dir(format!("/proc/{}/fdinfo", netsilo.id())).ok()?;
        let texts = folder.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
        Some(texts.filter(|text| text.contains("link_type")).count())
    };
    let mut before = 0;
    let look = || {
        thread::sleep(Duration::from_millis(300) * pace());
        links().unwrap_or(0)
    };
    until("the hooks are attached", look, |now| {
        *now > 5 && *now == std::mem::replace(&mut before, *now)
    })
    .unwrap();
}

#[test]
fn each_packet_is_read_or_in_the_row_of_what_dropped_it() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
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

    let mut netsilo = Command::new("ip")
        .args(["netns", "exec", host, env!("CARGO_BIN_EXE_netsilo")])
        .args(["check", "--json", "--interval", &format!("{}s", 10 + 4 * pace())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    observes(&netsilo);
    within(peer, || {
        let sender = udp(PEER, 0);
        for port in [7000, 7001, 7002, 7004, 7005, 7020, 7022, 7023] {
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
    drop(closed);
    for (port, socket) in &senders {
        let to = match port {
            7007 => Ipv4Addr::new(198, 51, 100, 9),
            7008 => Ipv4Addr::new(10, 10, 0, 2),
            7009 => Ipv4Addr::new(192, 0, 2, 99),
            _ => PEER,
        };
        send(socket, to, *port);
    }
    for socket in &many {
        let _ = socket.send_to(&[0; 64], (PEER, 7003));
    }

    let mut text = String::new();
    netsilo.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let status = netsilo.wait().unwrap();
    let check: Json = serde_json::from_str(&text).unwrap();
    drop(listener);
    let inode = std::fs::metadata(format!("/run/netns/{peer}")).unwrap().ino();
    let found = by_port(&check, inode);
    let read = [&full, &translated, &elsewhere].map(waiting);
    assert!(read.iter().all(|read| (1..SENT).contains(read)), "{read:?}");
    let [full, translated, elsewhere] = read.map(|read| SENT - read);

    let expected = [
        ("7000", "lost socket SOCKET_RCVBUFF", full),
        ("7001", "not-for-us NO_SOCKET", SENT),
        ("7002", "decided NETFILTER_DROP", SENT),
        ("7004", "lost nfqueue NOT_SPECIFIED", SENT),
        ("7005", "decided TC_INGRESS", SENT),
        ("7006", "decided TC_EGRESS", SENT),
        ("7008", "lost qdisc QDISC_DROP", SENT),
        ("7010", "lost protocol IP_INNOROUTES", SENT),
        ("7011", "decided IP_RPFILTER", SENT),
        ("7012", "not-for-us OTHERHOST", SENT),
        ("7013", "lost protocol IP_INHDR", SENT),
        ("7014", "lost protocol UDP_CSUM", SENT),
        ("7018", "not-for-us NO_SOCKET", 20),
        ("7019", "decided NOT_SPECIFIED", SENT),
        ("7020", "decided NETFILTER_DROP", SENT),
        ("7021", "decided NETFILTER_DROP", SENT),
        ("7023", "decided NOT_SPECIFIED", SENT),
        ("7024", "lost socket SOCKET_RCVBUFF elsewhere", elsewhere),
        ("protocol 253", "not-for-us IP_NOPROTO", SENT),
    ];
    for (port, cause, packets) in expected {
        let all = BTreeMap::from([(cause.to_owned(), packets)]);
        assert_eq!(found.get(port), Some(&all), "{port} of {found:#?}");
    }
    // These have two causes each: a bridge without ports, a queue of one packet, a buffer that is
    // full on some kernels before its socket is closed. Linux 6.1 gives no reason for fragments.
    for (port, cause) in [
        ("7007", "decided QDISC_DROP"),
        ("7009", "lost neighbour NEIGH_QUEUEFULL"),
        ("7015", "lost protocol"),
        ("7022", "no-loss NOT_SPECIFIED"),
    ] {
        let causes = found.get(port).unwrap_or_else(|| panic!("{port} of {found:#?}"));
        // The last packet to a next hop waits for its answer, beyond the window in some runs.
        let waits = u64::from(port == "7009" && causes.len() == 1);
        assert_eq!(causes.values().sum::<u64>() + waits, SENT, "{causes:?}");
        let most =
            causes.iter().find(|(it, packets)| it.starts_with(cause) && **packets > SENT / 2);
        assert!(most.is_some(), "{causes:?}");
    }
    // All that arrived was dropped, save for what waits in the small buffer. The kernel does not
    // say from which namespace fragments were that waited too long.
    let balance = check["ledger"]["balance"].as_array().unwrap();
    let own = balance.iter().find(|it| it["netns"].is_null()).unwrap();
    let here =
        [7000, 7001, 7002, 7004, 7005, 7010, 7011, 7012, 7013, 7014, 7015, 7019, 7020, 7022, 7023];
    let arrived = here.len() as u64 * SENT;
    let dropped = arrived - (SENT - full) - SENT;
    assert_eq!((own["arrived"].as_u64(), own["dropped"].as_u64()), (Some(arrived), Some(dropped)));
    // Each stage counts its packets once, whether by a counter, the event, or both.
    let stages = check["ledger"]["stages"].as_array().unwrap();
    let losses: BTreeMap<_, _> = stages
        .iter()
        .filter(|stage| stage["count"] != 0 && stage["stage"] != "squeeze")
        .map(|stage| (stage["stage"].as_str().unwrap(), stage["count"].as_u64().unwrap()))
        .collect();
    let listen = losses.get("listen").copied().unwrap_or(0);
    assert!(listen > 0, "{losses:?}");
    let expected = [
        ("conntrack", translated),
        ("listen", listen),
        ("neighbour", SENT),
        ("nfqueue", SENT),
        ("protocol", 4 * SENT),
        ("qdisc", SENT),
        (
            "socket",
            full + elsewhere + found["7022"].get("lost socket SOCKET_RCVBUFF").unwrap_or(&0),
        ),
    ];
    assert_eq!(losses, BTreeMap::from(expected));
    let findings = check["findings"].as_array().unwrap();
    let named = |id: &str| {
        let of_id = findings.iter().filter(|finding| finding["id"] == id);
        let subject = |finding: &Json| finding["subject"].as_str().unwrap().to_owned();
        of_id.map(subject).collect::<Vec<_>>()
    };
    let mut dropped = named("packets-dropped");
    dropped.sort_unstable();
    dropped.dedup();
    let peer = format!("netns {inode}");
    dropped.retain(|subject| !subject.starts_with("netns ") || *subject == peer);
    assert_eq!(dropped, ["conntrack", &peer, "tap0", "veth0"]);
    assert_eq!(named("nothing-lost"), Vec::<String>::new());
    assert_eq!(status.code(), Some(11), "losses are critical");
}

#[test]
#[ignore = "boots a guest of each kernel: make test-long"]
fn each_packet_is_accounted_for_on_each_kernel() {
    let test = std::env::current_exe().unwrap();
    let name = "each_packet_is_read_or_in_the_row_of_what_dropped_it";
    for kernel in [Kernel::V6_1, Kernel::V6_12, Kernel::Newest] {
        let lab = Lab::boot(&Spec::new(kernel, NicModel::VirtioNet)).unwrap();
        lab.sh("modprobe tun").unwrap();
        let settings = "PACE=5 NETSILO_NO_SKIP=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        lab.sh(&format!("{settings} {} --exact {name}", test.display())).unwrap();
    }
}
