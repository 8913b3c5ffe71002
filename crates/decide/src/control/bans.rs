//! Phase six, before the writes: extends irqbalance's ban list.

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

    /// Puts an extension of irqbalance's ban list before the writes: by what they move, and by what
    /// the controller has placed.
    pub(super) fn ban(&mut self, window: &Window<'_>, plan: &Plan, writes: &mut Plan) {
        let ours = self.knobs.iter().filter(|(_, knob)| knob.ours().is_some());
        let written = writes.changes.iter().map(|change| &change.target);
        let held = ours.map(|(target, _)| target).chain(written);
        let held: BTreeSet<Irq> = held.filter_map(Target::irq).collect();
        if held.is_empty() {
            return;
        }
        let placed = plan.placements.iter().filter_map(|placement| placement.irq);
        let wanted: BTreeSet<Irq> = held.into_iter().chain(placed).collect();
        let wanted: BTreeSet<Irq> = wanted.difference(&self.balancer.asked).copied().collect();
        let Some((owner, _)) = answering(&window.after().knob_owners) else { return };
        let Some(ban) = ban(owner, &wanted) else { return };
        match ban {
            Ok(change) => {
                self.balancer.asked.extend(&wanted);
                let why = format!("{} -> {}: {}", change.old, change.new, change.reason);
                self.log(Some(&change.target), LogKind::Write, why);
                writes.changes.insert(0, change);
                self.balancer.pending = wanted;
            }
            Err(too_long) if !writes.even_if_owned => {
                let wanted = writes.changes.len();
                writes.changes.retain(|change| !change.target.is_owned_by(owner));
                if writes.changes.len() < wanted {
                    self.log(None, LogKind::Refused, too_long.to_string());
                }
            }
            Err(_) => {}
        }
    }

    /// Takes the results. What was not done may be asked for again, also if there is no result
    /// because the writes were stopped before.
    pub(super) fn banned(&mut self, results: &[(Target, WriteResult)]) {
        let mut pending = std::mem::take(&mut self.balancer.pending);
        for (target, result) in results {
            match (target, result) {
                (Target::IrqbalanceBan(_), WriteResult::InEffect(_)) => {
                    pending.clear();
                    self.log(Some(target), LogKind::InEffect, "off -> on".to_owned());
                }
                (Target::IrqbalanceBan(_), WriteResult::Refused(why)) => {
                    self.log(Some(target), LogKind::Refused, why.clone());
                }
                _ => {}
            }
        }
        self.balancer.asked.retain(|irq| !pending.contains(irq));
    }
}
