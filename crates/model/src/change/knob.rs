//! The descriptor of a knob: the trait [`Knob`]. The rows of the table in
//! [`knobs`](crate::change::knobs) implement it.
//!
//! A knob that is not in this table cannot be written, because it is not a
//! [`Target`](crate::change::Target). Whatever is true of a knob is a fact in its row or a method
//! of [`Knob`].

use crate::change::location::{EthtoolSetting, Location};
use crate::change::step::{Step, Traffic};
use crate::change::value::{Kind, Value};
use crate::machine::cpuset::CpuSet;
use crate::snapshot::host::{OwnedKnob, Snapshot};

/// A knob that netsilo may write. The fields of the type are its identity.
///
/// Devices are identified by values that survive a renumbering (path, queue, action name), so that
/// a journal can determine whether the knob is still the same.
///
/// To add a knob: write its type and its `impl` in a file of [`knobs`](crate::change::knobs), and
/// list it there, which makes it a [`Target`](crate::change::Target).
pub trait Knob: Clone {
    /// The type of its value. A change with another type does not compile.
    type Value: Kind;

    /// The facts that are the same for all knobs of this type.
    const FACTS: &'static KnobFacts;

    /// Where it is.
    fn location(&self) -> Location<'_>;

    /// The name for people (`eth0 rx-3 rps_cpus`, `eth0 rss key`).
    fn name(&self) -> String {
        let kind = Self::FACTS.kind;
        match self.location() {
            Location::Netdev { netdev, file } => {
                let file = file.trim_start_matches("queues/").replace('/', " ");
                format!("{} {file}", netdev.name)
            }
            Location::Ethtool { netdev, .. } => {
                format!("{} {}", netdev.name, kind.replace('_', " "))
            }
            _ => kind.to_owned(),
        }
    }

    /// The value in a snapshot; `None` if the snapshot does not have this knob.
    fn value_in(&self, _snapshot: &Snapshot) -> Option<Self::Value> {
        None
    }

    /// Sets the value in a snapshot that has this knob.
    fn set_in(&self, _snapshot: &mut Snapshot, _value: Self::Value) {}

    /// All knobs of this type that a machine has. None if another knob covers the setting, or if a
    /// snapshot does not list them.
    fn all_in(_snapshot: &Snapshot) -> Vec<Self> {
        Vec::new()
    }

    /// The step in which a change is made. `off` means that the new value switches the knob off.
    fn step(&self, _off: bool) -> Step {
        Self::FACTS.step
    }

    /// Whether the knob belongs to the netdev of this name.
    fn is_of(&self, netdev: &str) -> bool {
        self.location().netdev().is_some_and(|identity| identity.name == netdev)
    }

    /// Whether a change of the knob at `other` in the same plan resets the value that this knob
    /// sets.
    ///
    /// After a change of channels the driver sets up queues, interrupts and their threads again,
    /// and chooses their settings itself.
    fn is_void_after(&self, other: &Location<'_>) -> bool {
        let Location::Ethtool { netdev, setting: EthtoolSetting::Channels } = other else {
            return false;
        };
        Self::FACTS.effect.names_queues && self.is_of(&netdev.name)
    }

    /// The value that the kernel's text means.
    fn parse(text: &str) -> Result<Self::Value, String> {
        Self::Value::parse(text)
    }

    /// The text that the kernel accepts for a value.
    fn text(value: &Self::Value) -> String {
        value.text()
    }

    /// The value that the kernel stores for a written value. `reserved` returns the CPUs isolated
    /// at boot.
    fn settles_as(value: &Self::Value, _reserved: &dyn Fn() -> CpuSet) -> Self::Value {
        value.clone()
    }

    /// Whether the driver may have rounded the value `requested` to `now`.
    fn may_round_to(_requested: &Self::Value, _now: &Self::Value) -> bool {
        false
    }

    /// The option and arguments of `ethtool` that set the new value, quoted for a shell. `None` if
    /// ethtool has no command for it, or none that can safely be repeated.
    fn ethtool(&self, _old: &Self::Value, _new: &Self::Value) -> Option<String> {
        None
    }
}

/// The effects of a change on traffic, other settings and other programs. Each row must state them,
/// because a forgotten effect would be reported as harmless.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// What a change does to the traffic of its device.
    pub traffic: Traffic,
    /// Whether the knob concerns queues, their interrupts or their threads. Then a change of
    /// channels resets its value.
    pub names_queues: bool,
    /// The kind of knob that another program owns; `None` if no known program writes it while
    /// running.
    pub owner: Option<OwnedKnob>,
}

/// Facts about all knobs of one type.
#[derive(Debug, Clone, Copy)]
pub struct KnobFacts {
    /// The value of `knob` in JSON (`rps_cpus`).
    pub kind: &'static str,
    /// The other fields of the target in JSON, for `docs/knobs.md`.
    pub fields: &'static str,
    /// An example and the unit of the value, for `docs/knobs.md`.
    pub value: &'static str,
    /// The file or command, for `docs/knobs.md`.
    pub place: &'static str,
    /// What undo does, for `docs/knobs.md`.
    pub undo: &'static str,
    /// When a change is made.
    pub step: Step,
    /// What a change does to others.
    pub effect: Effect,
    /// The capability that a write needs, in addition to the file's mode.
    pub needs: Capability,
    /// Whether a write may never return while NAPIs of its netdev are disabled. They are disabled
    /// while the netdev is down.
    pub waits_for_napis: bool,
    /// Why the knob may be absent (ENOENT on reading); `None`: the kernel or netdev lacks it.
    pub absent: Option<&'static str>,
    /// What an error on writing means for this knob, and what to do next. Other errors mean the
    /// same for all knobs.
    pub refusals: &'static [(Errno, &'static str)],
}

impl KnobFacts {
    /// The facts that most rows have in common. Each row sets the other facts itself.
    pub(super) const fn usual(effect: Effect) -> Self {
        Self {
            kind: "",
            fields: "",
            value: "",
            place: "",
            undo: "writes back",
            step: Step::Sysctls,
            effect,
            needs: Capability::NetAdmin,
            waits_for_napis: false,
            absent: None,
            refusals: &[],
        }
    }

    /// The line of the table in `docs/knobs.md`, for a value of this type.
    pub(super) fn as_markdown(&self, value: &str) -> String {
        let example =
            if self.value.is_empty() { String::new() } else { format!(": {}", self.value) };
        format!(
            "| `{}` | {} | `{value}`{example} | {} | {} | {} |\n",
            self.kind, self.fields, self.place, self.effect.traffic, self.undo
        )
    }
}

/// A capability that a write needs, in addition to the file's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// None except the file's mode (`/proc/irq`, `/proc/sys`).
    None,
    /// `CAP_NET_ADMIN`, which sysfs needs for a netdev's queues (`net/core/net-sysfs.c`).
    NetAdmin,
    /// `CAP_SYS_NICE`, to move threads of other users.
    SysNice,
}

/// The errors on writing that have a special meaning for some knob.
#[allow(missing_docs)] // the kernel's names
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    Io,
    Perm,
    Inval,
    NoSpc,
    OpNotSupp,
}

/// A value that the knob does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: the knob `{knob}` takes a value of type `{wanted}`, not `{found}`")]
pub struct WrongValue {
    name: String,
    knob: &'static str,
    wanted: &'static str,
    found: &'static str,
}

/// A [`Knob`] whose type is known only at run time, as in a journal. Its values are [`Value`]s; a
/// value of another type becomes `None`.
pub(super) trait AnyKnob {
    fn facts(&self) -> &'static KnobFacts;
    fn name(&self) -> String;
    fn location(&self) -> Location<'_>;
    fn value_in(&self, snapshot: &Snapshot) -> Option<Value>;
    fn set_in(&self, snapshot: &mut Snapshot, value: &Value) -> Option<()>;
    fn step(&self, off: bool) -> Step;
    fn is_of(&self, netdev: &str) -> bool;
    fn is_void_after(&self, other: &Location<'_>) -> bool;
    fn check(&self, value: &Value) -> Result<(), WrongValue>;
    fn parse(&self, text: &str) -> Result<Value, String>;
    fn text(&self, value: &Value) -> Option<String>;
    fn settles_as(&self, value: &Value, reserved: &dyn Fn() -> CpuSet) -> Option<Value>;
    fn may_round_to(&self, requested: &Value, now: &Value) -> Option<bool>;
    fn ethtool(&self, old: &Value, new: &Value) -> Option<String>;
}

impl<K: Knob> AnyKnob for K {
    fn facts(&self) -> &'static KnobFacts {
        K::FACTS
    }

    fn name(&self) -> String {
        Knob::name(self)
    }

    fn location(&self) -> Location<'_> {
        Knob::location(self)
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Value> {
        Knob::value_in(self, snapshot).map(Into::into)
    }

    fn set_in(&self, snapshot: &mut Snapshot, value: &Value) -> Option<()> {
        let value = K::Value::of(value)?;
        Knob::value_in(self, snapshot)?;
        Knob::set_in(self, snapshot, value.clone());
        Some(())
    }

    fn step(&self, off: bool) -> Step {
        Knob::step(self, off)
    }

    fn is_of(&self, netdev: &str) -> bool {
        Knob::is_of(self, netdev)
    }

    fn is_void_after(&self, other: &Location<'_>) -> bool {
        Knob::is_void_after(self, other)
    }

    fn check(&self, value: &Value) -> Result<(), WrongValue> {
        let wrong = || WrongValue {
            name: Knob::name(self),
            knob: K::FACTS.kind,
            wanted: K::Value::NAME,
            found: value.kind(),
        };
        K::Value::of(value).map(|_| ()).ok_or_else(wrong)
    }

    fn parse(&self, text: &str) -> Result<Value, String> {
        K::parse(text).map(Into::into)
    }

    fn text(&self, value: &Value) -> Option<String> {
        K::Value::of(value).map(K::text)
    }

    fn settles_as(&self, value: &Value, reserved: &dyn Fn() -> CpuSet) -> Option<Value> {
        K::Value::of(value).map(|value| K::settles_as(value, reserved).into())
    }

    fn may_round_to(&self, requested: &Value, now: &Value) -> Option<bool> {
        Some(K::may_round_to(K::Value::of(requested)?, K::Value::of(now)?))
    }

    fn ethtool(&self, old: &Value, new: &Value) -> Option<String> {
        Knob::ethtool(self, K::Value::of(old)?, K::Value::of(new)?)
    }
}

/// Stores a value if there is a place for it.
pub(super) fn put<T>(place: Option<&mut T>, value: T) {
    if let Some(place) = place {
        *place = value;
    }
}

/// A text as one word of a shell: quoted if it must be.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

/// A text quoted as one word of a shell, whatever it contains.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
