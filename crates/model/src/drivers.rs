//! What netsilo knows about drivers: the table `drivers.toml`, names of interrupts, names of
//! counters, kinds of netdevs without hardware.
//!
//! Facts about drivers belong here, not into a list of names in a rule. Uses [`crate::machine`] and
//! [`crate::snapshot`]. Gives no advice.

pub mod counters;
pub mod irq_names;
mod irq_patterns;
pub mod loss_stage;
pub mod name;
pub mod protocol_losses;
pub mod queue_packets;
pub mod software;
pub mod table;
