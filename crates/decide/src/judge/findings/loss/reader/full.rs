//! [`Full`]: a full queue of sockets, to which a finding belongs.

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::namespaces::CountedNamespace;
use netsilo_model::snapshot::namespaces::Namespace;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::lost::sysctl;
use crate::judge::findings::loss::reader::losers::Losers;

/// A full queue of sockets of a subject, and the evidence of its losses.
pub(super) struct Full<'a> {
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) namespace: &'a CountedNamespace<'a>,
    pub(super) subject: &'a Subject,
    pub(super) losers: &'a Losers<'a>,
    pub(super) lost: u64,
    pub(super) evidence: Vec<Evidence>,
}

impl Full<'_> {
    /// Adds numbers that are known.
    pub(super) fn show(&mut self, numbers: &[(&str, Option<u64>, &str)]) {
        self.evidence.extend(numbers.iter().filter_map(|(quantity, value, source)| {
            Some(Evidence::new(*quantity, Measure::Count((*value)?), *source))
        }));
    }

    /// Changes a sysctl. Empty in another network namespace, where netsilo does not write.
    pub(super) fn sysctl(&self, name: &str, new: u64, reason: &str) -> Vec<Change> {
        match self.namespace.other {
            Some(_) => Vec::new(),
            None => sysctl(self.analysis, name, new, reason),
        }
    }

    /// Where another network namespace is: inode number, file, cgroup.
    fn place(&self) -> Option<Evidence> {
        let (namespace, _) = self.namespace.other.as_ref()?;
        let Namespace { inode, mount, cgroup, .. } = namespace;
        let number = format!("inode {inode}");
        let known = [Some(&number), mount.as_ref(), cgroup.as_ref()].into_iter().flatten();
        let known: Vec<&str> = known.map(String::as_str).collect();
        Some(Evidence::new("its network namespace", Measure::Text(known.join(", ")), "nsfs"))
    }

    pub(super) fn finding(
        mut self,
        id: FindingId,
        title: String,
        remedies: Vec<Remedy>,
    ) -> Finding {
        let place = self.place();
        self.evidence.extend(place);
        Finding {
            id,
            severity: Severity::Critical,
            subject: self.subject.clone(),
            title,
            evidence: self.evidence,
            remedies,
        }
    }
}

/// A remedy without cost and exceptions that netsilo does not write.
pub(super) fn by_hand(what: String, gain: Gain) -> Remedy {
    Remedy {
        what,
        gain,
        cost: None,
        not_when: None,
        changes: Vec::new(),
        interrupts_traffic: false,
    }
}
