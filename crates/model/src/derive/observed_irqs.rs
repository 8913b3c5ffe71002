//! Names the interrupt of each NAPI and queue by which interrupts scheduled which NAPIs. That holds
//! for any driver, whatever it calls its interrupts.

use std::collections::BTreeMap;

use crate::derive::queue_map::QueueMap;
use crate::derive::rates::rates;
use crate::machine::ids::{Irq, NapiId};
use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::{Association, AssociationSource, Confidence, Napi, RxQueue};
use crate::snapshot::observation::Observation;
use crate::snapshot::scheduled::{Scheduled, ScheduledBy};

/// The share of a NAPI's events that one interrupt must have. Of a NAPI that several interrupts
/// schedule, none is named.
const NEARLY_ALL: f64 = 0.99;

/// From this number of handlers that scheduled a NAPI on, its interrupt is certain.
const PROVEN: u64 = 4;

/// The fewest events that count where they do not prove that the two belong together.
const ENOUGH: u64 = 16;

/// Names the interrupts of NAPIs and queues that were observed in this interval, or before it.
///
/// Where a driver's names say something else, the observed interrupt counts.
pub fn name_observed_interrupts(observation: &mut Observation) {
    keep_earlier(&observation.before, &mut observation.after);
    let Observation { before, after, attribution } = observation;
    let edges = interrupts_of_napis(attribution);
    if edges.is_empty() {
        return;
    }
    let places = netdevs_of_napis(after, attribution);
    for (napi, edge) in &edges {
        if let Some(netdev) = places.get(napi).and_then(|at| after.netdevs.get_mut(*at)) {
            match netdev.napis.iter_mut().find(|it| it.id == *napi) {
                Some(known) => known.irq = known.irq.or(Some(edge.to)),
                None => netdev.napis.push(Napi { id: *napi, irq: Some(edge.to), thread: None }),
            }
            if !netdev.irqs.contains(&edge.to) {
                netdev.irqs.push(edge.to);
            }
        }
    }
    let map = QueueMap::new(after, attribution, &rates(before, after));
    let mut of_queues: BTreeMap<(usize, u32), Vec<Association<Irq>>> = BTreeMap::new();
    for (napi, edge) in edges.into_iter().filter(|(napi, _)| may_receive(attribution, *napi)) {
        if let Some((at, queue, known)) = map.queue_of(napi) {
            let confidence = edge.confidence.min(known.confidence);
            of_queues.entry((at, queue)).or_default().push(Association { confidence, ..edge });
        }
    }
    for ((at, index), edges) in of_queues {
        let queues = after.netdevs.get_mut(at).map(|netdev| &mut netdev.rx_queues);
        let queue = queues.into_iter().flatten().find(|queue| queue.index == index);
        // Of several NAPIs some only complete what was sent.
        if let (Some(queue), [edge]) = (queue, edges.as_slice())
            && edge.known().is_some()
        {
            name(queue, edge.clone());
        }
    }
}

/// Whether a NAPI may have received something; the others complete what was sent.
fn may_receive(attribution: &Attribution, napi: NapiId) -> bool {
    let mut polls = attribution.polls.iter().filter(|poll| poll.napi == napi).peekable();
    polls.peek().is_none() || polls.any(|poll| poll.packets > 0)
}

/// Keeps what an earlier interval has shown of queues that received nothing in this one, as long as
/// the interrupt is the same.
fn keep_earlier(before: &Snapshot, after: &mut Snapshot) {
    let Snapshot { netdevs, irqs, .. } = after;
    let is_same = |irq: Irq| {
        let states = before.irqs.get(&irq).zip(irqs.get(&irq));
        states.is_some_and(|(old, new)| old.actions == new.actions)
    };
    let is_observed = |edge: &&Association<Irq>| edge.source == AssociationSource::Observed;
    for netdev in netdevs.iter_mut() {
        let Some(earlier) = before.netdevs.same(netdev) else { continue };
        for queue in &mut netdev.rx_queues {
            let mut queues = earlier.rx_queues.iter();
            let earlier = queues.find(|it| it.index == queue.index);
            let observed = earlier.and_then(|it| it.irq.as_ref()).filter(is_observed);
            if let Some(edge) = observed.filter(|edge| is_same(edge.to)) {
                name(queue, edge.clone());
            }
        }
    }
}

/// Replaces the interrupt of a queue by the observed one, unless this is less certain. A different
/// one that another source names stays visible, if it is not a guess.
fn name(queue: &mut RxQueue, observed: Association<Irq>) {
    let named = queue.irq.take().filter(|named| named.known().is_some());
    let (kept, other) = match named {
        Some(named) if named.to != observed.to && observed.confidence < Confidence::Certain => {
            (named, observed)
        }
        Some(named) => (observed, named),
        None => {
            queue.irq = Some(observed);
            return;
        }
    };
    // An interrupt that was observed earlier is no other source.
    let is_one = [&kept, &other].map(|it| it.source == AssociationSource::Observed);
    if kept.to != other.to && is_one != [true; 2] {
        queue.irq_conflicts.push(other);
    }
    queue.irq = Some(kept);
}

/// The netdev of this network namespace that each NAPI belongs to, by its position.
fn netdevs_of_napis(snapshot: &Snapshot, attribution: &Attribution) -> BTreeMap<NapiId, usize> {
    let mut places = BTreeMap::new();
    for (at, netdev) in snapshot.netdevs.iter().enumerate() {
        places.extend(netdev.napis.iter().map(|napi| (napi.id, at)));
    }
    for row in &attribution.scheduled {
        let is_here = snapshot.machine.is_own_netns(row.netns) && !row.netdev.is_empty();
        let mut netdevs = snapshot.netdevs.iter();
        let netdev = netdevs.position(|it| it.ifindex == row.ifindex && it.name == row.netdev);
        if let Some(at) = netdev.filter(|_| is_here) {
            places.entry(row.napi).or_insert(at);
        }
    }
    places
}

/// The interrupt that schedules each NAPI with an id.
fn interrupts_of_napis(attribution: &Attribution) -> BTreeMap<NapiId, Association<Irq>> {
    let mut rows: BTreeMap<NapiId, Vec<&Scheduled>> = BTreeMap::new();
    for row in attribution.scheduled.iter().filter(|row| row.napi.0 != 0) {
        rows.entry(row.napi).or_default().push(row);
    }
    let edge = |(napi, rows): (NapiId, Vec<&Scheduled>)| {
        let of_kind = |kinds: &[ScheduledBy]| {
            let rows: Vec<&Scheduled> =
                rows.iter().filter(|row| kinds.contains(&row.by)).copied().collect();
            (!rows.is_empty()).then_some(rows)
        };
        let proven = of_kind(&[ScheduledBy::Handler, ScheduledBy::Wakeup]);
        let (to, confidence) = match proven {
            Some(rows) => match most_of(&rows, total(&rows))? {
                (irq, PROVEN..) => (irq, Confidence::Certain),
                (irq, _) => (irq, Confidence::Named),
            },
            None => (guessed(napi, of_kind, attribution)?, Confidence::Named),
        };
        Some((napi, Association { to, source: AssociationSource::Observed, confidence }))
    };
    rows.into_iter().filter_map(edge).collect()
}

/// The interrupt of a NAPI by events that do not prove it: the softirqs and threads of other
/// interrupts poll the NAPI, too. So nearly all polls of the NAPI must agree, or nearly all events
/// of both the NAPI and the interrupt.
fn guessed<'a>(
    napi: NapiId,
    of_kind: impl Fn(&[ScheduledBy]) -> Option<Vec<&'a Scheduled>>,
    attribution: &Attribution,
) -> Option<Irq> {
    let by_thread = || {
        let polls = attribution.polls.iter().filter(|poll| poll.napi == napi);
        most_of(&of_kind(&[ScheduledBy::Thread])?, polls.map(|poll| poll.polls).sum())
    };
    let by_softirq = || {
        let rows = of_kind(&[ScheduledBy::Softirq])?;
        let (irq, count) = most_of(&rows, total(&rows))?;
        let all = attribution.scheduled.iter();
        let of_irq = all.filter(|row| row.irq == irq && row.by == ScheduledBy::Softirq);
        let of_irq: u64 = of_irq.map(|row| row.count).sum();
        (count as f64 >= NEARLY_ALL * of_irq as f64).then_some((irq, count))
    };
    let found = by_thread().or_else(by_softirq);
    found.filter(|(_, count)| *count >= ENOUGH).map(|(irq, _)| irq)
}

/// The interrupt with nearly all of these events, and its number of them.
fn most_of(rows: &[&Scheduled], all: u64) -> Option<(Irq, u64)> {
    let mut counts: BTreeMap<Irq, u64> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(row.irq).or_default() += row.count);
    counts.into_iter().find(|(_, count)| *count as f64 >= NEARLY_ALL * all as f64)
}

fn total(rows: &[&Scheduled]) -> u64 {
    rows.iter().map(|row| row.count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cpuset::CpuId;
    use crate::snapshot::attribution::Poll;
    use crate::synthetic::scene::Scene;

    /// Two queues whose NAPIs are known, and not their interrupts.
    fn host() -> Observation {
        let scene = r#"{ "grid": { "l2s": 4 }, "netdevs": [
            { "name": "eth0", "driver": "atlantic", "queues": [
                { "irq": 41 }, { "irq": 42 }] }] }"#;
        let mut host = serde_json::from_str::<Scene>(scene).unwrap().observation();
        for netdev in host.after.netdevs.iter_mut().chain(host.before.netdevs.iter_mut()) {
            netdev.irqs.clear();
            netdev.napis.clear();
            for queue in &mut netdev.rx_queues {
                let (source, confidence) = (AssociationSource::NetdevGenl, Confidence::Certain);
                let napi = Association { to: NapiId(801 + queue.index), source, confidence };
                (queue.irq, queue.napi) = (None, Some(napi));
            }
        }
        host
    }

    fn scheduled(
        host: &Observation,
        irq: u32,
        napi: u32,
        by: ScheduledBy,
        count: u64,
    ) -> Scheduled {
        let netdev = &host.after.netdevs[0];
        let netns = host.after.machine.netns;
        let (ifindex, netdev) = (netdev.ifindex, netdev.name.clone());
        Scheduled { irq: Irq(irq), napi: NapiId(napi), netdev, ifindex, netns, by, count }
    }

    /// The interrupts of both queues, `-` if unknown.
    fn named(rows: &[(u32, u32, ScheduledBy, u64)], polls: &[(u32, u64)]) -> String {
        let polls: Vec<_> = polls.iter().map(|(napi, polls)| (*napi, *polls, *polls)).collect();
        named_with(rows, &polls)
    }

    /// The same with the polls of each NAPI, and their packets.
    fn named_with(rows: &[(u32, u32, ScheduledBy, u64)], polls: &[(u32, u64, u64)]) -> String {
        let mut host = host();
        host.attribution.scheduled =
            rows.iter().map(|(irq, napi, by, n)| scheduled(&host, *irq, *napi, *by, *n)).collect();
        let netns = host.after.machine.netns;
        let poll = |(napi, polls, packets): &(u32, u64, u64)| Poll {
            napi: NapiId(*napi),
            netdev: "eth0".into(),
            ifindex: host.after.netdevs[0].ifindex,
            netns,
            cpu: CpuId(0),
            polls: *polls,
            packets: *packets,
            ns: None,
        };
        host.attribution.polls = polls.iter().map(poll).collect();
        name_observed_interrupts(&mut host);
        shown(&host)
    }

    fn shown(host: &Observation) -> String {
        let irq = |edge: &Association<Irq>| match edge.confidence {
            Confidence::Certain => edge.to.to_string(),
            _ => format!("{}?", edge.to),
        };
        let queues = host.after.netdevs[0].rx_queues.iter();
        let irqs = queues.map(|queue| queue.irq.as_ref().map_or("-".into(), irq));
        irqs.collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn the_interrupt_that_schedules_a_napi_is_the_one_of_its_queue() {
        use ScheduledBy::{Handler, Wakeup};
        assert_eq!(named(&[], &[]), "- -");
        assert_eq!(named(&[(43, 801, Handler, 4), (44, 802, Wakeup, 900)], &[]), "43 44");
        assert_eq!(named(&[(43, 801, Handler, 3)], &[]), "43? -");
        let tx_only = [(801, 7, 7), (802, 9, 0)];
        assert_eq!(named_with(&[(43, 801, Handler, 7), (44, 802, Handler, 9)], &tx_only), "43 -");
        assert_eq!(named(&[(43, 801, Handler, 999), (44, 801, Handler, 1)], &[]), "43 -");
        assert_eq!(named(&[(43, 801, Handler, 90), (44, 801, Handler, 10)], &[]), "- -");
        assert_eq!(named(&[(43, 801, Handler, 9), (43, 802, Handler, 9)], &[]), "43 43");
    }

    #[test]
    fn what_may_be_chance_is_believed_if_nearly_all_events_agree() {
        use ScheduledBy::{Softirq, Thread};
        assert_eq!(named(&[(43, 801, Softirq, 15)], &[]), "- -");
        assert_eq!(named(&[(43, 801, Softirq, 500), (44, 802, Softirq, 500)], &[]), "43? 44?");
        let by_chance = [(43, 801, Softirq, 500), (43, 802, Softirq, 20), (44, 802, Softirq, 500)];
        assert_eq!(named(&by_chance, &[]), "- -");
        assert_eq!(named(&[(43, 801, Thread, 500)], &[(801, 500)]), "43? -");
        assert_eq!(named(&[(43, 801, Thread, 500)], &[(801, 900)]), "- -");
    }

    #[test]
    fn an_observed_interrupt_is_kept_until_it_is_another() {
        let mut first = host();
        first.attribution.scheduled = vec![scheduled(&first, 41, 801, ScheduledBy::Handler, 5)];
        name_observed_interrupts(&mut first);
        let mut second = Observation { before: first.after.clone(), ..host() };
        name_observed_interrupts(&mut second);
        assert_eq!(shown(&second), "41 -");
        let mut third = host();
        third.before = second.after;
        third.after.irqs.get_mut(&Irq(41)).unwrap().actions = vec!["disk".into()];
        name_observed_interrupts(&mut third);
        assert_eq!(shown(&third), "- -");
    }

    #[test]
    fn another_interrupt_by_the_drivers_names_stays_visible() {
        let named = |irq, confidence| {
            let mut host = host();
            let source = AssociationSource::ActionName("{dev}-TxRx-{n}".into());
            let edge = Association { to: Irq(irq), source, confidence };
            host.after.netdevs.iter_mut().for_each(|it| it.rx_queues[0].irq = Some(edge.clone()));
            host.attribution.scheduled = vec![scheduled(&host, 43, 801, ScheduledBy::Handler, 5)];
            name_observed_interrupts(&mut host);
            let queue = &host.after.netdevs[0].rx_queues[0];
            let conflicts = queue.irq_conflicts.iter().map(|it| it.to.0).collect::<Vec<_>>();
            (queue.irq.as_ref().unwrap().to.0, conflicts)
        };
        assert_eq!(named(41, Confidence::Named), (43, vec![41]));
        assert_eq!(named(43, Confidence::Named), (43, vec![]));
        assert_eq!(named(41, Confidence::Guess), (43, vec![]));
        let mut first = host();
        first.attribution.scheduled = vec![scheduled(&first, 41, 801, ScheduledBy::Handler, 5)];
        name_observed_interrupts(&mut first);
        let mut second = Observation { before: first.after.clone(), ..host() };
        second.attribution.scheduled = vec![scheduled(&second, 42, 801, ScheduledBy::Handler, 5)];
        name_observed_interrupts(&mut second);
        assert_eq!(shown(&second), "42 -");
        assert!(second.after.netdevs[0].rx_queues[0].irq_conflicts.is_empty(), "it was moved");
    }

    #[test]
    fn of_another_namespace_or_netdev_nothing_is_named() {
        let mut host = host();
        let mut row = scheduled(&host, 43, 801, ScheduledBy::Handler, 5);
        row.netns += 1;
        row.napi = NapiId(900);
        host.attribution.scheduled = vec![row];
        name_observed_interrupts(&mut host);
        assert_eq!(shown(&host), "- -");
        assert!(host.after.netdevs[0].irqs.is_empty());
    }
}
