//! Compares `netsilo-bench` with sockperf, iperf3, qperf and netperf, if installed, with the same
//! load in turn. This is done on loopback, over a veth between two network namespaces, and with
//! both ends on one CPU, where no idle CPU has to be woken. `scripts/bench-load` runs it.

#![allow(
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netsilo_trial::stats::{median, signed_rank};
use netsilo_trial::traffic::LoadResult;

/// Number of rounds. Each program runs once per round.
const ROUNDS: usize = 10;

/// Probability that the interval does not contain the true value.
const DOUBT: f64 = 0.05;

/// Where client and server run.
struct Path {
    name: &'static str,
    /// Namespaces of client and server.
    netns: Option<[String; 2]>,
    /// The CPUs of client and server. Over a veth the scheduler sometimes puts both on one CPU,
    /// where small writes join to large packets: that would be compared, not the programs.
    cpus: Option<[&'static str; 2]>,
    server: &'static str,
}

/// One load as arguments of each program.
struct Case {
    name: &'static str,
    unit: &'static str,
    /// Number of concurrent copies, for a program that has no instances.
    copies: usize,
    netsilo: &'static str,
    peers: &'static [(&'static str, &'static str)],
}

/// The loads. `{}` stands for the server's address.
const CASES: [Case; 8] = [
    Case {
        name: "TCP_RR, 1 byte",
        unit: "/s",
        copies: 1,
        netsilo: "-t TCP_RR",
        peers: &[
            ("qperf", "qperf -t 1 -m 1 -uu {} tcp_lat"),
            ("sockperf", "sockperf ping-pong --tcp -i {} -p 11112 -t 1 -m 14"),
            ("netperf", "netperf -H {} -t TCP_RR -l 1 -P 0"),
        ],
    },
    Case {
        name: "UDP_RR, 1 byte",
        unit: "/s",
        copies: 1,
        netsilo: "-t UDP_RR",
        peers: &[
            ("qperf", "qperf -t 1 -m 1 -uu {} udp_lat"),
            ("sockperf", "sockperf ping-pong -i {} -p 11111 -t 1 -m 14"),
            ("netperf", "netperf -H {} -t UDP_RR -l 1 -P 0"),
        ],
    },
    Case {
        name: "UDP_RR, 1024 bytes",
        unit: "/s",
        copies: 1,
        netsilo: "-t UDP_RR -r 1024",
        peers: &[
            ("qperf", "qperf -t 1 -m 1024 -uu {} udp_lat"),
            ("sockperf", "sockperf ping-pong -i {} -p 11111 -t 1 -m 1024"),
            ("netperf", "netperf -H {} -t UDP_RR -l 1 -P 0 -- -r 1024"),
        ],
    },
    Case {
        name: "TCP_RR, 16 instances",
        unit: "/s",
        copies: 16,
        netsilo: "-t TCP_RR -n 16",
        peers: &[
            // sockperf's server answers only one connection
            ("netperf x16", "netperf -H {} -t TCP_RR -l 1 -P 0"),
        ],
    },
    Case {
        name: "UDP_RR, 16 instances",
        unit: "/s",
        copies: 16,
        netsilo: "-t UDP_RR -n 16",
        peers: &[
            ("sockperf x16", "sockperf ping-pong -i {} -p 11111 -t 1 -m 14"),
            ("netperf x16", "netperf -H {} -t UDP_RR -l 1 -P 0"),
        ],
    },
    Case {
        name: "TCP_STREAM, 128 KiB",
        unit: "B/s",
        copies: 1,
        netsilo: "-t TCP_STREAM -m 131072",
        peers: &[
            ("iperf3", "iperf3 -c {} -p 5999 -t 1 -l 131072 -J"),
            ("qperf", "qperf -t 1 -m 131072 -uu {} tcp_bw"),
            ("netperf", "netperf -H {} -t TCP_STREAM -l 1 -P 0 -f B -- -m 131072 -M 131072"),
        ],
    },
    Case {
        name: "TCP_STREAM, 1 KiB",
        unit: "B/s",
        copies: 1,
        netsilo: "-t TCP_STREAM -m 1024 -M 1024",
        peers: &[
            ("iperf3", "iperf3 -c {} -p 5999 -t 1 -l 1024 -J"),
            ("qperf", "qperf -t 1 -m 1024 -uu {} tcp_bw"),
            ("netperf", "netperf -H {} -t TCP_STREAM -l 1 -P 0 -f B -- -m 1024 -M 1024"),
        ],
    },
    Case {
        name: "UDP_STREAM, 1400 bytes, received",
        unit: "B/s",
        copies: 1,
        netsilo: "-t UDP_STREAM -m 1400",
        peers: &[
            ("iperf3", "iperf3 -c {} -p 5999 -t 1 -u -b 0 -l 1400 -J"),
            ("qperf", "qperf -t 1 -m 1400 -uu {} udp_bw"),
        ],
    },
];

/// A server that ends with the benchmark.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Path {
    fn command(&self, end: usize, words: &str) -> Command {
        let mut all: Vec<&str> = words.split_whitespace().collect();
        if let Some(netns) = &self.netns {
            all.splice(0..0, ["ip", "netns", "exec", netns[end].as_str()]);
        }
        if let Some(cpus) = self.cpus {
            all.splice(0..0, ["taskset", "-c", cpus[end]]);
        }
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).stdin(Stdio::null());
        command
    }

    fn serve(&self, words: &str) -> Server {
        let mut command = self.command(1, &words.replace("{}", self.server));
        Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Runs `copies` of a program at once and adds their figures. Returns `None` if one of them
    /// prints no figure.
    fn measure(&self, words: &str, copies: usize, figure: fn(&str) -> Option<f64>) -> Option<f64> {
        let words = words.replace("{}", self.server);
        let start = |_| {
            self.command(0, &words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        };
        let running: Vec<Child> = (0..copies).map(start).collect();
        let outputs = running.into_iter().map(|child| {
            String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
        });
        outputs.map(|output| figure(&output)).sum()
    }
}

/// Returns transactions, or bytes received, per second.
fn of_netsilo(output: &str) -> Option<f64> {
    let figures = serde_json::from_str::<LoadResult>(output).ok()?.figures();
    Some(figures.transactions_per_s.unwrap_or(figures.bytes_per_s))
}

/// Returns transactions per second from half a round trip in ns, or bytes per second.
fn of_qperf(output: &str) -> Option<f64> {
    let value = |name: &str| -> Option<f64> {
        let line = output
            .lines()
            .map(str::trim)
            .find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('='))?;
        let (number, unit) = line.trim().split_once(' ')?;
        let is_plain = matches!(unit.trim(), "ns" | "bytes/sec");
        number.replace(',', "").parse().ok().filter(|_| is_plain)
    };
    value("latency").map(|ns| 1e9 / (2.0 * ns)).or_else(|| value("recv_bw")).or_else(|| value("bw"))
}

/// Returns responses per second of the counted time.
fn of_sockperf(output: &str) -> Option<f64> {
    let line = output.lines().find_map(|line| line.split_once("[Valid Duration] RunTime="))?.1;
    let (seconds, rest) = line.split_once(" sec; SentMessages=")?;
    let received = rest.split_once("ReceivedMessages=")?.1;
    Some(received.trim().parse::<f64>().ok()? / seconds.parse::<f64>().ok()?)
}

/// Returns bytes per second that the receiver got.
fn of_iperf3(output: &str) -> Option<f64> {
    let result: serde_json::Value = serde_json::from_str(output).ok()?;
    let end = &result["end"];
    if let Some(sum) = end["sum"].as_object() {
        let arrived = sum["packets"].as_f64()? - sum["lost_packets"].as_f64()?;
        return Some(arrived * 1400.0 / end["sum"]["seconds"].as_f64()?);
    }
    Some(end["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

/// Returns the last column of the only line of output.
fn of_netperf(output: &str) -> Option<f64> {
    let words: Vec<f64> =
        output.lines().next()?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // request/response: ... size size seconds rate; stream: ... size seconds rate
    words.last().copied()
}

fn figure(program: &str) -> fn(&str) -> Option<f64> {
    match program.split(' ').next().unwrap_or(program) {
        "qperf" => of_qperf,
        "sockperf" => of_sockperf,
        "iperf3" => of_iperf3,
        _ => of_netperf,
    }
}

fn is_installed(words: &str) -> bool {
    let program = words.split(' ').next().unwrap_or(words);
    std::env::var("PATH")
        .unwrap_or_default()
        .split(':')
        .any(|dir| std::path::Path::new(dir).join(program).exists())
}

fn main() {
    let only: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    println!(
        "rates are medians; the ratio is netsilo over the best of the others, \
         the median of {ROUNDS} rounds in turns"
    );
    println!("with its interval (signed ranks, {:.0}%)\n", (1.0 - DOUBT) * 100.0);
    println!("| path | load | netsilo | others | netsilo / best |\n|---|---|---|---|---|");
    let loopback = |name, cpus| Path { name, netns: None, cpus, server: "127.0.0.1" };
    measure_all(&loopback("loopback", None), &only);
    measure_all(&loopback("loopback, one cpu", Some(["0", "0"])), &only);
    let cable = netsilo_lab::Cable::new("bench-load").unwrap();
    measure_all(
        &Path {
            name: "veth",
            netns: Some(cable.0.clone()),
            cpus: Some(["0", "1"]),
            server: "192.0.2.2",
        },
        &only,
    );
}

fn measure_all(path: &Path, only: &[String]) {
    let netsilo = env!("CARGO_BIN_EXE_netsilo-bench");
    let mut servers = vec![path.serve(&format!("{netsilo} serve --bind {{}} --port 12996"))];
    let all = [
        "qperf",
        "sockperf server -i {} -p 11111",
        "sockperf server --tcp -i {} -p 11112",
        "iperf3 -s -B {} -p 5999",
    ];
    servers.extend(all.iter().filter(|words| is_installed(words)).map(|words| path.serve(words)));
    servers.extend(is_installed("netserver").then(|| path.serve("netserver -D -4 -L {}")));
    // none of them reports when it listens
    std::thread::sleep(Duration::from_secs(1));
    for case in CASES
        .iter()
        .filter(|case| only.is_empty() || only.iter().any(|word| case.name.contains(word.as_str())))
    {
        println!("{}", row(path, case, netsilo));
    }
}

fn row(path: &Path, case: &Case, netsilo: &str) -> String {
    let ours = format!("{netsilo} run {{}}:12996 {} -d 1s --warm-up 100ms -j", case.netsilo);
    let peers: Vec<_> = case.peers.iter().filter(|(_, words)| is_installed(words)).collect();
    let mut rates = vec![Vec::new(); peers.len() + 1];
    for round in 0..ROUNDS {
        // each program is first in equally many rounds
        let order = (0..=peers.len()).map(|n| (n + round) % (peers.len() + 1));
        let mut these = vec![0.0; peers.len() + 1];
        for turn in order {
            these[turn] = match turn.checked_sub(1) {
                None => path.measure(&ours, 1, of_netsilo).unwrap(),
                Some(peer) => {
                    path.measure(peers[peer].1, case.copies, figure(peers[peer].0)).unwrap_or(0.0)
                }
            };
        }
        rates.iter_mut().zip(these).for_each(|(rates, this)| rates.push(this));
    }
    let shown = |rates: &Vec<f64>| match median(rates).unwrap() {
        0.0 => "no figure".to_owned(),
        rates => rate(rates, case.unit),
    };
    let others: Vec<String> = peers
        .iter()
        .zip(&rates[1..])
        .map(|((name, _), rates)| format!("{name} {}", shown(rates)))
        .collect();
    // the best by median, because the best of each round would depend on luck
    let best = rates[1..].iter().max_by(|a, b| median(a).unwrap().total_cmp(&median(b).unwrap()));
    let pairs = best.map_or_else(Vec::new, |best| rates[0].iter().zip(best).collect());
    let ratios: Vec<f64> = pairs
        .iter()
        .filter(|(_, their)| **their > 0.0)
        .map(|(our, their)| (*our / *their).ln())
        .collect();
    let ratio = signed_rank::interval(&ratios, DOUBT).map_or_else(
        || "-".to_owned(),
        |it| {
            let it = it.map(f64::exp);
            format!("{:.2} ({:.2} .. {:.2})", it.value, it.low, it.high)
        },
    );
    format!(
        "| {} | {} | {} | {} | {ratio} |",
        path.name,
        case.name,
        shown(&rates[0]),
        others.join(", ")
    )
}

fn rate(value: f64, unit: &str) -> String {
    match value {
        it if it >= 1e9 => format!("{:.2} G{unit}", it / 1e9),
        it if it >= 1e6 => format!("{:.1} M{unit}", it / 1e6),
        it => format!("{:.1} k{unit}", it / 1e3),
    }
}
