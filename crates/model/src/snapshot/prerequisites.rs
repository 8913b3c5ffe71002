//! What the kernel offers netsilo, and what this process may do.

use serde::{Deserialize, Serialize};

/// What the kernel offers netsilo, and what this process may do; `None` for what the kernel lacks
/// or hides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prerequisites {
    /// Kernel release (`uname -r`).
    pub release: Option<String>,
    /// Features that this kernel lacks.
    pub missing: Vec<KernelFeature>,
    /// Effective user id of this process.
    pub euid: Option<u32>,
    /// Effective capabilities of this process, as bits (`CapEff`).
    pub capabilities: Option<u64>,
    /// `kernel.unprivileged_bpf_disabled`: 0 allowed, 1 and 2 not.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i64>,
    /// The lockdown mode in effect: `none`, `integrity`, `confidentiality`.
    pub lockdown: Option<String>,
    /// Mount points of the kernel's files that are mounted read-only.
    pub read_only: Vec<String>,
}

/// A feature of the kernel that netsilo uses but does not require.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelFeature {
    /// The kernel's own types (`CONFIG_DEBUG_INFO_BTF`).
    Btf,
    /// Counts of each interrupt in a separate file.
    CountsByInterrupt,
    /// The CPUs on which an interrupt actually arrives.
    EffectiveAffinity,
    /// Receive packet steering.
    Rps,
    /// Receive flow steering.
    Rfs,
    /// Transmit packet steering.
    Xps,
    /// NAPI in a kthread.
    ThreadedNapi,
    /// The RPS mask of netdevs that appear later.
    RpsDefaultMask,
}

/// Capabilities by their bit (`include/uapi/linux/capability.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_ADMIN
    NetAdmin = 12,
    /// CAP_SYS_ADMIN
    SysAdmin = 21,
    /// CAP_SYS_NICE
    SysNice = 23,
    /// CAP_PERFMON
    Perfmon = 38,
    /// CAP_BPF
    Bpf = 39,
}

impl Prerequisites {
    /// Whether the process has a capability; `None` if that is unknown.
    pub fn has(&self, capability: Capability) -> Option<bool> {
        Some(self.capabilities? >> (capability as u32) & 1 == 1)
    }
}
