//! What eBPF would count for a scene's traffic.

use std::time::Duration;

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::NapiId;
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Consumer, Consumption, CpuTime, Forwarded, Poll, Protocol,
    QueueResolution, Wakeup,
};
use crate::snapshot::flow::{Flow, assign_numbers};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::TxQueue;
use crate::synthetic::scene::{NETNS, Reader, SECONDS, Scene, SceneQueue};

impl Scene {
    pub(super) fn attribution(&self, settings: &Snapshot) -> Attribution {
        let elapsed = Duration::from_secs(SECONDS);
        let mut attribution =
            Attribution { source: AttributionSource::Bpf, elapsed, ..Attribution::default() };
        attribution.cpu_time =
            settings.topology.online.iter().map(|cpu| (cpu, CpuTime::default())).collect();
        for (napi, at, index, queue) in self.queues().filter(|(.., queue)| queue.packets_per_s > 0)
        {
            let Some(cpu) = self.cpu_of(settings, at, index, napi) else { continue };
            let (netdev, packets) = (&self.netdevs[at], queue.packets_per_s * SECONDS);
            let polls = packets.div_ceil(if queue.packets_per_poll == 0 {
                4
            } else {
                queue.packets_per_poll
            });
            let ifindex = at as u32 + 2;
            let load = queue.load * settings.topology.slowdown(cpu);
            attribution.polls.push(Poll {
                napi,
                netdev: netdev.name.clone(),
                ifindex,
                netns: NETNS,
                cpu,
                polls,
                packets,
                ns: (queue.poll_time && !netdev.threaded).then_some((load * 1e9) as u64 * SECONDS),
            });
            if !netdev.threaded {
                let time = attribution.cpu_time.entry(cpu).or_default();
                time.net_rx_ns += (load * 1e9) as u64 * SECONDS;
                time.net_rx_runs += polls;
            }
            self.hand_on(settings, at, index, polls, &mut attribution);
            let protocol = rps_of(settings, at, index).and_then(CpuSet::lowest).unwrap_or(cpu);
            attribution.consumption.extend(queue.readers.iter().map(|reader| Consumption {
                // Each wakeup leads to a read.
                events: queue.wakeups_of(reader).max(1),
                first_reads: 0,
                ..reader.consumption(napi, index, cpu, protocol)
            }));
            attribution.wakeups.extend(queue.wakeups(protocol));
            attribution.forwarded.extend(queue.forwards.iter().map(|forward| {
                let egress = self.netdevs.iter().position(|dev| dev.name == forward.to);
                let by_xps = egress.and_then(|at| xps_queue(settings, at, protocol));
                Forwarded {
                    napi: Some(napi),
                    rx_queue: Some(index),
                    poll_cpu: cpu,
                    xmit_cpu: protocol,
                    egress: forward.to.clone(),
                    egress_ifindex: egress.map_or(0, |at| at as u32 + 2),
                    egress_netns: NETNS,
                    tx_queue: by_xps.unwrap_or(forward.queue),
                    packets: forward.packets_per_s * SECONDS,
                    bytes: forward.bytes_per_s * SECONDS,
                }
            }));
        }
        for (at, netdev) in self.netdevs.iter().enumerate() {
            let table = settings.netdevs.get(at).and_then(|dev| dev.ethtool.as_ref()?.rss.value());
            let table = table.map_or(&[][..], |rss| &rss.indirection);
            let from = Flow {
                netdev: netdev.name.clone(),
                ifindex: at as u32 + 2,
                netns: NETNS,
                ..Flow::default()
            };
            attribution.flows.extend(netdev.flows.iter().flat_map(|flow| flow.flows(&from, table)));
        }
        assign_numbers(&mut attribution.flows);
        attribution
    }

    /// Adds the packets that RPS steers to other CPUs, evenly: one backlog poll for each poll of
    /// the queue.
    fn hand_on(
        &self,
        settings: &Snapshot,
        at: usize,
        index: u32,
        polls: u64,
        attribution: &mut Attribution,
    ) {
        let queue = &self.netdevs[at].queues[index as usize];
        let Some(cpus) =
            rps_of(settings, at, index).filter(|cpus| !cpus.is_empty() && queue.handed_load > 0.0)
        else {
            return;
        };
        let each = cpus.len() as u64;
        for cpu in cpus.iter() {
            attribution.polls.push(Poll {
                napi: NapiId(0),
                netdev: String::new(),
                ifindex: 0,
                netns: 0,
                cpu,
                polls: polls / each,
                packets: queue.packets_per_s * SECONDS / each,
                ns: queue
                    .poll_time
                    .then_some((queue.handed_load / each as f64 * 1e9) as u64 * SECONDS),
            });
            let time = attribution.cpu_time.entry(cpu).or_default();
            time.net_rx_ns += (queue.handed_load / each as f64 * 1e9) as u64 * SECONDS;
            time.net_rx_runs += polls / each;
        }
    }
}

fn rps_of(settings: &Snapshot, at: usize, index: u32) -> Option<&CpuSet> {
    settings.netdevs.get(at)?.rx_queues.iter().find(|rx| rx.index == index)?.rps_cpus.as_ref()
}

impl SceneQueue {
    /// Number of wakeups of a reader while the scene is observed.
    fn wakeups_of(&self, reader: &Reader) -> u64 {
        let all: u64 = self.readers.iter().map(|reader| reader.bytes_per_s).sum();
        (self.wakeups_per_s * SECONDS * reader.bytes_per_s).checked_div(all).unwrap_or(0)
    }

    fn wakeups(&self, waker_cpu: CpuId) -> impl Iterator<Item = Wakeup> {
        let woken = self.readers.iter().filter(|reader| self.wakeups_of(reader) > 0);
        woken.map(move |reader| Wakeup {
            tgid: reader.tgid(),
            waker_cpu,
            sleeper_cpu: reader.cpu,
            count: self.wakeups_of(reader),
            idle: None,
        })
    }
}

impl Reader {
    fn tgid(&self) -> u32 {
        self.comm.bytes().fold(1000, |sum: u32, byte| sum + u32::from(byte))
    }

    fn consumption(&self, napi: NapiId, queue: u32, polled: CpuId, protocol: CpuId) -> Consumption {
        Consumption {
            napi: Some(napi),
            rx_queue: Some(queue),
            resolved: QueueResolution::Direct,
            poll_cpu: Some(polled),
            protocol_cpu: Some(protocol),
            consumer_cpu: self.cpu,
            consumer: Consumer {
                tgid: self.tgid(),
                comm: self.comm.clone(),
                work: false,
                cgroup: self.cgroup.clone(),
                netns: NETNS,
            },
            protocol: if self.unconnected { Protocol::Udp } else { Protocol::Tcp },
            bytes: self.bytes_per_s * SECONDS,
            events: 1,
            first_reads: 0,
            approximate: false,
            connected: self.unconnected.then_some(false),
        }
    }
}

/// The first tx queue through which a CPU sends, by `xps_cpus`.
fn xps_queue(settings: &Snapshot, at: usize, cpu: CpuId) -> Option<u32> {
    let sends = |tx: &&TxQueue| tx.xps_cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu));
    Some(settings.netdevs.get(at)?.tx_queues.iter().find(sends)?.index)
}
