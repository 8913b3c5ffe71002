//! Measures the weights of the cost model on this machine, and stores them.
//!
//! Pins its own threads with [`transaction`](crate::transaction). The weights themselves are in
//! [`netsilo_model::cost`].

pub mod measure;
pub mod store;
