//! [`Throttled`]: a reader whose CPU quota is used up, and the finding on those that lose nothing.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::parse::cpu_bandwidth::ancestors;
use netsilo_model::snapshot::socket_readers::{CpuQuota, SocketReader};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::reader::full::by_hand;

/// A quota is a cause if it stops the reader for this share of its periods, and of the time.
const THROTTLED: f64 = 0.05;

/// A CPU quota that was used up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Throttled {
    cgroup: String,
    quota: CpuQuota,
    throttled_periods: u64,
    periods: u64,
    /// Share of the window, on all its CPUs together.
    share: f64,
    /// The quota that would have sufficed, in microseconds for each period: what was used, and the
    /// time that each CPU was throttled, as if its threads would have run all that time.
    enough_usec: u64,
}

impl Throttled {
    /// The quota that stops this process longest: of its cgroup, or of one above it.
    pub(super) fn of(analysis: &Analysis<'_>, reader: &SocketReader) -> Option<Self> {
        let before = &analysis.observation.before.socket_readers.as_ref()?.quotas;
        let after = &analysis.after().socket_readers.as_ref()?.quotas;
        let throttled =
            |path: &str| Self::between(analysis, path, *before.get(path)?, *after.get(path)?);
        ancestors(reader.cgroup.as_deref()?)
            .filter_map(throttled)
            .max_by(|a, b| a.share.total_cmp(&b.share))
    }

    fn between(
        analysis: &Analysis<'_>,
        cgroup: &str,
        old: CpuQuota,
        new: CpuQuota,
    ) -> Option<Self> {
        let periods = new.nr_periods.checked_sub(old.nr_periods)?;
        let throttled_periods = new.nr_throttled.checked_sub(old.nr_throttled)?;
        let usec = new.throttled_usec.checked_sub(old.throttled_usec)?;
        let seconds = analysis.rates.elapsed.as_secs_f64();
        let share = usec as f64 / 1e6 / seconds;
        if seconds <= 0.0
            || throttled_periods as f64 <= periods as f64 * THROTTLED
            || share < THROTTLED
        {
            return None;
        }
        let more = usec as f64 / throttled_periods as f64;
        let enough_usec =
            (((new.quota_usec as f64 + more) / 1000.0).ceil() as u64).saturating_mul(1000);
        let cgroup = cgroup.to_owned();
        Some(Self { cgroup, quota: new, throttled_periods, periods, share, enough_usec })
    }

    /// What the reader does, after its name.
    pub(super) fn title(&self) -> String {
        let Self { cgroup, throttled_periods, periods, .. } = self;
        format!(
            "is throttled by the CPU quota of cgroup {cgroup} in {throttled_periods} of {periods} \
             periods"
        )
    }

    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let of = |quantity: &str, measure| {
            Evidence::new(format!("{}: {quantity}", self.cgroup), measure, "cpu.stat, cpu.max")
        };
        vec![
            of("CPUs allowed", Measure::Text(format!("{:.2}", self.quota.cpus()))),
            of("time throttled, of all its CPUs", Measure::Share(self.share)),
        ]
    }

    pub(super) fn remedy(&self) -> String {
        let Self { cgroup, quota, enough_usec, .. } = self;
        let enough = CpuQuota { quota_usec: *enough_usec, ..*quota };
        format!(
            "raise the CPU quota of cgroup {cgroup} from {:.2} to {:.2} CPUs (cpu.max \
             \"{enough_usec} {}\"; with cgroup v1, cpu.cfs_quota_us {enough_usec})",
            quota.cpus(),
            enough.cpus(),
            quota.period_usec,
        )
    }
}

/// Readers that are throttled and lose nothing: what they read waits. Those that lose are in the
/// findings on their losses.
pub(super) fn without_loss(analysis: &Analysis<'_>) -> Option<Finding> {
    let readers = analysis.after().socket_readers.as_ref()?;
    let losing: Vec<u32> = readers.buffers.values().flat_map(|it| &it.holders).copied().collect();
    let others = readers.processes.iter().filter(|(tgid, _)| !losing.contains(tgid));
    let mut throttled: Vec<(u32, &SocketReader, Throttled)> = others
        .filter_map(|(tgid, reader)| Some((*tgid, reader, Throttled::of(analysis, reader)?)))
        .collect();
    throttled.sort_by(|a, b| b.2.share.total_cmp(&a.2.share));
    let (tgid, reader, worst) = throttled.first()?;
    let more = match throttled.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more readers)"),
    };
    Some(Finding {
        id: FindingId::ThrottledReader,
        severity: Severity::Warning,
        subject: Subject::Machine,
        title: format!("{} (pid {tgid}) {}{more}", reader.comm, worst.title()),
        evidence: throttled.iter().flat_map(|(.., throttled)| throttled.evidence()).collect(),
        remedies: vec![by_hand(
            worst.remedy(),
            Gain::Unknown("how long its packets waited was not measured".into()),
        )],
    })
}
