//! The server in a guest, and the client at its peer: data of ethtool, netdev netlink and
//! sock_diag.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use netsilo_model::derive::sock_diag::{SocketSample, attribute_reads, steerings};
use netsilo_model::machine::ids::NapiId;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::attribution::{Attribution, QueueResolution};
use netsilo_model::snapshot::ethtool::{Duplex, FlowType, Limit};
use netsilo_model::snapshot::netdev::{
    Association, AssociationSource, Confidence, Netdev, RxQueue,
};
use netsilo_model::snapshot::netdev_genl::NetdevGenl;
use netsilo_sys::ethtool::get;
use netsilo_sys::read::netlink::{netdev_genl, sock_diag};

const CONNECTIONS: u64 = 32;
const BYTES: u64 = 10_000;

/// Connects, sends on request, and waits until the server closes.
pub(crate) fn client(address: &str) {
    let connect =
        || (0..600).find_map(|_| TcpStream::connect(address).ok().or_else(pause)).unwrap();
    let connections: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    for mut connection in &connections {
        connection.read_exact(&mut [0]).unwrap();
        connection.write_all(&vec![7; BYTES as usize]).unwrap();
    }
    for mut connection in &connections {
        assert_eq!(connection.read(&mut [0]).unwrap(), 0, "the server closes when it is done");
    }
}

/// Waits until the server listens.
fn pause() -> Option<TcpStream> {
    std::thread::sleep(Duration::from_millis(100));
    None
}

/// Accepts the connections, reads everything the client sends, and samples before and after.
///
/// The client ends when the connections are dropped.
fn receive(address: &str) -> (Vec<TcpStream>, SocketSample, SocketSample) {
    let listener = TcpListener::bind(address).unwrap();
    let mut connections: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    let before = sock_diag::sample(None).unwrap();
    // a socket that is still receiving cannot be sampled consistently
    for connection in &mut connections {
        connection.write_all(&[0]).unwrap();
    }
    for connection in &mut connections {
        connection.read_exact(&mut vec![0; BYTES as usize]).unwrap();
    }
    let after = sock_diag::sample(Some(&before)).unwrap();
    (connections, before, after)
}

/// Checks what virtio-net reports about its queues and sockets.
pub(crate) fn virtio_server(address: &str) {
    let (_connections, before, after) = receive(address);
    let by_napi = bytes_by_napi(&attribute_reads(&before, &after, &[]), QueueResolution::Direct);
    assert_eq!(by_napi.values().sum::<u64>(), CONNECTIONS * BYTES);
    assert!(by_napi.len() <= 4, "{by_napi:?}");
    let answer = get::read("eth0").unwrap();
    assert_eq!(answer.channels.value().unwrap().combined, Some(Limit { current: 4, max: 4 }));
    assert!(answer.rss.reason().is_some() && answer.link.value().unwrap().speed_mbps.is_none());
    let genl = netdev_genl::read().unwrap();
    let napis: BTreeSet<NapiId> =
        genl.value().unwrap().napis.iter().map(|napi| NapiId(napi.id)).collect();
    assert!(by_napi.keys().all(|napi| napis.contains(napi)), "{by_napi:?} {napis:?}");
}

/// Checks what igb reports, and that Toeplitz predicts each socket's NAPI.
pub(crate) fn igb_server(address: &str) {
    let (_connections, before, mut after) = receive(address);
    let genl = netdev_genl::read().unwrap();
    let netdev = eth0(genl.value());
    let steerings = steerings(std::slice::from_ref(&netdev), &after.addresses, &netdev_rss_key());

    let direct = attribute_reads(&before, &after, &steerings);
    assert_eq!(
        bytes_by_napi(&direct, QueueResolution::Direct).values().sum::<u64>(),
        CONNECTIONS * BYTES
    );

    // one napi per predicted queue, and a different napi for each
    let mut pairs = BTreeSet::new();
    for socket in after.sockets.values() {
        let queue = steerings[0].tcp_queue(socket.remote, socket.local).unwrap();
        pairs.insert((queue, socket.incoming.unwrap().napi.unwrap()));
    }
    let queues: BTreeSet<u32> = pairs.iter().map(|(queue, _)| *queue).collect();
    let napis: BTreeSet<NapiId> = pairs.iter().map(|(_, napi)| *napi).collect();
    // the hash is linear: 32 consecutive ports fall on 2, 4 or 8 queues, depending on the random
    // key
    assert!(
        queues.len() > 1 && queues.len() == pairs.len() && napis.len() == pairs.len(),
        "{pairs:?}"
    );

    // without the sockets' NAPI, prediction attributes the same bytes to the same napis, where
    // netlink lists the queues' napis
    if netdev.rx_queues.iter().all(|queue| queue.napi.is_some()) {
        after.sockets.values_mut().for_each(|socket| socket.incoming = None);
        let predicted = attribute_reads(&before, &after, &steerings);
        let by_napi = bytes_by_napi(&predicted, QueueResolution::Toeplitz);
        assert_eq!(by_napi, bytes_by_napi(&direct, QueueResolution::Direct));
    }
}

fn bytes_by_napi(attribution: &Attribution, resolved: QueueResolution) -> BTreeMap<NapiId, u64> {
    let mut bytes = BTreeMap::new();
    for read in
        attribution.consumption.iter().filter(|read| read.consumer.tgid == std::process::id())
    {
        assert_eq!(read.resolved, resolved);
        *bytes.entry(read.napi.unwrap()).or_default() += read.bytes;
    }
    bytes
}

/// The NIC, after checks of its ethtool and netlink data.
fn eth0(genl: Option<&NetdevGenl>) -> Netdev {
    let ifindex: u32 =
        std::fs::read_to_string("/sys/class/net/eth0/ifindex").unwrap().trim().parse().unwrap();
    let answer = get::read("eth0").unwrap();
    let hashed = |flow| answer.flow_hash[&flow].value().unwrap().to_string();
    assert_eq!((hashed(FlowType::Tcp4).as_str(), hashed(FlowType::Udp4).as_str()), ("sdfn", "sd"));
    let rss = answer.rss.value().unwrap();
    assert_eq!((rss.indirection.len(), rss.indirection.iter().max()), (128, Some(&7)));
    let combined = answer.channels.value().unwrap().combined.unwrap();
    assert_eq!((combined.current, answer.rx_rings.clone()), (8, Reading::Value(8)));
    let link = answer.link.value().unwrap();
    assert_eq!((link.speed_mbps, link.duplex), (Some(1000), Some(Duplex::Full)));
    let received =
        answer.stats.value().unwrap().iter().find(|(name, _)| name == "rx_bytes").unwrap();
    assert!(received.1 > CONNECTIONS * BYTES);

    let napi = |index| genl.and_then(|answer| answer.rx_napi(ifindex, index));
    let edge = |to| Association {
        to,
        source: AssociationSource::NetdevGenl,
        confidence: Confidence::Certain,
    };
    let queue = |index| RxQueue {
        index,
        napi: napi(index).map(|napi| edge(NapiId(napi.id))),
        ..RxQueue::default()
    };
    // a kernel that reports a queue's napi also reports its irq, for this driver (7.2)
    assert!((0..8).filter_map(napi).all(|napi| napi.irq.is_some()));
    Netdev {
        name: "eth0".into(),
        ifindex,
        rx_queues: (0..8).map(queue).collect(),
        ethtool: Some(answer),
        ..Netdev::default()
    }
}

fn netdev_rss_key() -> String {
    std::fs::read_to_string("/proc/sys/net/core/netdev_rss_key").unwrap()
}
