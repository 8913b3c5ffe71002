//! The ledger of loss as text: packets lost by stage, what the kernel dropped, and where nobody
//! counted.

use std::fmt::Write as _;

use netsilo_decide::judge::balance::{Balance, Balanced};
use netsilo_decide::judge::dropped::DropRow;
use netsilo_decide::judge::ledger::{Ledger, LossCounter, StageLosses};
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::drivers::loss_stage::LossStage;

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::namespaces;
use crate::views::table::whole;
use crate::views::units;

/// Number of counters of a loss stage that are named.
const COUNTERS_NAMED: usize = 3;

/// How many stages without counters are named.
const STAGES_NAMED: usize = 3;

/// How many places where packets were dropped are shown.
const DROPS_NAMED: usize = 8;

/// From here on, dropped packets per second that were not for this machine are shown.
const MANY_PER_S: f64 = 10.0;

/// Packet loss by stage. Stages that lost nothing since boot have no line. With `all`, also packets
/// that were only late, and why stages are not counted.
pub(crate) fn render(ledger: &Ledger, all: bool) -> Styled {
    let is_told = |stage: &&StageLosses| all || stage.stage != LossStage::Squeeze;
    let lost = |stage: &&StageLosses| stage.since_boot > 0 || stage.count > 0;
    let stages = ledger.stages.iter().filter(lost).filter(is_told);
    let rows: Vec<_> = stages.map(stage_row).collect();
    let mut text = Styled::default();
    if !rows.is_empty() {
        let header = ["  packets lost", "now", "per s", "since boot", "where"];
        let numeric = |name: &str| matches!(name, "now" | "per s" | "since boot");
        let _ = writeln!(text);
        text.append(&whole(&header, &rows, numeric));
        let _ = writeln!(text);
    }
    if let Some(next) = &ledger.next {
        text.push(Meaning::Title, format_args!("  next: {next}\n"));
    }
    text.append(&dropped(ledger, all));
    text.append(&balance(ledger, all));
    text.append(&namespaces::render(ledger, all));
    text.append(&not_counted(ledger, all));
    text
}

/// The packets that the kernel dropped, by reason and place. With `all`, also those of which
/// nothing is missing, a few that are not for this machine, and all places.
fn dropped(ledger: &Ledger, all: bool) -> Styled {
    let is_told = |row: &&DropRow| match row.class {
        DropClass::Lost | DropClass::Unknown | DropClass::Decided => true,
        DropClass::NotForUs => all || row.per_s >= MANY_PER_S,
        DropClass::NoLoss => all,
    };
    let told: Vec<&DropRow> = ledger.dropped.iter().flatten().filter(is_told).collect();
    if told.is_empty() {
        return Styled::default();
    }
    let shown = if all { told.len() } else { DROPS_NAMED };
    let rows: Vec<_> = told.iter().take(shown).map(|row| drop_row(row)).collect();
    let header =
        ["  dropped by the kernel", "now", "per s", "reason", "function", "netdev", "port"];
    let mut text = Styled::from("\n".to_owned());
    text.append(&whole(&header, &rows, |name| matches!(name, "now" | "per s")));
    text.push(Meaning::Quiet, "\n  what a reason means: netsilo explain drop REASON");
    let tracked = ledger.stage(LossStage::Conntrack).map_or(0, |stage| stage.count);
    let by_rules = told.iter().any(|row| row.reason == "NETFILTER_DROP");
    if tracked > 0 && by_rules {
        let note = format!("\n  NETFILTER_DROP includes the {tracked} of connection tracking");
        text.push(Meaning::Quiet, note);
    }
    let more = told.len().saturating_sub(shown);
    if more > 0 {
        text.push(Meaning::Quiet, format_args!("\n  {more} more: -v"));
    }
    let _ = writeln!(text);
    text
}

/// Cells: stage or class, packets, packets per second, reason, function, netdev, port.
pub(crate) fn drop_row(row: &DropRow) -> Vec<Styled> {
    let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let from = if row.sent { "from " } else { "" };
    let port = match row.port {
        Some(port) => format!("{from}{} {port}", row.protocol),
        None => format!("{from}{}", or_dash(&row.protocol)),
    };
    let port = port + &row.owner().map_or_else(String::new, |owner| format!(" of {owner}"));
    let elsewhere = row.elsewhere().map_or_else(String::new, |name| format!(" (netns {name})"));
    let lost = matches!(row.class, DropClass::Lost | DropClass::Unknown);
    let meaning = if lost { Meaning::Bad } else { Meaning::Plain };
    vec![
        match row.stage {
            Some(stage) if row.class == DropClass::Lost => format!("  {}", stage.label()),
            _ => format!("  {}", row.class.label()),
        }
        .into(),
        Styled::new(meaning, row.packets),
        Styled::new(meaning, units::count(row.per_s)),
        or_dash(&row.reason).into(),
        or_dash(&row.function).into(),
        format!("{}{elsewhere}", or_dash(&row.netdev)).into(),
        port.into(),
    ]
}

/// The packets that nobody accounts for. With `all`, those of each network namespace, and where
/// the others went.
fn balance(ledger: &Ledger, all: bool) -> Styled {
    let told: Vec<_> = ledger.balance.iter().flatten().filter(|it| all || it.has_gap()).collect();
    if told.is_empty() {
        return Styled::default();
    }
    let row = |it: &&Balance| -> Vec<Styled> {
        let kind = match it.of {
            Balanced::Udp => "udp",
            Balanced::Raw => "for raw sockets",
            Balanced::PacketSockets => "of packet sockets",
        };
        let netns = it.netns.map_or_else(String::new, |netns| {
            format!(", netns {}", namespaces::name(ledger, netns))
        });
        let mut row: Vec<Styled> = vec![format!("  {kind}{netns}").into()];
        let counts = [it.arrived, it.read, it.forwarded, it.tunnelled, it.dropped];
        row.extend(counts.map(|count| Styled::from(count.to_string())));
        row.push(it.waiting.map_or_else(|| "-".to_owned(), |count| count.to_string()).into());
        let meaning = if it.has_gap() { Meaning::Bad } else { Meaning::Plain };
        row.push(Styled::new(meaning, it.not_accounted));
        row
    };
    let header =
        ["  packets", "arrived", "read", "left", "tunnelled", "dropped", "waiting", "other"];
    let rows: Vec<_> = told.iter().map(row).collect();
    let mut text = Styled::from("\n".to_owned());
    text.append(&whole(&header, &rows, |name| name != "  packets"));
    if told.iter().any(|it| it.has_gap()) {
        let note = "\n  other: not accounted for. They wait in a buffer, or netsilo does not \
                    see who takes them\n  (sockmap, a protocol in the kernel)";
        text.push(Meaning::Quiet, note);
    }
    let _ = writeln!(text);
    text
}

/// How many stages the ledger does not count, in one line with the first ones. With `all`, each
/// stage has a line with the reason.
fn not_counted(ledger: &Ledger, all: bool) -> Styled {
    let stages = ledger.coverage.iter();
    let stages: Vec<_> = stages.filter_map(|it| Some((it, it.not_counted.as_ref()?))).collect();
    if stages.is_empty() {
        return Styled::default();
    }
    let mut text = String::from("\n  losses are not counted in");
    if all {
        for (stage, why) in stages {
            let _ = write!(text, "\n    {}: {why}", stage.name);
        }
    } else {
        let named = stages.iter().take(STAGES_NAMED).map(|(stage, _)| stage.name.as_str());
        let _ = write!(text, ": {}", named.collect::<Vec<_>>().join(", "));
        let more = stages.len().saturating_sub(STAGES_NAMED);
        if more > 0 {
            let _ = write!(text, " and {more} more (-v names them)");
        }
    }
    Styled::new(Meaning::Quiet, text + "\n")
}

/// What the kernel's event says where it differs by more than 1% from the counters, and what was
/// lost in other network namespaces.
fn by_event(stage: &StageLosses) -> Vec<String> {
    let counted = stage.by_counters(None);
    let event =
        stage.by_event.filter(|event| event.abs_diff(counted) as f64 > 0.01 * counted as f64);
    let event = event.filter(|event| *event > 0).map(|event| format!("skb:kfree_skb {event}"));
    let elsewhere = stage.elsewhere;
    let elsewhere = (elsewhere > 0).then(|| format!("other netns {elsewhere}"));
    event.into_iter().chain(elsewhere).collect()
}

/// The row of a stage, with its nonzero counters. Counters that grew come first.
pub(crate) fn stage_row(stage: &StageLosses) -> Vec<Styled> {
    let mut lines: Vec<&LossCounter> = stage.lines.iter().collect();
    lines.sort_by_key(|line| {
        (line.aside.is_some(), std::cmp::Reverse(line.count), std::cmp::Reverse(line.since_boot))
    });
    let (named, rest) = lines.split_at(lines.len().min(COUNTERS_NAMED));
    let mut parts: Vec<String> =
        named.iter().map(|line| format!("{} {}", line.subject, line.counter)).collect();
    if !rest.is_empty() {
        parts.push(format!("{} more", rest.len()));
    }
    parts.extend(by_event(stage));
    let now = if stage.count > 0 { Meaning::Bad } else { Meaning::Plain };
    vec![
        format!("  {}", stage.stage.label()).into(),
        Styled::new(now, stage.count),
        Styled::new(now, units::count(stage.per_s)),
        if stage.since_boot > 0 { stage.since_boot.to_string() } else { "-".into() }.into(),
        parts.join(", ").into(),
    ]
}
