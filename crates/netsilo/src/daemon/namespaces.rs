//! The other network namespaces. In each cycle the daemon reads as many as half of its budget pays
//! for, and each at least once a minute.

use std::time::Duration;

use netsilo_decide::judge::ledger::{Ledger, ledger};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::namespaces::Namespaces;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::namespaces::{Share, read};

use crate::tell::status::NamespacesStatus;

/// Each namespace is read at least once in this time.
const AT_MOST: Duration = Duration::from_secs(60);

/// How many namespaces that lost packets are in the status.
const NAMED: usize = 20;

/// What the daemon knows of the other namespaces.
#[derive(Debug, Default)]
pub(crate) struct OtherNamespaces {
    last: Option<Snapshot>,
}

impl OtherNamespaces {
    /// Reads some of them. `limit`: the share of the machine that the daemon may use. Returns the
    /// status, and what was lost since the last reading of each. `None` if there is nothing new: no
    /// namespace may be entered, and they were counted a short time ago.
    pub(crate) fn look(
        &mut self,
        root: &Root,
        now: &Snapshot,
        limit: Option<f64>,
        length: Duration,
    ) -> Option<(NamespacesStatus, Ledger)> {
        let known = self.last.as_ref().and_then(|last| last.namespaces.as_ref());
        let is_recent = |last: &Snapshot| now.at < last.at + AT_MOST;
        if known.is_some_and(is_refused) && self.last.as_ref().is_some_and(is_recent) {
            return None;
        }
        let cpus = now.topology.online.len();
        let none = Namespaces::default();
        let known = known.unwrap_or(&none);
        let namespaces = read(root, Some((known, share(limit, length, cpus, known.all.len()))));
        let after = Snapshot {
            at: root.now().unwrap_or(now.at),
            machine: now.machine.clone(),
            namespaces: namespaces.value().cloned(),
            ..Snapshot::default()
        };
        let status = status(&namespaces, &after);
        let before = self.last.take().unwrap_or_default();
        let observation = Observation { before, after, ..Observation::default() };
        let ledger = ledger(&Analysis::new(&observation, &Costs::default()));
        self.last = Some(observation.after);
        let losing = ledger.namespaces.iter().flatten().filter(|it| it.lost > 0).take(NAMED);
        let losing = losing.cloned().collect();
        Some((NamespacesStatus { losing, ..status }, ledger))
    }
}

/// Whether none of the namespaces could be read.
fn is_refused(namespaces: &Namespaces) -> bool {
    namespaces.all.iter().all(|it| it.counters.value().is_none())
}

/// What a cycle may read.
fn share(limit: Option<f64>, length: Duration, cpus: usize, known: usize) -> Share {
    let cpu_time = limit.map_or(length, |limit| length.mul_f64(limit / 2.0 * cpus as f64));
    let each = known as f64 * length.as_secs_f64() / AT_MOST.as_secs_f64();
    Share { cpu_time, at_least: each.ceil() as usize }
}

fn status(namespaces: &Reading<Namespaces>, now: &Snapshot) -> NamespacesStatus {
    let namespaces = match namespaces {
        Reading::Value(namespaces) => namespaces,
        Reading::Absent(why) => {
            return NamespacesStatus { why_not: Some(why.clone()), ..Default::default() };
        }
    };
    let read = || namespaces.all.iter().filter_map(|it| it.counters.value());
    let mut reasons = namespaces.all.iter().filter_map(|it| it.counters.reason());
    let hidden = (namespaces.hidden > 0).then_some("the kernel hides their processes");
    NamespacesStatus {
        found: namespaces.all.len() + namespaces.hidden as usize,
        read: read().count(),
        oldest_s: read().map(|it| it.at).min().map(|at| now.at.saturating_sub(at).as_secs_f64()),
        why_not: reasons.next().or(hidden).map(str::to_owned),
        losing: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::snapshot::namespaces::{Namespace, NamespaceCounters};

    use super::*;

    #[test]
    fn a_cycle_reads_what_half_of_the_budget_pays_for_and_each_once_a_minute() {
        let cycle = Duration::from_secs(10);
        let share = share(Some(0.003), cycle, 2, 100);
        assert_eq!((share.cpu_time, share.at_least), (Duration::from_millis(30), 17));
        assert_eq!(super::share(Some(0.003), cycle, 2, 0).at_least, 0);
        assert_eq!(super::share(None, cycle, 2, 1).cpu_time, cycle);
    }

    #[test]
    fn the_status_says_how_many_were_read_and_why_not_the_others() {
        let namespace = |inode, counters| Namespace { counters, ..Namespace::unread(inode) };
        let at = Duration::from_secs(50);
        let read = Reading::Value(NamespaceCounters { at, ..NamespaceCounters::default() });
        let all = vec![namespace(7, read), namespace(8, Reading::Absent("EPERM".into()))];
        let now = Snapshot { at: Duration::from_secs(60), ..Snapshot::default() };
        let of = |all, hidden| status(&Reading::Value(Namespaces { all, hidden }), &now);
        let some = of(all, 3);
        assert_eq!((some.found, some.read, some.oldest_s), (5, 1, Some(10.0)));
        assert_eq!(some.why_not.as_deref(), Some("EPERM"));
        let hidden = of(vec![], 2);
        assert_eq!((hidden.found, hidden.read, hidden.why_not.is_some()), (2, 0, true));
        let unread = status(&Reading::Absent("ENOENT".into()), &now);
        assert_eq!(unread.why_not.as_deref(), Some("ENOENT"));
    }
}
