//! [`Look`]: one observation with its judge, for all verdicts on it; [`NetdevLook`]: one netdev of
//! it.

use std::cell::RefCell;

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::drivers::software::SoftwareNetdev;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_predict::live::forecast::Expected;
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::received::Received;
use netsilo_predict::live::work::{TooLittle, Work};

use crate::plan::{Detail, Goal, Plan, plan_in_detail};

/// An observation, and the judge of what changes would do there.
#[derive(Debug)]
pub struct Look<'a> {
    pub(in crate::judge) analysis: &'a Analysis<'a>,
    /// The judge, and the machine as it is. The error says why nothing can be judged.
    pub(super) judge: Result<(Judge<'a>, Expected), TooLittle>,
    /// The plans that were made.
    planned: RefCell<Vec<(Goal, Vec<Change>)>>,
}

impl<'a> Look<'a> {
    /// Makes the judge. Shares of CPU time are judged even where times of packets are not the
    /// CPU's.
    pub fn new(analysis: &'a Analysis<'a>) -> Self {
        let judge = Work::without_costs(analysis).map(|work| {
            let judge = Judge::new(work, 1.0);
            let now = judge.as_it_is_without_intervals();
            (judge, now)
        });
        Self { analysis, judge, planned: RefCell::default() }
    }

    /// The plan of a goal.
    pub(in crate::judge) fn plan(&self, goal: &Goal, detail: Detail) -> Plan {
        let judge = self.judge.as_ref().ok().map(|(judge, _)| judge);
        plan_in_detail(self.analysis, goal, detail, judge)
    }

    /// What `netsilo plan` writes for a goal; each plan is made once.
    pub(super) fn planned(&self, goal: Goal) -> Vec<Change> {
        let mut planned = self.planned.borrow_mut();
        if let Some((_, changes)) = planned.iter().find(|(known, _)| *known == goal) {
            return changes.clone();
        }
        let changes = self.plan(&goal, Detail::WithoutCosts).changes;
        planned.push((goal, changes.clone()));
        changes
    }
}

/// A netdev that receives packets, of a machine that can be judged.
#[derive(Debug)]
pub(super) struct NetdevLook<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) judge: &'a Judge<'a>,
    /// The machine as it is.
    pub(super) now: &'a Expected,
    /// The receive work of the machine.
    pub(super) work: &'a Work<'a>,
    pub(super) netdev: &'a Netdev,
    /// The netdevs that are steered together: itself, or with [`Self::with_ports`] all ports of its
    /// bond.
    pub(super) ports: Vec<&'a Netdev>,
    /// The part of `work` that these receive.
    pub(super) received: Received<'a>,
}

impl<'a> NetdevLook<'a> {
    /// `None` if the netdev is down or receives nothing, or if the machine cannot be judged.
    pub(super) fn new(look: &'a Look<'a>, netdev: &'a Netdev) -> Option<Self> {
        let (judge, now) = look.judge.as_ref().ok().filter(|_| netdev.up)?;
        let (analysis, work) = (look.analysis, judge.work());
        let received = Received::new(work, netdev)?;
        Some(Self { look, analysis, judge, now, work, netdev, ports: vec![netdev], received })
    }

    /// The same with all ports of the bond or team of which the netdev is one: with two full ports,
    /// a remedy for one alone gains nothing. `None` if it is no such port, or the only one.
    pub(super) fn with_ports(&self) -> Option<Self> {
        let all = &self.analysis.after().netdevs;
        let bond = all.named(self.netdev.master.as_deref()?)?;
        SoftwareNetdev::from_netdev(bond).filter(SoftwareNetdev::is_bond)?;
        let is_port = |it: &&Netdev| it.up && it.master == self.netdev.master;
        let ports: Vec<&Netdev> = all.iter().filter(is_port).collect();
        let received = Received::of_ports(self.work, &ports).filter(|_| ports.len() > 1)?;
        let Self { look, analysis, judge, now, work, netdev, .. } = *self;
        Some(Self { look, analysis, judge, now, work, netdev, ports, received })
    }

    /// The silos of its queues.
    pub(super) fn queues(&self) -> Vec<&'a Silo> {
        self.received.silos().collect()
    }

    /// The idle share of these CPUs' time.
    pub(super) fn idle(&self, cpus: &CpuSet) -> f64 {
        (1.0 - self.work.busy(cpus)).max(0.0)
    }
}
