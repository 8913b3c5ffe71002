//! Synthetic eBPF counts for a synthetic host. Each queue is polled on one CPU, and its readers run
//! on others.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, Consumer, Consumption, CpuTime, Poll, Protocol, QueueResolution,
};
use netsilo_model::snapshot::host::Snapshot;

/// Consumers of each queue.
const READERS: usize = 4;

pub(crate) fn attribution(after: &Snapshot, elapsed: Duration) -> Attribution {
    let cpus = after.topology.online.len() as u32;
    let netdevs = after.netdevs.iter();
    let queues: Vec<(&str, u32, NapiId)> = netdevs
        .flat_map(|dev| {
            dev.rx_queues
                .iter()
                .filter_map(|rx| Some((dev.name.as_str(), dev.ifindex, rx.napi.as_ref()?.to)))
        })
        .collect();
    let poll = |(n, (netdev, ifindex, napi)): (u32, &(&str, u32, NapiId))| Poll {
        napi: *napi,
        netdev: (*netdev).to_owned(),
        ifindex: *ifindex,
        netns: 0,
        cpu: CpuId(n % cpus),
        polls: 9000,
        packets: 10_000 + u64::from(n) * 100,
        ns: None,
    };
    let consumption = |(n, napi): (u32, NapiId)| Consumption {
        napi: Some(napi),
        rx_queue: None,
        resolved: QueueResolution::Direct,
        poll_cpu: None,
        protocol_cpu: None,
        consumer_cpu: CpuId(n * 7 % cpus),
        consumer: Consumer {
            tgid: 5000 + n / 16,
            comm: format!("server-{}", n / 16),
            work: false,
            cgroup: None,
            netns: 0,
        },
        protocol: Protocol::Tcp,
        bytes: u64::from(n) * 1000 + 1,
        events: 10,
        first_reads: 0,
        approximate: false,
        connected: None,
    };
    let readers = queues.iter().flat_map(|(_, _, napi)| [*napi; READERS]);
    let softirq = |cpu| {
        (CpuId(cpu), CpuTime { net_rx_ns: 100_000_000, net_rx_runs: 9000, ..CpuTime::default() })
    };
    Attribution {
        source: AttributionSource::Bpf,
        elapsed,
        polls: (0..).zip(&queues).map(poll).collect(),
        consumption: (0..).zip(readers).map(consumption).collect(),
        cpu_time: (0..cpus).map(softirq).collect::<BTreeMap<_, _>>(),
        ..Attribution::default()
    }
}
