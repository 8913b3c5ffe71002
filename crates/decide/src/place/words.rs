//! Phrases for the reasons of suggestions.

use netsilo_model::derive::silo::SoftirqShare;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::words::bytes_per_s;

use crate::place::vector::{CONSUMER_FROM, Vector};

/// Formats `iperf (71% of 1.2 MB/s) reads on cpu 7`; without the bytes if nothing else reads.
pub(super) fn consumer_in_words(vector: &Vector) -> String {
    let Some(consumer) = &vector.consumer else { return "an unknown program reads".into() };
    let cpus: CpuSet = consumer
        .cpus
        .iter()
        .filter(|(_, share)| **share >= CONSUMER_FROM)
        .map(|(cpu, _)| *cpu)
        .collect();
    let all: f64 = vector.read_on.values().sum();
    let share = if consumer.share < 0.995 {
        format!(" ({:.0}% of {})", consumer.share * 100.0, bytes_per_s(all))
    } else {
        String::new()
    };
    let word = if cpus.single().is_some() { "cpu" } else { "cpus" };
    format!("{}{share} reads on {word} {cpus}", consumer.comm)
}

/// Formats `; cpu 2 spends 41% of its time in softirq` for the CPU that polls the vector now.
pub(super) fn softirq_in_words(vector: &Vector) -> String {
    match vector.softirq {
        Some(SoftirqShare { cpu, share, .. }) if share >= 0.01 => {
            format!("; cpu {cpu} spends {:.0}% of its time in softirq", share * 100.0)
        }
        _ => String::new(),
    }
}
