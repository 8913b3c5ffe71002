//! Why the receive work of a netdev without hardware runs where it runs.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::backlog::BacklogWork;
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::words::cpus;
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::verdict::below;
use crate::judge::why::chain::handed_up;
use crate::judge::why::explanation::{Fact, LoadCause};

/// Minimum share of a CPU's time that is a separate cause.
const LEAST_SHARE: f64 = 0.001;

/// The causes of a netdev without hardware that no NAPI polls: one for each CPU whose backlog has
/// its packets. If there is no such CPU, one without a CPU. `None` for other netdevs.
pub(super) fn causes(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Vec<LoadCause>> {
    let kind = SoftwareNetdev::from_netdev(netdev)?;
    let silos: Vec<_> = analysis.silos_of(&netdev.name).collect();
    if netdev.napis.iter().any(|napi| napi.thread.is_some()) || analysis.is_polled(netdev) {
        return None;
    }
    let rates = analysis.rates.netdevs.get(&netdev.name);
    let evidence = rates.and_then(|rates| rates.get("rx_packets")).map(|rate| {
        let source = "/sys/class/net/*/statistics/rx_packets";
        Evidence::new("packets received", Measure::PerSecond(*rate), source)
    });
    let mut steps = vec![received(analysis, netdev, kind)];
    steps.extend(steered(netdev, kind));
    steps.extend(handed_up(analysis, netdev));
    let cause = |name: String, share| LoadCause {
        name,
        share,
        estimated: true,
        evidence: evidence.iter().cloned().collect(),
        steps: steps.clone(),
    };
    let backlog = BacklogWork::of(analysis, netdev, &silos);
    let parts = backlog.iter().flat_map(|work| &work.share);
    let causes: Vec<LoadCause> = parts
        .filter(|(_, share)| **share >= LEAST_SHARE)
        .map(|(cpu, share)| cause(format!("{} on cpu {cpu}", netdev.name), Some(*share)))
        .collect();
    Some(if causes.is_empty() { vec![cause(netdev.name.clone(), None)] } else { causes })
}

/// Explains where its packets are processed.
fn received(analysis: &Analysis<'_>, netdev: &Netdev, kind: SoftwareNetdev) -> Fact {
    let below = || below(analysis, netdev);
    let text = match kind.receive {
        SoftwareReceive::Backlog => {
            "it has no interrupt and no NAPI: the cpu that sends a packet to it, or takes one out \
             of a tunnel for it, adds the packet to its own backlog, and processes it in NET_RX"
                .to_owned()
        }
        SoftwareReceive::Writer => {
            "it has no interrupt and no NAPI: the program that writes a packet into it also \
             processes it, in its own system time"
                .to_owned()
        }
        SoftwareReceive::Reentry => format!(
            "it has no separate receive work: the cpus that receive for {} bridge its packets, and \
             continue with those for this host",
            below()
        ),
        SoftwareReceive::SamePass => format!(
            "it has no separate receive work: the cpus that receive for {} continue with its \
             packets in the same pass",
            below()
        ),
        SoftwareReceive::Tasklet => format!(
            "a tasklet gives its packets back to {}, on the cpu that redirected them: its time is \
             in the TASKLET softirq, which is not divided by netdev",
            below()
        ),
        SoftwareReceive::Reader => format!(
            "the cpus that receive for {} put its packets into a queue, from which a program reads \
             them",
            below()
        ),
        SoftwareReceive::Nothing => "it receives no packets".to_owned(),
        SoftwareReceive::GroCells | SoftwareReceive::Napi => {
            let by = kind.polled_without_id().unwrap_or_default();
            format!("{by}; no poll of it was counted")
        }
    };
    let others = match kind.on_backlog {
        "" => String::new(),
        others => format!("; {others} go to the backlog of a cpu"),
    };
    Fact::new(text + &others, kind.function)
}

/// Explains what its RPS masks do.
fn steered(netdev: &Netdev, kind: SoftwareNetdev) -> Option<Fact> {
    let masks = netdev.rx_queues.iter().filter_map(|queue| queue.rps_cpus.as_ref());
    let all = masks.fold(CpuSet::new(), |all, mask| all.or(mask));
    let on = (!all.is_empty()).then(|| cpus(&all));
    let but = match kind.on_backlog {
        "" => String::new(),
        others => format!(", save for {others}"),
    };
    let text = match (kind.receive, on) {
        (SoftwareReceive::Nothing, None) => return None,
        (_, None) if kind.is_never_steered() => format!(
            "RPS, RFS and threaded NAPI on it would do nothing: the kernel never reads them{but}; \
             set them on the netdevs below it"
        ),
        (_, Some(on)) if kind.is_never_steered() => {
            format!("its RPS onto {on} does nothing: the kernel never reads it{but}")
        }
        (_, None) => return None,
        (SoftwareReceive::Reentry, Some(on)) => format!(
            "RPS steers what it delivers to this host to {on}; bridging stays where it was received"
        ),
        (_, Some(on)) => format!("RPS steers its packets to {on} by their hash"),
    };
    Some(Fact::new(text, "rps_cpus"))
}
