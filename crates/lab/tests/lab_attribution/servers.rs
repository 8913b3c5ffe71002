//! Servers at full load, without pacing. The bytes that netsilo counts equal those that each server
//! counts itself, and the packets of each queue equal those that the NIC counts.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_lab::{Lab, exact, memcached, nginx, redis};
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::attribution::Attribution;

use crate::forwarding::{STRAY, counters};
use crate::{of, sum, traced};

/// Maximum time of one load.
const LIMIT: Duration = Duration::from_secs(120);

/// Connections to each server.
const CONNECTIONS: u32 = 16;

/// The longest read of these servers, and so the maximum number of bytes that a lost event leaves
/// uncounted: `PROTO_IOBUF_LEN` of redis, `READ_BUFFER_SIZE` of memcached. nginx reads 1 KiB.
const LONGEST_READ: u64 = 16 * 1024;

/// Maximum number of packets of a poll (`NAPI_POLL_WEIGHT`), and so of a lost event.
const LONGEST_POLL: u64 = 64;

/// Bytes of the headers of each packet: Ethernet, IPv4, TCP without options and with all of them.
const HEADERS: [u64; 2] = [14 + 20 + 20, 14 + 20 + 60];

/// A server, a load on it, and its own count.
struct Server {
    name: &'static str,
    /// Starts it in the guest. The shell becomes the server.
    start: String,
    port: u16,
    /// Runs at the peer, as fast as it can.
    load: String,
    /// Prints the number of bytes that the server reports it has read so far.
    counted: String,
}

fn servers() -> [Server; 3] {
    let address = Lab::guest_address(0);
    let (redis, benchmark) = redis().unwrap();
    let cli = benchmark.command().replace("redis-benchmark", "redis-cli");
    let client = |port: u16, request: &str, response: usize| {
        let words = format!(
            "ask --dest {address} --port {port} --connections {CONNECTIONS} --duration 2 \
             --request-line '{request}' --response-bytes {response}"
        );
        exact::command(&words).unwrap()
    };
    [
        Server {
            name: "redis",
            start: format!(
                "exec env {} --bind {address} --port 6379 --protected-mode no --save '' \
                 --logfile /tmp/redis.log",
                redis.command()
            ),
            port: 6379,
            load: format!(
                "env {} -h {address} -t get,set -n 1500 -c {CONNECTIONS} --csv",
                benchmark.command()
            ),
            counted: format!(
                "env {cli} -h {address} info stats | \
                 sed -n 's/total_net_input_bytes:\\([0-9]*\\).*/\\1/p'"
            ),
        },
        Server {
            name: "memcached",
            start: format!(
                "exec env {} -u root -l {address} -p 11211 -U 0 -t 2 -m 16",
                memcached().unwrap().command()
            ),
            port: 11211,
            load: client(11211, "get none", "END\r\n".len()),
            // Only one command: a second one (quit) is read with the first or after its answer, so
            // it would be in one count and not in the other.
            counted: format!(
                "bash -c 'exec 3<>/dev/tcp/{address}/11211; printf \"stats\\r\\n\" >&3; \
                 sed -n \"s/STAT bytes_read \\([0-9]*\\).*/\\1/p; /^END/q\" <&3'"
            ),
        },
        Server {
            name: "nginx",
            start: format!(
                "mkdir -p /tmp/nginx/logs
                 cat >/tmp/nginx/conf <<'END'
                 user root; daemon off; master_process off; error_log /tmp/nginx/error.log;
                 pid /tmp/nginx/pid; events {{ }}
                 http {{ log_format bytes $request_length; access_log /tmp/nginx/bytes bytes;
                 client_body_temp_path /tmp/nginx/a; proxy_temp_path /tmp/nginx/b;
                 fastcgi_temp_path /tmp/nginx/c; uwsgi_temp_path /tmp/nginx/d;
                 scgi_temp_path /tmp/nginx/e; keepalive_requests 1000000;
                 server {{ listen {address}:80; return 204; }} }}
END
                 exec env {} -p /tmp/nginx -c /tmp/nginx/conf",
                nginx().unwrap().command()
            ),
            port: 80,
            load: client(80, "HEAD / HTTP/1.1\r\nHost: a\r\n", nginx_response().len()),
            counted: "awk '{ sum += $1 } END { print sum + 0 }' /tmp/nginx/bytes".to_owned(),
        },
    ]
}

/// Each response of nginx has the length of this one.
fn nginx_response() -> &'static str {
    "HTTP/1.1 204 No Content\r\nServer: nginx/1.22.1\r\nDate: Mon, 23 Nov 2026 03:30:00 GMT\r\n\
     Connection: keep-alive\r\n\r\n"
}

pub(super) fn servers_count_what_netsilo_counts(lab: &Lab) {
    for server in servers() {
        let name = server.name;
        let start = format!("echo $$ >/tmp/{name}.pid\n{}", server.start);
        let job = lab.spawn(&start).unwrap();
        let port = server.port;
        lab.peer(0).unwrap().until_open(Lab::guest_address(0), port..=port).unwrap();
        let number = |command: &str| -> u64 {
            let text = lab.sh(command).unwrap();
            text.trim().parse().unwrap_or_else(|_| panic!("{name}: {command}: {text:?}"))
        };
        let pid = u32::try_from(number(&format!("cat /tmp/{name}.pid"))).unwrap();
        let before = number(&server.counted);
        // The bytes of the question itself, which the server counts too.
        let asked = number(&server.counted) - before;
        let mut nic = BTreeMap::new();
        let attribution = traced(lab, || {
            let peer = lab.peer(0).unwrap();
            let before = counters(lab, "eth0");
            peer.run_for(&server.load, LIMIT).unwrap().ok().unwrap();
            nic = counters(lab, "eth0");
            for (counter, value) in &mut nic {
                *value -= before.get(counter).unwrap_or(&0);
            }
        });
        let truth = number(&server.counted) - before - 2 * asked;
        drop(job);
        let counted = sum(&of(&attribution, pid));
        println!("{name}: {counted} of {truth} bytes, {} events lost", attribution.lost_events);
        // How much a client sends in its time depends on the machine that emulates.
        assert!(truth > 10_000, "{name} read {truth} bytes only");
        assert!(counted <= truth, "{name}: {counted} of {truth} bytes");
        assert!(
            truth - counted <= attribution.lost_events * LONGEST_READ,
            "{name}: {counted} of {truth} bytes, {} events lost",
            attribution.lost_events
        );
        queues_have_what_the_nic_counts(name, &attribution, pid, &nic);
    }
}

/// Compares the packets polled from each queue with the NIC's own count. Compares the bytes that
/// the server read from each queue with those that arrived there, without the headers.
fn queues_have_what_the_nic_counts(
    name: &str,
    attribution: &Attribution,
    pid: u32,
    nic: &BTreeMap<String, u64>,
) {
    let mut queues: BTreeMap<u32, NapiId> = BTreeMap::new();
    let mut read: BTreeMap<u32, u64> = BTreeMap::new();
    for row in of(attribution, pid) {
        // The question of `counted` comes from the guest itself.
        let (Some(queue), Some(napi)) = (row.rx_queue, row.napi) else { continue };
        assert_eq!(*queues.entry(queue).or_insert(napi), napi, "{name} rx-{queue}");
        *read.entry(queue).or_default() += row.bytes;
    }
    assert!(queues.len() > 1, "{name}: several queues were used: {queues:?}");
    let (polls_lost, reads_lost) =
        (attribution.lost_events * LONGEST_POLL, attribution.lost_events * LONGEST_READ);
    for (queue, napi) in queues {
        let polls = attribution.polls.iter().filter(|poll| poll.napi == napi);
        let polled: u64 = polls.map(|poll| poll.packets).sum();
        let packets = nic[&format!("rx_queue_{queue}_packets")];
        let bytes = nic[&format!("rx_queue_{queue}_bytes")];
        let payload = HEADERS.map(|headers| bytes.saturating_sub(packets * headers));
        println!(
            "{name} rx-{queue}: {polled} polled of {packets} packets, {} read of {} to {} bytes",
            read[&queue], payload[1], payload[0]
        );
        assert!(
            polled <= packets + STRAY && polled + polls_lost >= packets,
            "{name} rx-{queue}: {polled} polled of {packets} packets"
        );
        // If a flow changes its queue, the data that its socket has not read yet moves with it.
        let waiting = u64::from(CONNECTIONS) * LONGEST_READ / 16;
        assert!(
            read[&queue] <= payload[0] + waiting
                && read[&queue] + reads_lost + waiting >= payload[1],
            "{name} rx-{queue}: {} read of {payload:?} bytes",
            read[&queue]
        );
    }
}
