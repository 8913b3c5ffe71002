//! What an observation leaves open, and the range of each such quantity.
//!
//! A forecast is computed with the likely value of each, and again with one of them at either end
//! of its range. The differences, which are independent, give the interval.

use netsilo_model::cost::weights::CostSource;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::seen_costs::seen_ipis;

use crate::assumptions::{Assumptions, End};
use crate::parameters::Table;

/// A quantity that was not measured, or not exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// What a packet costs that crosses from one CPU to another: its IPIs and cache lines.
    Crossing,
    /// What a poll costs before its first packet.
    Polls,
    /// Which part of a packet's softirq time comes after driver and GRO.
    Division,
    /// How the hash divides the flows over the CPUs of RPS, and how many packets gather before an
    /// interrupt whose delay adapts to them.
    Arrivals,
    /// What the threads of a core do together.
    Siblings,
    /// Whether the scheduler moves other tasks off a CPU that softirqs fill.
    Scheduler,
}

/// Range of the cost of a poll, as factors: an interrupt costs about what the table says, the
/// wakeup of a NAPI kthread in a guest four times as much (`evidence/outcomes.md`, batches of one
/// packet and of ten).
const POLLS: (f64, f64) = (0.5, 4.0);

/// Greatest share of the tasks' time that stays on a full CPU: the scheduler balances, but late.
const TASKS_STAY: f64 = 0.5;

impl Unknown {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Crossing,
        Self::Polls,
        Self::Division,
        Self::Arrivals,
        Self::Siblings,
        Self::Scheduler,
    ];

    /// The assumptions with this quantity at either end of its range, the others likely.
    pub(crate) fn ends(self, analysis: &Analysis<'_>) -> [Assumptions; 2] {
        let likely = Assumptions::default();
        match self {
            Self::Crossing => {
                let (least, most) = crossing(analysis);
                [least, most].map(|crossing| Assumptions { crossing, ..likely })
            }
            Self::Polls => [POLLS.0, POLLS.1].map(|polls| Assumptions { polls, ..likely }),
            Self::Division => {
                [End::Worst, End::Best].map(|division| Assumptions { division, ..likely })
            }
            Self::Arrivals => {
                [End::Worst, End::Best].map(|arrivals| Assumptions { arrivals, ..likely })
            }
            Self::Siblings => {
                [Some(Table::shipped().least_smt()), None].map(|smt| Assumptions { smt, ..likely })
            }
            Self::Scheduler => {
                [TASKS_STAY, 0.0].map(|tasks_stay| Assumptions { tasks_stay, ..likely })
            }
        }
    }
}

/// Range of the cost of a crossing packet, as factors on that of the table: 1 where the machine's
/// weights were measured. In a guest an IPI may exit to the hypervisor at both ends, which eBPF
/// does not see.
fn crossing(analysis: &Analysis<'_>) -> (f64, f64) {
    if analysis.costs.source != CostSource::Default {
        return (1.0, 1.0);
    }
    let most = if analysis.after().machine.virtual_machine == Some(false) { 1.5 } else { 5.0 };
    let least = if seen_ipis(analysis).is_some() { 1.0 } else { 1.0 / 1.5 };
    (least, most)
}
