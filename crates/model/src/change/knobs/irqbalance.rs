//! The interrupts that irqbalance leaves alone for netsilo.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Knob, KnobFacts};
use crate::change::location::Location;
use crate::change::step::{Step, Traffic};
use crate::machine::ids::Irq;
use crate::machine::words::irqs;
use crate::snapshot::host::{IrqBans, KnobOwner, Snapshot};

/// Whether a running irqbalance leaves these interrupts alone. Those that others have banned belong
/// to them, and are not among these.
///
/// It is on while irqbalance leaves any of them alone: what is left of a list that another program
/// has replaced is still netsilo's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IrqbalanceBan {
    /// The process id of irqbalance.
    pub pid: u32,
    /// When it started, in clock ticks after boot. With the pid this identifies the process: a
    /// later one knows nothing of the list.
    pub start_time: u64,
    /// The interrupts.
    pub irqs: BTreeSet<Irq>,
}

impl IrqbalanceBan {
    /// Whether this program is that irqbalance.
    pub fn is_of(&self, owner: &KnobOwner) -> bool {
        let started = owner.bans.as_ref().map(|bans| bans.start_time);
        owner.pid == self.pid && started == Some(self.start_time)
    }
}

impl Knob for IrqbalanceBan {
    type Value = bool;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "irqbalance_ban",
        fields: "`pid`, `start_time` (clock ticks after boot), `irqs`",
        value: "on: irqbalance leaves them alone",
        place: "irqbalance's socket",
        undo: "takes these interrupts from irqbalance's list, which keeps those of others",
        step: Step::OtherPrograms,
        needs: Capability::None,
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn name(&self) -> String {
        format!("irqbalance (pid {}) leaves interrupts {} alone", self.pid, irqs(&self.irqs))
    }

    fn location(&self) -> Location<'_> {
        Location::Irqbalance { pid: self.pid, start_time: self.start_time, irqs: &self.irqs }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<bool> {
        let owner = snapshot.knob_owners.iter().find(|owner| self.is_of(owner))?;
        Some(self.irqs.iter().any(|irq| owner.leaves_alone(*irq)))
    }

    fn set_in(&self, snapshot: &mut Snapshot, on: bool) {
        let owner = snapshot.knob_owners.iter_mut().find(|owner| self.is_of(owner));
        if let Some(IrqBans { irqs, .. }) = owner.and_then(|owner| owner.bans.as_mut()) {
            if on {
                irqs.extend(&self.irqs);
            } else {
                irqs.retain(|irq| !self.irqs.contains(irq));
            }
        }
    }
}
