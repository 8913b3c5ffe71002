//! The receive path as a drawing: stage by stage, what was lost there and why.

use std::collections::BTreeMap;

use maud::{Markup, html};
use netsilo_decide::judge::dropped::DropRow;
use netsilo_decide::judge::ledger::{Ledger, StageLosses};
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::drivers::loss_stage::LossStage;

use crate::report::text::shown;
use crate::views::units::{count, percent};

/// Width of the drawing in pixels at its natural size: that of a phone.
const WIDTH: usize = 344;
/// Where texts and bars begin.
const LEFT: usize = 32;
/// Height of a line.
const LINE: usize = 20;
/// Where the line of the path runs.
const PATH: usize = 12;

/// How many reasons a stage names.
const REASONS: usize = 3;

/// Most characters of a reason.
const LETTERS: usize = 36;

/// One stage of the path, or one class of packets that were dropped and not lost.
struct Step {
    name: &'static str,
    /// Its number of packets, or that they are not counted.
    value: String,
    /// The class in the style sheet.
    style: &'static str,
    /// Part of the bar.
    share: f64,
    reasons: Vec<String>,
}

/// The way from the wire to the readers. `arrive` and `read` are the rates at both ends.
pub(super) fn path(ledger: &Ledger, arrive: &str, read: &str) -> Markup {
    let stages: Vec<Step> = LossStage::ALL.into_iter().filter_map(|at| step(ledger, at)).collect();
    let others: Vec<Step> = OTHERS.into_iter().filter_map(|class| other(ledger, class)).collect();
    let ys = |first: usize, steps: &[Step]| -> Vec<usize> {
        let heights = steps.iter().scan(first, |y, step| {
            let at = *y;
            *y += height(step);
            Some(at)
        });
        heights.collect()
    };
    let end = LINE * 2 + stages.iter().map(height).sum::<usize>();
    let others_from = end + 2 * LINE + LINE / 2;
    let bottom = match others.as_slice() {
        [] => end + LINE / 2,
        others => others_from + others.iter().map(height).sum::<usize>(),
    };
    html! {
        @let view = format!("0 0 {WIDTH} {bottom}");
        svg.path role="img" viewBox=(view) aria-labelledby="path-title path-text" {
            title id="path-title" { "The way of a packet from the wire to its reader" }
            desc id="path-text" { (in_words(&stages, &others)) }
            path.way d={ "M" (PATH) " " (LINE) "V" (end - LINE / 2) "m-4 -5l4 5l4 -5" } {}
            text.head x=(0) y=(LINE - 6) { (arrive) }
            @for (step, y) in stages.iter().zip(ys(2 * LINE, &stages)) { (drawn(step, y, true)) }
            text.head x=(0) y=(end + 5) { (read) }
            @if !others.is_empty() {
                text.head x=(0) y=(others_from - LINE) { "dropped, and not counted as lost" }
                @for (step, y) in others.iter().zip(ys(others_from, &others)) {
                    (drawn(step, y, false))
                }
            }
        }
    }
}

const OTHERS: [DropClass; 4] =
    [DropClass::Unknown, DropClass::Decided, DropClass::NotForUs, DropClass::NoLoss];

fn height(step: &Step) -> usize {
    LINE + bar_height(step) + step.reasons.len() * 16
}

fn bar_height(step: &Step) -> usize {
    if step.share > 0.0 { 12 } else { 0 }
}

/// A stage; `None` for one that loses nothing and dropped nothing.
fn step(ledger: &Ledger, at: LossStage) -> Option<Step> {
    let losses = ledger.stage(at);
    let packets = losses.map_or(0, |losses| losses.count);
    if at == LossStage::Squeeze || !at.loses() && packets == 0 {
        return None;
    }
    let id = serde_json::to_value(at).unwrap_or_default();
    let is_counted = ledger.coverage.iter().any(|it| id == it.stage.as_str() && it.is_counted());
    let all = ledger.stages.iter().filter(|stage| stage.stage.loses());
    let share = packets as f64 / all.map(|stage| stage.count as f64).sum::<f64>();
    let (value, style) = match packets {
        0 if is_counted => ("0".to_owned(), "none"),
        0 => ("not counted".to_owned(), "unseen"),
        _ if at.loses() => (format!("{}, {}", amount(packets), percent(share)), "lost"),
        _ => (amount(packets), "meant"),
    };
    let share = if style == "lost" { share } else { 0.0 };
    let reasons = losses.filter(|_| packets > 0).map(|losses| reasons(ledger, losses));
    Some(Step { name: at.label(), value, style, share, reasons: reasons.unwrap_or_default() })
}

/// Why packets were lost at a stage: the kernel's reasons, else the counters.
fn reasons(ledger: &Ledger, losses: &StageLosses) -> Vec<String> {
    let rows = ledger.dropped.iter().flatten();
    let rows = rows.filter(|row| row.class == DropClass::Lost && row.stage == Some(losses.stage));
    let by_event = by_reason(rows);
    if !by_event.is_empty() {
        return by_event;
    }
    let counters = losses.lines.iter().filter(|it| it.aside.is_none() || !losses.stage.loses());
    most(counters.filter_map(|it| {
        let named = format!("{} {}", it.subject, it.counter);
        it.count.filter(|count| *count > 0).map(|count| (named, count))
    }))
}

fn amount(packets: u64) -> String {
    if packets < 10_000 { packets.to_string() } else { count(packets as f64) }
}

fn by_reason<'a>(rows: impl Iterator<Item = &'a DropRow>) -> Vec<String> {
    let name = |row: &DropRow| match (row.reason.as_str(), row.function.as_str()) {
        ("" | "NOT_SPECIFIED", "") => "no reason given".to_owned(),
        ("" | "NOT_SPECIFIED", function) => format!("in {function}"),
        (reason, _) => reason.to_owned(),
    };
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows {
        *sums.entry(name(row)).or_default() += row.packets;
    }
    most(sums.into_iter())
}

/// The largest ones.
fn most(counts: impl Iterator<Item = (String, u64)>) -> Vec<String> {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    let line = |(name, packets): &(String, u64)| {
        let name = shown(name);
        let cut = if name.chars().count() > LETTERS { "…" } else { "" };
        let name: String = name.chars().take(LETTERS).collect();
        format!("{name}{cut} {}", amount(*packets))
    };
    counts.iter().take(REASONS).map(line).collect()
}

/// Packets of a class that are not in the stages.
fn other(ledger: &Ledger, class: DropClass) -> Option<Step> {
    let rows = || ledger.dropped.iter().flatten().filter(|row| row.class == class);
    let packets: u64 = rows().map(|row| row.packets).sum();
    let style = if class == DropClass::Unknown { "lost" } else { "meant" };
    let value = amount(packets);
    let name = class.label();
    (packets > 0).then(|| Step { name, value, style, share: 0.0, reasons: by_reason(rows()) })
}

/// A step at this height. On the path it has a mark, and its bar leaves the path.
fn drawn(step: &Step, y: usize, on_path: bool) -> Markup {
    let bar = (step.share * (WIDTH - LEFT) as f64).round().max(2.0);
    let reasons = step.reasons.iter().enumerate();
    html! {
        g class=(step.style) {
            @if on_path { circle cx=(PATH) cy=(y - 4) r="4" {} }
            text x=(LEFT) y=(y) { (step.name) }
            text.value x=(WIDTH) y=(y) { (step.value) }
            @if on_path && step.share > 0.0 {
                path.leaves d={ "M" (PATH) " " (y - 4) "q0 12 12 12h" (LEFT - PATH - 12) } {}
                rect x=(LEFT) y=(y + 4) width=(bar) height="8" rx="1" {}
            }
            @for (at, reason) in reasons {
                text.reason x=(LEFT) y=(y + 15 + bar_height(step) + at * 16) { (reason) }
            }
        }
    }
}

/// The same as a text, for those who do not see the drawing.
fn in_words(stages: &[Step], others: &[Step]) -> String {
    let one = |step: &Step| match step.reasons.as_slice() {
        [] => format!("{}: {}", step.name, step.value),
        reasons => format!("{}: {} ({})", step.name, step.value, reasons.join(", ")),
    };
    let of = |style: &'static str| stages.iter().filter(move |step| step.style == style);
    let lost: Vec<String> = of("lost").map(one).collect();
    let others: Vec<String> = of("meant").chain(others).map(one).collect();
    let unseen: Vec<String> = of("unseen").map(|step| step.name.to_owned()).collect();
    let sentences = [
        ("Lost", lost),
        ("Dropped, and not counted as lost", others),
        ("Stages where nobody counted", unseen),
    ];
    let told = sentences.iter().filter(|(_, items)| !items.is_empty());
    let told = told.map(|(start, items)| format!("{start}: {}.", items.join("; ")));
    let none = sentences[0].1.is_empty().then(|| "No packet was counted as lost.".to_owned());
    none.into_iter().chain(told).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::coverage::StageCoverage;

    use super::*;

    fn row(class: DropClass, stage: Option<LossStage>, reason: &str, packets: u64) -> DropRow {
        DropRow {
            class,
            stage,
            reason: reason.into(),
            function: "skb_\u{202e}free".into(),
            netdev: "eth0".into(),
            netns: None,
            namespace: None,
            protocol: "udp".into(),
            port: Some(53),
            cgroup: None,
            sent: false,
            packets,
            per_s: 0.0,
        }
    }

    fn losses(stage: LossStage, packets: u64) -> StageLosses {
        StageLosses {
            stage,
            count: packets,
            by_event: Some(packets),
            elsewhere: 0,
            per_s: 0.0,
            since_boot: 0,
            lines: Vec::new(),
        }
    }

    /// Loses at two stages; a rule drops more.
    fn lossy() -> Ledger {
        let socket = Some(LossStage::Socket);
        let counted = |stage: &str| StageCoverage {
            stage: stage.into(),
            name: stage.into(),
            not_counted: None,
        };
        Ledger {
            balance: None,
            namespaces: None,
            stages: vec![losses(LossStage::Backlog, 10), losses(LossStage::Socket, 30)],
            coverage: vec![counted("ring"), counted("socket")],
            dropped: Some(vec![
                row(DropClass::Lost, socket, "SOCKET_RCVBUFF", 22),
                row(DropClass::Lost, socket, "<b>PROTO_MEM\u{1b}[2J", 5),
                row(DropClass::Lost, socket, &"LONG".repeat(99), 3),
                row(DropClass::Decided, None, "NETFILTER_DROP", 1000),
                row(DropClass::Unknown, Some(LossStage::Other), "", 2),
            ]),
            next: None,
        }
    }

    #[test]
    fn each_stage_shows_its_packets_share_and_reasons_also_as_a_text() {
        let page = path(&lossy(), "the wire", "the readers").into_string();
        let (_, words) = page.split_once("<desc id=\"path-text\">").unwrap();
        let words = words.split_once("</desc>").unwrap().0;
        let long = "LONG".repeat(9);
        let lost = format!(
            "Lost: backlog full: 10, 25%; socket buffer full: 30, 75% (SOCKET_RCVBUFF 22, \
             &lt;b&gt;PROTO_MEM\\u001b[2J 5, {long}… 3). Dropped, and not counted as lost: \
             not known: 2 (in skb_\\u202efree 2); decided: 1000 (NETFILTER_DROP 1000). \
             Stages where nobody counted: wire: damaged frames; NIC: buffer full; "
        );
        assert!(words.starts_with(&lost), "{words}\n{lost}");
        assert!(!words.contains("ring"), "it was counted: {words}");
        assert!(page.contains("<g class=\"lost\"") && page.contains("width=\"234\""), "{page}");
    }

    #[test]
    fn nothing_lost_is_said() {
        let page = path(&Ledger::default(), "the wire", "the readers").into_string();
        assert!(page.contains("No packet was counted as lost."), "{page}");
        assert!(!page.contains("class=\"lost\"") && !page.contains("rect"), "{page}");
    }
}
