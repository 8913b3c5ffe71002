//! Seeded fleets of synthetic hosts, for those who try what `docs/howto/fleet.md` describes without
//! a fleet.
//!
//! A host depends on the seed and its number alone, so several programs can each make a part of one
//! fleet. [`host`] invents hosts on the machines of [`machines`], [`tree`] turns a captured fixture
//! into bundles, and [`hwloc`] reads topologies of real machines.

pub mod host;
pub mod hwloc;
pub mod machines;
pub mod tree;
