//! A plan made of what findings say may be done.

use std::fmt;
use std::str::FromStr;

use super::{Cause, Plan};
use crate::change::{held_back, ordered};
use crate::diagnose::{Check, Finding, FindingId, UnknownFinding};
use crate::host::Snapshot;

/// Which findings to mend: all of an id, or that of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// The id.
    pub id: FindingId,
    /// The subject; `None` means all.
    pub subject: Option<String>,
}

/// As typed: `udp-one-queue`, `udp-one-queue:eth0`; in a subject, `/` stands for a space
/// (`ring-full:eth0/rx-3`).
impl FromStr for Mend {
    type Err = UnknownFinding;

    fn from_str(text: &str) -> Result<Self, UnknownFinding> {
        let (id, subject) =
            text.split_once(':').map_or((text, None), |(id, subject)| (id, Some(subject)));
        Ok(Self { id: id.parse()?, subject: subject.map(|subject| subject.replace('/', " ")) })
    }
}

impl fmt::Display for Mend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        self.subject.iter().try_for_each(|subject| write!(f, ":{}", subject.replace(' ', "/")))
    }
}

impl Mend {
    /// What a person types for this finding.
    pub fn of(finding: &Finding) -> Self {
        Self { id: finding.id, subject: Some(finding.subject.clone()) }
    }

    fn means(&self, finding: &Finding) -> bool {
        self.id == finding.id
            && self.subject.as_ref().is_none_or(|subject| *subject == finding.subject)
    }
}

/// What mends these findings: of each, the first remedy that netsilo can write.
///
/// What another change would make void is left for a plan of its own. What is not found, or has no
/// such remedy, is left alone with the reason; of two remedies that want different things of one
/// knob, the graver finding's is taken.
pub fn fix(check: &Check, mends: &[Mend], after: &Snapshot, even_if_owned: bool) -> Plan {
    let mut plan = Plan { even_if_owned, ..Plan::default() };
    for mend in mends {
        let found: Vec<&Finding> =
            check.findings.iter().filter(|finding| mend.means(finding)).collect();
        if found.is_empty() {
            plan.leave(&mend.to_string(), "not found now: nothing to mend");
        }
        for finding in found {
            mend_one(&mut plan, finding);
        }
    }
    let owners = plan.owners(&after.writers);
    let owners: Vec<(String, &str)> = owners
        .iter()
        .map(|owner| (format!("{} (pid {})", owner.name, owner.pid), owner.name.as_str()))
        .collect();
    for (subject, name) in &owners {
        let reason = format!(
            "it is running and writes these settings too: stop {name}, or act all the same with --even-if-owned"
        );
        plan.refuse(subject, Cause::OtherOwner, reason);
    }
    if !owners.is_empty() {
        plan.changes.clear();
    }
    first_things_first(&mut plan);
    plan
}

/// What a change of channels would make void waits for a plan of its own, made when the new queues
/// are there.
fn first_things_first(plan: &mut Plan) {
    let (now, later) = held_back(std::mem::take(&mut plan.changes));
    for change in &now {
        let void = later.iter().filter(|other| change.target.voids(&other.target));
        let void: Vec<String> = void.map(|other| other.target.to_string()).collect();
        if !void.is_empty() {
            let why = format!(
                "{} makes new queues: apply that first, then plan the same again",
                change.target
            );
            plan.leave(&void.join(", "), &why);
        }
    }
    plan.changes = ordered(now);
}

fn mend_one(plan: &mut Plan, finding: &Finding) {
    let subject = Mend::of(finding).to_string();
    let Some(remedy) = finding.remedies.iter().find(|remedy| !remedy.changes.is_empty()) else {
        let why = match finding.remedies.first() {
            Some(remedy) => format!("nothing that netsilo can write: {}", remedy.what),
            None => "nothing to be done about it".to_owned(),
        };
        return plan.leave(&subject, &why);
    };
    for change in &remedy.changes {
        match plan.changes.iter().find(|known| known.target == change.target) {
            None => {
                let reason = format!("{}: {}", finding.id, change.reason);
                plan.changes.push(change.clone().because(reason));
            }
            Some(known) if known.new == change.new => {}
            Some(known) => {
                let reason = format!(
                    "{} to {} is wanted, but {} goes to {}",
                    change.target, change.new, known.target, known.new
                );
                plan.refuse(&subject, Cause::Contradicted, reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Change, NetdevIdentity, Value, knobs};
    use crate::cpuset::{CpuId, CpuSet};
    use crate::diagnose::ledger::Ledger;
    use crate::diagnose::{Gain, Remedy, Severity};
    use crate::host::{Writer, WriterKnob};

    fn finding(subject: &str, changes: Vec<Change>) -> Finding {
        let remedy = Remedy {
            what: "buy a faster bus".into(),
            gain: Gain::Unknown("nobody measured it".into()),
            cost: None,
            not_when: None,
            changes,
            interrupts_traffic: false,
        };
        let remedies = vec![remedy];
        let (title, evidence) = (String::new(), Vec::new());
        Finding {
            id: FindingId::FarFromConsumers,
            severity: Severity::Warning,
            subject: subject.into(),
            title,
            evidence,
            remedies,
        }
    }

    fn to(entries: u32) -> Change {
        Change::new(knobs::RpsSockFlowEntries, 0, entries, "r")
    }

    fn checked(findings: Vec<Finding>) -> Check {
        Check {
            hostname: String::new(),
            release: String::new(),
            interval: std::time::Duration::ZERO,
            findings,
            ledger: Ledger::default(),
            verdicts: Vec::new(),
            distances: String::new(),
        }
    }

    fn mend(text: &str) -> Mend {
        text.parse().unwrap()
    }

    #[test]
    fn what_new_channels_would_make_void_waits_for_the_next_plan() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None };
        let (old, new) = ("combined=1".parse().unwrap(), "combined=4".parse().unwrap());
        let channels = Change::new(knobs::Channels { netdev: netdev() }, old, new, "");
        let knob = knobs::RpsCpus { netdev: netdev(), queue: 0 };
        let rps = Change::new(knob, CpuSet::new(), CpuSet::of(CpuId(1)), "");
        let check =
            checked(vec![finding("eth0", vec![rps]), finding("eth1", vec![channels, to(5)])]);
        let plan = fix(&check, &[mend("far-from-consumers")], &Snapshot::default(), false);
        let targets: Vec<String> =
            plan.changes.iter().map(|change| change.target.to_string()).collect();
        assert!(targets.len() == 2 && targets.contains(&"eth0 channels".to_owned()), "{targets:?}");
        assert_eq!(plan.unchanged[0].subject, "eth0 rx-0 rps_cpus", "{:?}", plan.unchanged);
        assert!(
            plan.unchanged[0].reason.starts_with("eth0 channels makes new queues"),
            "{:?}",
            plan.unchanged
        );
    }

    #[test]
    fn a_mend_is_read_as_it_is_written() {
        for text in ["far-from-consumers", "far-from-consumers:eth0/rx-3"] {
            assert_eq!(mend(text).to_string(), text);
        }
        assert_eq!(mend("far-from-consumers:eth0/rx-3").subject.as_deref(), Some("eth0 rx-3"));
        assert!("nonsense:eth0".parse::<Mend>().is_err());
    }

    #[test]
    fn only_what_is_asked_for_is_mended_and_what_cannot_be_is_left_alone_with_its_reason() {
        let check = checked(vec![finding("eth0", vec![to(1)]), finding("eth1", vec![])]);
        let plan = |text| fix(&check, &[mend(text)], &Snapshot::default(), false);
        assert_eq!(plan("far-from-consumers").changes.len(), 1);
        assert_eq!(plan("far-from-consumers:eth0").unchanged, []);
        assert!(plan("far-from-consumers:eth1").unchanged[0].reason.contains("buy a faster bus"));
        assert!(plan("far-from-consumers:eth2").unchanged[0].reason.contains("not found"));
        assert!(plan("placed-well").changes.is_empty());
    }

    #[test]
    fn two_remedies_that_want_different_things_of_one_knob_are_not_both_taken() {
        let check = checked(vec![
            finding("a", vec![to(1)]),
            finding("b", vec![to(2)]),
            finding("c", vec![to(1)]),
        ]);
        let plan = fix(&check, &[mend("far-from-consumers")], &Snapshot::default(), false);
        assert_eq!(
            plan.changes.iter().map(|change| change.new.clone()).collect::<Vec<_>>(),
            [Value::Count(1)]
        );
        assert_eq!(
            plan.refusals.iter().map(|it| (it.subject.as_str(), it.cause)).collect::<Vec<_>>(),
            [("far-from-consumers:b", Cause::Contradicted)]
        );
    }

    #[test]
    fn what_another_program_owns_is_left_to_it_unless_told_otherwise() {
        let writer = Writer { name: "balancer".into(), pid: 7, writes: vec![WriterKnob::Rps] };
        let after = Snapshot { writers: vec![writer], ..Snapshot::default() };
        let check = checked(vec![finding("eth0", vec![to(1)])]);
        let plan = |even| fix(&check, &[mend("far-from-consumers")], &after, even);
        assert_eq!((plan(false).changes.len(), plan(false).refusals.len()), (0, 1));
        assert_eq!((plan(true).changes.len(), plan(true).refusals.len()), (1, 0));
    }
}
