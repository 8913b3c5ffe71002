//! [`RemedyVerdict`]: the predicted effect of one remedy on one netdev, with its reasons.

use std::fmt;

use netsilo_model::change::{Change, Knob, Target};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;
use netsilo_predict::live::claim::Claim;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::{Evidence, Gain};
use crate::judge::verdict::look::NetdevLook;

/// The predicted effect of one remedy on one netdev.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RemedyVerdict {
    /// The remedy.
    pub remedy: RemedyName,
    /// The netdev.
    pub subject: Subject,
    /// What is claimed of the effect.
    pub claim: Claim,
    /// The reason, in one line.
    #[serde(rename = "because")]
    pub reason: String,
    /// The gain.
    pub gain: Gain,
    /// The measurements that support the verdict.
    pub reasons: Vec<Evidence>,
    /// The changes to write; empty when none is advised or netsilo cannot write it.
    pub changes: Vec<Change>,
    /// When not to use the remedy, regardless of the measurements.
    pub not_when: Option<String>,
}

impl RemedyVerdict {
    /// Whether it is on this netdev. Said once for a bond and its ports, it is on the ports.
    pub(crate) fn is_on(&self, netdev: &str) -> bool {
        let netdevs = self.subject.netdevs();
        let ports = if netdevs.len() > 1 { &netdevs[1..] } else { netdevs };
        ports.iter().any(|name| name == netdev)
    }

    /// Remedy and netdev (`RPS on eth0`).
    pub fn name(&self) -> String {
        format!("{} on {}", self.remedy, self.subject)
    }
}

/// A remedy for a netdev's receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RemedyName {
    /// Steer protocol work to other CPUs by the flow's hash.
    Rps,
    /// Steer protocol work to the CPU that reads the flow.
    Rfs,
    /// Both: RPS steers what RFS cannot.
    RpsAndRfs,
    /// Let the device steer flows to the queue nearest their reader.
    Arfs,
    /// Place each queue's interrupt on its own CPU.
    SpreadInterrupts,
    /// Use more queues.
    MoreQueues,
    /// Poll NAPI in kthreads.
    ThreadedNapi,
    /// Use more descriptors in the receive ring.
    BiggerRing,
    /// Process more packets in one softirq run.
    BiggerBudget,
    /// Let the device wait before it raises an interrupt.
    Coalescing,
    /// Let the kernel poll from a timer instead of taking interrupts.
    IrqDeferral,
    /// Let readers busy-poll.
    BusyPoll,
}

impl RemedyName {
    /// Whether its effect on a port of a bond is judged with all ports.
    pub(crate) fn is_judged_with_ports(self) -> bool {
        matches!(self, Self::Rps | Self::Rfs | Self::RpsAndRfs)
    }

    /// All of them.
    pub(super) const ALL: [Self; 12] = [
        Self::Rps,
        Self::Rfs,
        Self::RpsAndRfs,
        Self::Arfs,
        Self::SpreadInterrupts,
        Self::MoreQueues,
        Self::ThreadedNapi,
        Self::BiggerRing,
        Self::BiggerBudget,
        Self::Coalescing,
        Self::IrqDeferral,
        Self::BusyPoll,
    ];
}

impl fmt::Display for RemedyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rps => "RPS",
            Self::Rfs => "RFS",
            Self::RpsAndRfs => "RPS + RFS",
            Self::Arfs => "aRFS",
            Self::SpreadInterrupts => "spread interrupts",
            Self::MoreQueues => "more queues",
            Self::ThreadedNapi => "threaded NAPI",
            Self::BiggerRing => "bigger ring",
            Self::BiggerBudget => "bigger budget",
            Self::Coalescing => "coalescing",
            Self::IrqDeferral => "IRQ deferral",
            Self::BusyPoll => "busy poll",
        })
    }
}

impl RemedyVerdict {
    pub(super) fn new(
        look: &NetdevLook<'_>,
        remedy: RemedyName,
        claim: Claim,
        reason: impl Into<String>,
    ) -> Self {
        Self::on(look.netdev, remedy, claim, reason)
    }

    /// The verdict on a netdev whose receive work is not its own.
    pub(super) fn on(
        netdev: &Netdev,
        remedy: RemedyName,
        claim: Claim,
        reason: impl Into<String>,
    ) -> Self {
        let reason = reason.into();
        let gain = match claim {
            Claim::Unknown => Gain::Unknown(reason.clone()),
            _ => Gain::Nothing(reason.clone()),
        };
        Self {
            remedy,
            subject: Subject::Netdev(netdev.name.clone()),
            claim,
            reason,
            gain,
            reasons: Vec::new(),
            changes: Vec::new(),
            not_when: None,
        }
    }

    pub(super) fn gain(self, gain: Gain) -> Self {
        Self { gain, ..self }
    }

    pub(super) fn reasons(self, reasons: Vec<Evidence>) -> Self {
        Self { reasons, ..self }
    }

    /// Adds the change of one knob, if the snapshot has the knob and `edit` yields another value.
    pub(super) fn writes<K: Knob + Into<Target>>(
        mut self,
        look: &NetdevLook<'_>,
        knob: K,
        edit: impl FnOnce(&K::Value) -> Option<K::Value>,
        reason: &str,
    ) -> Self {
        let after = look.analysis.after();
        let new = knob.value_in(after).and_then(|old| edit(&old));
        self.changes.extend(new.and_then(|new| Change::of(after, knob, new, reason)));
        self
    }

    /// Adds the changes if the claim calls for them.
    pub(super) fn calls_for(self, claim: Claim, changes: Vec<Change>) -> Self {
        let changes = if self.claim == claim { changes } else { Vec::new() };
        Self { changes, ..self }
    }

    pub(super) fn not_when(self, not_when: &str) -> Self {
        Self { not_when: Some(not_when.to_owned()), ..self }
    }
}
