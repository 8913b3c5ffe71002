//! Parsers of values that both the command line and the configuration file accept.

use anyhow::{Context as _, Result};
use netsilo_decide::plan::{AlgorithmName, Xps};
use netsilo_model::machine::cpuset::{CpuSet, MAX_CPUS};

/// Parses a set of CPUs that is not empty.
pub(crate) fn some_cpus(text: &str) -> Result<CpuSet> {
    Ok(CpuSet::parse_user(text, MAX_CPUS)?.0)
}

pub(crate) fn cpus_or_off(text: &str) -> Result<CpuSet> {
    if text == "off" { Ok(CpuSet::new()) } else { some_cpus(text) }
}

pub(crate) fn entries_or_off(text: &str) -> Result<u32> {
    if text == "off" {
        return Ok(0);
    }
    let entries: u32 = text.parse().context("write a number of entries (32768) or off")?;
    anyhow::ensure!(
        (1..=1 << 29).contains(&entries),
        "the kernel accepts 1 to 536870912 entries, or off"
    );
    Ok(entries)
}

pub(crate) fn on_or_off(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => anyhow::bail!("write on or off"),
    }
}

pub(crate) fn xps(text: &str) -> Result<Xps> {
    match text {
        "near" => Ok(Xps::Near),
        "off" => Ok(Xps::Off),
        _ => anyhow::bail!("write near or off"),
    }
}

pub(crate) fn algorithm(text: &str) -> Result<AlgorithmName> {
    let known = AlgorithmName::ALL.iter().copied().find(|name| name.as_str() == text);
    let names =
        || AlgorithmName::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    known.with_context(|| format!("known are {}", names()))
}
