//! Measures the weights of the cost model on this machine and stores them.
//!
//! Pins its own threads with [`transaction`](crate::transaction). The cost model is in
//! [`netsilo_model::cost`].

pub mod measure;
pub mod store;
