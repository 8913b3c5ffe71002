//! What a case records: values, without sentences. Of a sentence it records only figures and the
//! names of readers, so that better wording changes no case.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netsilo_decide::judge::evidence::{Gain, Measure, Remedy};
use netsilo_decide::judge::findings::{Check, Finding};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::judge::ledger::Ledger;
use netsilo_decide::plan::{Placement, Plan};
use netsilo_model::change::{self, Change, Interruption};
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;
use serde_json::Value;

/// The names of the threads of a host.
pub(super) struct Names(BTreeSet<String>);

impl Names {
    pub(super) fn none() -> Self {
        Self(BTreeSet::new())
    }

    pub(super) fn of_threads(observation: &Observation) -> Self {
        let mut names = BTreeSet::new();
        collect_comms(&serde_json::to_value(observation).unwrap(), &mut names);
        Self(names)
    }

    /// The words of a sentence that contain a digit or are names, sorted, each once.
    pub(super) fn figures(&self, sentence: &str) -> String {
        let words = sentence.split(|c: char| c.is_whitespace() || "(),;:'".contains(c));
        let words = words.map(|word| {
            word.trim_end_matches('.').trim_matches(|c: char| !c.is_alphanumeric() && c != '%')
        });
        let is_figure =
            |word: &&str| word.contains(|c: char| c.is_ascii_digit()) || self.0.contains(*word);
        let figures: BTreeSet<&str> = words.filter(is_figure).collect();
        format!("[{}]", figures.into_iter().collect::<Vec<_>>().join(" "))
    }

    /// A sentence without its figures and names.
    pub(super) fn wording(&self, sentence: &str) -> String {
        let figures = self.figures(sentence);
        let figures: BTreeSet<&str> = figures.trim_matches(['[', ']']).split(' ').collect();
        let is_letter = |c: char| c.is_alphanumeric() || "%-./".contains(c);
        let mut words = String::new();
        let mut rest = sentence;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c: char| is_letter(c) != is_letter(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            words += if figures.contains(word) { "#" } else { word };
            rest = after;
        }
        words
    }
}

fn collect_comms(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            names.extend(fields.get("comm").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| collect_comms(field, names));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_comms(value, names)),
        _ => {}
    }
}

/// A name or number as in JSON, without quotes.
fn key(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap().replace('"', "")
}

/// What a plan writes and refuses, and where it places queues.
pub(super) fn plan(plan: &Plan, names: &Names) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = writeln!(text, "{title}\n  {}", lines.join("\n  "));
        }
    };
    section("changes", plan.changes.iter().map(|it| change(it, names)).collect());
    section("placements", plan.placements.iter().map(|it| placement(it, names)).collect());
    let unchanged = plan.all_unchanged();
    section(
        "unchanged",
        unchanged.map(|it| format!("{} {}", it.subject, names.figures(&it.reason))).collect(),
    );
    let refused = plan.refusals.iter();
    let refused = refused
        .map(|it| format!("{}: {} {}", it.subject, key(&it.cause), names.figures(&it.reason)));
    section("refused", refused.collect());
    let advice = plan.advice.iter();
    section(
        "advice",
        advice.map(|it| format!("{} {}", it.subject, names.figures(&it.text))).collect(),
    );
    if let Some(it) = &plan.predicted {
        let _ = writeln!(
            text,
            "predicted ns/s: {} -> {}, of the cpus {} -> {}",
            it.before_ns_per_s, it.after_ns_per_s, it.before_cpu_ns_per_s, it.after_cpu_ns_per_s
        );
    }
    if text.is_empty() { "nothing\n".into() } else { text }
}

fn change(change: &Change, names: &Names) -> String {
    let (old, new) = change.from_to();
    let figures = names.figures(&change.reason);
    let interrupts = match change.target.interrupts_traffic() {
        None => "",
        Some(Interruption::Sometimes) => " sometimes interrupts traffic",
        Some(Interruption::Always) => " always interrupts traffic",
    };
    let mut text = format!("{}: {old} -> {new}{interrupts} {figures}", change.target);
    if let change::Value::Table(table) = &change.new {
        // Its words contain only how many buckets each queue has.
        let _ = write!(text, "\n    table {}", key(table));
    }
    text
}

fn placement(it: &Placement, names: &Names) -> String {
    let moves = if it.moves { "moves" } else { "stays" };
    let mut text = format!(
        "{} {moves} on {}: {}, gain {} ns/s, cost {:.0} {}",
        it.label,
        it.cpus,
        key(&it.algorithm),
        it.gain_ns_per_s,
        it.cost.total(),
        names.figures(&it.basis)
    );
    for other in &it.alternatives {
        let distance = key(&other.distance);
        let _ = write!(text, "\n    not {} ({distance}): {:.0}", other.cpu.0, other.cost.total());
    }
    text
}

/// The findings of a check and its ledger of loss.
pub(super) fn check(check: &Check, names: &Names) -> String {
    let mut text = String::new();
    for finding in &check.findings {
        add_finding(&mut text, finding, names);
    }
    add_ledger(&mut text, &check.ledger, names);
    text
}

fn add_finding(text: &mut String, finding: &Finding, names: &Names) {
    let Finding { id, severity, subject, title, .. } = finding;
    let _ = writeln!(text, "{id} {}: {subject} {}", severity.as_str(), names.figures(title));
    for it in &finding.evidence {
        let measured = measure(&it.measure);
        let _ = writeln!(text, "  {measured} ({}) {}", it.source, names.figures(&it.quantity));
    }
    for it in &finding.remedies {
        add_remedy(text, it, names);
    }
    if finding.writable().is_some() {
        let _ = writeln!(text, "  plan --fix {}", FixRequest::of(finding));
    }
}

/// A measure with all its digits.
fn measure(measure: &Measure) -> String {
    match measure {
        Measure::Share(share) => format!("share {share}"),
        Measure::PerSecond(rate) => format!("{rate}/s"),
        Measure::Count(count) => format!("{count}"),
        Measure::Nanoseconds(time) => format!("{time} ns"),
        Measure::Bytes(bytes) => format!("{bytes} bytes"),
        Measure::BytesPerSecond(rate) => format!("{rate} bytes/s"),
        Measure::Text(text) => format!("{text:?}"),
    }
}

fn add_remedy(text: &mut String, remedy: &Remedy, names: &Names) {
    let gain = match &remedy.gain {
        Gain::AtMost { measure: most, of, basis } => {
            let (of, basis) = (names.figures(of), names.figures(basis));
            format!("at most {} of {of} {basis}", measure(most))
        }
        Gain::Forecast { load_that_fits: gain, limit } => format!(
            "forecast {:.3} ({:.3} to {:.3}), then {limit}",
            gain.value, gain.low, gain.high
        ),
        Gain::Unknown(why) => format!("unknown {}", names.figures(why)),
        Gain::Nothing(why) => format!("nothing {}", names.figures(why)),
    };
    let caveat = |title: &str, it: &Option<String>| {
        it.as_ref().map_or(String::new(), |it| format!(", {title} {}", names.figures(it)))
    };
    let _ = writeln!(
        text,
        "  remedy {}: gain {gain}{}{}{}",
        names.figures(&remedy.what),
        caveat("cost", &remedy.cost),
        caveat("not when", &remedy.not_when),
        if remedy.interrupts_traffic { ", interrupts traffic" } else { "" }
    );
    for it in &remedy.changes {
        let _ = writeln!(text, "    {}", change(it, names));
    }
}

fn add_ledger(text: &mut String, ledger: &Ledger, names: &Names) {
    for stage in &ledger.stages {
        let (at, count, per_s) = (key(&stage.stage), stage.count, stage.per_s);
        let _ = writeln!(text, "{at}: {count} lost, {per_s}/s, {} since boot", stage.since_boot);
        for line in &stage.lines {
            let aside = line.aside.as_ref().map_or("", |_| ", no loss of its own");
            let (subject, counter, count) = (&line.subject, &line.counter, key(&line.count));
            let _ = writeln!(text, "  {subject} {counter}: {count} of {}{aside}", line.since_boot);
        }
    }
    let counted = ledger.coverage.iter().filter(|it| it.is_counted());
    let counted: Vec<&str> = counted.map(|it| it.stage.as_str()).collect();
    let _ = writeln!(text, "counted: {} of {}", counted.join(" "), ledger.coverage.len());
    if let Some(next) = &ledger.next {
        let _ = writeln!(text, "next {}", names.figures(next));
    }
}

#[test]
fn of_a_sentence_only_figures_and_names_are_recorded() {
    let names = Names(["redis".to_owned()].into());
    let sentence = "redis reads eth0 rx-1 on cpu 2 (20% busy), cpu 2 is idle 5.7% of the time.";
    assert_eq!(names.figures(sentence), "[2 20% 5.7% eth0 redis rx-1]");
    let wording = "# reads # # on cpu # (# busy), cpu # is idle # of the time.";
    assert_eq!(names.wording(sentence), wording);
}
