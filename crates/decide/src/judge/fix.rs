//! A plan made from the remedies of findings.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use netsilo_model::change::{held_back, ordered};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::findings::{Check, Finding, FindingId, UnknownFinding};
use crate::plan::owners::bans;
use crate::plan::selection::missing;
use crate::plan::{Plan, RefusalCause};

/// Which findings to fix: all with an id, or the one with an id and a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixRequest {
    /// The id.
    pub id: FindingId,
    /// The subject; `None` matches all.
    pub subject: Option<Subject>,
}

/// Parses `udp-one-queue` or `udp-one-queue:eth0`. In a subject, `/` stands for a space
/// (`rps-to-itself:eth0/rx-3`).
impl FromStr for FixRequest {
    type Err = UnknownFinding;

    fn from_str(text: &str) -> Result<Self, UnknownFinding> {
        let (id, subject) =
            text.split_once(':').map_or((text, None), |(id, subject)| (id, Some(subject)));
        let unknown = |_| UnknownFinding::new(text);
        let subject = subject.map(|subject| subject.replace('/', " ").parse().map_err(unknown));
        Ok(Self { id: id.parse()?, subject: subject.transpose()? })
    }
}

impl fmt::Display for FixRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        let slashed = |subject: &Subject| subject.to_string().replace(' ', "/");
        self.subject.iter().try_for_each(|subject| write!(f, ":{}", slashed(subject)))
    }
}

impl FixRequest {
    /// The request that selects exactly this finding.
    pub fn of(finding: &Finding) -> Self {
        Self { id: finding.id, subject: Some(finding.subject.clone()) }
    }

    fn matches(&self, finding: &Finding) -> bool {
        // a port of a bond has the finding of the bond
        let is_it = |subject: &Subject| match (subject, &finding.subject) {
            (Subject::Netdev(port), Subject::Netdevs(all)) => all.contains(port),
            (subject, of) => subject == of,
        };
        self.id == finding.id && self.subject.as_ref().is_none_or(is_it)
    }
}

/// Plans the fix of the selected findings: for each, the first remedy that netsilo can write.
///
/// Changes that a change of channels would reset are left for a later plan. A request without a
/// matching finding, or whose finding has no writable remedy, is left unchanged with the reason. If
/// two remedies set one knob to different values, the remedy of the more severe finding applies.
pub fn fix(check: &Check, requests: &[FixRequest], after: &Snapshot, even_if_owned: bool) -> Plan {
    let mut plan = Plan { even_if_owned, ..Plan::default() };
    for request in requests {
        let found: Vec<&Finding> =
            check.findings.iter().filter(|finding| request.matches(finding)).collect();
        if found.is_empty() {
            let mut netdevs = request.subject.iter().flat_map(Subject::netdevs);
            match netdevs.find_map(|name| missing(name, after)) {
                Some(refusal) => plan.refusals.push(refusal),
                None => plan
                    .leave(&request.to_string(), "there is no such finding now, so nothing to fix"),
            }
        }
        for finding in found {
            plan = with_fix(plan, finding);
        }
    }
    plan = without_voided(plan);
    let bans = bans(&after.knob_owners, &plan.changes, &BTreeSet::new());
    plan.changes = ordered([plan.changes, bans].concat());
    let refused = plan.refused_on(after);
    if !refused.is_empty() {
        plan.changes.clear();
        plan.refusals.extend(refused);
    }
    plan
}

/// The plan without the changes that a change of channels would reset. They need a new plan, made
/// when the new queues exist.
fn without_voided(mut plan: Plan) -> Plan {
    let (now, later) = held_back(std::mem::take(&mut plan.changes));
    for change in &now {
        let void = later.iter().filter(|other| change.target.voids(&other.target));
        let void: Vec<String> = void.map(|other| other.target.to_string()).collect();
        if !void.is_empty() {
            let why = format!(
                "{} creates new queues: apply it first, then make this plan again",
                change.target
            );
            plan.leave(&void.join(", "), &why);
        }
    }
    Plan { changes: now, ..plan }
}

/// The plan with the fix of one more finding.
fn with_fix(mut plan: Plan, finding: &Finding) -> Plan {
    let subject = FixRequest::of(finding).to_string();
    let Some(remedy) = finding.writable() else {
        let why = match finding.remedies.first() {
            Some(remedy) => format!("netsilo cannot write this remedy: {}", remedy.what),
            None => "this finding has no remedy".to_owned(),
        };
        plan.leave(&subject, &why);
        return plan;
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
                    "this remedy sets {} to {}, but the plan already sets {} to {}",
                    change.target, change.new, known.target, known.new
                );
                plan.refuse(&subject, RefusalCause::Contradicted, reason);
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::Change;
    use netsilo_model::change::Value;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::snapshot::host::KnobOwner;
    use netsilo_model::snapshot::host::OwnedKnob;
    use netsilo_model::snapshot::netdev::NetdevIdentity;
    use netsilo_model::synthetic::grid::Grid;

    use crate::judge::evidence::Gain;
    use crate::judge::evidence::Remedy;
    use crate::judge::findings::Severity;
    use crate::judge::ledger::Ledger;
    use crate::plan::Refusal;

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
            subject: subject.parse().unwrap(),
            title,
            evidence,
            remedies,
        }
    }

    fn to(entries: u32) -> Change {
        Change::new(knobs::RpsSockFlowEntries, 0, entries, "r")
    }

    fn check_with(findings: Vec<Finding>) -> Check {
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

    fn request(text: &str) -> FixRequest {
        text.parse().unwrap()
    }

    #[test]
    fn a_finding_of_a_netdev_that_is_not_there_is_refused() {
        let plan = fix(
            &check_with(vec![]),
            &[request("nic-drops:eth9/rx-1")],
            &Snapshot::default(),
            false,
        );
        let [Refusal { subject, reason, .. }] = &plan.refusals[..] else { panic!("{plan:?}") };
        assert_eq!((subject.as_str(), plan.unchanged.len()), ("eth9", 0));
        assert!(reason.starts_with("no such netdev"), "{reason}");
    }

    #[test]
    fn changes_that_new_channels_make_void_wait_for_the_next_plan() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let (old, new) = ("combined=1".parse().unwrap(), "combined=4".parse().unwrap());
        let channels = Change::new(knobs::Channels { netdev: netdev() }, old, new, "");
        let knob = knobs::RpsCpus { netdev: netdev(), queue: 0 };
        let rps = Change::new(knob, CpuSet::new(), CpuSet::from_cpu(CpuId(1)), "");
        let check =
            check_with(vec![finding("eth0", vec![rps]), finding("eth1", vec![channels, to(5)])]);
        let topology = Grid { cores: 2, ..Grid::default() }.topology().into();
        let after = Snapshot { topology, ..Snapshot::default() };
        let plan = fix(&check, &[request("far-from-consumers")], &after, false);
        let targets: Vec<String> =
            plan.changes.iter().map(|change| change.target.to_string()).collect();
        assert!(targets.len() == 2 && targets.contains(&"eth0 channels".to_owned()), "{targets:?}");
        assert_eq!(plan.unchanged[0].subject, "eth0 rx-0 rps_cpus", "{:?}", plan.unchanged);
        assert!(
            plan.unchanged[0].reason.starts_with("eth0 channels creates new queues"),
            "{:?}",
            plan.unchanged
        );
    }

    #[test]
    fn a_fix_request_parses_what_it_prints() {
        for text in ["far-from-consumers", "far-from-consumers:eth0/rx-3"] {
            assert_eq!(request(text).to_string(), text);
        }
        assert_eq!(
            request("far-from-consumers:eth0/rx-3").subject,
            Some(Subject::Queue("eth0".into(), 3))
        );
        assert!("nonsense:eth0".parse::<FixRequest>().is_err());
    }

    #[test]
    fn only_requested_findings_are_fixed_and_the_others_keep_a_reason() {
        let check = check_with(vec![finding("eth0", vec![to(1)]), finding("eth1", vec![])]);
        let plan = |text| fix(&check, &[request(text)], &Snapshot::default(), false);
        assert_eq!(plan("far-from-consumers").changes.len(), 1);
        assert_eq!(plan("far-from-consumers:eth0").unchanged, []);
        assert!(plan("far-from-consumers:eth1").unchanged[0].reason.contains("buy a faster bus"));
        assert!(plan("far-from-consumers:cpu3").unchanged[0].reason.contains("no such finding"));
        assert!(plan("placed-well").changes.is_empty());
    }

    #[test]
    fn the_second_remedy_that_contradicts_the_first_is_refused() {
        let check = check_with(vec![
            finding("a", vec![to(1)]),
            finding("b", vec![to(2)]),
            finding("c", vec![to(1)]),
        ]);
        let plan = fix(&check, &[request("far-from-consumers")], &Snapshot::default(), false);
        assert_eq!(
            plan.changes.iter().map(|change| change.new.clone()).collect::<Vec<_>>(),
            [Value::Count(1)]
        );
        assert_eq!(
            plan.refusals.iter().map(|it| (it.subject.as_str(), it.cause)).collect::<Vec<_>>(),
            [("far-from-consumers:b", RefusalCause::Contradicted)]
        );
    }

    #[test]
    fn knobs_of_another_program_are_left_unless_overridden() {
        let owner =
            KnobOwner { name: "balancer".into(), pid: 7, writes: vec![OwnedKnob::Rps], bans: None };
        let after = Snapshot { knob_owners: vec![owner], ..Snapshot::default() };
        let check = check_with(vec![finding("eth0", vec![to(1)])]);
        let plan = |even| fix(&check, &[request("far-from-consumers")], &after, even);
        assert_eq!((plan(false).changes.len(), plan(false).refusals.len()), (0, 1));
        assert_eq!((plan(true).changes.len(), plan(true).refusals.len()), (1, 0));
    }
}
