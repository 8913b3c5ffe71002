//! Host settings for the audit, in addition to queues and interrupts: links, queueing disciplines,
//! limits, connections, power.
//!
//! Placement does not need them, so only a full read fills them. Absent is `None`, never 0.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::machine::ids::NapiId;
use crate::machine::reading::Reading;

/// Everything that only the audit reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Settings of each netdev, by interface name.
    pub netdevs: BTreeMap<String, NetdevAudit>,
    /// Settings of each NAPI that netlink reports.
    #[serde(default)]
    pub napis: BTreeMap<NapiId, NapiSettings>,
    /// Queueing disciplines of all netdevs.
    pub qdiscs: Reading<Vec<Qdisc>>,
    /// The TCP connections that moved the most bytes.
    pub connections: Reading<Connections>,
    /// Frequency and idle states of the CPUs that have them.
    #[serde(default)]
    pub cpus: BTreeMap<CpuId, CpuPower>,
    /// Settings of the machine as a whole.
    #[serde(default)]
    pub machine: MachineAudit,
}

/// The audit's data of one netdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetdevAudit {
    /// PCIe links from the device up to the root port; empty without PCIe.
    pub pcie: Vec<PcieLink>,
    /// Whether it is a virtual function. Its link is that of the physical function.
    pub virtual_function: bool,
    /// Byte queue limits and timeouts, by tx queue.
    pub tx_queues: BTreeMap<u32, TxLimits>,
    /// `tx_queue_len`, in packets; the limit of pfifo_fast and pfifo.
    pub tx_queue_len: Option<u32>,
    /// Whether it is a port of a bridge.
    pub bridge_port: bool,
    /// `net.ipv4.conf.<dev>.forwarding`.
    pub ipv4_forwarding: Option<bool>,
    /// `net.ipv6.conf.<dev>.forwarding`.
    pub ipv6_forwarding: Option<bool>,
    /// Feature bits negotiated between a virtio device and its driver.
    pub virtio_features: Option<Vec<u32>>,
}

/// The PCIe link of one device; `None` for a width or speed that sysfs reports as unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PcieLink {
    /// PCI address, `0000:01:00.0`.
    pub address: String,
    /// Current speed, in MT/s per lane.
    pub current_mtps: Option<u32>,
    /// Current number of lanes.
    pub current_width: Option<u32>,
    /// Maximum speed of this end, in MT/s per lane.
    pub max_mtps: Option<u32>,
    /// Maximum number of lanes of this end.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// Current data rate per direction, in Mbit/s, including packet headers.
    pub fn mbps(&self) -> Option<u64> {
        Some(lane_mbps(self.current_mtps?) * u64::from(self.current_width?))
    }

    /// Maximum data rate of this end per direction, in Mbit/s.
    pub fn max_mbps(&self) -> Option<u64> {
        Some(lane_mbps(self.max_mtps?) * u64::from(self.max_width?))
    }
}

/// Data rate of one lane in Mbit/s: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, no line code from
/// 64 GT/s on (`PCIE_SPEED2MBS_ENC`).
fn lane_mbps(mtps: u32) -> u64 {
    let mtps = u64::from(mtps);
    match mtps {
        0..=5_000 => mtps * 8 / 10,
        5_001..=32_000 => mtps * 128 / 130,
        _ => mtps,
    }
}

/// One tx queue's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TxLimits {
    /// `byte_queue_limits/limit`: bytes that may be in flight. 0 until the driver has reported a
    /// completion.
    pub limit_bytes: Option<u64>,
    /// `byte_queue_limits/limit_max`.
    pub limit_max_bytes: Option<u64>,
    /// `byte_queue_limits/inflight`.
    pub inflight_bytes: Option<u64>,
    /// `tx_timeout`: how often the watchdog found the queue stuck.
    pub tx_timeouts: Option<u64>,
}

/// Settings of one NAPI (`napi-get`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NapiSettings {
    /// `defer-hard-irqs`.
    pub defer_hard_irqs: Option<u32>,
    /// `gro-flush-timeout`, in nanoseconds.
    pub gro_flush_timeout_nsecs: Option<u64>,
    /// `irq-suspend-timeout`, in nanoseconds.
    pub irq_suspend_timeout_nsecs: Option<u64>,
}

/// A queueing discipline and its counters since creation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qdisc {
    /// Interface index of its netdev.
    pub ifindex: u32,
    /// Kind (`fq_codel`).
    pub kind: String,
    /// Handle, with the major number in the upper half. 0 for a default qdisc.
    pub handle: u32,
    /// Handle of its parent; [`Qdisc::ROOT`] for the netdev.
    pub parent: u32,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u32,
    /// Packets queued again because the driver could not accept them.
    pub requeues: u32,
    /// How often it exceeded its rate.
    pub overlimits: u32,
    /// Packets in the queue now.
    pub qlen: u32,
    /// Bytes in the queue now.
    pub backlog_bytes: u32,
}

impl Qdisc {
    /// `TC_H_ROOT`.
    pub const ROOT: u32 = 0xffff_ffff;

    /// Whether it drops on purpose, to keep queues short or to enforce a configured rate.
    pub fn drops_on_purpose(&self) -> bool {
        const KINDS: [&str; 14] = [
            "cake", "choke", "codel", "fq_codel", "fq_pie", "hhf", "htb", "ingress", "clsact",
            "netem", "pie", "red", "sfq", "tbf",
        ];
        KINDS.contains(&self.kind.as_str())
    }

    /// Whether it holds packets. The others hold programs and filters.
    pub fn is_egress(&self) -> bool {
        !matches!(self.kind.as_str(), "ingress" | "clsact")
    }

    /// Whether it is the root qdisc of its netdev.
    pub fn is_root(&self) -> bool {
        self.parent == Self::ROOT
    }
}

/// The TCP connections of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Number of connections.
    pub seen: u64,
    /// The connections that moved the most bytes; at most [`Connections::MAX_LISTED`].
    #[serde(rename = "kept")]
    pub busiest: Vec<Connection>,
}

impl Connections {
    /// Maximum length of `busiest`.
    pub const MAX_LISTED: usize = 256;
}

/// One connection, in the terms of `struct tcp_info`; `None` for fields that this kernel lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Cookie of the socket, never reused.
    pub cookie: u64,
    /// The netdev that has the local address.
    pub netdev: Option<String>,
    /// The peer; a bundle contains it only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// Largest segment to send, in bytes.
    pub snd_mss: u32,
    /// Estimate of the largest segment received from the peer, in bytes.
    pub rcv_mss: u32,
    /// MSS advertised to the peer, in bytes.
    pub advmss: u32,
    /// MTU of the path, in bytes.
    pub pmtu: u32,
    /// Round-trip time, in microseconds.
    pub rtt_usecs: u32,
    /// Round-trip time measured by the receiver, in microseconds. 0 without a measurement.
    pub rcv_rtt_usecs: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Bytes that the application read in the last round trip.
    pub rcv_space: u32,
    /// Current upper limit of the receive window, in bytes.
    pub rcv_ssthresh: u32,
    /// Offered receive window, in bytes; since 6.2.
    pub rcv_wnd: Option<u32>,
    /// Latest measured delivery rate at the peer, in bytes per second.
    pub delivery_rate: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Data segments received.
    pub data_segs_in: u32,
    /// Segments retransmitted.
    pub total_retrans: u32,
    /// Time with data to send, in microseconds.
    pub busy_usecs: u64,
    /// Busy time in which the peer's receive window was the limit, in microseconds.
    pub rwnd_limited_usecs: u64,
    /// Busy time in which the local send buffer was the limit, in microseconds.
    pub sndbuf_limited_usecs: u64,
    /// `sk_rcvbuf`.
    pub rcvbuf_bytes: Option<u32>,
    /// `sk_sndbuf`.
    pub sndbuf_bytes: Option<u32>,
}

/// Frequency and idle states of one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuPower {
    /// `cpufreq/scaling_driver`.
    pub driver: Option<String>,
    /// `cpufreq/scaling_governor`.
    pub governor: Option<String>,
    /// `cpufreq/energy_performance_preference`.
    pub energy_performance_preference: Option<String>,
    /// `cpufreq/scaling_cur_freq`, in kHz.
    pub current_khz: Option<u64>,
    /// `cpufreq/scaling_max_freq`, in kHz: the allowed maximum.
    pub allowed_khz: Option<u64>,
    /// `cpufreq/cpuinfo_max_freq`, in kHz: the hardware maximum.
    pub max_khz: Option<u64>,
    /// `power/pm_qos_resume_latency_us`: tolerated wake latency, as printed (0: any, n/a: none).
    pub resume_latency: Option<String>,
    /// `cpuidle/state*`.
    pub idle_states: Vec<IdleState>,
}

/// One idle state of one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleState {
    /// Name (`C6`).
    pub name: String,
    /// Exit latency, in microseconds.
    pub latency_usecs: u64,
    /// Whether user space disabled it.
    pub disabled: bool,
    /// Number of entries.
    pub usage: u64,
    /// Time spent in it, in microseconds.
    pub time_usecs: u64,
}

/// Settings of the machine as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineAudit {
    /// `/sys/devices/system/cpu/smt/control`.
    pub smt_control: Option<String>,
    /// `/dev/cpu_dma_latency`, in microseconds: the wake latency that user space requested.
    pub cpu_dma_latency_usecs: Option<i32>,
    /// Bytes between each last-level cache and memory for the default group (resctrl's
    /// `mbm_total_bytes`), by domain. Empty if resctrl is not mounted.
    pub memory_bytes: BTreeMap<String, u64>,
    /// Whether the memory controllers have counters for perf (`uncore_imc*`).
    pub uncore_counters: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_code_reduces_a_links_data_rate() {
        let link = |mtps, width| {
            PcieLink { current_mtps: Some(mtps), current_width: Some(width), ..PcieLink::default() }
                .mbps()
        };
        assert_eq!(link(2_500, 1), Some(2_000));
        assert_eq!(link(5_000, 4), Some(16_000));
        assert_eq!(link(8_000, 8), Some(63_008));
        assert_eq!(link(64_000, 16), Some(1_024_000));
        assert_eq!(PcieLink::default().mbps(), None);
    }
}
