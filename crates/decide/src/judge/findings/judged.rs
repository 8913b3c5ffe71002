//! What one check derives before its families look for findings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use netsilo_model::derive::analysis::Analysis;

use crate::judge::annotate::verdicts;
use crate::judge::ledger::{Ledger, ledger};
use crate::judge::verdict::RemedyVerdict;
use crate::plan::{Goal, Plan, plan};

/// The input of the families: each part is derived once for all of them.
#[derive(Debug)]
pub(super) struct Judged<'a> {
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) ledger: Ledger,
    pub(super) verdicts: Vec<RemedyVerdict>,
    pub(super) plans: Plans<'a>,
}

impl<'a> Judged<'a> {
    pub(super) fn new(analysis: &'a Analysis<'a>) -> Self {
        let plans = Plans { analysis, made: RefCell::default() };
        Self { analysis, ledger: ledger(analysis), verdicts: verdicts(analysis), plans }
    }
}

/// Placement plans: one for each set of netdevs, made when the first finding needs it.
///
/// Most checks need one or two of the many sets that queues on common CPUs form.
#[derive(Debug)]
pub(super) struct Plans<'a> {
    analysis: &'a Analysis<'a>,
    made: RefCell<BTreeMap<Vec<String>, Rc<Plan>>>,
}

impl Plans<'_> {
    /// The plan for these netdevs, or for all if none is given.
    ///
    /// It includes knobs that another program owns: a finding describes the present state, and
    /// ownership is checked when a knob is written.
    pub(super) fn of(&self, netdevs: Vec<String>) -> Rc<Plan> {
        let mut made = self.made.borrow_mut();
        let made = made.entry(netdevs).or_insert_with_key(|netdevs| {
            let goal = Goal { netdevs: netdevs.clone(), even_if_owned: true, ..Goal::default() };
            Rc::new(plan(self.analysis, &goal))
        });
        Rc::clone(made)
    }
}
