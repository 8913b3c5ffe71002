//! When a change is made, and its effect on the traffic of its device.

use std::fmt;

/// When a change is made: an earlier variant comes before a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The default for interrupts that a later step creates.
    DefaultAffinity,
    /// The driver sets up queues and interrupts again, which resets other settings.
    Channels,
    /// The driver sets up its rings again.
    Rings,
    /// Threaded polling creates the kthreads that a later step moves.
    Threads,
    /// Steering ends: first rules, then the contexts that they use, then the offload.
    RulesOff,
    /// See [`Step::RulesOff`].
    ContextsOff,
    /// See [`Step::RulesOff`].
    SteeringOff,
    /// All other offloads.
    Offloads,
    /// How the device moderates its interrupts.
    Moderation,
    /// The hash function and key.
    Hash,
    /// Which fields are hashed.
    HashFields,
    /// The table that the hash indexes.
    HashTable,
    /// Other programs leave interrupts alone before these are moved.
    OtherPrograms,
    /// The CPUs of interrupts.
    Interrupts,
    /// Each kthread after the interrupt that wakes it.
    Kthreads,
    /// The tx queue of each CPU, once the completions of the queue arrive at their new CPU.
    Xps,
    /// The CPUs of RPS.
    Rps,
    /// The RFS table exists before the queues count flows into it.
    FlowTable,
    /// The flow counts of the queues.
    FlowCounts,
    /// The RFS table is removed once no queue counts into it.
    FlowTableOff,
    /// Steering begins once all tables exist, in the reverse order of its end.
    SteeringOn,
    /// See [`Step::SteeringOn`].
    ContextsOn,
    /// See [`Step::SteeringOn`].
    RulesOn,
    /// Limits and budgets.
    Sysctls,
    /// Consumers come last. A cgroup comes before its threads, because it may narrow their CPUs.
    Cgroups,
    /// The threads of consumers.
    Consumers,
}

/// Whether a change stops the traffic of its device for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// Only with some drivers, which set themselves up again.
    Sometimes,
    /// The driver sets up its queues again. Frames in them are lost, and the link may be down for
    /// seconds.
    Always,
}

/// What a change does to the traffic of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Nothing beyond the change itself.
    Unchanged,
    /// Flows move to another queue. Some of their packets may arrive out of order.
    FlowsMove,
    /// Traffic stops for a moment.
    Stops(Interruption),
}

/// As in the table of `docs/knobs.md`.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "no",
            Self::FlowsMove => "flows move",
            Self::Stops(Interruption::Sometimes) => "with some drivers",
            Self::Stops(Interruption::Always) => "**interrupted**",
        })
    }
}
