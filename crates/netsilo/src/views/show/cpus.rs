//! The table of CPUs: how each spends its time, what it polls and which processes read on it.

use std::collections::BTreeSet;

use netsilo_decide::report::CpuLine;
use netsilo_decide::report::quiet::{QuietCpus, split_quiet};

use crate::tell::palette::{Meaning, Palette};
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::tell::words::{grouped, plural};
use crate::views::show::cells::{BAR, cell, load, marked};
use crate::views::table::{MEASURED, TICKS, narrowed};
use crate::views::units::{count, or_dash, percent};

/// Columns of CPUs that a narrow terminal drops, in this order. The first column of a group stays,
/// because it carries the group's name.
const DROPS: [&str; 12] = [
    "resched/s",
    "core",
    "rps/s",
    "cal/s",
    "ipi/s",
    "net_rx/s",
    "node",
    "dropped/s",
    "sys",
    "irq",
    "ipi",
    "busy",
];

pub(super) fn table(cpus: &[CpuLine], before: Option<&[CpuLine]>, on: Presentation) -> Styled {
    let shown = Columns {
        measured: cpus.iter().any(|cpu| cpu.softirq_share.is_some()),
        reschedules: cpus.iter().any(|cpu| cpu.reschedules_per_s.is_some()),
        nodes: cpus.iter().filter_map(|cpu| cpu.node).collect::<BTreeSet<_>>().len() > 1,
        bars: on.palette,
    };
    let mut header = vec!["\n  cpu", "\ncore"];
    header.extend(shown.nodes.then_some("\nnode"));
    header.extend(shown.bars.map(|_| "\nbusy"));
    header.extend(TICKS);
    if shown.measured {
        header.extend(MEASURED);
        header.push("\nipi/s");
        header.extend(shown.reschedules.then_some("\nresched/s"));
    } else {
        header.push("\ncal/s");
    }
    header.extend(["\nnet_rx/s", "\nrps/s", "\ndropped/s", "\npolls", "\nreaders"]);
    let words = ["\n  cpu", "\ncore", "\nbusy", "\npolls", "\nreaders"];
    let (named, quiet) = split_quiet(cpus);
    let line = |cpu: &&CpuLine| {
        let old = before.and_then(|before| before.iter().find(|it| it.cpu == cpu.cpu));
        let Some(old) = old else { return row(cpu, shown) };
        let readers = |line: &CpuLine| line.consumers.iter().cloned().collect::<BTreeSet<_>>();
        let polls = header.len() - 2;
        marked(row(cpu, shown), &row(old, shown), &[polls], readers(cpu) != readers(old))
    };
    let rows: Vec<_> = named.iter().map(line).collect();
    let numeric = |name: &str| !words.contains(&name);
    let mut text = narrowed(&header, &rows, numeric, &DROPS, on.width);
    for quiet in &quiet {
        text.push(Meaning::Quiet, format_args!("\n  {}", summed_up(quiet)));
    }
    text
}

/// Columns that only some tables of CPUs have.
#[derive(Debug, Clone, Copy)]
struct Columns {
    /// What eBPF measures.
    measured: bool,
    /// Reschedule IPIs.
    reschedules: bool,
    /// The CPU's node.
    nodes: bool,
    /// A bar of its use.
    bars: Option<Palette>,
}

/// The CPUs of a node that have nothing to report, in one line.
pub(crate) fn summed_up(quiet: &QuietCpus) -> String {
    let node = or_dash(quiet.node, |node| node.to_string());
    let busy = or_dash(quiet.busy, percent);
    let cpus = plural(quiet.cpus.len(), "cpu");
    format!("node {node}: {cpus} without receive work, {busy} busy on average")
}

fn row(cpu: &CpuLine, shown: Columns) -> Vec<Styled> {
    let share = |share: Option<f64>| or_dash(share, percent);
    let softirq = |of: Option<f64>| of.map_or_else(|| cell("-".into()), |it| load(it, percent(it)));
    let mut row = vec![cell(format!("  {}", cpu.cpu)), cell(cpu.core.to_string())];
    row.extend(shown.nodes.then(|| cell(or_dash(cpu.node, |node| node.to_string()))));
    row.extend(shown.bars.map(|palette| busy(cpu, palette)));
    let ticks = cpu.shares;
    row.push(cell(share(ticks.map(|it| it.usr + it.nice))));
    row.push(cell(share(ticks.map(|it| it.sys))));
    row.push(cell(share(ticks.map(|it| it.irq))));
    row.push(softirq(ticks.map(|it| it.softirq)));
    row.push(cell(share(ticks.map(|it| it.idle + it.iowait))));
    if shown.measured {
        row.push(cell(share(cpu.hardirq_share)));
        row.push(softirq(cpu.softirq_share));
        row.push(cell(share(cpu.ipi_share)));
        row.push(cell(or_dash(cpu.ipis_per_s, count)));
        row.extend(shown.reschedules.then(|| cell(or_dash(cpu.reschedules_per_s, count))));
    } else {
        row.push(cell(or_dash(cpu.cal_per_s, count)));
    }
    row.extend([cpu.net_rx_per_s, cpu.received_rps_per_s].map(|rate| cell(or_dash(rate, count))));
    let drops = cpu.dropped_per_s.is_some_and(|rate| rate > 0.0);
    let dropped = or_dash(cpu.dropped_per_s, count);
    row.push(if drops { Styled::new(Meaning::Bad, dropped) } else { cell(dropped) });
    let named = |names: &[String], text: String| if names.is_empty() { "-".into() } else { text };
    row.push(cell(named(&cpu.polls, grouped(&cpu.polls).join(" "))));
    row.push(cell(named(&cpu.consumers, cpu.consumers.join(" "))));
    row
}

/// A bar of a CPU's use.
fn busy(cpu: &CpuLine, palette: Palette) -> Styled {
    let share = cpu.shares.map_or(0.0, |shares| shares.busy());
    Styled::new(Meaning::of_load(share), palette.bar(share, BAR))
}
