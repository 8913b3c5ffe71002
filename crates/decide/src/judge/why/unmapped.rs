//! The receive work of a netdev without a known interrupt or poll, as far as the CPUs' softirqs
//! show where it runs.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::unmapped::UnmappedWork;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::why::explanation::{Fact, LoadCause};

/// The causes of a netdev, one for each CPU that polls it; `None` unless these CPUs are known from
/// softirqs alone.
pub(super) fn causes(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Vec<LoadCause>> {
    Some(by_cpu(analysis, netdev)?.map(|(_, cause)| cause).collect())
}

/// The causes of all such netdevs on one CPU.
pub(super) fn on_cpu<'a>(
    analysis: &'a Analysis<'_>,
    cpu: CpuId,
) -> impl Iterator<Item = LoadCause> + 'a {
    let all = analysis.running().filter_map(|netdev| by_cpu(analysis, netdev)).flatten();
    all.filter(move |(on, _)| *on == cpu).map(|(_, cause)| cause)
}

fn by_cpu(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
) -> Option<impl Iterator<Item = (CpuId, LoadCause)> + use<>> {
    let work = UnmappedWork::of(analysis, netdev)?.ok()?;
    let name = match netdev.rx_queues.as_slice() {
        [queue] => format!("{} rx-{}", netdev.name, queue.index),
        queues => format!("{} ({})", netdev.name, plural(queues.len(), "rx queue")),
    };
    let cause = |cpu: CpuId, share: f64| LoadCause {
        name: format!("{name} on cpu {cpu}"),
        share: Some(share),
        estimated: true,
        evidence: vec![
            Evidence::new(
                "packets received, on all cpus",
                Measure::PerSecond(work.packets_per_s),
                "/sys/class/net/*/statistics/rx_packets",
            ),
            Evidence::new(
                "NET_RX softirqs for them, on all cpus",
                Measure::PerSecond(work.softirqs_per_s),
                "/proc/softirqs",
            ),
        ],
        steps: vec![
            Fact::new("its interrupt is not known", "netdev netlink, /proc/interrupts"),
            Fact::new(work.in_words(), "/proc/softirqs, /sys/class/net/*/statistics/rx_packets"),
        ],
    };
    let causes: Vec<_> =
        work.share.iter().map(|(cpu, share)| (*cpu, cause(*cpu, *share))).collect();
    Some(causes.into_iter())
}
