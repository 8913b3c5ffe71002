//! Pure values and functions of netsilo: parsing, models, decisions, reports.
//!
//! `clippy.toml` forbids files, clocks, environment variables, network and randomness here. Data
//! moves forward only: kernel text, [`host::Snapshot`], rates, silos, plan, changes. Each step is a
//! function from values to a new value.

pub mod ab;
pub mod algorithm;
pub mod announced;
mod as_text;
pub mod assignment;
pub mod attribution;
pub mod audit;
pub mod calibration;
pub mod change;
pub mod concentration;
pub mod controller;
pub mod cost;
pub mod counts;
pub mod cpu_split;
pub mod cpuset;
pub mod diagnose;
pub mod drivers;
pub mod ethtool;
pub mod ethtool_decode;
pub mod ethtool_encode;
pub mod ethtool_rule;
mod ethtool_settings;
pub mod experiment;
pub mod export;
pub mod flow;
pub mod forwards;
pub mod grid;
pub mod host;
pub mod join;
pub mod load;
pub mod locality;
pub mod netdev_genl;
mod notes;
pub mod parse;
pub mod part;
pub mod pin;
pub mod plan;
pub mod proc_task;
pub mod queue_irq;
pub mod rates;
pub mod report;
pub mod rss;
pub mod rss_load;
pub mod rss_report;
pub mod rss_table;
pub mod runqueue;
pub mod scene;
pub mod silo;
pub mod sock_diag;
pub mod sockets;
pub mod stages;
pub mod stats;
pub mod toeplitz;
pub mod topology;
pub mod verdict;
pub mod visible;
mod wakeups;
pub mod why;
pub mod workload;
