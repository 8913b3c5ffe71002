//! The CPUs of interrupts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Errno, Knob, KnobFacts, put};
use crate::change::location::Location;
use crate::change::step::{Step, Traffic};
use crate::machine::cpuset::CpuSet;
use crate::machine::ids::Irq;
use crate::snapshot::host::{IrqState, OwnedKnob, Snapshot, Writable};
use crate::snapshot::netdev::{Netdev, NetdevIdentity};

/// `/proc/irq/<irq>/smp_affinity`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IrqAffinity {
    /// The interrupt.
    pub irq: Irq,
    /// Its action names, joined by commas. They identify the interrupt.
    pub action: String,
    /// The device to which it belongs, if known.
    pub netdev: Option<NetdevIdentity>,
}

impl Knob for IrqAffinity {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "irq_affinity",
        fields: "`irq`, `action` (its names), `netdev` or `null`",
        place: "`/proc/irq/IRQ/smp_affinity`",
        step: Step::Interrupts,
        needs: Capability::None,
        // EIO up to 6.11, EPERM from 6.12 (`kernel/irq/proc.c:write_irq_affinity`).
        refusals: &[
            (Errno::Io, PLACED_BY_KERNEL),
            (Errno::Perm, PLACED_BY_KERNEL),
            (Errno::NoSpc, NO_VECTOR),
        ],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: true,
            owner: Some(OwnedKnob::IrqAffinity),
        })
    };

    fn name(&self) -> String {
        format!("irq {} ({})", self.irq, self.action)
    }

    fn location(&self) -> Location<'_> {
        Location::Irq { irq: self.irq, action: &self.action, netdev: self.netdev.as_ref() }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        let state = snapshot.irqs.get(&self.irq)?;
        (state.actions.join(",") == self.action).then(|| state.requested.clone())?
    }

    /// The new affinity is effective at once, and the old vector is free.
    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        let effective = cpus.and(&snapshot.topology.online).lowest().map(CpuSet::from_cpu);
        if let Some(state) = snapshot.irqs.get_mut(&self.irq) {
            let [old, new] = [&state.effective, &effective].map(|it| it.as_ref()?.single());
            if old != new {
                let free = &mut snapshot.free_vectors;
                old.and_then(|cpu| free.get_mut(&cpu)).into_iter().for_each(|left| *left += 1);
                let left = new.and_then(|cpu| free.get_mut(&cpu));
                left.into_iter().for_each(|left| *left = left.saturating_sub(1));
            }
            (state.requested, state.effective) = (Some(cpus), effective);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let writable = snapshot.irqs.iter().filter(|(_, state)| state.writable == Writable::Yes);
        let mut netdevs: BTreeMap<Irq, &Netdev> = BTreeMap::new();
        for netdev in &snapshot.netdevs {
            for irq in &netdev.irqs {
                netdevs.entry(*irq).or_insert(netdev);
            }
        }
        let knob = |(irq, state): (&Irq, &IrqState)| Self {
            irq: *irq,
            action: state.actions.join(","),
            netdev: netdevs.get(irq).map(|netdev| NetdevIdentity::from_netdev(netdev)),
        };
        writable.map(knob).collect()
    }
}

const PLACED_BY_KERNEL: &str = "the kernel or its interrupt controller places this interrupt \
     itself (a managed one, or no affinity support); leave it out";
const NO_VECTOR: &str =
    "no free interrupt vector on these cpus (there are about 200 per cpu); choose other cpus";

/// `/proc/irq/default_smp_affinity`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DefaultSmpAffinity;

impl Knob for DefaultSmpAffinity {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "default_smp_affinity",
        value: "for interrupts that appear later",
        place: "`/proc/irq/default_smp_affinity`",
        step: Step::DefaultAffinity,
        needs: Capability::None,
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::File("/proc/irq/default_smp_affinity".into())
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        snapshot.default_smp_affinity.clone()
    }

    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        put(snapshot.default_smp_affinity.as_mut(), cpus);
    }

    fn all_in(_: &Snapshot) -> Vec<Self> {
        vec![Self]
    }
}
