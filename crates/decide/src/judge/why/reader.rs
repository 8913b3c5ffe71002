//! What a process reads: the queues of its data, and how far each is polled from it.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::{ConsumerShare, OutsideTraffic, Silo};
use netsilo_model::machine::cpuset::CpuSet;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::why::chain;
use crate::judge::why::explanation::{Fact, LoadCause};

/// The queues whose data the processes of this name read, or the process `pid812`, most data first;
/// empty if no such process was seen to read.
pub(super) fn causes(analysis: &Analysis<'_>, name: &str) -> Vec<LoadCause> {
    let is_it = |it: &&ConsumerShare| it.comm == name || format!("pid{}", it.tgid) == name;
    let of_queue = |silo: &Silo| {
        let all = silo.consumers.iter().filter(is_it);
        let rows: Vec<(f64, Evidence)> =
            all.map(|it| read(it, distance(analysis, silo, it))).collect();
        (!rows.is_empty()).then(|| {
            let cause = chain::queue_anywhere(analysis, silo);
            with_reads(rows, cause)
        })
    };
    let outside = |(traffic, name, why): (&OutsideTraffic, &str, &str)| {
        let all = traffic.consumers.iter().filter(is_it);
        let rows: Vec<(f64, Evidence)> = all.map(|it| read(it, String::new())).collect();
        let cause = LoadCause {
            name: name.to_owned(),
            share: None,
            estimated: false,
            evidence: Vec::new(),
            steps: vec![Fact::new(why, SOURCE)],
        };
        (!rows.is_empty()).then(|| with_reads(rows, cause))
    };
    let silos = &analysis.silos;
    let others = [
        (&silos.local, "no netdev", "loopback, or sent from a network namespace of this machine"),
        (&silos.foreign, "a netdev elsewhere", "the netdev is in another network namespace"),
        (&silos.unresolved, "not known", "the queue of this data was not found"),
    ];
    let mut causes: Vec<(f64, LoadCause)> = silos.queues.iter().filter_map(of_queue).collect();
    causes.extend(others.into_iter().filter_map(outside));
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    causes.into_iter().map(|(_, cause)| cause).collect()
}

const SOURCE: &str = "eBPF, sock_diag";

/// The bytes per second of some reads, and their cause with them.
fn with_reads(rows: Vec<(f64, Evidence)>, cause: LoadCause) -> (f64, LoadCause) {
    let all = rows.iter().map(|(bytes, _)| bytes).sum();
    let rows = rows.into_iter().map(|(_, row)| row);
    let evidence = rows.chain(cause.evidence).collect();
    (all, LoadCause { evidence, ..cause })
}

/// What one process reads.
fn read(of: &ConsumerShare, distance: String) -> (f64, Evidence) {
    let cpus: CpuSet = of.cpus.keys().copied().collect();
    let what = format!("{} reads on cpus {cpus}{distance}", of.label());
    (of.bytes_per_s, Evidence::new(what, Measure::BytesPerSecond(of.bytes_per_s), SOURCE))
}

/// The greatest distance from the CPU that ran the protocol, in words.
fn distance(analysis: &Analysis<'_>, silo: &Silo, reader: &ConsumerShare) -> String {
    let topology = &analysis.after().topology;
    let all = reader.cpus.keys().filter_map(|cpu| silo.distance_to_reader(*cpu, topology));
    all.max().map_or_else(String::new, |it| format!(", {} at most", it.label()))
}
