//! Other programs that write the same knobs: netsilo names them and leaves their knobs alone.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words::plural;
use netsilo_model::parse::irqbalance::ban_message;
use netsilo_model::snapshot::host::KnobOwner;

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;
use crate::plan::leave_alone::line_for;

impl Plan {
    /// Lists the given programs that own a knob this plan writes; none if the plan overrides owners
    /// (`even_if_owned`).
    ///
    /// Used for a saved plan: another program may have started since.
    pub(super) fn knob_owners<'w>(&self, knob_owners: &'w [KnobOwner]) -> Vec<&'w KnobOwner> {
        let owns = |owner: &&KnobOwner| {
            let then = after_bans(owner, &self.changes);
            !self.even_if_owned && self.changes.iter().any(|it| it.target.is_owned_by(&then))
        };
        knob_owners.iter().filter(owns).collect()
    }

    /// The plan without its changes of irqbalance's ban list.
    pub(crate) fn without_bans(mut self) -> Self {
        self.changes.retain(|change| !matches!(change.target, Target::IrqbalanceBan(_)));
        self
    }
}

/// A program as it will be after those of these changes that extend its ban list.
pub(super) fn after_bans(owner: &KnobOwner, changes: &[Change]) -> KnobOwner {
    let mut owner = owner.clone();
    for change in changes {
        if let Target::IrqbalanceBan(ban) = &change.target
            && ban.is_of(&owner)
        {
            owner.bans.iter_mut().for_each(|bans| bans.irqs.extend(&ban.irqs));
        }
    }
    owner
}

/// Why irqbalance's ban list cannot be extended.
#[derive(Debug, thiserror::Error)]
#[error(
    "the list of what irqbalance shall leave alone would have {bytes} bytes, and it reads {most} \
     (up to 1.9.4 it cuts a longer list)"
)]
pub(crate) struct TooLong {
    /// Of the message.
    bytes: usize,
    most: usize,
}

/// The change by which an irqbalance leaves these interrupts alone too. `None` if it does so
/// already, if it does not answer, and for other programs.
pub(crate) fn ban(owner: &KnobOwner, irqs: &BTreeSet<Irq>) -> Option<Result<Change, TooLong>> {
    let bans = owner.bans.as_ref()?;
    let missing: BTreeSet<Irq> = irqs.difference(&bans.irqs).copied().collect();
    if missing.is_empty() {
        return None;
    }
    let bytes = ban_message(&bans.irqs.union(&missing).copied().collect()).len();
    if bytes > bans.most_bytes {
        return Some(Err(TooLong { bytes, most: bans.most_bytes }));
    }
    let knob = knobs::IrqbalanceBan { pid: owner.pid, start_time: bans.start_time, irqs: missing };
    let reason = "irqbalance would move them; it places all others once again, and leaves these \
                  alone until undo";
    Some(Ok(Change::new(knob, false, true, reason)))
}

/// The changes by which irqbalance leaves the interrupts of these changes alone, and also these
/// other ones. Empty if none of the changes moves an interrupt that irqbalance owns.
pub(crate) fn bans(
    knob_owners: &[KnobOwner],
    changes: &[Change],
    others: &BTreeSet<Irq>,
) -> Vec<Change> {
    let moved = changes.iter().filter_map(|change| change.target.irq());
    let irqs = moved.chain(others.iter().copied()).collect();
    let owns = |owner: &&KnobOwner| changes.iter().any(|it| it.target.is_owned_by(owner));
    let asked = |owner: &KnobOwner| Some((owner.pid, ban(owner, &irqs)?.ok()?));
    // A snapshot of a stranger may have a process twice.
    let bans: BTreeMap<u32, Change> = knob_owners.iter().filter(owns).filter_map(asked).collect();
    bans.into_values().collect()
}

/// The part of a plan with changes of knobs that have the same owners; without them, and with
/// refusals, if another program owns the knobs.
pub(super) fn unless_owned(knob_owners: &[KnobOwner], goal: &Goal, changes: Vec<Change>) -> Plan {
    let advice = |owner: &KnobOwner| format!("stop it, or {}", line_for(&owner.name));
    unless_owned_as(knob_owners, goal, changes, advice)
}

/// The same with this advice on a program.
pub(super) fn unless_owned_as(
    knob_owners: &[KnobOwner],
    goal: &Goal,
    changes: Vec<Change>,
    advice: impl Fn(&KnobOwner) -> String,
) -> Plan {
    let owners: Vec<&KnobOwner> = knob_owners
        .iter()
        .filter(|it| changes.iter().any(|change| change.target.is_owned_by(it)))
        .collect();
    if changes.is_empty() || owners.is_empty() {
        return Plan { changes, ..Plan::default() };
    }
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{} (pid {})", owner.name, owner.pid)).collect();
    if goal.even_if_owned {
        let warned = |change: Change| {
            let reason = format!("{}; {} may revert it", change.reason, names.join(", "));
            change.because(reason)
        };
        return Plan { changes: changes.into_iter().map(warned).collect(), ..Plan::default() };
    }
    let mut part = Plan::default();
    for (owner, name) in owners.iter().zip(&names) {
        let count = plural(changes.len(), "change");
        let reason = format!(
            "it is running and would revert {count}: {}; or override with --even-if-owned",
            advice(owner)
        );
        part.refuse(name, RefusalCause::OtherOwner, reason);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::host::{IrqBans, OwnedKnob};

    #[test]
    fn irqbalance_owns_no_interrupt_that_is_or_will_be_on_its_ban_list() {
        let bans = IrqBans { start_time: 9, irqs: [Irq(28)].into(), most_bytes: 499 };
        let writes = vec![OwnedKnob::IrqAffinity];
        let owner = KnobOwner { name: "irqbalance".into(), pid: 812, writes, bans: Some(bans) };
        let owners = [owner];
        let moved = |irq| {
            let knob = knobs::IrqAffinity { irq: Irq(irq), action: "x".into(), netdev: None };
            Change::new(knob, CpuSet::new(), CpuSet::first(2), "")
        };
        let mut plan = Plan { changes: vec![moved(28)], ..Plan::default() };
        assert!(plan.knob_owners(&owners).is_empty());
        assert_eq!(super::bans(&owners, &plan.changes, &[Irq(30)].into()), []);
        plan.changes.push(moved(27));
        assert_eq!(plan.knob_owners(&owners), [&owners[0]]);
        let bans = super::bans(&owners, &plan.changes, &[Irq(30)].into());
        let wanted =
            knobs::IrqbalanceBan { pid: 812, start_time: 9, irqs: [Irq(27), Irq(30)].into() };
        assert_eq!(bans.iter().map(|it| &it.target).collect::<Vec<_>>(), [&wanted.into()]);
        plan.changes.extend(bans);
        assert!(plan.knob_owners(&owners).is_empty());
        let later = KnobOwner { pid: 900, ..owners[0].clone() };
        assert_eq!(
            plan.knob_owners(std::slice::from_ref(&later)),
            [&later],
            "a plan for the earlier process"
        );
    }

    #[test]
    fn a_saved_plan_lists_the_owners_of_the_knobs_it_writes() {
        let owner = |name: &str, knob| KnobOwner {
            name: name.into(),
            pid: 812,
            writes: vec![knob],
            bans: None,
        };
        let knob_owners =
            [owner("irqbalance", OwnedKnob::IrqAffinity), owner("other", OwnedKnob::Xps)];
        let (none, two) = (CpuSet::new, || CpuSet::first(2));
        let irq = knobs::IrqAffinity { irq: Irq(27), action: "x".into(), netdev: None };
        let default = Change::new(knobs::DefaultSmpAffinity, none(), two(), "");
        let mut plan = Plan {
            changes: vec![Change::new(irq, none(), two(), ""), default.clone()],
            ..Plan::default()
        };
        assert_eq!(plan.knob_owners(&knob_owners), [&knob_owners[0]]);
        plan.even_if_owned = true;
        assert!(plan.knob_owners(&knob_owners).is_empty());
        plan = Plan { changes: vec![default], ..Plan::default() };
        assert!(plan.knob_owners(&knob_owners).is_empty());
    }
}
