//! ROOMDOC

pub mod events;
pub mod hints;
pub mod instance;
pub mod self_cost;
pub mod waiter;
