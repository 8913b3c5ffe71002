//! [`CpuWork`]: the time of one CPU, and the queues polled on it.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::analysis::{Analysis, sum};
use netsilo_model::derive::cpu_time::CpuTimeShares;
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::derive::silo::Silo;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::net_thread::NetThreadKind;
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::ledger::Ledger;
use crate::place::{FULL, IDLE};

/// A queue with less than this share of a CPU's receive work is not a part of the load.
const PART: f64 = 0.01;

/// How many threads are named.
const THREADS_NAMED: usize = 8;

/// The time of one CPU and the queues polled on it.
pub(super) struct CpuWork<'a> {
    pub(super) cpu: CpuId,
    pub(super) split: CpuTimeShares,
    /// Queues polled on this CPU.
    pub(super) queues: Vec<&'a Silo>,
    /// Other kernel threads that receive or send on this CPU alone, and not in softirqs.
    pub(super) threads: Vec<&'a NetThreadWork>,
    /// Samples of its receive work by stage; `None` if there are none.
    pub(super) stages: Option<&'a BTreeMap<ReceiveStage, u64>>,
}

impl<'a> CpuWork<'a> {
    pub(super) fn of(analysis: &'a Analysis<'_>, cpu: CpuId) -> Self {
        let polled = |silo: &&Silo| {
            silo.polls.get(&cpu).is_some_and(|rate| rate.packets_per_s > 0.0)
                || silo.uncounted_cpus().contains(cpu)
        };
        let queues: Vec<&Silo> = analysis.silos.queues.iter().filter(polled).collect();
        let is_of_queue =
            |pid| queues.iter().any(|it| it.kthread.as_ref().is_some_and(|it| it.pid == pid));
        let is_other = |it: &&NetThreadWork| {
            let is_here = it.cpu == Some(cpu) && !it.roams;
            is_here && !it.kind.is_in_softirqs() && !is_of_queue(it.pid)
        };
        let threads = analysis.net_threads.iter().filter(is_other).collect();
        let stages = analysis.observation.attribution.stages.as_ref();
        let stages = stages.filter(|it| it.refused.is_none()).and_then(|it| it.cpus.get(&cpu));
        Self {
            cpu,
            split: CpuTimeShares::from_observation(analysis.observation, &analysis.rates, cpu),
            queues,
            threads,
            stages: stages.filter(|it| it.values().any(|count| *count > 0)),
        }
    }

    pub(super) fn subject(&self) -> Subject {
        Subject::Cpu(self.cpu)
    }

    /// A queue's known part of the CPU's time.
    pub(super) fn share(&self, silo: &Silo) -> f64 {
        silo.own_share.get(&self.cpu).copied().unwrap_or(0.0)
    }

    /// The queues that take part in its receive work; those with an unknown part count.
    pub(super) fn busy_queues(&self) -> impl Iterator<Item = &'a Silo> {
        let cpu = self.cpu;
        let all: f64 = self.queues.iter().filter_map(|silo| silo.own_share.get(&cpu)).sum();
        let known =
            move |silo: &&Silo| silo.own_share.get(&cpu).is_none_or(|own| *own >= PART * all);
        self.queues.iter().copied().filter(known)
    }

    /// Names of the netdevs whose queues are polled on this CPU.
    pub(super) fn netdevs(&self) -> Vec<String> {
        let names: BTreeSet<&str> =
            self.queues.iter().map(|silo| silo.netdev.name.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Share of the CPU's time in softirqs, interrupts and NAPI kthreads; at most 1.
    pub(super) fn receiving(&self) -> f64 {
        let queues = self.queues.iter().filter(|silo| silo.kthread.is_some());
        let queues: f64 = queues.filter_map(|silo| silo.own_share.get(&self.cpu)).sum();
        let threads = self.threads.iter().filter(|it| it.is_all_here());
        let threads: f64 = threads.filter_map(|it| it.ran()).sum();
        let threads = self.split.ticks.map_or(threads, |ticks| threads.min(ticks.sys));
        (self.split.interrupted().unwrap_or(0.0) + queues + threads).min(1.0)
    }

    /// Of how many threads it is not known how long they worked here for packets.
    pub(super) fn unrecorded(&self) -> usize {
        self.threads.iter().filter(|it| !it.is_all_here()).count()
    }

    /// The same as [`Self::receiving`], with all that such threads may have taken: a worker its
    /// own time, another one all time in the system.
    pub(super) fn receiving_at_most(&self) -> f64 {
        let worker =
            |it: &NetThreadWork| it.ran().filter(|_| it.kind == NetThreadKind::WireguardCrypt);
        let unknown = || self.threads.iter().filter(|it| !it.is_all_here());
        let workers: f64 = unknown().filter_map(|it| worker(it)).sum();
        let any = unknown().any(|it| worker(it).is_none());
        let system = self.split.ticks.filter(|_| any).map_or(0.0, |ticks| ticks.sys);
        let known = self.receiving();
        (self.split.interrupted().unwrap_or(0.0) + system).max(known + workers).clamp(known, 1.0)
    }

    /// Whether the time of its receive work is known: it is not where a program busy-polls.
    pub(super) fn is_known(&self) -> bool {
        let busy_polled = self.queues.iter().any(|silo| silo.busy_polled.contains(self.cpu));
        self.split.interrupted().is_some() && !busy_polled
    }

    pub(super) fn idle(&self) -> Option<f64> {
        self.split.idle
    }

    pub(super) fn is_full(&self) -> bool {
        self.idle().is_some_and(|idle| idle <= FULL)
    }

    pub(super) fn has_room(&self) -> bool {
        self.idle().is_some_and(|idle| idle >= IDLE)
    }

    /// Number of samples of its receive work.
    pub(super) fn samples(&self) -> u64 {
        sum(self.stages.into_iter().flat_map(BTreeMap::values).copied())
    }

    /// The share of its receive work in a stage; `None` if no sample hit it.
    pub(super) fn stage(&self, stage: ReceiveStage) -> Option<Bounds> {
        let hits = *self.stages?.get(&stage).filter(|hits| **hits > 0)?;
        Some(Bounds::of_samples(hits, self.samples()))
    }

    /// The stages of its receive work from 1% on, heaviest first, as evidence.
    fn stages_in_words(&self) -> Option<Evidence> {
        let share = |stage: ReceiveStage| Some((stage, self.stage(stage)?.likely));
        let mut shares: Vec<_> = ReceiveStage::ALL.into_iter().filter_map(share).collect();
        shares.retain(|(_, share)| *share >= 0.01);
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let words = |(stage, share): (ReceiveStage, f64)| {
            format!("{} {:.0}%", stage.label(), share * 100.0)
        };
        let words: Vec<String> = shares.into_iter().map(words).collect();
        let words = format!("{} of {} samples", words.join(", "), self.samples());
        let evidence = Evidence::new("receive work", Measure::Text(words), "stack samples");
        self.stages.map(|_| evidence)
    }

    /// The split of the CPU's time, as evidence.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        match (self.split.measured, self.split.ticks) {
            (Some(it), _) => {
                evidence.push(Evidence::new(
                    "in softirqs",
                    Measure::Share(it.softirq()),
                    "irq:softirq_entry/exit",
                ));
                evidence.push(Evidence::new(
                    "in device interrupts",
                    Measure::Share(it.hardirq),
                    "irq:irq_handler_entry/exit",
                ));
            }
            (None, Some(ticks)) => {
                let share = Measure::Share(ticks.softirq + ticks.irq);
                evidence.push(Evidence::new(
                    "in softirqs and interrupts, by clock ticks",
                    share,
                    "/proc/stat",
                ));
            }
            (None, None) => {}
        }
        evidence.extend(
            self.idle().map(|idle| Evidence::new("idle", Measure::Share(idle), "/proc/stat")),
        );
        let of_thread = |thread: &&NetThreadWork| {
            let not_recorded = || Measure::Text("time not recorded".into());
            let time = thread.ran().map_or_else(not_recorded, Measure::Share);
            let text = format!("{} ran here: it {}", thread.comm, thread.does());
            Evidence::new(text, time, "/proc/PID/schedstat")
        };
        let is_part = |thread: &&&NetThreadWork| thread.ran().is_none_or(|ran| ran >= PART);
        evidence.extend(self.threads.iter().filter(is_part).take(THREADS_NAMED).map(of_thread));
        evidence.extend(self.stages_in_words());
        evidence
    }
}

impl CpuWork<'_> {
    /// Packets lost in the interval by the CPU's backlog and by the netdevs polled on this CPU.
    pub(super) fn lost(&self, ledger: &Ledger) -> u64 {
        let mut subjects: Vec<Subject> = self.netdevs().into_iter().map(Subject::Netdev).collect();
        subjects.push(self.subject());
        let places = [LossStage::Nic, LossStage::Ring, LossStage::Backlog]
            .into_iter()
            .filter_map(|place| ledger.stage(place));
        places
            .flat_map(|stage| stage.by_subject())
            .filter(|(subject, _)| subjects.contains(subject))
            .map(|it| it.1)
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_full_up_to_5_percent_idle_and_has_room_from_50_percent_on() {
        let of = |idle: f64| {
            let split = CpuTimeShares { idle: Some(idle), ..CpuTimeShares::default() };
            let (queues, threads) = (Vec::new(), Vec::new());
            let cpu = CpuWork { cpu: CpuId(0), split, queues, threads, stages: None };
            (cpu.is_full(), cpu.has_room())
        };
        assert_eq!([0.05, 0.06].map(of), [(true, false), (false, false)]);
        assert_eq!([0.49, 0.5].map(of), [(false, false), (false, true)]);
    }
}
