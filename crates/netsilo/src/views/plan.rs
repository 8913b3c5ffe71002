//! A plan as text: what `apply` will write, why, and what it leaves unchanged.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use netsilo_decide::place::parts::Parts;
use netsilo_decide::plan::measured_outcome::MeasuredBasis;
use netsilo_decide::plan::{Choice, Plan};
use netsilo_model::change::{Change, Interruption, Target};

use crate::tell::palette::Meaning;
use crate::tell::styled::{Styled, Table};
use crate::tell::words::{grouped, plural};
use crate::views::units::count;

/// Renders a whole plan.
pub(crate) fn render(plan: &Plan) -> Styled {
    let mut text = match plan.changes.len() {
        0 if plan.refusals.is_empty() => Styled::new(Meaning::Good, "nothing to do"),
        0 => Styled::new(Meaning::Bad, "nothing can be done"),
        count => Styled::new(Meaning::Title, plural(count, "change")),
    };
    let _ = writeln!(text);
    if let Some(measured) = &plan.measured {
        let _ = writeln!(text, "{}; --no-outcomes plans by the cost model", basis(measured));
    }
    let knobs: Vec<Styled> = plan.changes.iter().map(knob).collect();
    let width = knobs.iter().map(Styled::width).max().unwrap_or(0);
    let mut reasons = BTreeSet::new();
    let (mut lines, mut rows) = (Styled::default(), Vec::new());
    for (change, knob) in plan.changes.iter().zip(knobs) {
        let _ = write!(lines, "  ");
        lines.append(&knob);
        let reason = once(&change.reason, &mut reasons).into_owned();
        let _ = writeln!(lines, "{:1$}  {reason}", "", width - knob.width());
        rows.push(vec![knob, reason.into()]);
    }
    text.append(&lines.of_table(Table { rows, ..Table::default() }));
    for line in interruptions(plan) {
        text.push(Meaning::Fair, line);
        let _ = writeln!(text);
    }
    let unchanged = plan.all_unchanged().map(|it| (it.subject.as_str(), it.reason.as_str()));
    text.append(&section(Styled::new(Meaning::Quiet, "left alone"), unchanged));
    let refused = plan.refusals.iter().map(|it| (it.subject.as_str(), it.reason.as_str()));
    text.append(&section(Styled::new(Meaning::Bad, "refused"), refused));
    let advice = plan.advice.iter().map(|it| (it.subject.as_str(), it.text.as_str()));
    text.append(&section(Styled::new(Meaning::Title, "advice"), advice));
    if let Some(predicted) =
        plan.predicted.as_ref().filter(|_| plan.placements.iter().any(|it| it.moves))
    {
        let waits = |all: u64, cpu: u64| share(all.saturating_sub(cpu));
        let before = waits(predicted.before_ns_per_s, predicted.before_cpu_ns_per_s);
        let after = waits(predicted.after_ns_per_s, predicted.after_cpu_ns_per_s);
        let waits = if [before.as_str(), after.as_str()] == ["0.0%"; 2] {
            String::new()
        } else {
            format!(", work waits {before} -> {after}")
        };
        let _ = writeln!(
            text,
            "expected: {} -> {} of a cpu for wakeups and cache lines{waits}; {}",
            share(predicted.before_cpu_ns_per_s),
            share(predicted.after_cpu_ns_per_s),
            predicted.distances
        );
    }
    if let Some(choice) = &plan.choice {
        let _ = writeln!(text, "{}", chosen(choice));
    }
    text
}

/// A reason where it is printed first, `eth0 rx-3: the same` where only its queue differs.
fn once<'a>(reason: &'a str, printed: &mut BTreeSet<&'a str>) -> Cow<'a, str> {
    let (queue, why) = match reason.split_once(": ") {
        Some((queue, why)) if queue.contains(" rx-") || queue.contains(" napi ") => (queue, why),
        _ => ("", reason),
    };
    match (printed.insert(why), queue) {
        (true, _) => Cow::Borrowed(reason),
        (false, "") => Cow::Borrowed("the same"),
        (false, queue) => Cow::Owned(format!("{queue}: the same")),
    }
}

/// Whose placement it is, and why not that of the runner-up.
fn chosen(Choice { chosen, runner_up }: &Choice) -> String {
    let mut text =
        format!("placement: {}, this load fits x{}", chosen.proposer, count(chosen.fits));
    if let Some(next) = runner_up {
        let _ = write!(text, "; next best: {}, x{}", next.proposer, count(next.fits));
        if next.fits > chosen.fits {
            text.push_str(", not enough more to be chosen");
        }
    }
    text
}

/// The measured outcome that a plan is based on, in one clause.
pub(crate) fn basis(measured: &MeasuredBasis) -> String {
    let MeasuredBasis { outcome, windows, load, .. } = measured;
    let load = if load.is_empty() { String::new() } else { format!(" of {}", load.join(" ")) };
    let windows = plural(*windows, "window");
    format!("by outcome {outcome}, {}, {windows}{load}", measured.in_words())
}

/// Renders the cost of each queue on its new CPU, and on the CPUs that were not chosen.
pub(crate) fn alternatives(plan: &Plan) -> String {
    let mut text = String::new();
    for placement in plan.placements.iter().filter(|it| !it.is_of_completions()) {
        let _ = writeln!(
            text,
            "{} on cpu {}: {}",
            placement.label,
            placement.cpus,
            parts(&placement.cost)
        );
        for other in &placement.alternatives {
            let distance =
                other.distance.map_or(String::new(), |distance| format!(" ({})", distance.label()));
            let _ =
                writeln!(text, "  not on cpu {}{distance}: {}", other.cpu.0, parts(&other.cost));
        }
    }
    text
}

/// The parts of a cost that are not zero, the largest first.
fn parts(cost: &Parts) -> String {
    let mut parts = [
        ("wakeups", cost.wakeups),
        ("cache lines", cost.lines),
        ("lines from the device's node", cost.device),
        ("slow core", cost.slow),
        ("forwarding", cost.handing),
        ("others wait", cost.waiting),
        ("crowding", cost.crowding),
    ];
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let told: Vec<String> = parts
        .iter()
        .filter(|(_, ns)| *ns >= LEAST)
        .map(|(name, ns)| format!("{name} {:.2}%", ns / 1e7))
        .collect();
    if told.is_empty() {
        "nothing".to_owned()
    } else {
        format!("{:.2}% of a cpu: {}", cost.total() / 1e7, told.join(", "))
    }
}

/// Smaller parts (ns/s) are not printed.
const LEAST: f64 = 5e4;

fn share(ns_per_s: u64) -> String {
    format!("{:.1}%", ns_per_s as f64 / 1e7)
}

/// A change as text: `irq 27 (virtio0-input.1): 0 -> 6`.
fn knob(change: &Change) -> Styled {
    let (old, new) = change.from_to();
    let mut text = Styled::from(format!("{}: {old} -> ", change.target));
    text.push(Meaning::Work, new);
    text
}

/// Lists, a line each, the changes that interrupt traffic while a plan is applied.
pub(crate) fn interruptions(plan: &Plan) -> Vec<String> {
    let of = |kind: Interruption| {
        let these =
            plan.changes.iter().filter(|change| change.target.interrupts_traffic() == Some(kind));
        these.map(|change| change.target.to_string()).collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    let channels = plan.changes.iter().any(|change| matches!(change.target, Target::Channels(_)));
    let masks_reset =
        if channels { "; interrupts, RPS and XPS masks of the queues are reset" } else { "" };
    for (kind, word, why) in [
        (
            Interruption::Always,
            "interrupts traffic",
            format!(
                "the driver reinitializes its queues: packets in them are lost, and the link may \
                 be down for seconds{masks_reset}"
            ),
        ),
        (
            Interruption::Sometimes,
            "may interrupt traffic",
            "some drivers reinitialize themselves".to_owned(),
        ),
    ] {
        let these = of(kind);
        if !these.is_empty() {
            lines.push(format!("{word}: {these} ({why})"));
        }
    }
    lines
}

/// A titled section of subjects with reasons; empty if there are none. Subjects with the same
/// reason share a line.
pub(crate) fn section<'a>(title: Styled, rows: impl Iterator<Item = (&'a str, &'a str)>) -> Styled {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for (subject, reason) in rows {
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, subjects)) => subjects.push(subject),
            None => by_reason.push((reason, vec![subject])),
        }
    }
    if by_reason.is_empty() {
        return Styled::default();
    }
    let mut text = title;
    let _ = writeln!(text);
    for (reason, subjects) in by_reason {
        let _ = writeln!(text, "  {}: {reason}", grouped(&subjects).join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use netsilo_decide::place::AlgorithmName;
    use netsilo_decide::plan::measured_outcome::BestCandidate;
    use netsilo_decide::plan::{
        Advice, Placement, PlacementCost, Rated, Refusal, RefusalCause, Unchanged,
    };

    use netsilo_model::change::knobs;

    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::netdev::NetdevIdentity;
    use netsilo_model::snapshot::subject::Subject;
    use netsilo_trial::stats::Estimate;

    use super::*;

    #[test]
    fn changes_that_interrupt_traffic_are_announced() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let settings = |text: &str| text.parse().unwrap();
        let channels = knobs::Channels { netdev: netdev() };
        let lro = knobs::Offload { netdev: netdev(), feature: "rx-lro".into() };
        let changes = vec![
            Change::new(
                channels,
                settings("combined=2 other=1"),
                settings("combined=8 other=1"),
                "8 cpus share the work",
            ),
            Change::new(lro, true, false, "it forwards"),
        ];
        let lines: Vec<String> = render(&Plan { changes, ..Plan::default() })
            .as_str()
            .lines()
            .map(str::to_owned)
            .collect();
        assert_eq!(
            lines,
            [
                "2 changes",
                "  eth0 channels: combined=2 -> combined=8  8 cpus share the work",
                "  eth0 rx-lro: on -> off                   it forwards",
                "interrupts traffic: eth0 channels (the driver reinitializes its queues: packets \
                 in them are lost, and the link may be down for seconds; interrupts, RPS and XPS \
                 masks of the queues are reset)",
                "may interrupt traffic: eth0 rx-lro (some drivers reinitialize themselves)",
            ]
        );
    }

    #[test]
    fn a_plan_that_rests_on_an_outcome_says_so_with_its_age_and_interval() {
        let change = Estimate { value: -0.12, low: -0.18, high: -0.06 };
        let best = BestCandidate { name: "auto".into(), change: Some(change), relative: true };
        let mut measured = MeasuredBasis {
            outcome: "20260102T030405Z".into(),
            age_s: 3 * 3600 + 7,
            objective: "cpu-per-megabyte".into(),
            load: vec![],
            windows: 120,
            won: true,
            best: best.clone(),
        };
        let text = |measured: &MeasuredBasis| {
            render(&Plan { measured: Some(measured.clone()), ..Plan::default() }).to_string()
        };
        assert_eq!(
            text(&measured),
            "nothing to do\n\
             by outcome 20260102T030405Z, measured 3 h ago by tune: cpu-per-megabyte -12.0% \
             (-18.0% .. -6.0%), 120 windows; --no-outcomes plans by the cost model\n"
        );
        measured.won = false;
        measured.best = BestCandidate { change: None, ..best };
        let none = text(&measured);
        let words = "no candidate was better; the best, auto: cpu-per-megabyte no interval, as it";
        assert!(none.contains(words), "{none}");
    }

    #[test]
    fn a_placement_is_named_with_the_runner_up_and_why_it_was_not_chosen() {
        let rated = |proposer: &str, fits| Rated { proposer: proposer.into(), fits };
        let text = |next| chosen(&Choice { chosen: rated("auto", 1.2), runner_up: next });
        assert_eq!(text(None), "placement: auto, this load fits x1.20");
        assert_eq!(
            text(Some(rated("spread", 1.1))),
            "placement: auto, this load fits x1.20; next best: spread, x1.10"
        );
        assert_eq!(
            text(Some(rated("as it is", 1.3))),
            "placement: auto, this load fits x1.20; next best: as it is, x1.30, not enough more to \
             be chosen"
        );
    }

    #[test]
    fn advice_and_what_a_plan_is_expected_to_cost_are_printed() {
        let placement = Placement {
            label: Subject::Queue("eth0".into(), 0),
            netdev: NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None },
            irq: Some(Irq(30)),
            action: "eth0-rx-0".into(),
            cpus: CpuSet::first(1),
            algorithm: AlgorithmName::Auto,
            basis: String::new(),
            moves: true,
            gain_ns_per_s: 0,
            cost: Parts::default(),
            alternatives: Vec::new(),
        };
        let predicted = PlacementCost {
            before_ns_per_s: 293_000_000,
            after_ns_per_s: 182_000_000,
            before_cpu_ns_per_s: 29_000_000,
            after_cpu_ns_per_s: 32_000_000,
            distances: "default costs (see netsilo calibrate)".into(),
        };
        let advice =
            Advice { subject: "eth0".into(), text: "give it 4 queues".into(), needs_rfs: false };
        let plan = Plan {
            placements: vec![placement],
            predicted: Some(predicted),
            advice: vec![advice],
            ..Plan::default()
        };
        insta::assert_snapshot!(render(&plan), @"
        nothing to do
        advice
          eth0: give it 4 queues
        expected: 2.9% -> 3.2% of a cpu for wakeups and cache lines, work waits 26.4% -> 15.0%; default costs (see netsilo calibrate)
        ");
    }

    #[test]
    fn a_reason_is_printed_once() {
        let mut printed = BTreeSet::new();
        let reasons = ["eth0 rx-0: a: b", "eth0 rx-1: a: b", "c: d", "c: d"];
        let all = reasons.map(|reason| once(reason, &mut printed));
        assert_eq!(all, ["eth0 rx-0: a: b", "eth0 rx-1: the same", "c: d", "the same"]);
    }

    #[test]
    fn every_change_shows_old_new_and_why() {
        let cpus = |list| CpuSet::parse_list(list).unwrap();
        let knob =
            knobs::IrqAffinity { irq: Irq(27), action: "virtio0-input.1".into(), netdev: None };
        let quiet = |queue| Unchanged {
            subject: format!("eth0 rx-{queue}"),
            reason: "no traffic seen".into(),
        };
        let plan = Plan {
            changes: vec![Change::new(
                knob,
                cpus("0"),
                cpus("6"),
                "rx-1: its consumer runs on cpu 7",
            )],
            unchanged: vec![quiet(2), quiet(3)],
            refusals: vec![Refusal {
                subject: "irq 30 (nvme0q1)".into(),
                cause: RefusalCause::ManagedIrq,
                reason: "the kernel manages its affinity".into(),
            }],
            ..Plan::default()
        };
        insta::assert_snapshot!(render(&plan).with_meanings(), @"
        <Title 1 change>
          irq 27 (virtio0-input.1): 0 -> <Work 6>  rx-1: its consumer runs on cpu 7
        <Quiet left alone>
          eth0 rx-2-3: no traffic seen
        <Bad refused>
          irq 30 (nvme0q1): the kernel manages its affinity
        ");
    }
}
