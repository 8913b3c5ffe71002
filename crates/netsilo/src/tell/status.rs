//! The status document of the daemon. Its socket sends it, and `netsilo status --json` prints it.

use std::path::PathBuf;
use std::time::Duration;

use netsilo_decide::control::{Conflict, ControllerState, Held, LogEntry, VerificationResult};
use netsilo_decide::judge::namespaces::NamespaceLine;
use netsilo_decide::plan::measured_outcome::MeasuredBasis;
use netsilo_decide::plan::{Advice, Placement, Refusal, Unchanged};
use netsilo_model::change::Change;
use netsilo_model::derive::locality::Locality;
use netsilo_model::machine::schema::NETSILO;
use netsilo_model::snapshot::attribution::{AttributionSource, Hook};
use netsilo_sys::daemon::self_cost::{SelfCost, self_cost};
use serde::{Deserialize, Serialize};

/// Schema number of the JSON. It is increased when a field changes its meaning or is removed.
pub(crate) const SCHEMA: u32 = 1;

/// Name of the socket in the state folder.
pub(crate) const SOCKET: &str = "status.sock";

/// Status of the daemon. Times are since boot (CLOCK_BOOTTIME).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// When the daemon started. `at` is when this status was made.
    pub(crate) started: Duration,
    pub(crate) at: Duration,
    /// Observation windows completed.
    pub(crate) windows: u64,
    pub(crate) mode: Mode,
    pub(crate) state: ControllerState,
    pub(crate) config: ConfigStatus,
    pub(crate) attribution: AttributionStatus,
    /// The cost of the last cycle, and how long eBPF is attached in the next one.
    #[serde(default)]
    pub(crate) counting: CountingStatus,
    /// The other network namespaces, as they were last read. `None` from an older daemon.
    #[serde(default)]
    pub(crate) namespaces: Option<NamespacesStatus>,
    /// Distances between protocol work and readers in the last window.
    pub(crate) locality: Locality,
    /// The placement of every interrupt and NAPI kthread.
    pub(crate) placements: Vec<Placement>,
    /// The measured outcome that the placements follow. `None`: they follow the cost model.
    #[serde(default)]
    pub(crate) measured: Option<MeasuredBasis>,
    /// A measured outcome that the placements do not follow, and why.
    #[serde(default)]
    pub(crate) unused_outcome: Option<Unchanged>,
    /// Changes that are planned but not in effect.
    pub(crate) pending: Vec<Change>,
    /// Pending changes that are held, and why.
    pub(crate) held: Vec<Held>,
    /// Knobs left alone because another program wrote them.
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) refusals: Vec<Refusal>,
    /// Advice that netsilo does not carry out itself.
    pub(crate) advice: Vec<Advice>,
    /// Result of the last writes that could be verified.
    pub(crate) verification: Option<VerificationResult>,
    /// The last decisions, oldest first.
    pub(crate) log: Vec<LogEntry>,
    /// Failures of the daemon itself, and their reasons.
    pub(crate) notes: Vec<String>,
    pub(crate) totals: DaemonTotals,
    pub(crate) own: SelfCost,
}

impl Status {
    /// The status at the start of a daemon; `now` is the time since boot.
    pub(crate) fn first(now: Duration, mode: Mode, notes: Vec<String>) -> Self {
        Self {
            schema: SCHEMA,
            version: NETSILO.to_owned(),
            pid: std::process::id(),
            started: now,
            at: now,
            windows: 0,
            mode,
            state: Default::default(),
            config: ConfigStatus::default(),
            attribution: AttributionStatus::default(),
            counting: CountingStatus::default(),
            namespaces: None,
            locality: Default::default(),
            placements: Vec::new(),
            measured: None,
            unused_outcome: None,
            pending: Vec::new(),
            held: Vec::new(),
            conflicts: Vec::new(),
            refusals: Vec::new(),
            advice: Vec::new(),
            verification: None,
            log: Vec::new(),
            notes,
            totals: DaemonTotals::default(),
            own: self_cost(),
        }
    }
}

/// What the daemon writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Knobs and hints are written.
    Placing,
    /// Only hints are written, as configured.
    HintsOnly,
    /// No knob is written, because a privilege is missing.
    ObserveOnly(String),
}

/// The configuration in effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ConfigStatus {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) interval: Duration,
    /// Why the newest configuration was rejected.
    pub(crate) error: Option<String>,
}

/// How consumers are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AttributionStatus {
    pub(crate) source: AttributionSource,
    /// Hooks that are not attached, with the reason.
    pub(crate) refused: Vec<Hook>,
}

/// The daemon's cost in the last cycle, and its budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CountingStatus {
    /// How long eBPF is attached in the next cycle.
    pub(crate) window: Duration,
    /// Share of the machine's CPU time that the daemon may use. `None`: no limit.
    pub(crate) budget: Option<f64>,
    /// Share that it used in the last cycle, including its eBPF programs.
    pub(crate) share: f64,
    /// CPU time of the eBPF programs since the start.
    pub(crate) programs: Duration,
    /// Whether the kernel measured that time. Otherwise it is estimated.
    pub(crate) measured: bool,
}

/// The other network namespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NamespacesStatus {
    /// Namespaces that were found.
    pub(crate) found: usize,
    /// Those whose counters could be read.
    pub(crate) read: usize,
    /// The age of the oldest reading, in seconds.
    pub(crate) oldest_s: Option<f64>,
    /// Why the others could not be read.
    pub(crate) why_not: Option<String>,
    /// Those that lost packets between their last two readings, the largest losses first.
    pub(crate) losing: Vec<NamespaceLine>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DaemonTotals {
    /// Knobs written, including reverts and reapplied changes.
    pub(crate) changes: u64,
    /// Changes reverted because they made the placement worse.
    pub(crate) reverts: u64,
    /// Changes written again after a device reset.
    pub(crate) reapplied: u64,
    /// Writes that the kernel refused.
    pub(crate) refused: u64,
    /// How often a knob was left alone because another program wrote it.
    pub(crate) yielded: u64,
    /// Kernel events.
    pub(crate) events: u64,
    /// Hint files written or removed.
    pub(crate) hints: u64,
    /// Configurations accepted after the start. `bad_reloads` counts those rejected.
    pub(crate) reloads: u64,
    pub(crate) bad_reloads: u64,
}
