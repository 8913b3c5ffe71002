//! The verdict on RPS that is on: the work that it moves, its cost, and the loads without it.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Distance;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::bottleneck::{Loads, add};
use crate::judge::verdict::effect::{CLEAR, Effect, LOSS, percent};
use crate::judge::verdict::packet_steering::{Added, machine};
use crate::judge::verdict::remedy_verdict::{Outcome, RemedyName, RemedyVerdict};
use crate::judge::verdict::work::{NetdevWork, Scenario};

/// The verdict on RPS that is on, from the loads if it were switched off.
pub(super) fn rps_in_effect(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    let Some(steered) = SteeredWork::of(work) else {
        let because = "it is on, but the packets that it steers were not counted (received_rps, \
                       polls of the backlog)";
        return RemedyVerdict::new(work, remedy, Outcome::Unknown, because);
    };
    let off =
        Effect::of(work, &CpuSet::new(), |scenario| steered.loads_without_rps(work, scenario));
    let near = off.before.is_near() || off.after.is_near();
    let added = steered.added(work, Scenario::Likely);
    let outcome = match off.gain {
        _ if !near => Outcome::NoClearChange,
        gain if gain.worst >= 0.0 && gain.likely >= LOSS => Outcome::Hurt,
        gain if gain.best <= -CLEAR => Outcome::Help,
        _ => Outcome::NoClearChange,
    };
    let costs = format!(
        "it sends {:.0} ipis/s, and takes {} of a cpu including cache line transfers",
        added.ipis,
        percent(added.time)
    );
    let because = match outcome {
        Outcome::Hurt => {
            format!("it is on and {}: {costs}, but relieves no saturated resource", off.now(work))
        }
        Outcome::Help => {
            format!(
                "it is on and moves {} of a cpu away from a cpu that would be saturated; {costs}",
                percent(steered.time())
            )
        }
        _ => format!("it is on; {}; {costs}", off.now(work)),
    };
    let bound = match outcome {
        Outcome::Hurt => Gain::AtMost {
            measure: Measure::Share(off.gain.best),
            of: "the present load, in addition to it, by switching RPS off".into(),
            basis: "the ipis, second softirqs and cache lines that it adds, of all cpus' time"
                .into(),
        },
        _ => Gain::Nothing("it is on".into()),
    };
    let mut reasons = machine(work, &steered.targets());
    reasons.extend([
        Evidence::new(
            "ipis for rps",
            Measure::PerSecond(added.ipis),
            "/proc/net/softnet_stat received_rps",
        ),
        Evidence::new(
            "protocol work on other cpus",
            Measure::Share(steered.time()),
            "eBPF softirq and napi_poll",
        ),
        Evidence::new(
            "time added by steering",
            Measure::Share(added.time),
            work.costs_source.clone(),
        ),
    ]);
    RemedyVerdict::new(work, remedy, outcome, because).bound(bound).reasons(reasons)
}

/// The work that RPS moves now, by target CPU.
struct SteeredWork {
    /// Of each CPU: share of its time spent on its backlog, backlog packets polled per second,
    /// inter-processor interrupts received for RPS per second.
    to: BTreeMap<CpuId, (f64, f64, f64)>,
}

impl SteeredWork {
    fn of(work: &NetdevWork<'_>) -> Option<Self> {
        let masks = work
            .silos
            .iter()
            .filter_map(|silo| silo.rps_cpus.clone())
            .reduce(|all, cpus| all.or(&cpus))?;
        let attribution = &work.analysis.observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let mut to = BTreeMap::new();
        for cpu in masks.iter().filter(|cpu| !work.poll_share.contains_key(cpu)) {
            let received = work
                .analysis
                .rates
                .cpus
                .get(&cpu)
                .and_then(|rates| rates.softnet?.received_rps_per_s);
            let polls = attribution.polls.iter().filter(|poll| poll.cpu == cpu);
            let (mut backlog, mut all) = (0.0, 0.0);
            for poll in polls {
                all += poll.packets as f64;
                backlog += if poll.netdev.is_empty() { poll.packets as f64 } else { 0.0 };
            }
            let time = attribution.cpu_time.get(&cpu).filter(|_| seconds > 0.0);
            let time = time.map(|time| time.net_rx_ns as f64 / 1e9 / seconds);
            if let (Some(time), Some(received), true) = (time, received, all > 0.0) {
                to.insert(cpu, (time * backlog / all, backlog / seconds, received));
            }
        }
        (!to.is_empty()).then_some(Self { to })
    }

    fn targets(&self) -> CpuSet {
        self.to.keys().copied().collect()
    }

    fn time(&self) -> f64 {
        self.to.values().map(|(time, ..)| time).sum()
    }

    /// The cost of steering, summed over all target CPUs.
    fn added(&self, work: &NetdevWork<'_>, scenario: Scenario) -> Added {
        let all = self.to.keys().map(|cpu| self.added_to(work, *cpu, scenario));
        all.fold(Added::default(), |sum, it| Added {
            packets: sum.packets + it.packets,
            ipis: sum.ipis + it.ipis,
            time: sum.time + it.time,
        })
    }

    fn added_to(&self, work: &NetdevWork<'_>, to: CpuId, scenario: Scenario) -> Added {
        let topology = &work.analysis.observation.after.topology;
        let (_, packets, ipis) = self.to[&to];
        let distance = work.main_poller().map_or(Distance::Llc, |from| topology.distance(from, to));
        let ns = ipis * work.costs.ipi_ns.at(distance) * work.interrupt_cost().of(scenario)
            + packets * work.costs.lines_per_packet * work.costs.line_ns.at(distance);
        Added { packets, ipis, time: ns / 1e9 }
    }

    /// The loads if RPS were off.
    fn loads_without_rps(&self, work: &NetdevWork<'_>, scenario: Scenario) -> Loads {
        // The worst scenario for switching RPS off is the best one for RPS: it adds little.
        let mirrored = match scenario {
            Scenario::Worst => Scenario::Best,
            Scenario::Likely => Scenario::Likely,
            Scenario::Best => Scenario::Worst,
        };
        let mut loads = work.loads.clone();
        let all = work.total_poll_share().max(f64::MIN_POSITIVE);
        for (cpu, (time, ..)) in &self.to {
            let added = self.added_to(work, *cpu, mirrored).time.min(*time);
            add(&mut loads, *cpu, -time);
            for (poller, own) in &work.poll_share {
                add(&mut loads, *poller, (time - added) * own / all);
            }
        }
        loads
    }
}
