//! Diagnosis: turns an analysis into [`Finding`]s, each with evidence, remedies and their gain.
//!
//! One file per family, listed in [`check`](mod@check); the ids of all findings are in [`id`]. A
//! family gets the check's input ([`Judged`](judged::Judged)): analysis, ledger, verdicts, plan. It
//! knows no files, and no knobs except the [`Target`](netsilo_model::change::Target)s of its
//! remedies. Every finding has evidence. A gain that no measurement limits is
//! [`Gain::Unknown`](crate::judge::evidence::Gain::Unknown).

mod bonds;
mod builders;
mod check;
mod cloud;
mod cpu_work;
mod finding;
mod hardware;
mod id;
mod judged;
mod loss;
mod offloads;
mod placement;
mod polling;
mod relief;
mod remedies;
mod rss;
mod rss_ignored;
mod rss_skew;
mod softirq;
mod taps;
mod transmit;
mod tuning;
mod tunnels;
mod tx_one_queue;

pub use check::{Check, check};
pub use finding::{Finding, Severity};
pub use id::{FindingId, UnknownFinding};
pub(in crate::judge) use rss::{hash_ports, spread_over};

#[cfg(test)]
mod tests;
