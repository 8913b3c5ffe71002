//! [`Goal`]: what the operator wants; with the analysis, the input of a plan.

use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::cpuset::CpuSet;
use serde::{Deserialize, Serialize};

use crate::place::AlgorithmName;
use crate::plan::goal_text;
use crate::plan::port_steering::PortSteering;

/// What the operator wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Goal {
    /// The netdevs to place, by name; empty means every netdev that is up and has rx queues with
    /// interrupts.
    pub netdevs: Vec<String>,
    /// Programs, pods (`default/web-0`), containers and cgroups: only queues of whose data they
    /// read at least half are placed; empty means all queues.
    pub readers: Vec<String>,
    /// The CPUs that receive work may be placed on; `None` means all online CPUs except
    /// isolated and tickless ones, and those exclusive to a container or service.
    #[serde(deserialize_with = "goal_text::cpus")]
    pub cpus: Option<CpuSet>,
    /// CPUs that nothing may be placed on, even if another option allows them.
    #[serde(deserialize_with = "goal_text::cpus_or_none")]
    pub exclude: CpuSet,
    /// The affinity algorithm that places interrupts and NAPI kthreads.
    pub algorithm: AlgorithmName,
    /// Exceptions for single netdevs or queues; the first match applies.
    pub overrides: Vec<Override>,
    /// The weights of the cost model; the caller passes them to the
    /// [`Analysis`](netsilo_model::derive::analysis::Analysis).
    pub costs: Costs,
    /// Whether to place interrupts and NAPI kthreads.
    pub irqs: bool,
    /// RPS: the CPUs for every rx queue of the netdevs; the empty set turns RPS off, `None` leaves
    /// it unchanged.
    #[serde(deserialize_with = "goal_text::cpus_if_set")]
    pub rps: Option<CpuSet>,
    /// RFS: entries of the flow table, divided among the rx queues; 0 turns RFS off, `None` leaves
    /// it unchanged.
    #[serde(deserialize_with = "goal_text::entries")]
    pub rfs: Option<u32>,
    /// aRFS: whether the device steers each flow to the queue nearest its reader, by the RFS table;
    /// `None` leaves it unchanged.
    pub arfs: Option<bool>,
    /// Ports whose flows ntuple rules of the device steer to chosen rx queues; other rules stay
    /// unchanged.
    pub steer: Vec<PortSteering>,
    /// XPS: the CPUs that each tx queue serves; `None` leaves it unchanged.
    pub xps: Option<Xps>,
    /// `default_smp_affinity`; `None` leaves it unchanged.
    #[serde(deserialize_with = "goal_text::cpus")]
    pub default_smp_affinity: Option<CpuSet>,
    /// `rps_default_mask`; `None` leaves it unchanged.
    #[serde(deserialize_with = "goal_text::cpus_if_set")]
    pub rps_default_mask: Option<CpuSet>,
    /// Write knobs even if another program owns them.
    pub even_if_owned: bool,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            netdevs: Vec::new(),
            readers: Vec::new(),
            cpus: None,
            exclude: CpuSet::new(),
            overrides: Vec::new(),
            costs: Costs::default(),
            algorithm: AlgorithmName::default(),
            irqs: true,
            rps: None,
            rfs: None,
            arfs: None,
            steer: Vec::new(),
            xps: None,
            default_smp_affinity: None,
            rps_default_mask: None,
            even_if_owned: false,
        }
    }
}

/// Settings for one netdev, or some of its queues, that replace the goal's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Override {
    /// The netdev's name.
    pub netdev: String,
    /// The rx queues, as a list (`0-3,8`); `None` means all.
    pub queues: Option<CpuSet>,
    /// The algorithm for these queues.
    pub algorithm: Option<AlgorithmName>,
    /// The CPUs that these queues may be placed on.
    pub cpus: Option<CpuSet>,
    /// Leave these queues where they are.
    pub leave: bool,
}

/// Which CPUs each tx queue serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Xps {
    /// No XPS: the flow hash chooses the tx queue.
    Off,
    /// Each CPU sends through the tx queue whose completion interrupt is nearest; equally near
    /// queues share the CPUs evenly.
    Near,
}
