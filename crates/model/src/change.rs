//! A [`Change`]: one knob, its old and new value, and why; how changes are ordered, reversed, tried
//! out and verified.
//!
//! [`knobs`] is the table of all knobs. Its rows implement [`Knob`].

pub mod ethtool;
mod in_snapshot;
mod inventory;
mod knob;
pub mod knobs;
mod location;
mod one_change;
mod order;
mod rule;
mod step;
mod sysctl;
mod target;
mod value;

pub use in_snapshot::{apply_in, apply_to};
pub use inventory::only_read;
pub use knob::{Capability, Errno, Knob, KnobFacts, WrongValue, quoted, shell_word};
pub use knobs::{NTUPLE_FILTER, Target};
pub use location::{EthtoolSetting, Location};
pub use one_change::{Change, ChangeFields};
pub use order::{first_void, held_back, ordered};
pub use rule::{FlowRule, Steer};
pub use step::{Interruption, Step, Traffic};
pub use sysctl::{SYSCTLS, sysctl_path};
pub use value::{Key, Kind, Settings, Table, Value, ValueError, Words};
