//! The controller. For each observation window it decides what to write, hold, revert or leave to
//! other programs.
//!
//! Pure: time, observation, kernel events and write outcomes are arguments; the result is a
//! [`Decision`]. `docs/daemon.md` has the rules, the reasons for them, and what the tests show.
//!
//! **What lives here**: the memory from window to window, and the states of the knobs. It may use
//! the model crate, `place`, `plan`, `judge::annotate` and `netsilo_trial::stats`. Other ways to
//! place or judge do not belong here: the controller decides when a planned change is written, not
//! what is planned.

mod balancer;
mod bans;
mod budget;
mod controller;
mod decision;
mod demand;
mod events;
mod existing;
mod expected;
mod history;
mod hold;
mod knob_state;
mod measure;
mod memory;
mod owner;
mod pattern;
mod planned;
mod policy;
mod reconcile;
mod release;
mod rest;
mod sample;
mod verification;
mod verify;
mod view;
mod wanted;
mod wanted_change;
mod write;

pub use self::controller::Controller;
pub use self::decision::{
    BeforeAfter, Conflict, ControllerState, Decision, Held, LogEntry, LogKind, MeasuredEffect,
    VerificationResult, WriteResult,
};
pub use self::policy::{Policy, WINDOW};
