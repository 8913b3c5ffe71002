//! The values of a goal as people write them, on the command line and in files.

use std::borrow::Cow;
use std::fmt::Display;

use netsilo_model::machine::cpuset::{CpuSet, CpuSetError, MAX_CPUS};
use serde::de::{Deserialize, Deserializer, Error};

/// Parses a set of CPUs that is not empty: a list or a mask.
pub fn some_cpus(text: &str) -> Result<CpuSet, CpuSetError> {
    CpuSet::parse_user(text, MAX_CPUS)
}

/// Parses a set of CPUs; `off` is the empty set.
pub fn cpus_or_off(text: &str) -> Result<CpuSet, CpuSetError> {
    if text == "off" { Ok(CpuSet::new()) } else { some_cpus(text) }
}

/// Parses a number of entries of the RFS flow table (`32768`, `32k`); `off` is 0.
pub fn entries_or_off(text: &str) -> Result<u32, &'static str> {
    if text == "off" {
        return Ok(0);
    }
    let thousands = text.strip_suffix(['k', 'K']);
    let number: u64 = thousands
        .unwrap_or(text)
        .parse()
        .map_err(|_| "write a number of entries (32768, 32k) or off")?;
    let entries = if thousands.is_some() { number.saturating_mul(1024) } else { number };
    match u32::try_from(entries) {
        Ok(entries) if (1..=1 << 29).contains(&entries) => Ok(entries),
        _ => Err("the kernel accepts 1 to 536870912 entries, or off"),
    }
}

fn wrong<E: Error>(text: &str, why: impl Display) -> E {
    E::custom(format!("{text:?}: {why}"))
}

/// Reads a set of CPUs; the empty text is the empty set, as a set is serialized.
fn set<E: Error>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<CpuSet, CpuSetError>,
) -> Result<CpuSet, E> {
    if text.is_empty() { Ok(CpuSet::new()) } else { parse(text).map_err(|why| wrong(text, why)) }
}

/// A set of CPUs that cannot be off.
pub(super) fn cpus<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
    Option::<Cow<'_, str>>::deserialize(from)?.map(|text| set(&text, some_cpus)).transpose()
}

/// A set of CPUs, or `off`; `None` leaves the knob unchanged.
pub(super) fn cpus_if_set<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
    Option::<Cow<'_, str>>::deserialize(from)?.map(|text| set(&text, cpus_or_off)).transpose()
}

/// A set of CPUs, or `off` for none.
pub(super) fn cpus_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<CpuSet, D::Error> {
    set(&Cow::<'_, str>::deserialize(from)?, cpus_or_off)
}

/// A number of entries, or `off`; 0 is off, as a goal is serialized.
pub fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged, expecting = "write a number of entries (32768) or \"off\"")]
    enum Entries {
        Number(u32),
        Text(String),
    }
    let text = match Option::<Entries>::deserialize(from)? {
        None => return Ok(None),
        Some(Entries::Number(0)) => return Ok(Some(0)),
        Some(Entries::Number(number)) => number.to_string(),
        Some(Entries::Text(text)) => text,
    };
    entries_or_off(&text).map(Some).map_err(|why| wrong(&text, why))
}
