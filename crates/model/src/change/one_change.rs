//! A [`Change`]: its values, its form for people, and how it is reversed and verified.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::change::knob::{Knob, WrongValue};
use crate::change::knobs::Target;
use crate::change::value::Value;
use crate::machine::cpuset::CpuSet;
use crate::snapshot::host::Snapshot;

/// One knob, its old and new value, and the reason.
///
/// Both values have the type that the knob accepts. With another type [`Change::new`] does not
/// compile, and [`Change::untyped`] and deserialization fail. The fields are read through
/// [`Deref`]; nothing writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "ChangeFields")]
pub struct Change(ChangeFields);

/// The fields of a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangeFields {
    /// The knob.
    pub target: Target,
    /// The value when the plan was made.
    pub old: Value,
    /// The value wanted.
    pub new: Value,
    /// Why, in words that an operator would accept.
    pub reason: String,
}

impl Deref for Change {
    type Target = ChangeFields;

    fn deref(&self) -> &ChangeFields {
        &self.0
    }
}

impl TryFrom<ChangeFields> for Change {
    type Error = WrongValue;

    fn try_from(fields: ChangeFields) -> Result<Self, WrongValue> {
        fields.target.check(&fields.old)?;
        fields.target.check(&fields.new)?;
        Ok(Self(fields))
    }
}

impl Change {
    /// A change of a knob whose type is known.
    ///
    /// ```
    /// use netsilo_model::change::{Change, knobs};
    ///
    /// let change = Change::new(knobs::RpsSockFlowEntries, 0, 32_768, "RFS");
    /// assert_eq!(change.target.to_string(), "rps_sock_flow_entries");
    /// ```
    ///
    /// A value of another type does not compile:
    ///
    /// ```compile_fail,E0308
    /// use netsilo_model::change::{Change, knobs};
    /// use netsilo_model::machine::cpuset::CpuSet;
    ///
    /// Change::new(knobs::RpsSockFlowEntries, CpuSet::new(), CpuSet::first(4), "RFS");
    /// ```
    pub fn new<K: Knob + Into<Target>>(
        knob: K,
        old: K::Value,
        new: K::Value,
        reason: impl Into<String>,
    ) -> Self {
        let (target, old, new) = (knob.into(), old.into(), new.into());
        Self(ChangeFields { target, old, new, reason: reason.into() })
    }

    /// A change of a knob whose type is known only at run time.
    pub fn untyped(
        target: Target,
        old: Value,
        new: Value,
        reason: impl Into<String>,
    ) -> Result<Self, WrongValue> {
        ChangeFields { target, old, new, reason: reason.into() }.try_into()
    }

    /// The change from the value in a snapshot. `None` if the snapshot does not have the knob, or
    /// if the knob already has the new value.
    pub fn of<K: Knob + Into<Target>>(
        snapshot: &Snapshot,
        knob: K,
        new: K::Value,
        reason: impl Into<String>,
    ) -> Option<Self> {
        let old = knob.value_in(snapshot)?;
        (old != new).then(|| Self::new(knob, old, new, reason))
    }

    /// The same change for another reason.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self(ChangeFields { reason: reason.into(), ..self.0 })
    }

    /// The old and the new value for people. For settings only those that differ; for a table also
    /// how much of it moves.
    pub fn from_to(&self) -> (String, String) {
        match (&self.old, &self.new) {
            (Value::Settings(old), Value::Settings(new)) => {
                (old.unlike(new).to_string(), new.unlike(old).to_string())
            }
            (Value::Table(old), Value::Table(new)) => {
                let (moved, all) = (new.moved_from(old), new.0.len());
                (old.to_string(), format!("{new} ({moved} of {all} buckets move)"))
            }
            (old, new) => (old.to_string(), new.to_string()),
        }
    }

    /// The change that reverts this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self(ChangeFields {
            target: self.target.clone(),
            old: self.new.clone(),
            new: self.old.clone(),
            reason: format!("undo: {}", self.reason),
        })
    }

    /// The text that the kernel accepts for the new value.
    pub fn text(&self) -> String {
        self.target.knob().text(&self.new).unwrap_or_else(|| self.new.to_string())
    }

    /// The text of the new value as the kernel stores it: flow counts are rounded up.
    pub fn settled_text(&self) -> String {
        let settled = self.settles_as(&CpuSet::new);
        self.target.knob().text(&settled).unwrap_or_else(|| settled.to_string())
    }

    /// The value that the kernel stores for the new value. `reserved` are the CPUs isolated at
    /// boot.
    pub fn settles_as(&self, reserved: &dyn Fn() -> CpuSet) -> Value {
        let settled = self.target.knob().settles_as(&self.new, reserved);
        settled.unwrap_or_else(|| self.new.clone())
    }

    /// The option and arguments of `ethtool` that make this change, quoted for a shell. `None` if
    /// ethtool has none that can run twice.
    pub fn ethtool(&self) -> Option<String> {
        self.target.knob().ethtool(&self.old, &self.new)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::change::in_snapshot::apply_to;
    use crate::change::knobs;
    use crate::change::knobs::NTUPLE_FILTER;
    use crate::change::value::Table;
    use crate::machine::ids::Irq;
    use crate::snapshot::host::IrqState;
    use crate::snapshot::netdev::NetdevIdentity;

    fn set(text: &str) -> CpuSet {
        CpuSet::parse_list(text).unwrap()
    }

    fn host() -> (Snapshot, Change) {
        let mut snapshot = Snapshot::default();
        let state = IrqState {
            actions: vec!["eth0-rx-0".into()],
            requested: Some(set("0-3")),
            effective: Some(set("0")),
            ..IrqState::default()
        };
        snapshot.irqs.insert(Irq(30), state);
        Arc::make_mut(&mut snapshot.topology).online = CpuSet::first(4);
        let knob = knobs::IrqAffinity { irq: Irq(30), action: "eth0-rx-0".into(), netdev: None };
        (snapshot, Change::new(knob, set("0-3"), set("2"), ""))
    }

    #[test]
    fn applied_and_taken_back_leaves_what_was_asked_for() {
        let (snapshot, change) = host();
        let after = apply_to(&snapshot, std::slice::from_ref(&change));
        assert_eq!(change.target.value_in(&after), Some(change.new.clone()));
        let back = apply_to(&after, &[change.inverse()]);
        assert_eq!(change.target.value_in(&back), Some(change.old.clone()));
    }

    #[test]
    fn a_number_that_another_interrupt_has_now_is_gone() {
        let (mut snapshot, change) = host();
        snapshot.irqs.get_mut(&Irq(30)).unwrap().actions = vec!["nvme0q3".into()];
        assert_eq!(change.target.value_in(&snapshot), None);
        assert_eq!(apply_to(&snapshot, &[change]), snapshot);
    }

    #[test]
    fn of_settings_a_person_sees_those_that_differ() {
        let netdev = || NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let (old, new) = ("rx=256 tx=512".parse().unwrap(), "rx=4096 tx=512".parse().unwrap());
        let rings = Change::new(knobs::Rings { netdev: netdev() }, old, new, "");
        assert_eq!(rings.from_to(), ("rx=256".into(), "rx=4096".into()));
        let knob = knobs::RssTable { netdev: netdev(), context: 0 };
        let table = Change::new(knob, Table(vec![0, 1, 0, 1]), Table(vec![0, 1, 1, 1]), "");
        assert_eq!(table.from_to(), ("equal 2".into(), "weight 1 3 (1 of 4 buckets move)".into()));
    }

    #[test]
    fn the_offload_that_steers_flows_is_the_one_that_had_a_name_of_its_own() {
        let old = r#"{"knob":"ntuple_filter","netdev":{"name":"eth0","device_path":null}}"#;
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
        let target = Target::Offload(knobs::Offload { netdev, feature: NTUPLE_FILTER.into() });
        assert_eq!(serde_json::from_str::<Target>(old).unwrap(), target);
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
    }
}
