//! The parameters of the cost model that nothing measures: [`Assumed`].
//!
//! `evidence/outcomes.md` shows how much the choices lose if one is half or double as large.

/// Parameters that are assumed; `Default` is the documented table.
///
/// Times are shares of one CPU's time, unless their name ends with `_ns`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// Cost of a full CPU, by the busy share of its time, all work included: each pair is a
    /// threshold and the extra cost per further share above it.
    ///
    /// - Above 80%, added work takes the same amount of time from work that needs it.
    /// - Above 95%, the CPU is saturated: whatever runs there would use more time than it gets.
    ///   Packets wait in the ring and are lost, or clients that wait for answers send less.
    pub full: [(f64, f64); 2],
    /// Cost of items that wait for each other on one CPU, by the share of its time that all of them
    /// take; in the form of [`Self::full`].
    pub queued: [(f64, f64); 2],
    /// Delay of work on the same CPU for each second of polling that finds it running: the softirq
    /// preempts it, so it waits for as long as the poll takes.
    pub preempted: f64,
    /// Wait of a NAPI kthread that wakes while another thread runs on its CPU (ns): it gets its
    /// turn like any other thread. Half of the least slice (`sysctl_sched_base_slice`, 3 ms on four
    /// CPUs or more up to eight; `kernel/sched/fair.c`, Linux 6.6). It may be less: a thread that
    /// sleeps often preempts. It cannot be more than the time between two polls.
    pub turn_ns: f64,
    /// A move must gain at least the sum of some parts; this one is fixed.
    pub moving_least: f64,
    /// Part of the least gain as a share of the vector's load, because loads vary that much between
    /// measurements; not for a move nearer to the readers, whose gain is counted and does not vary
    /// with loads.
    pub moving_load: f64,
    /// Part of the least gain as a share of the vector's present cost.
    pub moving_cost: f64,
    /// Part of the least gain as a share of all CPU time that a move saves and costs, part by part:
    /// where much is saved and about as much waits, the difference of two estimates decides, which
    /// is less certain than either.
    pub moving_parts: f64,
    /// Standard errors of what was counted that a move must gain: of `n` wakeups or packets,
    /// another measurement counts about `sqrt(n)` more or less.
    pub counting_errors: f64,
    /// A CPU's busy time differs by this share between measurements. A move of a kthread must gain
    /// at least the wait that so much busy time adds or saves.
    pub busy_noise: f64,
    /// Two vectors forward packets to each other on one CPU. A move that separates them must gain
    /// the cost of forwarding once more, times this, because flows change their queues. At 1, the
    /// completions of a tx queue follow another sender that sends twice as much.
    pub leaving_sender: f64,
}

impl Default for Assumed {
    fn default() -> Self {
        Self {
            full: [(0.80, 1.0), (0.95, 3.0)],
            queued: [(0.25, 0.05), (0.50, 0.30)],
            preempted: 1.0,
            turn_ns: 1.5e6,
            moving_least: 0.0005,
            moving_load: 0.10,
            moving_cost: 0.10,
            moving_parts: 0.10,
            counting_errors: 2.0,
            busy_noise: 0.05,
            leaving_sender: 1.0,
        }
    }
}

/// Multiplies one parameter.
type Scale = fn(&mut Assumed, f64);

impl Assumed {
    /// Each parameter by its name in `evidence/outcomes.md`, and how to multiply it. Of costs above
    /// a threshold, the cost is multiplied, not the threshold.
    const EACH: [(&str, Scale); 11] = [
        ("full CPU", |it, by| it.full.iter_mut().for_each(|(_, slope)| *slope *= by)),
        ("polls wait for each other", |it, by| {
            it.queued.iter_mut().for_each(|(_, slope)| *slope *= by);
        }),
        ("preempted work", |it, by| it.preempted *= by),
        ("a kthread's turn", |it, by| it.turn_ns *= by),
        ("least gain, fixed", |it, by| it.moving_least *= by),
        ("least gain by load", |it, by| it.moving_load *= by),
        ("least gain by cost", |it, by| it.moving_cost *= by),
        ("least gain by what changes", |it, by| it.moving_parts *= by),
        ("least gain by what is counted", |it, by| it.counting_errors *= by),
        ("least gain of a kthread", |it, by| it.busy_noise *= by),
        ("leaving a sender's CPU", |it, by| it.leaving_sender *= by),
    ];

    /// Multiplies what a move must gain.
    pub fn scale_moving(&mut self, by: f64) {
        let Self { moving_least, moving_load, moving_cost, moving_parts, .. } = self;
        let Self { counting_errors, busy_noise, leaving_sender, .. } = self;
        let parts = [
            moving_least,
            moving_load,
            moving_cost,
            moving_parts,
            counting_errors,
            busy_noise,
            leaving_sender,
        ];
        for least in parts {
            *least *= by;
        }
    }

    /// Each parameter by its name, and the assumptions with it half and double as large.
    pub fn half_and_double() -> impl Iterator<Item = (&'static str, [Self; 2])> {
        Self::EACH.into_iter().map(|(name, scale)| {
            let scaled = |by: f64| {
                let mut assumed = Self::default();
                scale(&mut assumed, by);
                assumed
            };
            (name, [scaled(0.5), scaled(2.0)])
        })
    }

    /// Crowding cost of a CPU, in shares of a CPU: `busy` is the share of its time that all work
    /// takes, `items` that of the items among it.
    #[inline]
    pub fn pressure(&self, busy: f64, items: f64) -> f64 {
        let beyond = |steps: [(f64, f64); 2], share: f64| -> f64 {
            steps.iter().map(|(from, slope)| slope * (share - from).max(0.0)).sum()
        };
        beyond(self.full, busy) + beyond(self.queued, items)
    }

    /// Crowding cost of the next share of load, in the terms of [`Self::pressure`].
    #[inline]
    pub fn slope(&self, busy: f64, items: f64) -> f64 {
        let beyond = |steps: [(f64, f64); 2], share: f64| -> f64 {
            steps.iter().filter(|(from, _)| share >= *from).map(|(_, slope)| slope).sum()
        };
        beyond(self.full, busy) + beyond(self.queued, items)
    }
}
