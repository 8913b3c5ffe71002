//! Loses packets for `scripts/bench-drops`, in twenty-odd ways, and prints how many.
//!
//! Prints both network namespaces, then obeys a word per line on its standard input:
//!
//!     send   send all packets, and print what was lost: port or protocol, packets, cause
//!     cost   print runs and run time of the eBPF programs that were loaded since the start
//!
//! A dash ends each answer. Removes the namespaces at the end of its input.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a part of a benchmark"
)]

#[path = "../tests/drops/losses.rs"]
mod losses;

use std::io;

use netsilo_sys::bpf::statistics::Statistics;

use crate::losses::{Losses, SENT};

/// Port or protocol, and what drops its packets: all of them, unless `send` knows better.
const CAUSES: &[(&str, &str)] = &[
    ("7000", "full receive buffer of a UDP socket"),
    ("7001", "UDP port without a socket"),
    ("7002", "nftables rule (input)"),
    ("7003", "masquerading has no free port"),
    ("7004", "NFQUEUE without a program"),
    ("7005", "eBPF program of tc (ingress)"),
    ("7006", "eBPF program of tc (egress)"),
    ("7007", "qdisc that limits the rate (tbf)"),
    ("7008", "full queue of a tap that nobody reads"),
    ("7009", "next hop does not answer ARP"),
    ("7010", "no route"),
    ("7011", "reverse path filter"),
    ("7012", "frame for another MAC address"),
    ("7013", "TTL expired"),
    ("7014", "wrong UDP checksum"),
    ("7015", "missing fragments"),
    ("7017", "full accept queue of a TCP listener"),
    ("7018", "TCP port without a listener"),
    ("7019", "blackhole route"),
    ("7020", "nftables rule (netdev ingress)"),
    ("7021", "nftables rule (output)"),
    ("7022", "socket closed with unread packets"),
    ("7023", "XDP program"),
    ("7024", "full receive buffer in another namespace"),
    ("protocol 253", "unknown IP protocol"),
];

fn send(losses: &mut Losses) {
    losses.send();
    let [full, translated, elsewhere] = losses.lost();
    for (port, cause) in CAUSES {
        let packets = match *port {
            "7000" => full.to_string(),
            "7003" => translated.to_string(),
            // The kernel sends lost SYNs again.
            "7017" => "some".to_owned(),
            "7018" => "20".to_owned(),
            "7024" => elsewhere.to_string(),
            _ => SENT.to_string(),
        };
        println!("{port}\t{packets}\t{cause}");
    }
}

fn main() -> io::Result<()> {
    let mut losses = Losses::prepare();
    let statistics = Statistics::enable()?;
    let before = statistics.runs();
    println!("{}", losses.namespaces().join(" "));
    for line in io::stdin().lines() {
        match line?.as_str() {
            "send" => send(&mut losses),
            "cost" => {
                for runs in statistics.since(&before) {
                    println!("{}\t{}\t{}", runs.name, runs.count, runs.ns);
                }
            }
            other => panic!("{other}: not send or cost"),
        }
        println!("-");
    }
    Ok(())
}
