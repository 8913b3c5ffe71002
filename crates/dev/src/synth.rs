//! Seeded fleets of synthetic hosts, to try what `docs/howto/fleet.md` describes without a real
//! fleet.
//!
//! A host depends only on the seed and its number, so several programs can each make a part of one
//! fleet. [`host`] makes hosts on the machines of [`machines`], [`tree`] turns a captured fixture
//! into bundles, and [`hwloc`] reads topologies of real machines.

pub mod host;
pub mod hwloc;
pub mod machines;
pub mod tree;
