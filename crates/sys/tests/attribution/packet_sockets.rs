//! What packet sockets take and lose.

use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags as UpdateFlags, ObjectBuilder, Xdp, XdpFlags};
use netsilo_model::snapshot::packet_sockets::CaptureKind;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, bind, recv, socket};

use super::{at, in_own_netns, ip, netns};

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
            assert!(
                row.kind == CaptureKind::Recv && row.netdev.is_empty() && row.lost > 0,
                "{row:?}"
            );
            assert_eq!(row.packets + row.lost, SENT);
            assert_eq!(row.packets, drain());
        }
        assert_eq!(recv(&silent, &mut [0; 256][..], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
    });
}

/// Redirects everything to the AF_XDP socket in its map.
const REDIRECT: &str = "
#define SECTION(name) __attribute__((section(name), used))
struct {
    int (*type)[17]; /* BPF_MAP_TYPE_XSKMAP */
    int (*max_entries)[1];
    int (*key_size)[4];
    int (*value_size)[4];
} sockets SECTION(\".maps\");
static long (*redirect)(void *map, unsigned long key, unsigned long flags) = (void *)51;
SECTION(\"xdp\") int take(void *frame) { return redirect(&sockets, 0, 2); }
char _license[] SECTION(\"license\") = \"GPL\";
";

/// Descriptors of the ring: so many packets it takes.
const RING: u32 = 64;
const CHUNK: u32 = 2048;

/// An AF_XDP socket in copy mode on the first queue of a netdev, with twice as many buffers as its
/// ring has descriptors.
#[allow(unsafe_code)]
fn xdp_socket(ifindex: u32) -> OwnedFd {
    let xdp = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
    let (buffers, flags) = (2 * RING, MapFlags::PRIVATE);
    let bytes = (buffers * CHUNK) as usize;
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which lives as long as the process.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rw, flags) }.unwrap();
    let area = XdpUmemReg {
        addr: memory as u64,
        len: bytes as u64,
        chunk_size: CHUNK,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(&xdp, area).unwrap();
    set_xdp_umem_fill_ring_size(&xdp, buffers).unwrap();
    set_xdp_umem_completion_ring_size(&xdp, RING).unwrap();
    set_xdp_rx_ring_size(&xdp, RING).unwrap();
    let at = xdp_mmap_offsets(&xdp).unwrap().fr;
    let length = at.desc as usize + buffers as usize * 8;
    // SAFETY: as above; the kernel says where the descriptors and the producer's index are.
    unsafe {
        let shared = MapFlags::SHARED | MapFlags::POPULATE;
        let null = std::ptr::null_mut();
        let ring = mmap(null, length, rw, shared, &xdp, XDP_UMEM_PGOFF_FILL_RING).unwrap();
        let descriptors = ring.byte_add(at.desc as usize).cast::<u64>();
        (0..buffers).for_each(|n| *descriptors.add(n as usize) = u64::from(n * CHUNK));
        let producer = ring.byte_add(at.producer as usize).cast::<AtomicU32>();
        (*producer).store(buffers, Ordering::Release);
    }
    bind(&xdp, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, 0)).unwrap();
    xdp
}

#[test]
fn an_xdp_socket_has_what_its_ring_took_and_what_found_it_full() {
    in_own_netns(|| {
        ip("link add here type veth peer name there");
        ip("link set here up");
        ip("link set there up");
        ip("address add 192.0.2.1/24 dev here");
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev here");
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("take.c"), folder.path().join("take.o"));
        std::fs::write(&source, REDIRECT).unwrap();
        let mut clang = Command::new("clang");
        clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]).arg(&object).arg(&source);
        assert!(clang.status().unwrap().success());
        let mut object = ObjectBuilder::default().open_file(object).unwrap().load().unwrap();
        let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
        let ifindex = name_to_index(&sender, "there").unwrap();
        let xdp = xdp_socket(ifindex);
        let key = xdp.as_raw_fd().to_ne_bytes();
        object.maps_mut().next().unwrap().update(&[0; 4], &key, UpdateFlags::ANY).unwrap();
        let program = object.progs().next().unwrap();
        Xdp::new(program.as_fd()).attach(ifindex as i32, XdpFlags::SKB_MODE).unwrap();
        let options = Options { packet_sockets: true, ..Options::default() };
        let mut tracer = Tracer::attach(options);
        (0..SENT).for_each(|_| _ = sender.send_to(&[0; 64], "192.0.2.2:7411").unwrap());
        let mut counted = tracer.read().unwrap();
        counted.packet_sockets.retain(|it| it.netns == netns());
        let [row] = &counted.packet_sockets[..] else { panic!("{counted:?}") };
        let truth = xdp_statistics(&xdp).unwrap();
        let place = (row.kind, row.netdev.as_str(), row.queue);
        assert_eq!(place, (CaptureKind::Xdp, "there", Some(0)));
        // Some descriptors may have neighbour discovery's packets of before.
        assert!((RING / 2..=RING).contains(&(row.packets as u32)), "{row:?}");
        assert_eq!(row.lost, truth.rx_dropped + truth.rx_ring_full.unwrap());
        assert!(row.packets + row.lost >= SENT, "{row:?}");
    });
}
