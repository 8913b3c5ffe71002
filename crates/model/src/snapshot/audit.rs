//! What the audit reads of a host beside its queues and interrupts: links, queueing disciplines,
//! limits, connections, power.
//!
//! Nothing here is needed to place work, so only a whole look reads it. Absent is `None`, never 0.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::machine::ids::NapiId;
use crate::machine::reading::Part;

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// By interface name.
    pub netdevs: BTreeMap<String, NetdevAudit>,
    /// NAPIs that netlink tells settings of.
    #[serde(default)]
    pub napis: BTreeMap<NapiId, NapiSettings>,
    /// Queueing disciplines of all netdevs.
    pub qdiscs: Part<Vec<Qdisc>>,
    /// TCP connections, those that moved the most bytes.
    pub connections: Part<Connections>,
    /// Frequency and idle states, of CPUs that have any.
    #[serde(default)]
    pub cpus: BTreeMap<CpuId, CpuPower>,
    /// Settings of the machine as a whole.
    #[serde(default)]
    pub machine: MachineAudit,
}

/// What the audit reads of a netdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetdevAudit {
    /// PCIe links from the device up to the root port; empty for a device that has none.
    pub pcie: Vec<PcieLink>,
    /// It is a virtual function: its link is that of the physical function.
    pub virtual_function: bool,
    /// Byte queue limits and timeouts, by tx queue.
    pub tx_queues: BTreeMap<u32, TxLimits>,
    /// `tx_queue_len`, in packets; what pfifo_fast and pfifo take as their limit.
    pub tx_queue_len: Option<u32>,
    /// It is a port of a bridge.
    pub bridge_port: bool,
    /// `net.ipv4.conf.<dev>.forwarding`.
    pub ipv4_forwarding: Option<bool>,
    /// `net.ipv6.conf.<dev>.forwarding`.
    pub ipv6_forwarding: Option<bool>,
    /// Feature bits that a virtio device and its driver agreed on.
    pub virtio_features: Option<Vec<u32>>,
}

/// The PCIe link of one device; a width or speed that sysfs calls unknown is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PcieLink {
    /// Its address, `0000:01:00.0`.
    pub address: String,
    /// Speed now, in MT/s a lane.
    pub current_mtps: Option<u32>,
    /// Lanes now.
    pub current_width: Option<u32>,
    /// The most that this end can do, in MT/s a lane.
    pub max_mtps: Option<u32>,
    /// The most lanes that this end has.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// What the link carries now in each direction, in Mbit/s, before the headers of its packets.
    pub fn mbps(&self) -> Option<u64> {
        Some(lane_mbps(self.current_mtps?) * u64::from(self.current_width?))
    }

    /// What this end could carry.
    pub fn max_mbps(&self) -> Option<u64> {
        Some(lane_mbps(self.max_mtps?) * u64::from(self.max_width?))
    }
}

/// A lane's data rate: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, none from 64 GT/s on
/// (`PCIE_SPEED2MBS_ENC`).
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
    /// `byte_queue_limits/limit`: bytes that may be in flight; 0 as long as the driver has told of
    /// no completion.
    pub limit_bytes: Option<u64>,
    /// `byte_queue_limits/limit_max`.
    pub limit_max_bytes: Option<u64>,
    /// `byte_queue_limits/inflight`.
    pub inflight_bytes: Option<u64>,
    /// `tx_timeout`: times that the watchdog found the queue stuck.
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

/// A queueing discipline, with its counters since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qdisc {
    /// Index of its netdev.
    pub ifindex: u32,
    /// Its kind (`fq_codel`).
    pub kind: String,
    /// Its handle, major number in the upper half; 0 for a default one.
    pub handle: u32,
    /// What it hangs on; [`Qdisc::ROOT`] for the netdev itself.
    pub parent: u32,
    /// Bytes taken.
    pub bytes: u64,
    /// Packets taken.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u32,
    /// Packets that the driver could not take and that were queued again.
    pub requeues: u32,
    /// Times that it was over its rate.
    pub overlimits: u32,
    /// Packets waiting now.
    pub qlen: u32,
    /// Bytes waiting now.
    pub backlog_bytes: u32,
}

impl Qdisc {
    /// `TC_H_ROOT`.
    pub const ROOT: u32 = 0xffff_ffff;

    /// It lies on the netdev itself.
    pub fn is_root(&self) -> bool {
        self.parent == Self::ROOT
    }
}

/// TCP connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// How many there are.
    pub seen: u64,
    /// Those that moved the most bytes, at most [`Connections::KEPT`].
    pub kept: Vec<Connection>,
}

impl Connections {
    /// How many are kept.
    pub const KEPT: usize = 256;
}

/// One connection, in `struct tcp_info`'s words; what this kernel does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// The socket's cookie, which is never used twice.
    pub cookie: u64,
    /// The netdev that has its local address.
    pub netdev: Option<String>,
    /// The peer; kept in a bundle only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// Largest segment that it sends.
    pub snd_mss: u32,
    /// Largest segment seen from the peer, an estimate.
    pub rcv_mss: u32,
    /// What it told the peer.
    pub advmss: u32,
    /// MTU of the path.
    pub pmtu: u32,
    /// Round trip, in microseconds.
    pub rtt_usecs: u32,
    /// Round trip as a receiver measures it, in microseconds; 0 when it has not.
    pub rcv_rtt_usecs: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Bytes that the application took in the last round trip.
    pub rcv_space: u32,
    /// How far the receive window may open now.
    pub rcv_ssthresh: u32,
    /// Window that it offers; since 6.2.
    pub rcv_wnd: Option<u32>,
    /// Bytes per second that arrived at the peer, the latest measurement.
    pub delivery_rate: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments received with data.
    pub data_segs_in: u32,
    /// Segments sent again.
    pub total_retrans: u32,
    /// Time with something to send, in microseconds.
    pub busy_usecs: u64,
    /// Of it, held up by the peer's receive window.
    pub rwnd_limited_usecs: u64,
    /// Of it, held up by the own send buffer.
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
    /// `cpufreq/scaling_max_freq`, in kHz: what it is allowed to do.
    pub allowed_khz: Option<u64>,
    /// `cpufreq/cpuinfo_max_freq`, in kHz: what it can do.
    pub max_khz: Option<u64>,
    /// `power/pm_qos_resume_latency_us`: wake latency that is tolerated, as printed (0: any, n/a:
    /// none).
    pub resume_latency: Option<String>,
    /// `cpuidle/state*`.
    pub idle_states: Vec<IdleState>,
}

/// One idle state of one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleState {
    /// Its name (`C6`).
    pub name: String,
    /// Time to leave it, in microseconds.
    pub latency_usecs: u64,
    /// Switched off by somebody.
    pub disabled: bool,
    /// Times entered.
    pub usage: u64,
    /// Time in it, in microseconds.
    pub time_usecs: u64,
}

/// Settings of the machine as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineAudit {
    /// `/sys/devices/system/cpu/smt/control`.
    pub smt_control: Option<String>,
    /// `/dev/cpu_dma_latency`, in microseconds: the wake latency that somebody asked the machine to
    /// keep.
    pub cpu_dma_latency_usecs: Option<i32>,
    /// Bytes that went between each last-level cache and memory for the default group (resctrl's
    /// `mbm_total_bytes`), by domain; empty where resctrl is not mounted.
    pub memory_bytes: BTreeMap<String, u64>,
    /// The memory controllers' counters are there (`uncore_imc*`), which perf could read.
    pub uncore_counters: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_its_lanes_less_the_line_code() {
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
