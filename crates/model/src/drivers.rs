//! What netsilo knows of drivers: the table `drivers.toml`, names of vectors, names of counters,
//! kinds of netdevs without hardware.
//!
//! Facts about drivers belong here, not as a list of names in a rule. Uses [`crate::machine`]
//! and [`crate::snapshot`]; no advice.

pub mod counters;
pub mod flow_steering;
pub mod irq_names;
pub mod loss_stage;
pub mod software;
pub mod table;
