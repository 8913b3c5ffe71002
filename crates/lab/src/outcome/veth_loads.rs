//! The loads on veths.

use crate::veths::Server;
use crate::wire::Course;

/// A load and its server.
#[derive(Debug, Clone, Copy)]
pub(super) struct VethLoad {
    pub(super) name: &'static str,
    pub(super) course: Course,
    pub(super) server: Server,
    /// Arguments of `netsilo-bench run`, unless the server is a pipeline.
    pub(super) client: &'static str,
    /// Whether settings that are no placement of a kthread are measured too.
    pub(super) has_others: bool,
}

const ONE: VethLoad = VethLoad {
    name: "",
    course: Course::One,
    server: Server::works(0),
    client: "",
    has_others: false,
};

const fn one(name: &'static str, client: &'static str, work: u32) -> VethLoad {
    VethLoad { name, client, server: Server::works(work), ..ONE }
}

/// The same with settings that are no placement.
const fn with_others(load: VethLoad) -> VethLoad {
    VethLoad { has_others: true, ..load }
}

const fn pipeline(name: &'static str, second: u32, work: u32) -> VethLoad {
    VethLoad { name, server: Server::Pipeline { second, work, connections: 16 }, ..ONE }
}

/// All loads.
pub(super) const LOADS: [VethLoad; 20] = [
    with_others(one("TCP_RR x 1", "-t TCP_RR -n 1", 0)),
    with_others(one("TCP_RR x 16", "-t TCP_RR -n 16", 0)),
    one("TCP_RR x 64", "-t TCP_RR -n 64", 0),
    one("TCP_RR x 16, 5 us of work", "-t TCP_RR -n 16", 5),
    with_others(one("TCP_RR x 16, 50 us of work", "-t TCP_RR -n 16", 50)),
    one("TCP_RR x 16, 200 us of work", "-t TCP_RR -n 16", 200),
    one("UDP_RR x 1", "-t UDP_RR -n 1", 0),
    with_others(one("UDP_RR x 16", "-t UDP_RR -n 16", 0)),
    one("UDP_RR x 16, 50 us of work", "-t UDP_RR -n 16", 50),
    with_others(one("TCP_STREAM x 1", "-t TCP_STREAM -n 1", 0)),
    VethLoad {
        name: "TCP_RR x 16, 4 readers on CPU 1",
        server: Server::Threads { count: 4, cpus: "1", work: 0 },
        client: "-t TCP_RR -n 16",
        ..ONE
    },
    with_others(VethLoad {
        name: "TCP_RR x 16, 4 readers on both CPUs",
        server: Server::Threads { count: 4, cpus: "0,1", work: 0 },
        client: "-t TCP_RR -n 16",
        ..ONE
    }),
    VethLoad {
        name: "TCP_RR x 16, 4 readers on both CPUs, 50 us of work",
        server: Server::Threads { count: 4, cpus: "0,1", work: 50 },
        client: "-t TCP_RR -n 16",
        ..ONE
    },
    VethLoad {
        course: Course::Two,
        ..one("two queues, one reader: TCP_RR x 1 each", "-t TCP_RR -n 1", 0)
    },
    VethLoad {
        course: Course::Two,
        ..one("two queues, one reader: TCP_RR x 16 each", "-t TCP_RR -n 16", 0)
    },
    VethLoad { course: Course::Routed, ..one("forwarded: TCP_RR x 1", "-t TCP_RR -n 1", 0) },
    VethLoad { course: Course::Routed, ..one("forwarded: TCP_RR x 16", "-t TCP_RR -n 16", 0) },
    VethLoad { course: Course::Routed, ..one("forwarded: UDP_RR x 16", "-t UDP_RR -n 16", 0) },
    pipeline("two processes on CPU 1: UDP_RR x 16, 5 us of work", 1, 5),
    pipeline("two processes on CPUs 1 and 0: UDP_RR x 16, 5 us of work", 0, 5),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: BTreeSet<&str> = LOADS.iter().map(|load| load.name).collect();
        assert_eq!(names.len(), LOADS.len());
    }
}
