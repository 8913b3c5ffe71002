//! The other network namespaces as text: those that were not looked at and why, or all of them.

use std::fmt::Write as _;

use netsilo_decide::judge::ledger::Ledger;
use netsilo_decide::judge::namespaces::NamespaceLine;
use netsilo_model::derive::coverage::OTHER_NAMESPACES;

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::table::whole;

/// Namespaces that were not looked at. With `all`, a table of all others.
pub(crate) fn render(ledger: &Ledger, all: bool) -> Styled {
    let mut text = Styled::default();
    let Some(namespaces) = &ledger.namespaces else { return text };
    if all && !namespaces.is_empty() {
        let header = ["  network namespace", "inode", "processes", "lost", "of"];
        let rows: Vec<_> = namespaces.iter().map(row).collect();
        let _ = writeln!(text);
        text.append(&whole(&header, &rows, |name| matches!(name, "inode" | "processes" | "lost")));
        let _ = writeln!(text);
    }
    let others = ledger.coverage.iter().find(|it| it.stage == OTHER_NAMESPACES);
    if let Some((name, why)) = others.and_then(|it| Some((&it.name, it.not_counted.as_ref()?))) {
        text.push(Meaning::Fair, format_args!("\n  {name} not looked at: {why}\n"));
    }
    text
}

/// The name of another namespace, or its inode number if the name is not known.
pub(crate) fn name(ledger: &Ledger, inode: u32) -> String {
    let mut known = ledger.namespaces.iter().flatten();
    known.find(|it| it.inode == inode).map_or_else(|| inode.to_string(), |it| it.name.clone())
}

/// Cells: name, inode number, processes, lost packets, cgroup or file.
fn row(line: &NamespaceLine) -> Vec<Styled> {
    let meaning = if line.lost > 0 { Meaning::Bad } else { Meaning::Plain };
    let lost = match &line.not_counted {
        Some(_) => "N/A".to_owned().into(),
        None => Styled::new(meaning, line.lost),
    };
    let cgroup = line.cgroup.as_ref().filter(|path| *path != "/");
    let of = cgroup.or(line.mount.as_ref());
    vec![
        format!("  {}", line.name).into(),
        line.inode.to_string().into(),
        line.processes.to_string().into(),
        lost,
        of.map_or("-", String::as_str).to_owned().into(),
    ]
}
