//! Who interrupted some CPUs, as text: totals, a row per cause, and what would end each.

use std::fmt::Write as _;

use netsilo_decide::judge::disturbances::{Disturbance, DisturbanceKind, Disturbances};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::words::cpus;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::table::narrowed;
use crate::views::units::{count, percent};

/// Up to this number of CPUs, each has a column.
const MOST_COLUMNS: usize = 8;

/// Renders the whole report.
pub(crate) fn render(found: &Disturbances, on: Presentation) -> Styled {
    let title = format!("{}, counted for {:.1} s\n", cpus(&found.cpus), found.elapsed_s);
    let mut text = Styled::new(Meaning::Title, title);
    for (kind, label) in DisturbanceKind::ALL {
        let _ = match found.totals.get(&kind) {
            Some(total) => writeln!(text, "  {label}: {total}"),
            None if found.causes.iter().any(|it| it.kind == kind) => {
                writeln!(text, "  {label}: some of them are not known")
            }
            None => writeln!(text, "  {label}: not known"),
        };
    }
    if !found.causes.is_empty() {
        let _ = writeln!(text);
        text.append(&table(found, on));
        let _ = writeln!(text);
        text.push(Meaning::Title, "\nwhat would end them\n");
        for (causes, remedy) in by_remedy(&found.causes) {
            let _ = writeln!(text, "  {}: {remedy}", causes.join(", "));
        }
    }
    if !found.not_known.is_empty() {
        text.push(Meaning::Title, "\nnot known\n");
        for gap in &found.not_known {
            let _ = writeln!(text, "  {}: {}", gap.what, gap.why);
        }
    }
    text
}

fn table(found: &Disturbances, on: Presentation) -> Styled {
    let columns: Vec<CpuId> =
        found.cpus.iter().filter(|_| found.cpus.len() <= MOST_COLUMNS).collect();
    let names: Vec<String> = columns.iter().map(|cpu| format!("cpu {cpu}")).collect();
    let mut header = vec!["  cause", "per s"];
    header.extend(names.iter().map(String::as_str));
    if columns.is_empty() {
        header.push("on cpus");
    }
    let mut rows: Vec<Vec<Styled>> = found.causes.iter().map(|it| row(it, &columns)).collect();
    if !columns.is_empty() && !found.interrupted.is_empty() {
        let share = |cpu: &CpuId| found.interrupted.get(cpu).map_or("-".into(), |it| percent(*it));
        let shares = columns.iter().map(|cpu| share(cpu).into());
        let name: Styled = "  time in interrupts and softirqs".to_owned().into();
        rows.push([name, Styled::default()].into_iter().chain(shares).collect());
    }
    let numeric = |name: &str| name == "per s" || name.starts_with("cpu ");
    narrowed(&header, &rows, numeric, &[], on.width)
}

fn row(cause: &Disturbance, columns: &[CpuId]) -> Vec<Styled> {
    let name: Styled = format!("  {}", cause.cause).into();
    let per_s = Styled::new(Meaning::Work, count(cause.per_s));
    let on: CpuSet = cause.counts.keys().copied().collect();
    let of = |cpu: &CpuId| cause.counts.get(cpu).map_or(0, |count| *count);
    let counts = columns.iter().map(|cpu| of(cpu).to_string().into());
    let spread = columns.is_empty().then(|| on.to_string().into());
    [name, per_s].into_iter().chain(counts).chain(spread).collect()
}

/// The causes that one remedy ends, in the order of the table.
fn by_remedy(causes: &[Disturbance]) -> Vec<(Vec<&str>, &str)> {
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for it in causes {
        match groups.iter_mut().find(|(_, remedy)| *remedy == it.remedy) {
            Some((causes, _)) => causes.push(&it.cause),
            None => groups.push((vec![&it.cause], &it.remedy)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use netsilo_model::snapshot::host::Gap;

    use super::*;

    fn found(cpus: &str) -> Disturbances {
        let cause = |kind, cause: &str, counts: &[(u32, u64)], remedy: &str| Disturbance {
            kind,
            cause: cause.into(),
            counts: counts.iter().map(|(cpu, count)| (CpuId(*cpu), *count)).collect(),
            per_s: counts.iter().map(|(_, count)| *count as f64 / 5.0).sum(),
            remedy: remedy.into(),
        };
        let isolate = "netsilo isolate --cpus 2-3";
        Disturbances {
            cpus: CpuSet::parse_list(cpus).unwrap(),
            elapsed_s: 5.0,
            totals: [(DisturbanceKind::DeviceInterrupt, 30), (DisturbanceKind::Softirq, 15)].into(),
            causes: vec![
                cause(DisturbanceKind::DeviceInterrupt, "irq 30 (eth0-rx-0)", &[(2, 30)], isolate),
                cause(DisturbanceKind::Softirq, "NET_RX", &[(2, 10), (3, 2)], isolate),
                cause(DisturbanceKind::Softirq, "RCU", &[(3, 3)], "rcu_nocbs=2-3 at boot"),
            ],
            interrupted: [(CpuId(2), 0.004)].into(),
            not_known: vec![Gap { what: "workers".into(), why: "netsilo reads none".into() }],
        }
    }

    #[test]
    fn each_cause_has_a_row_and_each_remedy_a_line() {
        insta::assert_snapshot!(render(&found("2-3"), Presentation::default()).as_str());
    }

    #[test]
    fn many_cpus_have_one_column() {
        insta::assert_snapshot!(render(&found("2-31"), Presentation::default()).as_str());
    }
}
