//! The page of rx queues: the columns of `netsilo show`.

use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuSet;

use crate::tell::palette::Meaning;
use crate::top::listing::{Cell, Column, Listing, Row, left, number};
use crate::top::window::Window;
use crate::views::show;
use crate::views::units::{count, or_dash, percent};

const COLUMNS: &[Column] = &[
    left("queue", 0),
    number("irq", 4),
    left("requested", 6),
    left("effective", 5),
    left("polled on", 0),
    number("packets/s", 0),
    number("softirq", 2),
    left("steering", 7),
    left("locality", 1),
    left("consumers", 3),
];

/// From this share of a CPU's time in softirqs, the CPU of the queue has little time left.
const NEARLY_FULL: f64 = 0.6;

/// Lists the rx queues of all netdevs.
pub(super) fn listing(window: &Window) -> Listing {
    let netdevs = window.report.netdevs.iter().filter(|netdev| show::worth_showing(netdev));
    Listing {
        columns: COLUMNS,
        rows: netdevs.flat_map(|netdev| &netdev.queues).map(row).collect(),
        empty: "no rx queue matches; without a filter: no netdev here has interrupts or traffic"
            .into(),
        notes: window.report.notes.clone(),
    }
}

fn row(silo: &Silo) -> Row {
    let set = |cpus: &Option<CpuSet>| Cell::text(or_dash(cpus.as_ref(), CpuSet::to_string));
    let softirq = silo.softirq.map(|softirq| softirq.share);
    let hot = if softirq.is_some_and(|share| share >= NEARLY_FULL) {
        Meaning::Bad
    } else {
        Meaning::Plain
    };
    let irq = silo.irq.as_ref().map(|irq| f64::from(irq.to.0));
    Row {
        key: silo.label(),
        cells: vec![
            Cell::text(silo.label()),
            Cell::number(irq, |irq| irq.to_string()),
            set(&silo.requested),
            set(&silo.effective),
            Cell::text(show::polled_on(silo)),
            Cell::number(silo.packets_per_s, count),
            Cell::number(softirq, percent).meaning(hot),
            Cell::text(show::steering(silo)),
            Cell::text(show::locality(&silo.locality)),
            Cell::text(show::takers(silo)),
        ],
    }
}
