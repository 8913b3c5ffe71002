//! `netsilo explain`: prints the page of a finding, or why work is on a part of the machine.

use std::fmt::Write as _;

use anyhow::Result;
use netsilo_decide::judge::findings::FindingId;
use netsilo_decide::judge::why::why;
use netsilo_decide::plan::selection::nearest;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::subject::Subject;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::netdev;

use crate::args::look::{self, CHECK_INTERVAL};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::views;

/// Arguments of `netsilo explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Finding as printed by check; drop and a reason (drop SOCKET_RCVBUFF); or a CPU (cpu3),
    /// interrupt (irq27), netdev (eth0), rx queue (eth0/rx-3 or eth0 rx-3) or process that reads
    /// (redis-server, pid812), to explain why its work is there; without it, list all findings
    #[arg(num_args = 0..=2, value_name = "SUBJECT")]
    subject: Vec<String>,
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Print the explanation as JSON
    #[arg(short, long)]
    json: bool,
}

/// Prints the page, the list, or what was observed about the subject.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let subject = args.subject.join(" ");
    let page = match subject.as_str() {
        "" => list(),
        "drop" => DROPS.to_owned(),
        subject if subject.starts_with("drop ") => reason(subject.trim_start_matches("drop "))?,
        subject => match subject.parse::<FindingId>() {
            Ok(id) => id.page().to_owned(),
            Err(_) => {
                let subject = subject.parse()?;
                refuse_misspelt(args, &subject)?;
                return observed(args, &subject);
            }
        },
    };
    if args.json || args.observe.is_given() {
        let message = "these pages are text and need no observation: name a cpu, interrupt, \
                       netdev, rx queue or process, or omit the options";
        return Err(ExitError(Exit::Usage, message.into()).into());
    }
    out::text(&page);
    Ok(Exit::Printed)
}

/// The page on reasons of dropped packets.
const DROPS: &str = include_str!("../../../../docs/topics/drops.md");

/// The rows of that page: reason, class, meaning, kernel function.
fn reasons() -> impl Iterator<Item = [&'static str; 4]> {
    let row = |line: &'static str| {
        let cells = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ");
        let cells: Vec<&str> = cells.map(|cell| cell.trim_end_matches('`')).collect();
        cells.try_into().ok()
    };
    DROPS.lines().filter_map(row)
}

/// What a reason means. The kernel's prefix and small letters are accepted.
pub(crate) fn reason(name: &str) -> Result<String> {
    let name = name.to_ascii_uppercase();
    let name = name.trim_start_matches("SKB_DROP_REASON_");
    let Some([_, class, meaning, place]) = reasons().find(|row| row[0] == name) else {
        let known: Vec<&str> = reasons().map(|row| row[0]).collect();
        let meant = nearest(name, &known);
        let meant = meant.map_or_else(String::new, |it| format!("; did you mean {it}?"));
        let words = format!("no row for the reason {name} (netsilo explain drop){meant}");
        return Err(ExitError(Exit::Usage, words).into());
    };
    Ok(format!("{name}: {class}\n{meaning}\nkernel function: {}\n", place.replace('`', "")))
}

/// Refuses the name of a finding with a wrong letter, unless a netdev has that name.
fn refuse_misspelt(args: &Args, subject: &Subject) -> Result<()> {
    let Subject::Netdev(name) = subject else { return Ok(()) };
    let ids: Vec<&str> = FindingId::ALL.iter().map(|id| id.as_str()).collect();
    let is_netdev = || netdev::is_here(&Root::live(), name);
    match nearest(name, &ids) {
        Some(id) if !args.observe.is_bundle() && !is_netdev() => {
            let words = format!("no finding or netdev is called {name}; did you mean {id}?");
            Err(ExitError(Exit::Usage, words).into())
        }
        _ => Ok(()),
    }
}

/// Observes, explains and prints.
fn observed(args: &Args, subject: &Subject) -> Result<Exit> {
    let observation = args.observe.with_default_interval(CHECK_INTERVAL).observe()?;
    let answer = why(&Analysis::new(&observation, &Costs::default()), subject)?;
    if args.json {
        out::json(&Versioned::first(&answer))?;
    } else {
        out::styled(&views::why::render(&answer, Presentation::of_stdout()));
    }
    Ok(Exit::Printed)
}

/// Lists each finding with the first sentence of its page.
fn list() -> String {
    let width = FindingId::ALL.iter().map(|id| id.as_str().len()).max().unwrap_or(0);
    FindingId::ALL.iter().fold(String::new(), |mut text, id| {
        let _ = writeln!(text, "{:width$}  {}", id.as_str(), first_sentence(id.page()));
        text
    })
}

/// The first sentence of a page.
pub(crate) fn first_sentence(page: &str) -> String {
    let prose: Vec<&str> = page
        .lines()
        .skip(1)
        .skip_while(|line| line.is_empty())
        .take_while(|line| !line.is_empty())
        .collect();
    let prose = prose.join(" ");
    prose.split_once(". ").map_or_else(|| prose.clone(), |(first, _)| format!("{first}."))
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::drop_class::DropClass;
    use netsilo_model::snapshot::drops::DroppedPackets;

    use super::*;
    use crate::args::parsed;

    #[test]
    fn a_finding_with_a_wrong_letter_is_refused_before_anything_is_observed() {
        let error = run(&parsed("nic-drop")).unwrap_err().to_string();
        assert_eq!(error, "no finding or netdev is called nic-drop; did you mean nic-drops?");
    }

    #[test]
    fn each_reason_of_a_drop_has_the_class_that_check_prints() {
        assert!(reasons().count() > 40);
        for [name, class, meaning, place] in reasons() {
            let drop = DroppedPackets { reason: name.into(), ..DroppedPackets::default() };
            let known = DropClass::of(&drop).label();
            assert!(class == known || class.contains("or ") || class.starts_with("by "), "{name}");
            let text = reason(&format!("skb_drop_reason_{}", name.to_lowercase())).unwrap();
            assert!(text.contains(meaning) && text.contains(&place.replace('`', "")), "{text}");
        }
        let wrong = reason("SOCKET_RCVBUF").unwrap_err().to_string();
        assert!(wrong.ends_with("did you mean SOCKET_RCVBUFF?"), "{wrong}");
    }

    #[test]
    fn each_finding_has_a_line() {
        let text = list();
        assert_eq!(text.lines().count(), FindingId::ALL.len());
        assert!(text.lines().all(|line| line.ends_with('.')), "{text}");
    }
}
