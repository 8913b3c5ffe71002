//! Where each step of a queue's packets runs under the settings of a snapshot.

use netsilo_model::derive::flow_steering::arfs_is_on;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, RxQueue};

use crate::assumptions::End;
use crate::flows::hashed;
use crate::live::proposal::{adapts, fixed_coalescing, room_for_kthread};
use crate::live::work::{Queue, Work, normalized};
use crate::placement::{MOST_BATCH, Placement, Shares};
use crate::prediction::CpuTime;

/// Greatest factor by which polls of softirqs fill up between what was observed and a full CPU: how
/// they do beyond that was not measured.
const MOST_GROWTH: f64 = 4.0;

/// By how much polls fill up if a device or a timer begins to hold interrupts back as long as it
/// finds right: at worst, likely, and at best. An assumption: half, 70% and 95% of the interrupts
/// are saved.
const ADAPTED: [f64; 3] = [2.0, 3.3, 20.0];

impl Placement {
    /// Returns where the packets of the queue of this number run now.
    pub(crate) fn present(work: &Work<'_>, number: usize) -> Self {
        let batch = work.queues[number].batch;
        Self { batch, ..Self::new(work, number, work.settings, End::Likely) }
    }

    /// Returns where the packets of the queue of this number run under `settings`: as observed
    /// where these settings are the present ones. `arrivals` says how RPS divides them,
    /// and how many gather.
    pub(crate) fn new(work: &Work<'_>, number: usize, settings: &Snapshot, arrivals: End) -> Self {
        Self::by_arrivals(work, number, settings)(arrivals)
    }

    /// The same, by how RPS divides them and how many gather.
    pub(crate) fn by_arrivals(
        work: &Work<'_>,
        number: usize,
        settings: &Snapshot,
    ) -> impl Fn(End) -> Self {
        let (queue, now) = (&work.queues[number], work.settings);
        let is_threaded = is_threaded(work, queue, settings);
        let moved = if is_threaded && queue.silo.kthread.is_none() {
            room_for_kthread(&work.idlest, number).map(Shares::one)
        } else {
            moved_to(work, queue, settings, is_threaded)
        };
        let [old, new] = [now, settings].map(|it| Steering::of(work, queue, it));
        let stays = moved.is_none() && old == new;
        let poll = moved.unwrap_or_else(|| queue.polled.clone());
        let poll = if new.has_arfs && !old.has_arfs {
            poll.blended(&near_readers(work, queue, &poll), queue.likely_steerable())
        } else {
            poll
        };
        let steered = if new.has_rfs { queue.likely_steerable() } else { 0.0 };
        let protocol = move |poll: &Shares, arrivals| {
            let observed = &queue.silo.protocol_cpus;
            if (new.rps.is_empty() && !new.has_rfs) || queue.has_unknown_senders() {
                None
            } else if old == new && !observed.is_empty() {
                let observed = normalized(observed.iter().map(|(cpu, share)| (*cpu, *share)));
                Some(if stays { observed } else { new.moved_along(queue, &observed, poll) })
            } else {
                let hashed = if new.rps.is_empty() {
                    poll.clone()
                } else {
                    let busiest_first = work.idlest.iter().rev().copied();
                    let targets = busiest_first.filter(|cpu| new.rps.contains(*cpu)).collect();
                    hashed(targets, queue.flows.as_ref(), arrivals)
                };
                let steered = if queue.read.is_empty() { 0.0 } else { steered };
                Some(hashed.blended(&queue.read, steered))
            }
        };
        let batch = batch(work, queue, settings);
        move |arrivals| {
            let (protocol, batch) = (protocol(&poll, arrivals), arrivals.of(batch));
            Self { poll: poll.clone(), protocol, steered, batch, begun: 1.0, is_threaded }
        }
    }

    /// How many times longer packets wait for a poll where the CPUs that poll are full; before
    /// that, they spend their time as `then` says.
    ///
    /// Softirqs do not wait for tasks, only for each other: a poll finds packets in proportion to
    /// 1 / (1 - their share of the time).
    pub(crate) fn full_wait(
        &self,
        work: &Work<'_>,
        queue: &Queue<'_>,
        then: impl Fn(CpuId) -> Option<CpuTime>,
    ) -> f64 {
        let idle = |shares: &Shares, softirq: &dyn Fn(CpuId) -> f64| {
            shares.iter().map(|(cpu, share)| share * (1.0 - softirq(cpu)).max(0.0)).sum::<f64>()
        };
        let now = |cpu: CpuId| work.cpus.get(&cpu).map_or(0.0, |time| time.softirq);
        let then = |cpu: CpuId| {
            then(cpu).map_or(0.0, |it| it.softirq / (it.usr + it.sys + it.softirq).max(1e-6))
        };
        idle(&queue.polled, &now) / idle(&self.poll, &then).max(1e-6)
    }

    /// Packets of one poll if packets wait `wait` times longer for it.
    ///
    /// Packets gather while tasks keep a NAPI kthread from its CPU: each of its polls takes all
    /// that it may.
    pub(crate) fn full_batch(&self, queue: &Queue<'_>, wait: f64) -> f64 {
        let grows = match (self.is_threaded, queue.is_backlog) {
            (true, _) => f64::INFINITY,
            (_, true) => 1.0,
            _ => wait.clamp(1.0, MOST_GROWTH),
        };
        (self.batch * grows).min(MOST_BATCH.max(self.batch))
    }
}

/// Where the flows of a queue are polled if the device brings each to the queue of its netdev that
/// is nearest to its reader; `poll` where nobody reads.
fn near_readers(work: &Work<'_>, queue: &Queue<'_>, poll: &Shares) -> Shares {
    let of_netdev = work.queues.iter().filter(|it| it.silo.netdev == queue.silo.netdev);
    let polled: CpuSet = of_netdev.flat_map(|it| it.polled.cpus()).collect();
    let topology = &work.analysis.after().topology;
    let mut near = Shares::default();
    for (reader, share) in queue.read.iter() {
        let nearest = polled.iter().min_by_key(|cpu| topology.distance(*cpu, reader));
        near.add(nearest.unwrap_or(reader), share);
    }
    if near.is_empty() { poll.clone() } else { near }
}

/// The netdev of a queue; settings may lack what is as in the last snapshot.
fn netdev_of<'s>(
    work: &'s Work<'_>,
    queue: &Queue<'_>,
    settings: &'s Snapshot,
) -> Option<&'s Netdev> {
    let of = |it: &'s Snapshot| it.netdevs.identified(&queue.silo.netdev);
    of(settings).or_else(|| of(work.analysis.after()))
}

/// Whether a kthread polls a queue: as observed, unless `threaded` changes. Without an interrupt,
/// it is not known which CPU would poll instead of a kthread.
fn is_threaded(work: &Work<'_>, queue: &Queue<'_>, settings: &Snapshot) -> bool {
    let of = |snapshot: &Snapshot| netdev_of(work, queue, snapshot)?.threaded;
    match (of(work.settings), of(settings)) {
        (old, Some(new)) if old != Some(new) && !queue.is_polled_by_kthread_alone() => new > 0,
        _ => queue.silo.kthread.is_some(),
    }
}

/// Packets of one poll: as observed, times what a longer or shorter wait before an interrupt
/// gathers; at worst, likely, and at best.
fn batch(work: &Work<'_>, queue: &Queue<'_>, settings: &Snapshot) -> [f64; 3] {
    let [now, then] = [work.settings, settings].map(|it| netdev_of(work, queue, it));
    let gathered = |netdev: Option<&Netdev>| {
        let coalesce = fixed_coalescing(netdev)?;
        let waited = 1.0 + queue.packets * f64::from(coalesce.rx_coalesce_usecs) / 1e6;
        Some(match coalesce.rx_max_coalesced_frames {
            0 => waited,
            frames => waited.min(f64::from(frames)),
        })
    };
    // Fewer packets arrive during a poll, and the wait before it.
    let here = queue.batch - (queue.batch - 1.0) * (1.0 - queue.crowd);
    let more = match (gathered(now), gathered(then)) {
        (Some(old), Some(new)) => [new / old; 3],
        _ if adapts(then) && !adapts(now) => ADAPTED,
        _ => [1.0; 3],
    };
    more.map(|more| (here * more).clamp(1.0, MOST_BATCH.max(here)))
}

/// The CPUs that poll a queue under other settings; `None` if these say what the present ones say.
fn moved_to<'a>(
    work: &'a Work<'_>,
    queue: &Queue<'_>,
    settings: &'a Snapshot,
    is_threaded: bool,
) -> Option<Shares> {
    let online = &work.analysis.after().topology.online;
    if queue.silo.kthread.is_some() && is_threaded {
        let napi = queue.silo.napi.as_ref()?.to;
        let of = |snapshot: &'a Snapshot| {
            let netdev = netdev_of(work, queue, snapshot)?;
            Some(&netdev.napis.iter().find(|it| it.id == napi)?.thread.as_ref()?.cpus)
        };
        let cpus = of(settings)?;
        // The scheduler moves it among these.
        return (Some(cpus) != of(work.settings))
            .then(|| normalized(cpus.and(online).iter().map(|cpu| (cpu, 1.0))));
    }
    let irq = queue.silo.irq.as_ref()?.to;
    let last = work.analysis.after();
    let state = |it: &'a Snapshot| it.irqs.get(&irq).or_else(|| last.irqs.get(&irq));
    let of = |snapshot: &'a Snapshot| state(snapshot)?.requested.as_ref();
    let requested = of(settings)?;
    if queue.silo.kthread.is_none() && Some(requested) == of(work.settings) {
        return None;
    }
    // x86 chooses one CPU of the mask for the vector; a plan's masks have one.
    let cpu = requested.and(online).lowest()?;
    Some(Shares::one(cpu))
}

/// RPS and RFS of a queue.
#[derive(Debug, PartialEq)]
struct Steering {
    rps: CpuSet,
    has_rfs: bool,
    /// Whether the device steers flows by the table of RFS.
    has_arfs: bool,
}

impl Steering {
    fn of(work: &Work<'_>, queue: &Queue<'_>, settings: &Snapshot) -> Self {
        let netdev = netdev_of(work, queue, settings);
        let has_number = |it: &&RxQueue| Some(it.index) == queue.silo.queue;
        let rx = netdev.and_then(|netdev| netdev.rx_queues.iter().find(has_number));
        let rps = rx.and_then(|rx| rx.rps_cpus.as_ref());
        // `get_rps_cpu` looks at the flow tables even without a mask.
        let has_rfs = settings.net.rps_sock_flow_entries.unwrap_or(0) > 0
            && rx.and_then(|rx| rx.rps_flow_cnt).unwrap_or(0) > 0;
        Self {
            rps: rps.map_or_else(CpuSet::new, |cpus| cpus.and(&settings.topology.online)),
            has_rfs,
            has_arfs: netdev.is_some_and(|netdev| arfs_is_on(settings, netdev)),
        }
    }

    /// Where a queue's protocol runs, of which this much was observed on each CPU, if others poll
    /// it: what no steering had taken to a CPU goes along.
    fn moved_along(&self, queue: &Queue<'_>, observed: &Shares, poll: &Shares) -> Shares {
        let mut along = 0.0;
        let stays = |(cpu, share): (CpuId, f64)| {
            let steered = match (self.rps.contains(cpu), self.has_rfs) {
                _ if !queue.polled.contains(cpu) => share,
                (true, _) => share,
                (false, true) => share.min(queue.read.of(cpu)),
                (false, false) => 0.0,
            };
            along += share - steered;
            (cpu, steered)
        };
        let mut all: Shares = observed.iter().map(stays).collect();
        poll.iter().for_each(|(cpu, share)| all.add(cpu, along * share));
        all.without_empty()
    }
}
