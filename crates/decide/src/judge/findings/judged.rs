//! What one check derives before its families look for findings.

use netsilo_model::derive::analysis::Analysis;

use crate::judge::annotate::verdicts;
use crate::judge::ledger::{Ledger, ledger};
use crate::judge::verdict::{Look, RemedyVerdict};
use crate::plan::{Detail, Goal, Plan};

/// The input of the families. Each part is derived once for all of them.
#[derive(Debug)]
pub(super) struct Judged<'a> {
    pub(super) analysis: &'a Analysis<'a>,
    /// The judge of what changes would do.
    pub(super) look: Look<'a>,
    pub(super) ledger: Ledger,
    pub(super) verdicts: Vec<RemedyVerdict>,
    /// The placement of all netdevs. Each finding takes the changes of its queues from it.
    ///
    /// It includes knobs that another program owns, because a finding describes the current state.
    /// Ownership is checked when a knob is written.
    pub(super) plan: Plan,
}

impl<'a> Judged<'a> {
    pub(super) fn new(analysis: &'a Analysis<'a>) -> Self {
        let goal = Goal { even_if_owned: true, ..Goal::default() };
        let look = Look::new(analysis);
        let plan = look.plan(&goal, Detail::WithoutAlternatives);
        Self { analysis, ledger: ledger(analysis), verdicts: verdicts(&look), look, plan }
    }

    /// Whether there is no second CPU over which packets could be spread.
    pub(super) fn has_one_cpu(&self) -> bool {
        self.analysis.after().topology.online.len() < 2
    }
}
