//! Which CPUs of a large machine have nothing to report. A list names the others and summarizes
//! these.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::NodeId;

use crate::report::CpuLine;

/// Up to this number of CPUs, a list names all of them.
const MOST_NAMED: usize = 64;

/// From this share of its time in use, a CPU is named.
const BUSY: f64 = 0.05;

/// The CPUs of one node that have nothing to report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuietCpus {
    /// The node; `None` for CPUs in no node.
    pub node: Option<NodeId>,
    /// These CPUs.
    pub cpus: CpuSet,
    /// Mean share of their time in use; `None` if it is not known.
    pub busy: Option<f64>,
}

/// Splits CPUs into those that a list names, and the others by node.
///
/// A CPU is named if it polls a queue, reads data, drops packets or is in use. On a machine with
/// few CPUs, all are named.
pub fn split_quiet(cpus: &[CpuLine]) -> (Vec<&CpuLine>, Vec<QuietCpus>) {
    let (named, quiet): (Vec<&CpuLine>, Vec<&CpuLine>) =
        cpus.iter().partition(|line| cpus.len() <= MOST_NAMED || matters(line));
    let mut nodes: BTreeMap<Option<NodeId>, Vec<&CpuLine>> = BTreeMap::new();
    for line in quiet {
        nodes.entry(line.node).or_default().push(line);
    }
    let sum = |(node, lines): (Option<NodeId>, Vec<&CpuLine>)| {
        let busy: Vec<f64> =
            lines.iter().filter_map(|line| line.shares).map(|shares| shares.busy()).collect();
        QuietCpus {
            node,
            cpus: lines.iter().map(|line| line.cpu).collect(),
            busy: (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64),
        }
    };
    (named, nodes.into_iter().map(sum).collect())
}

fn matters(line: &CpuLine) -> bool {
    let in_use = line.shares.is_some_and(|shares| shares.busy() >= BUSY);
    let drops = line.dropped_per_s.is_some_and(|rate| rate > 0.0);
    in_use || drops || !line.polls.is_empty() || !line.consumers.is_empty()
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::rates::Shares;
    use netsilo_model::machine::cpuset::CpuId;

    use super::*;

    fn line(cpu: u32, usr: f64) -> CpuLine {
        CpuLine {
            cpu: CpuId(cpu),
            node: Some(NodeId(cpu % 2)),
            shares: Some(Shares { usr, ..Shares::default() }),
            ..CpuLine::default()
        }
    }

    #[test]
    fn a_large_machine_is_summed_up_by_node_except_where_something_happens() {
        let mut cpus: Vec<CpuLine> = (0..512).map(|cpu| line(cpu, 0.01)).collect();
        cpus[7].polls.push("eth0 rx-0".into());
        cpus[8].consumers.push("redis".into());
        cpus[9] = line(9, 0.8);
        cpus[10].dropped_per_s = Some(3.0);
        let (named, quiet) = split_quiet(&cpus);
        assert_eq!(named.iter().map(|line| line.cpu.0).collect::<Vec<_>>(), [7, 8, 9, 10]);
        assert_eq!(quiet.iter().map(|it| it.cpus.len()).collect::<Vec<_>>(), [254, 254]);
        assert!((quiet[0].busy.unwrap() - 0.01).abs() < 1e-9);
        let (named, quiet) = split_quiet(&cpus[..64]);
        assert_eq!((named.len(), quiet.len()), (64, 0));
    }
}
