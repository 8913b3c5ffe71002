//! Questions that can be asked about any knob.

use std::fmt;

use crate::change::knob::{KnobFacts, WrongValue};
use crate::change::knobs::Target;
use crate::change::location::Location;
use crate::change::step::{Interruption, Step, Traffic};
use crate::change::value::Value;
use crate::machine::ids::Irq;
use crate::snapshot::host::{KnobOwner, Snapshot};
use crate::snapshot::netdev::NetdevIdentity;

impl Target {
    /// What is the same for all knobs of this type.
    pub fn facts(&self) -> &'static KnobFacts {
        self.knob().facts()
    }

    /// Where it lies.
    pub fn location(&self) -> Location<'_> {
        self.knob().location()
    }

    /// The value in a snapshot; `None` if the snapshot does not have this knob, or has another one
    /// in its place.
    pub fn value_in(&self, snapshot: &Snapshot) -> Option<Value> {
        self.knob().value_in(snapshot)
    }

    /// The value that the kernel's text means. The error is the reason.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        self.knob().parse(text)
    }

    /// Whether the knob accepts values of this type.
    pub fn check(&self, value: &Value) -> Result<(), WrongValue> {
        self.knob().check(value)
    }

    /// Whether the driver may have made `now` of the value `requested`.
    pub fn may_round_to(&self, requested: &Value, now: &Value) -> bool {
        self.knob().may_round_to(requested, now) == Some(true)
    }

    /// The step in which it is written. `off` means that the new value switches it off.
    pub fn step(&self, off: bool) -> Step {
        self.knob().step(off)
    }

    /// The interrupt whose affinity it is.
    pub fn irq(&self) -> Option<Irq> {
        match self {
            Self::IrqAffinity(knob) => Some(knob.irq),
            _ => None,
        }
    }

    /// Whether another program writes knobs of this kind while it runs, and does not leave this one
    /// alone.
    pub fn is_owned_by(&self, program: &KnobOwner) -> bool {
        let is_left = self.irq().is_some_and(|irq| program.leaves_alone(irq));
        !is_left && self.facts().effect.owner.is_some_and(|knob| program.writes.contains(&knob))
    }

    /// Whether writing it stops the traffic of its device for a moment; `None` if it does not.
    pub fn interrupts_traffic(&self) -> Option<Interruption> {
        match self.facts().effect.traffic {
            Traffic::Stops(interruption) => Some(interruption),
            Traffic::Unchanged | Traffic::FlowsMove => None,
        }
    }

    /// Whether the driver may recreate queues, interrupts or NAPIs of its device when the knob is
    /// written. Then the driver chooses their settings itself.
    pub fn may_reset_queues(&self) -> bool {
        self.interrupts_traffic().is_some() || self.facts().waits_for_napis
    }

    /// The device to which it belongs, if any.
    pub fn netdev(&self) -> Option<&NetdevIdentity> {
        self.location().netdev()
    }

    /// Whether it exists only in one network namespace.
    pub fn is_of_netns(&self) -> bool {
        match self.location() {
            Location::Netdev { .. } | Location::Ethtool { .. } => true,
            Location::File(path) => path.starts_with("/proc/sys/net/"),
            Location::Irq { .. }
            | Location::Thread { .. }
            | Location::Cgroup(_)
            | Location::Irqbalance { .. }
            | Location::Refused(_) => false,
        }
    }

    /// Whether a driver accepts or refuses it, through ethtool.
    pub fn is_of_ethtool(&self) -> bool {
        matches!(self.location(), Location::Ethtool { .. })
    }

    /// Whether it belongs to the netdev of this name.
    pub fn is_of(&self, netdev: &str) -> bool {
        self.knob().is_of(netdev)
    }

    /// Whether a change of `self` resets the value that a change of `other` sets in the same plan.
    pub fn voids(&self, other: &Self) -> bool {
        other.knob().is_void_after(&self.location())
    }
}

/// The knob in words (`irq 27 (virtio0-input.1)`, `eth0 rx-3 rps_cpus`).
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.knob().name())
    }
}
