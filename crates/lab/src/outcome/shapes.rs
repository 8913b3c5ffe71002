//! The guests: their servers, loads and placements.

use netsilo_lab::{Kernel, Nic, NicModel, Spec, Threads};

use crate::workload::Kind;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Veths of this machine, at true speed
    Veth,
    /// A guest with 8 CPUs on two sockets: counts
    Guest8,
    /// A guest with 16 CPUs on two sockets: counts
    Guest16,
    /// A guest with 8 CPUs that forwards between two NICs: counts
    Forward,
}

/// A guest and what is measured in it.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// The folder of what is measured in it.
    pub(super) folder: &'static str,
    /// Logical CPUs on two sockets, two threads each core.
    pub(super) cpus: u32,
    /// Each with [`QUEUES`] queues.
    pub(super) netdevs: &'static [&'static str],
    /// The CPUs of the servers, each of which reads one queue; none if the guest forwards.
    pub(super) servers: &'static [u32],
    pub(super) kinds: &'static [Kind],
    /// Name, and the CPU of each queue.
    pub(super) placements: Vec<(&'static str, Vec<u32>)>,
    /// From the first `starts` placements the default is asked.
    pub(super) starts: usize,
}

/// Rx queues of each NIC.
const QUEUES: u32 = 4;

impl Shape {
    /// The guest of a part; none for the veths.
    pub(super) fn of(part: Part) -> Option<Self> {
        match part {
            Part::Veth => None,
            Part::Guest8 => Some(eight()),
            Part::Guest16 => Some(sixteen()),
            Part::Forward => Some(forward()),
        }
    }

    /// Whether the guest reads the data.
    pub(super) fn reads(&self) -> bool {
        !self.servers.is_empty()
    }

    pub(super) fn netdevs(&self) -> Vec<String> {
        self.netdevs.iter().map(|it| (*it).to_owned()).collect()
    }

    /// The guest to boot.
    pub(super) fn spec(&self) -> Spec {
        let nic = Nic { queues: QUEUES, ..Nic::from(NicModel::VirtioNet) };
        Spec {
            cpus: self.cpus,
            threads: Threads::Multi,
            nics: vec![nic; self.netdevs.len()],
            ..Spec::new(Kernel::V6_1, NicModel::VirtioNet)
        }
    }
}

/// CPUs 0 and 1 are threads of a core, 0 to 3 a socket; queue i is that of CPUs 2i and 2i + 1.
fn eight() -> Shape {
    Shape {
        folder: "guest8",
        cpus: 8,
        netdevs: &["eth0"],
        servers: &[1, 2, 5, 6],
        kinds: &[
            Kind::TcpRr,
            Kind::UdpRr,
            Kind::Redis,
            Kind::Memcached,
            Kind::Nginx,
            Kind::Dns,
            Kind::Stream,
            Kind::Pipeline,
        ],
        placements: vec![
            ("as booted", vec![0, 3, 5, 7]),
            ("irqbalance", vec![6, 7, 4, 3]),
            ("all on one", vec![0, 0, 0, 0]),
            ("sibling of a busy core of the LLC", vec![3, 0, 7, 4]),
            ("same CPU", vec![1, 2, 5, 6]),
            ("one per core", vec![0, 2, 4, 6]),
            ("SMT sibling", vec![0, 3, 4, 7]),
            ("busy core of the LLC", vec![2, 1, 6, 5]),
            ("other node", vec![5, 6, 1, 2]),
        ],
        starts: 5,
    }
}

/// CPUs 0 and 1 are threads of a core, 0 to 7 a socket; queue i is that of CPUs 4i to 4i + 3.
fn sixteen() -> Shape {
    Shape {
        folder: "guest16",
        cpus: 16,
        netdevs: &["eth0"],
        servers: &[1, 5, 9, 13],
        kinds: &[Kind::TcpRr, Kind::UdpRr, Kind::Stream],
        placements: vec![
            ("all on one", vec![0, 0, 0, 0]),
            ("idle core of the LLC", vec![2, 6, 10, 14]),
            ("other node, idle core", vec![10, 14, 2, 6]),
            ("SMT sibling", vec![0, 4, 8, 12]),
            ("same CPU", vec![1, 5, 9, 13]),
            ("busy core of the LLC", vec![5, 1, 13, 9]),
            ("other node, busy core", vec![9, 13, 1, 5]),
            ("a dedicated CPU on each node", vec![2, 2, 10, 10]),
            ("all on a dedicated CPU", vec![2, 2, 2, 2]),
        ],
        starts: 5,
    }
}

/// eth0 receives the requests, eth1 the responses.
fn forward() -> Shape {
    let all_on = |eth0: u32, eth1: u32| [[eth0; 4], [eth1; 4]].concat();
    Shape {
        folder: "forward",
        cpus: 8,
        netdevs: &["eth0", "eth1"],
        servers: &[],
        kinds: &[Kind::Forward],
        placements: vec![
            ("all on one", all_on(0, 0)),
            ("other node", all_on(0, 4)),
            ("a queue per core, other node", vec![0, 2, 4, 6, 4, 6, 0, 2]),
            ("SMT sibling", all_on(0, 1)),
            ("another core of the LLC", all_on(0, 2)),
            ("a queue per core, same CPU", vec![0, 2, 4, 6, 0, 2, 4, 6]),
        ],
        starts: 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_a_cpu_in_each_placement() {
        for part in [Part::Guest8, Part::Guest16, Part::Forward] {
            let shape = Shape::of(part).unwrap();
            for (name, cpus) in &shape.placements {
                assert_eq!(cpus.len(), shape.netdevs.len() * QUEUES as usize, "{name}");
                assert!(cpus.iter().all(|cpu| *cpu < shape.cpus), "{name}");
            }
            assert!(shape.starts <= shape.placements.len());
        }
    }
}
