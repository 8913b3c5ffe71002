//! The verbs that write, run as a user runs them, on a directory in place of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

mod ab;
#[path = "../conforms/mod.rs"]
mod conforms;
mod guard;
mod host;
mod keep;
mod live;
mod output;
mod receiving;
mod verbs;
