//! The two settings of a comparison, and switching between them.

use std::time::Duration;

use anyhow::Result;
use netsilo_decide::plan::Plan;

use crate::args::state_dir::StateDir;
use crate::temporary_changes::TemporaryChanges;

/// Which setting is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The values found at the start.
    Initial,
    A,
    B,
}

/// Both plans, and which of them is in effect.
pub(super) struct Sides<'a> {
    plans: [Option<Plan>; 2],
    temporary: TemporaryChanges<'a>,
    now: Side,
}

impl<'a> Sides<'a> {
    /// A setting stays in effect for at most `longest`; then a guard restores the old values.
    pub(super) fn new(
        plans: [Option<Plan>; 2],
        state: &'a StateDir,
        longest: Duration,
    ) -> Result<Self> {
        Ok(Self { plans, temporary: TemporaryChanges::new(state, longest)?, now: Side::Initial })
    }

    /// Applies a setting. Returns whether anything was written.
    pub(super) fn switch_to(&mut self, side: Side) -> Result<bool> {
        if side == self.now {
            return Ok(false);
        }
        self.now = side;
        let plan = match side {
            Side::Initial => None,
            Side::A => self.plans[0].as_ref(),
            Side::B => self.plans[1].as_ref(),
        };
        self.temporary.replace(plan.map_or(&[], |plan| &plan.changes))
    }
}
