//! What differs between two observations, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netsilo_decide::report::difference::{Difference, RatePair, RateUnit};

use crate::tell::words::plural;
use crate::views::table::table;
use crate::views::units::{bytes_per_s, count, or_dash, percent};

/// Renders the settings and places that differ, and the rates that differ notably.
pub(crate) fn render(difference: &Difference) -> String {
    let [old, new] = &difference.machines;
    let [old_s, new_s] = difference.elapsed_s;
    let mut text = format!("{old}, {old_s:.1} s -> {new}, {new_s:.1} s\n");
    pairs(&mut text, "settings", &difference.settings);
    pairs(&mut text, "places", &difference.places);
    let (notable, similar): (Vec<&RatePair>, Vec<_>) =
        difference.rates.iter().partition(|it| it.is_notable());
    if !notable.is_empty() {
        let mut rows = table(&["  rates", "old", "new", "ratio"], |name| !name.contains("rates"));
        for pair in &notable {
            let [old, new] = pair.values.map(|value| or_dash(value, |it| value_of(pair.unit, it)));
            rows.add_row([format!("  {}", pair.name), old, new, ratio(pair)]);
        }
        let _ = writeln!(text, "\n{}", rows.trim_fmt());
    }
    let same = plural(similar.len(), "other rate");
    let _ = writeln!(text, "\n{same}: less than 10% apart, rare, or not counted in both");
    let _ =
        writeln!(text, "note: a load changes by itself, too; netsilo ab shows what a setting does");
    text
}

fn pairs(text: &mut String, title: &str, all: &BTreeMap<String, [Option<String>; 2]>) {
    if all.is_empty() {
        let _ = writeln!(text, "\n{title}: no difference");
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for (name, values) in all {
        let [old, new] = values.each_ref().map(|it| it.as_deref().unwrap_or("-"));
        let _ = writeln!(text, "  {name}: {old} -> {new}");
    }
}

fn value_of(unit: RateUnit, value: f64) -> String {
    match unit {
        RateUnit::BytesPerSecond => bytes_per_s(value),
        RateUnit::PerSecond | RateUnit::LostPerSecond => format!("{}/s", count(value)),
        RateUnit::Share => percent(value),
    }
}

fn ratio(pair: &RatePair) -> String {
    match pair.values {
        [Some(old), Some(new)] if old > 0.0 && pair.unit != RateUnit::Share => {
            format!("x{:.2}", new / old)
        }
        _ => String::new(),
    }
}
