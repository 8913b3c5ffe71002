//! The irqbalance that leaves interrupts alone for the controller.
//!
//! The controller asks each irqbalance process once for an interrupt: if another program takes it
//! from the list, it is irqbalance's. A new process does not have the old list, and may have moved
//! interrupts before a window shows it: that is a reset, and no decision of another program.

use std::collections::BTreeSet;

use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{IrqBans, KnobOwner};

/// The irqbalance that answered last, and what was asked of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Balancer {
    process: Option<(u32, u64)>,
    pub(super) asked: BTreeSet<Irq>,
    /// Of those, what was asked with the last writes, until their results are known.
    pub(super) pending: BTreeSet<Irq>,
    /// A window has passed, so that a new process was started since.
    seen: bool,
}

impl Balancer {
    /// Takes the programs of a window. Returns the name of an irqbalance that was started since the
    /// last one.
    pub(super) fn observe(&mut self, owners: &[KnobOwner]) -> Option<String> {
        let seen = std::mem::replace(&mut self.seen, true);
        let (owner, bans) = answering(owners)?;
        let process = Some((owner.pid, bans.start_time));
        if self.process == process {
            return None;
        }
        (self.process, self.asked) = (process, BTreeSet::new());
        seen.then(|| owner.name.clone())
    }

    /// Forgets what was asked: it may be asked for again.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
    }
}

/// The irqbalance that answers.
pub(super) fn answering(owners: &[KnobOwner]) -> Option<(&KnobOwner, &IrqBans)> {
    owners.iter().find_map(|owner| Some((owner, owner.bans.as_ref()?)))
}
