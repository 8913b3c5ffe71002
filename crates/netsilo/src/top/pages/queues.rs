//! The page of rx queues: the columns of `netsilo show`.

use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuSet;

use crate::tell::palette::Meaning;
use crate::top::listing::{Cell, Column, Listing, Row, left, number};
use crate::top::state::{PAST, State, sparkline};
use crate::top::window::Window;
use crate::views::show;
use crate::views::units::{count, or_dash, percent};

const COLUMNS: &[Column] = &[
    left("queue", 0),
    number("irq", 6),
    left("requested", 8),
    left("effective", 7),
    left("polled on", 0),
    number("packets/s", 0),
    left("past", 1),
    number("drops/s", 2),
    number("softirq", 4),
    left("steering", 9),
    left("locality", 3),
    left("consumers", 5),
];

/// From this share of a CPU's time in softirqs, the CPU of the queue has little time left.
const NEARLY_FULL: f64 = 0.6;

/// Lists the rx queues of all netdevs.
pub(super) fn listing(state: &State, window: &Window) -> Listing {
    let netdevs = window.report.netdevs.iter().filter(|netdev| show::worth_showing(netdev));
    Listing {
        columns: COLUMNS,
        rows: netdevs
            .flat_map(|netdev| &netdev.queues)
            .map(|silo| row(state, window, silo))
            .collect(),
        empty: "no rx queue matches; without a filter: no netdev here has interrupts or traffic"
            .into(),
        notes: window.report.notes.clone(),
    }
}

fn row(state: &State, window: &Window, silo: &Silo) -> Row {
    let set = |cpus: &Option<CpuSet>| Cell::text(or_dash(cpus.as_ref(), CpuSet::to_string));
    let softirq = silo.softirq.map(|softirq| softirq.share);
    let hot = if softirq.is_some_and(|share| share >= NEARLY_FULL) {
        Meaning::Bad
    } else {
        Meaning::Plain
    };
    let irq = silo.irq.as_ref().map(|irq| f64::from(irq.to.0));
    let past = state.history.packets.get(&silo.label());
    let past = past.map_or_else(String::new, |past| {
        sparkline(past, past.iter().copied().fold(0.0, f64::max), PAST, state.palette)
    });
    let drops = window.drops.get(&silo.subject()).copied();
    let lossy = if drops > Some(0.0) { Meaning::Bad } else { Meaning::Plain };
    Row {
        key: silo.label(),
        cells: vec![
            Cell::text(silo.label()),
            Cell::number(irq, |irq| irq.to_string()),
            set(&silo.requested),
            set(&silo.effective),
            Cell::text(show::polled_on(silo)),
            Cell::number(silo.received_per_s(), count),
            Cell { value: silo.received_per_s(), ..Cell::text(past).meaning(Meaning::Work) },
            Cell::number(drops, count).meaning(lossy),
            Cell::number(softirq, percent).meaning(hot),
            Cell::text(show::steering(silo)),
            Cell::text(show::locality(&silo.locality)),
            Cell::text(show::takers(silo)),
        ],
    }
}
