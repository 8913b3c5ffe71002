//! Findings as text: problems, the most worthwhile first, each with its evidence and remedies.
//! Passed checks are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use netsilo_decide::judge::evidence::{Evidence, Gain, Measure, Remedy};
use netsilo_decide::judge::findings::{Check, Finding, FindingId, Severity};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_model::change::shell_word;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::subject::Subject;

use crate::tell::palette::Meaning;
use crate::tell::styled::{Styled, Table};
use crate::tell::words::{folded, grouped, plural};
use crate::views::forecast::forecast_in_words;
use crate::views::ledger;
use crate::views::units;

/// If this many other findings are alike, only their subjects are named.
const ALIKE: usize = 3;

/// How many other findings with the same id have their own line.
const TITLES: usize = 8;

/// How many subjects of similar findings are named.
const SUBJECTS_NAMED: usize = 20;

/// How many lines of evidence a finding has. If there is just one more, it is printed instead of
/// being counted.
const EVIDENCE_SHOWN: usize = 3;

/// Renders the findings and the ledger of loss. With `all`, also the checks that passed, all
/// evidence with its sources, informative findings in full, squeezes, and what a remedy's gain is
/// based on.
pub(crate) fn render(check: &Check, all: bool) -> Styled {
    let mut text = Styled::default();
    let seconds = check.interval.as_secs_f64();
    let _ = write!(text, "{}, linux {}, {seconds:.1} s: ", check.hostname, check.release);
    text.append(&counts(check));
    let _ = writeln!(text);
    let (passed, wrong): (Vec<&Finding>, Vec<&Finding>) =
        check.findings.iter().partition(|finding| finding.severity == Severity::Ok);
    let shown = wrong.iter().chain(passed.iter().filter(|_| all)).copied();
    for (_, group) in groups(shown, all) {
        let _ = writeln!(text);
        text.append(&group);
    }
    if !passed.is_empty() && !all {
        let passed = plural(passed.len(), "check");
        text.push(Meaning::Good, format_args!("\n{passed} passed: -v\n"));
    }
    text.append(&ledger::render(&check.ledger, all));
    if !wrong.is_empty() {
        let more = if all { "" } else { "; all evidence with its sources: -v" };
        text.push(
            Meaning::Quiet,
            format_args!("\nwhat a finding means: netsilo explain ID{more}\n"),
        );
    }
    text
}

/// The findings of each id and severity as one text. Similar findings are only named.
pub(crate) fn groups<'a>(
    findings: impl Iterator<Item = &'a Finding>,
    all: bool,
) -> Vec<(FindingId, Styled)> {
    let texts = by_id(findings).into_iter().filter_map(|group| {
        let (first, others) = group.split_first()?;
        let mut text = Styled::default();
        let alike = others.len() >= ALIKE && others.iter().all(|it| are_alike(first, it));
        if all && !alike {
            for (index, finding) in group.iter().enumerate() {
                text.push(Meaning::Plain, if index > 0 { "\n" } else { "" });
                one(&mut text, finding, all);
            }
            return Some((first.id, text));
        }
        if all || first.severity > Severity::Info {
            one(&mut text, first, all)
        } else {
            brief(&mut text, first)
        }
        match others {
            [] => {}
            _ if alike => also(&mut text, first, others),
            _ => titles(&mut text, first, others),
        }
        Some((first.id, text))
    });
    texts.collect()
}

/// Findings in groups with the same id and severity.
fn by_id<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<Vec<&'a Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    let mut known = BTreeMap::new();
    for finding in findings {
        let group = *known.entry((finding.id, finding.severity)).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

/// Whether an operator would handle two findings of one id in the same way.
fn are_alike(a: &Finding, b: &Finding) -> bool {
    let remedies = |finding: &Finding| -> Vec<String> {
        finding.remedies.iter().map(|remedy| remedy.what.clone()).collect()
    };
    remedies(a) == remedies(b)
}

/// A line for each of the other findings of one id.
fn titles(text: &mut Styled, first: &Finding, others: &[&Finding]) {
    let count = others.len();
    let _ = writeln!(text, "  and {}:", plural(count, "other"));
    for finding in others.iter().take(TITLES) {
        text.push(Meaning::Title, format_args!("    {}: {}\n", finding.subject, finding.title));
    }
    if count > TITLES {
        let _ = writeln!(text, "    {} more: -v", count - TITLES);
    }
    fix_all(text, first, others);
}

/// Names the other subjects of a finding that is printed once.
fn also(text: &mut Styled, first: &Finding, others: &[&Finding]) {
    let cpu = |finding: &&Finding| match finding.subject {
        Subject::Cpu(cpu) => Some(cpu),
        _ => None,
    };
    let subjects = match others.iter().map(cpu).collect::<Option<CpuSet>>() {
        Some(cpus) => format!("cpus {cpus}"),
        None => {
            let names: Vec<String> = others.iter().map(|it| it.subject.to_string()).collect();
            let names = grouped(&names);
            let more = names.len().saturating_sub(SUBJECTS_NAMED);
            let more = (more > 0).then(|| format!("{more} more"));
            let named = names.into_iter().take(SUBJECTS_NAMED);
            named.chain(more).collect::<Vec<_>>().join(", ")
        }
    };
    let _ = writeln!(text, "  the same is true of {} others: {subjects}", others.len());
    fix_all(text, first, others);
}

/// The plan that fixes all of them.
fn fix_all(text: &mut Styled, first: &Finding, others: &[&Finding]) {
    let remedies = others.iter().chain([&first]).filter_map(|finding| finding.writable());
    let knobs = remedies.flat_map(|it| &it.changes).map(|change| change.target.to_string());
    let changes = knobs.collect::<BTreeSet<String>>().len();
    if changes > 0 {
        let all = FixRequest { id: first.id, subject: None };
        let settings = plural(changes, "setting");
        let _ = write!(text, "      all {}, {settings}: ", others.len() + 1);
        text.push(Meaning::Work, format_args!("netsilo plan --fix {all}\n"));
    }
}

/// Number of findings by severity: `1 critical, 2 warning, 3 ok`.
fn counts(check: &Check) -> Styled {
    let mut text = Styled::default();
    for severity in Severity::ALL.iter().rev() {
        let alike = check.findings.iter().filter(|finding| finding.severity == *severity);
        let (count, name) = (alike.count(), severity.as_str());
        if count > 0 {
            text.push(Meaning::Plain, if text.width() > 0 { ", " } else { "" });
            text.push(meaning(*severity), format_args!("{count} {name}"));
        }
    }
    if text.width() == 0 {
        let _ = write!(text, "{NOTHING}");
    }
    text
}

/// What to do where nothing was found.
const NOTHING: &str = "nothing found: there was too little traffic to judge\n  \
    run it while the machine is busy, or for longer: netsilo check --interval 30s";

/// How bad a finding is.
fn meaning(severity: Severity) -> Meaning {
    match severity {
        Severity::Critical => Meaning::Bad,
        Severity::Warning => Meaning::Fair,
        Severity::Info => Meaning::Work,
        Severity::Ok => Meaning::Good,
    }
}

/// Adds one finding with its evidence and remedies, in full or in short.
pub(crate) fn one(text: &mut Styled, finding: &Finding, in_full: bool) {
    head(text, finding);
    evidence(text, &finding.evidence, in_full);
    for remedy in &finding.remedies {
        crate::views::check::remedy(text, finding, remedy, in_full);
    }
}

/// Adds only what is worth knowing: the finding, and its remedy if netsilo can write it.
fn brief(text: &mut Styled, finding: &Finding) {
    head(text, finding);
    if let Some(remedy) = finding.writable() {
        text.push(Meaning::Title, format_args!("  do: {}\n", remedy.what));
        caveats(text, remedy);
        fix(text, finding, remedy);
    }
}

fn head(text: &mut Styled, finding: &Finding) {
    let Finding { id, severity, subject, title, .. } = finding;
    text.push(meaning(*severity), severity.as_str());
    let _ = write!(text, ": ");
    text.push(Meaning::Title, format_args!("{subject}: {title}"));
    text.push(Meaning::Quiet, format_args!(" [{id}]\n"));
}

/// Evidence as quantity, measure with source, and the number of queues that it is equal for.
pub(crate) fn equal_evidence(all: &[Evidence]) -> Vec<(String, (String, String), usize)> {
    let value = |it: &Evidence| (measure(&it.measure), it.source.clone());
    folded(all.iter().map(|it| (it.quantity.as_str(), value(it))))
}

/// Adds a line for each piece of evidence. Equal evidence of several queues has one line. In full,
/// the line includes the source.
pub(crate) fn evidence(text: &mut Styled, all: &[Evidence], in_full: bool) {
    let all = equal_evidence(all);
    let shown = if all.len() > EVIDENCE_SHOWN + 1 && !in_full { EVIDENCE_SHOWN } else { all.len() };
    let (shown, rest) = all.split_at(shown);
    let width = shown.iter().map(|it| it.0.chars().count()).max().unwrap_or(0);
    let (mut lines, mut rows) = (Styled::default(), Vec::new());
    for (quantity, (measure, source), queues) in shown {
        let mut value = Styled::from(match queues {
            1 => measure.clone(),
            queues => format!("{queues} queues, {measure} each"),
        });
        if in_full {
            value.push(Meaning::Quiet, format_args!(" ({source})"));
        }
        let _ = write!(lines, "  {quantity:width$}  ");
        lines.append(&value);
        let _ = writeln!(lines);
        rows.push(vec![quantity.clone().into(), value]);
    }
    text.append(&lines.of_table(Table { rows, ..Table::default() }));
    if !rest.is_empty() {
        text.push(Meaning::Quiet, format_args!("  {} more lines: -v\n", rest.len()));
    }
}

fn remedy(text: &mut Styled, finding: &Finding, remedy: &Remedy, in_full: bool) {
    text.push(Meaning::Title, format_args!("  do: {}\n", remedy.what));
    let _ = match &remedy.gain {
        Gain::AtMost { measure, of, basis } => {
            let basis = if in_full { format!(": {basis}") } else { String::new() };
            // Rounded down, it would be less than its parts.
            let most = match measure {
                Measure::Share(share) if *share < 0.0995 => format!("{:.1}%", share * 100.0),
                _ => crate::views::check::measure(measure),
            };
            writeln!(text, "      gains at most {most} of {of}{basis}")
        }
        Gain::Forecast { load_that_fits, limit } => {
            writeln!(text, "      {}", forecast_in_words(*load_that_fits, limit))
        }
        Gain::Unknown(why) => writeln!(text, "      gain not known: {why}"),
        Gain::Nothing(why) => writeln!(text, "      gains nothing: {why}"),
    };
    caveats(text, remedy);
    if finding.writable().is_some_and(|writable| std::ptr::eq(writable, remedy)) {
        fix(text, finding, remedy);
    }
}

/// What a remedy costs, and when it does not help.
fn caveats(text: &mut Styled, remedy: &Remedy) {
    if let Some(cost) = &remedy.cost {
        let _ = writeln!(text, "      costs: {cost}");
    }
    if let Some(not_when) = &remedy.not_when {
        let _ = writeln!(text, "      not when {not_when}");
    }
}

/// The command that shows the plan of a remedy.
fn fix(text: &mut Styled, finding: &Finding, remedy: &Remedy) {
    let stops = if remedy.interrupts_traffic { "; stops traffic for a moment" } else { "" };
    let settings = plural(remedy.changes.len(), "setting");
    let request = shell_word(&FixRequest::of(finding).to_string());
    text.push(Meaning::Work, format_args!("      netsilo plan --fix {request}"));
    let _ = writeln!(text, " ({settings}{stops})");
}

/// A quantity with its unit.
pub(crate) fn measure(measure: &Measure) -> String {
    match measure {
        Measure::Share(share) => units::percent(*share),
        Measure::PerSecond(rate) => format!("{}/s", units::count(*rate)),
        Measure::Count(count) => count.to_string(),
        Measure::Nanoseconds(time) => units::nanoseconds(*time),
        Measure::Bytes(bytes) => units::bytes(*bytes),
        Measure::BytesPerSecond(rate) => units::bytes_per_s(*rate),
        Measure::Text(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::dropped::DropRow;
    use netsilo_decide::judge::evidence::Evidence;
    use netsilo_decide::judge::ledger::{Ledger, LossCounter, StageLosses};
    use netsilo_decide::judge::namespaces::NamespaceLine;
    use netsilo_model::change::{Change, knobs};
    use netsilo_model::derive::coverage::{OTHER_NAMESPACES, StageCoverage};
    use netsilo_model::derive::drop_class::DropClass;
    use netsilo_model::drivers::loss_stage::LossStage;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::netdev::NetdevIdentity;

    use super::*;

    #[test]
    fn equal_evidence_of_many_queues_has_one_line() {
        let polled = |queue| {
            Evidence::new(format!("eth0 rx-{queue} polled here"), Measure::Share(0.01), "NET_RX")
        };
        let idle = [Evidence::new("idle", Measure::Share(0.2), "/proc/stat")];
        let all: Vec<_> = (0..60).map(polled).chain(idle).collect();
        let mut text = Styled::default();
        evidence(&mut text, &all, true);
        assert_eq!(
            text.as_str(),
            "  eth0 rx-0-59 polled here  60 queues, 1% each (NET_RX)\n  \
             idle                      20% (/proc/stat)\n"
        );
    }

    fn check_of(subjects: Vec<Subject>) -> Check {
        let finding = |subject: Subject| Finding {
            id: FindingId::QueuesShareCore,
            severity: Severity::Warning,
            title: format!("2 busy queues are polled on the core of {subject}"),
            subject,
            evidence: vec![Evidence::new("idle cores", Measure::Count(9), "/proc/stat")],
            remedies: vec![Remedy {
                what: "spread the queues".into(),
                gain: Gain::Unknown("not measured".into()),
                cost: None,
                not_when: None,
                changes: Vec::new(),
                interrupts_traffic: false,
            }],
        };
        Check {
            hostname: "host".into(),
            release: "6.12".into(),
            interval: std::time::Duration::from_secs(1),
            findings: subjects.into_iter().map(finding).collect(),
            ledger: Ledger::default(),
            verdicts: Vec::new(),
            distances: String::new(),
        }
    }

    fn remedy_of(what: &str, gain: Gain) -> Remedy {
        let (cost, not_when, changes) = (None, None, Vec::new());
        Remedy { what: what.into(), gain, cost, not_when, changes, interrupts_traffic: false }
    }

    /// A finding with each kind of measure, gain and caveat, and a ledger with a stage that loses
    /// packets.
    fn of_every_kind() -> Check {
        let mut check = check_of(vec![Subject::Netdev("eth0".into()), Subject::Cpu(CpuId(3))]);
        let measures = [
            ("busy", Measure::Share(0.25)),
            ("wakeups", Measure::PerSecond(1200.0)),
            ("queues", Measure::Count(4)),
            ("longest poll", Measure::Nanoseconds(1_500_000.0)),
            ("buffer", Measure::Bytes(65_536)),
            ("read", Measure::BytesPerSecond(2_000_000.0)),
            ("offload", Measure::Text("off".into())),
        ];
        let evidence = measures.map(|(what, measure)| Evidence::new(what, measure, "/proc/stat"));
        check.findings[0].evidence = evidence.into();
        check.findings[0].severity = Severity::Critical;
        let share = |share| Gain::AtMost {
            measure: Measure::Share(share),
            of: "cpu3's time".into(),
            basis: "all its polling".into(),
        };
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let lro = knobs::Offload { netdev, feature: "rx-lro".into() };
        let change = Change::new(lro, true, false, "it forwards");
        check.findings[0].remedies = vec![
            Remedy {
                cost: Some("more wakeups".into()),
                not_when: Some("it is idle".into()),
                changes: vec![change],
                interrupts_traffic: true,
                ..remedy_of("turn LRO off", share(0.0312))
            },
            remedy_of("read on more cpus", share(0.25)),
            remedy_of("wait", Gain::Nothing("it is over".into())),
            remedy_of("buy memory", Gain::Unknown("not measured".into())),
        ];
        let counter = |counter: &str, count, since_boot| LossCounter {
            subject: Subject::Netdev("eth0".into()),
            netns: None,
            counter: counter.into(),
            count: Some(count),
            since_boot,
            aside: None,
            source: "ethtool".into(),
        };
        let lines = vec![counter("rx_missed", 0, 9), counter("rx_dropped", 30, 40)];
        let (stage, count, per_s, since_boot) = (LossStage::Nic, 30, 30.0, 49);
        let not_counted = |stage: &str, why: Option<&str>| StageCoverage {
            stage: stage.into(),
            name: stage.into(),
            not_counted: why.map(str::to_owned),
        };
        let drop = |class, reason: &str, function: &str, port, per_s| DropRow {
            class,
            reason: reason.into(),
            function: function.into(),
            netdev: "eth0".into(),
            stage: (class == DropClass::Lost).then_some(LossStage::Socket),
            netns: (class == DropClass::Decided).then_some(4026532301),
            namespace: (class == DropClass::Decided).then(|| "blue".into()),
            protocol: "udp".into(),
            port,
            cgroup: (class == DropClass::Decided).then(|| "/system.slice/dns.service".into()),
            sent: port.is_none(),
            packets: per_s as u64 * 5,
            per_s,
        };
        let namespace = |inode, name: &str, not_counted| NamespaceLine {
            inode,
            name: name.into(),
            mount: Some(format!("/run/netns/{name}")),
            processes: 3,
            lost: 12,
            not_counted,
            ..NamespaceLine::default()
        };
        let dropped = vec![
            drop(DropClass::Lost, "QDISC_DROP", "__dev_queue_xmit", None, 300.0),
            drop(DropClass::Decided, "NETFILTER_DROP", "nf_hook_slow", Some(53), 20.0),
            drop(DropClass::NotForUs, "NO_SOCKET", "udp4_lib_rcv", Some(9), 1.0),
            drop(DropClass::NoLoss, "", "unix_release_sock", None, 4.0),
        ];
        check.ledger = Ledger {
            balance: None,
            dropped: Some(dropped),
            stages: vec![StageLosses {
                stage,
                count,
                by_event: Some(0),
                elsewhere: 0,
                per_s,
                since_boot,
                lines,
            }],
            coverage: vec![
                not_counted("NIC", None),
                not_counted("wire", Some("it was not read")),
                StageCoverage {
                    name: "1 of 2 other network namespaces".into(),
                    ..not_counted(OTHER_NAMESPACES, Some("EPERM"))
                },
            ],
            namespaces: Some(vec![
                namespace(4026532301, "blue", None),
                namespace(4026532302, "shop/web-1", Some("EPERM".into())),
            ]),
            next: Some("eth0: see netsilo explain nic-drops".into()),
        };
        check
    }

    #[test]
    fn every_kind_of_measure_gain_and_loss_is_printed_in_short_and_in_full() {
        let check = of_every_kind();
        insta::assert_snapshot!("in-short", render(&check, false).with_meanings());
        insta::assert_snapshot!("in-full", render(&check, true));
    }

    #[test]
    fn alike_findings_are_printed_once_with_all_their_subjects() {
        let cpus = |count: u32| (0..count).map(|cpu| Subject::Cpu(CpuId(cpu * 2))).collect();
        let text = render(&check_of(cpus(128)), false).to_string();
        assert_eq!(text.matches("[queues-share-core]").count(), 1, "{text}");
        assert!(text.contains("128 warning\n"), "{text}");
        assert!(text.contains("the same is true of 127 others: cpus 2,4,6,"), "{text}");
        assert!(text.lines().count() < 12, "{text}");
        let few = render(&check_of(cpus(3)), false).to_string();
        assert_eq!(few.matches("[queues-share-core]").count(), 1, "{few}");
        assert!(few.contains("  and 2 others:\n    cpu2: 2 busy queues"), "{few}");
        let each = render(&check_of(cpus(3)), true).to_string();
        assert_eq!(each.matches("[queues-share-core]").count(), 3, "{each}");
        let mut differ = check_of(cpus(128));
        differ.findings[5].remedies[0].what = "something else".into();
        let text = render(&differ, false).to_string();
        assert!(text.contains("  and 127 others:\n    cpu2: ") && text.contains("119 more: -v"));
        let queues = (0..30).map(|queue| Subject::Queue("eth0".into(), queue)).collect();
        let text = render(&check_of(queues), false).to_string();
        assert!(text.contains("of 29 others: eth0 rx-1-29\n"), "{text}");
    }

    #[test]
    fn checks_that_passed_are_one_line_unless_asked_for() {
        let mut check = check_of(vec![Subject::Cpu(CpuId(0)), Subject::Cpu(CpuId(1))]);
        check.findings[1].severity = Severity::Ok;
        let text = render(&check, false).with_meanings();
        assert_eq!(text.matches("[queues-share-core]").count(), 1, "{text}");
        assert!(text.contains("<Good \n1 check passed: -v\n>"), "{text}");
        assert!(text.contains("\n<Fair warning>: <Title cpu0: 2 busy queues"), "{text}");
        assert!(text.contains("<Title   do: spread the queues\n>"), "{text}");
        let all = render(&check, true).to_string();
        assert!(all.contains("ok: cpu1: ") && !all.contains("passed"), "{all}");
    }
}
