//! `netsilo explain`: prints the page of a finding.

use std::fmt::Write as _;

use anyhow::Result;
use netsilo_decide::judge::findings::FindingId;

use crate::tell::exit::Exit;
use crate::tell::out;

/// Arguments of `netsilo explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Finding to explain, as printed by check; without it, list all findings
    id: Option<FindingId>,
}

/// Prints the page, or the list.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match args.id {
        Some(id) => out::text(id.page()),
        None => out::text(&list()),
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
    use super::*;

    #[test]
    fn each_finding_has_a_line() {
        let text = list();
        assert_eq!(text.lines().count(), FindingId::ALL.len());
        assert!(text.lines().all(|line| line.ends_with('.')), "{text}");
    }
}
