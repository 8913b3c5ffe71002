//! Phase six, before the writes: tells irqbalance which interrupts it must leave alone.

use std::collections::BTreeSet;

use super::balancer::answering;
use super::decision::{LogKind, WriteResult};
use super::memory::Memory;
use super::view::Window;
use crate::plan::Plan;
use crate::plan::owners::ban;
use netsilo_model::change::Target;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::event::Event;

impl Memory {
    /// Notes an irqbalance that was started.
    pub(super) fn note_balancer(&mut self) {
        if let Some(name) = self.balancer.observe(&self.owners) {
            self.events.note(self.now, Event::Started(name));
        }
    }

    /// Adds to the writes what irqbalance must be told before: to leave alone what is moved, and
    /// what the controller has placed.
    pub(super) fn ban(&mut self, window: &Window<'_>, plan: &Plan, writes: &mut Plan) {
        let ours = self.knobs.iter().filter(|(_, knob)| knob.ours().is_some());
        let written = writes.changes.iter().map(|change| &change.target);
        let irq = |target: &Target| match target {
            Target::IrqAffinity(knob) => Some(knob.irq),
            _ => None,
        };
        let held: BTreeSet<Irq> =
            ours.map(|(target, _)| target).chain(written).filter_map(irq).collect();
        if held.is_empty() {
            return;
        }
        let placed = plan.placements.iter().filter_map(|placement| placement.irq);
        let wanted: BTreeSet<Irq> = held.into_iter().chain(placed).collect();
        let wanted: BTreeSet<Irq> = wanted.difference(&self.balancer.asked).copied().collect();
        let Some((owner, _)) = answering(&window.after().knob_owners) else { return };
        let Some(ban) = ban(owner, &wanted) else { return };
        self.balancer.asked.extend(&wanted);
        match ban {
            Ok(change) => {
                let why = format!("{} -> {}: {}", change.old, change.new, change.reason);
                self.log(Some(&change.target), LogKind::Write, why);
                writes.changes.insert(0, change);
            }
            Err(too_long) => self.log(None, LogKind::Refused, too_long.to_string()),
        }
    }

    /// Takes the results: what was not done may be asked for again.
    pub(super) fn banned(&mut self, results: &[(Target, WriteResult)]) {
        for (target, result) in results {
            let Target::IrqbalanceBan(ban) = target else { continue };
            match result {
                WriteResult::InEffect(_) => {
                    let why = "off -> on".to_owned();
                    self.log(Some(target), LogKind::InEffect, why);
                }
                WriteResult::Refused(why) => {
                    self.balancer.asked.retain(|irq| !ban.irqs.contains(irq));
                    self.log(Some(target), LogKind::Refused, why.clone());
                }
                WriteResult::Overwritten(_) | WriteResult::Gone => {
                    self.balancer.asked.retain(|irq| !ban.irqs.contains(irq));
                }
            }
        }
    }
}
