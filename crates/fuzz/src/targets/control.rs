//! The control protocol of `netsilo-bench`: lines from a peer over a connection, as client and as
//! server read them.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use netsilo_trial::traffic::{Spec, Test};
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use netsilo_load::control::{Lines, Order, Reply, Request, VERSION};

use crate::target::FuzzTarget;

/// Longest line that is read here; longer ones are errors.
const LONGEST: u64 = 16 << 10;

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, inputs: 5_000, ..FuzzTarget::bytes(holds) };

fn holds(bytes: &[u8]) {
    for request in read::<Request>(bytes) {
        comes_back(&request);
        if let Request::Prepare(spec) = &request {
            checks(spec);
        }
        if let Request::Make(order) = &request {
            checks(&order.spec);
        }
    }
    read::<Reply>(bytes).iter().for_each(comes_back);
}

/// Reads all lines up to the end or the first invalid one, as both ends do.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Vec<T> {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("loopback"));
    let address = listener.local_addr().expect("it is bound");
    let mut peer = TcpStream::connect(address).expect("loopback");
    // Closing resets: otherwise each input would hold a port for a minute.
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("a socket");
    let stream = listener.accept().expect("loopback").0;
    let mut lines = Lines::new(stream, LONGEST, Duration::from_secs(10)).expect("a connection");
    // What fits into the socket's buffers, so that this thread can write first.
    peer.write_all(&bytes[..bytes.len().min(60_000)]).expect("room");
    peer.shutdown(Shutdown::Write).expect("loopback");
    std::iter::from_fn(|| lines.receive().ok().flatten()).collect()
}

fn comes_back<T: Serialize + DeserializeOwned>(value: &T) {
    let text = serde_json::to_string(value).expect("plain values");
    // Not compared: a number that JSON cannot hold comes back as none.
    let _ = serde_json::from_str::<T>(&text);
}

/// An accepted specification is within the limits by which a server counts its memory.
fn checks(spec: &Spec) {
    if spec.check().is_err() {
        return;
    }
    let used = if spec.test.has_responses() {
        spec.request_bytes.max(spec.response_bytes)
    } else {
        spec.send_bytes.max(spec.recv_bytes)
    };
    assert!(spec.instances <= 20_000 && spec.workers <= 1024 && used <= 16 << 20, "{spec:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    let spec = |test| Box::new(Spec::default_for(test, Duration::from_secs(1)));
    let order = Order { spec: *spec(Test::UdpStream), to: None, port: 12870, bpf: true };
    let requests = [
        Request::Hello { version: VERSION },
        Request::Prepare(spec(Test::TcpRr)),
        Request::Begin { bpf: false },
        Request::End,
        Request::Stop,
        Request::Make(Box::new(order)),
    ];
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(to_line).collect();
    seeds.push(seeds.concat());
    let replies = [
        Reply::Welcome { version: VERSION },
        Reply::Begun,
        Reply::Done(Box::default()),
        Reply::Refused { why: "busy".into() },
    ];
    seeds.push(replies.iter().flat_map(to_line).collect());
    seeds
}

fn to_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("plain values");
    line.push(b'\n');
    line
}
