//! The finding on CPU time that the host of a virtual machine takes from receive work or readers.

use netsilo_model::derive::analysis::Analysis;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

/// From this share of a CPU's time on, packets wait noticeably.
const NOTICEABLE: f64 = 0.1;

/// The host takes much of the time of a CPU that polls or reads.
pub(super) fn find(analysis: &Analysis<'_>, load: &CpuWork<'_>) -> Option<Finding> {
    let stolen = load.split.ticks?.steal;
    let reads = &analysis.observation.attribution.consumption;
    let is_used = !load.queues.is_empty() || reads.iter().any(|row| row.consumer_cpu == load.cpu);
    if stolen < NOTICEABLE || !is_used {
        return None;
    }
    let share = Measure::Share(stolen);
    let mut evidence = vec![Evidence::new("taken by the host", share.clone(), "/proc/stat steal")];
    evidence.extend(load.evidence());
    let remedy = Remedy::new(
        "get more CPU time from the host of this virtual machine: fewer virtual machines on its \
         cpus, cpus of its own, or a higher share or quota",
        Gain::AtMost {
            measure: share,
            of: format!("cpu{}'s time", load.cpu),
            basis: "all time taken".into(),
        },
    );
    Some(Finding {
        id: FindingId::StolenTime,
        severity: Severity::Warning,
        subject: load.subject(),
        title: format!(
            "the host of this virtual machine takes {:.0}% of its time: packets wait meanwhile",
            stolen * 100.0
        ),
        evidence,
        remedies: vec![remedy],
    })
}
