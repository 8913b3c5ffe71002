//! Kernel threads that do the work of receiving or sending packets.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::Irq;
use crate::snapshot::thread_time::ThreadTime;

/// A kernel thread that does the work of receiving or sending packets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetThread {
    /// Name, as in `comm`.
    pub comm: String,
    /// Start time in clock ticks after boot. Together with the pid it identifies the process.
    pub start_time: u64,
    /// The CPUs on which it may run; `None` if not read.
    pub cpus: Option<CpuSet>,
    /// Whether the kernel refuses to move it (`PF_NO_SETAFFINITY`).
    pub bound: bool,
    /// The CPU where it ran last.
    pub ran_on: Option<CpuId>,
    /// Run and wait time since its start; `None` if the kernel keeps none.
    pub time: Option<ThreadTime>,
}

impl NetThread {
    /// Whether user space can place it, by the CPUs on which it may run.
    pub fn is_movable(&self) -> bool {
        let kind = NetThreadKind::from_comm(&self.comm);
        let by_affinity = kind.is_some_and(NetThreadKind::is_placed_by_affinity);
        by_affinity && !self.bound && self.cpus.is_some()
    }
}

/// The work of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetThreadKind {
    /// Polls a NAPI (`napi/<dev>-<id>`).
    Napi,
    /// Works for a Wi-Fi driver, which names it for its work (`mt76-tx phy0`).
    Mt76,
    /// Runs the handler of an interrupt (`irq/<n>-<name>`), and then the softirqs that it raised.
    Irq,
    /// Runs softirqs that were left over (`ksoftirqd/<cpu>`).
    Ksoftirqd,
    /// Processes the backlog of a CPU (`backlog_napi/<cpu>`).
    BacklogNapi,
    /// Encrypts and decrypts for WireGuard: a worker, which also does other work
    /// (`kworker/<cpu>:1-wg-crypt-<dev>`).
    WireguardCrypt,
}

impl NetThreadKind {
    /// The kind of a kernel thread of this name; `None` if it does no work of the network.
    pub fn from_comm(comm: &str) -> Option<Self> {
        const STARTS: [(&str, NetThreadKind); 5] = [
            ("napi/", NetThreadKind::Napi),
            ("mt76-", NetThreadKind::Mt76),
            ("irq/", NetThreadKind::Irq),
            ("ksoftirqd/", NetThreadKind::Ksoftirqd),
            ("backlog_napi/", NetThreadKind::BacklogNapi),
        ];
        let by_start = STARTS.iter().find(|(start, _)| comm.starts_with(start));
        by_start.map(|(_, kind)| *kind).or_else(|| crypt_netdev(comm).map(|_| Self::WireguardCrypt))
    }

    /// Whether the CPUs on which it may run place it.
    pub fn is_placed_by_affinity(self) -> bool {
        matches!(self, Self::Napi | Self::Mt76)
    }

    /// Whether its work counts as softirqs, so that a CPU's time in softirqs has it.
    pub fn is_in_softirqs(self) -> bool {
        matches!(self, Self::Irq | Self::Ksoftirqd)
    }
}

/// The interrupt of a thread of kind [`NetThreadKind::Irq`]. Its name may be cut.
pub fn irq_of(comm: &str) -> Option<Irq> {
    let number = comm.strip_prefix("irq/")?.split('-').next()?;
    number.parse().ok().map(Irq)
}

/// The CPU to which a thread of this name is bound.
pub fn cpu_of(comm: &str) -> Option<CpuId> {
    let (kind, rest) = comm.split_once('/')?;
    let is_bound = matches!(kind, "ksoftirqd" | "backlog_napi" | "kworker");
    rest.split(':').next().filter(|_| is_bound)?.parse().ok().map(CpuId)
}

/// The netdev for which a worker of kind [`NetThreadKind::WireguardCrypt`] works now (`+`) or
/// worked last (`-`).
pub fn crypt_netdev(comm: &str) -> Option<&str> {
    let of_worker = comm.strip_prefix("kworker/")?;
    of_worker.split_once("wg-crypt-").map(|(_, netdev)| netdev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_kind_the_cpu_and_the_interrupt() {
        let known =
            |comm| NetThreadKind::from_comm(comm).map(|it| (it, cpu_of(comm), irq_of(comm)));
        let at = |cpu| Some(CpuId(cpu));
        assert_eq!(known("napi/phy0-7"), Some((NetThreadKind::Napi, None, None)));
        assert_eq!(known("mt76-tx phy0"), Some((NetThreadKind::Mt76, None, None)));
        assert_eq!(known("irq/34-eth0-rx-0"), Some((NetThreadKind::Irq, None, Some(Irq(34)))));
        assert_eq!(known("irq/9-s-acpi").unwrap().2, Some(Irq(9)));
        assert_eq!(known("ksoftirqd/12"), Some((NetThreadKind::Ksoftirqd, at(12), None)));
        assert_eq!(known("backlog_napi/3"), Some((NetThreadKind::BacklogNapi, at(3), None)));
        let crypt = "kworker/5:1+wg-crypt-wg0";
        assert_eq!(known(crypt), Some((NetThreadKind::WireguardCrypt, at(5), None)));
        assert_eq!(crypt_netdev(crypt), Some("wg0"));
        let others = ["kworker/5:1-events", "kworker/u8:2-wg-kex-wg0", "ktimers/1", "napi", ""];
        assert_eq!(others.map(known), [None; 5]);
    }
}
