//! What the tables of all experiments have in common.

use anyhow::Result;

use crate::experiment::record::{LoadRecord, Recorded};
use crate::say::{markdown, say};

/// Prints the tables of a record, and how much two measurements of the same setting differ.
pub(crate) fn print(tables: &str, recorded: &Recorded) -> Result<()> {
    say(tables)?;
    let lost = lost(recorded);
    if !lost.is_empty() {
        say(&format!("\n{}", lost.join("\n")))?;
    }
    if let Some(table) = same_twice(recorded) {
        say(&format!("\n{table}"))?;
    }
    say("")
}

/// A line for each missing measurement.
fn lost(recorded: &Recorded) -> Vec<String> {
    let of = |load: &LoadRecord| {
        let all = load.lost.iter().chain(&load.failed);
        all.map(|why| format!("LOST of {}: {why}", load.name)).collect::<Vec<_>>()
    };
    recorded.loads.iter().flat_map(of).collect()
}

/// The rates of the same setting, measured twice in each round; `None` for an old record.
fn same_twice(recorded: &Recorded) -> Option<String> {
    let mut table = markdown(&["load", "setting", "measured again"]);
    for load in &recorded.loads {
        let (first, again) = (load.settings.first()?, load.again.as_ref()?);
        let ratio = again.over(first).map_or_else(
            || "too few rounds".to_owned(),
            |it| format!("{:.3} ({:.3} to {:.3})", it.value, it.low, it.high),
        );
        table.add_row([load.name.clone(), first.label(), ratio]);
    }
    Some(table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::record::SettingRecord;

    fn load(rates: [f64; 6]) -> LoadRecord {
        let first = SettingRecord { rates: vec![100.0; 6], ..SettingRecord::new("a", &[]) };
        let again = SettingRecord { rates: rates.to_vec(), ..first.clone() };
        let settings = vec![first];
        LoadRecord { name: "tcp-rr".into(), settings, again: Some(again), ..LoadRecord::default() }
    }

    #[test]
    fn what_was_lost_is_marked_with_the_reason() {
        let loads = vec![LoadRecord {
            lost: vec!["netsilo-tune: the guest has hung".into()],
            failed: Some("2 of 6 rounds: the guest has hung".into()),
            ..load([1.0; 6])
        }];
        let expected = [
            "LOST of tcp-rr: netsilo-tune: the guest has hung",
            "LOST of tcp-rr: 2 of 6 rounds: the guest has hung",
        ];
        assert_eq!(lost(&Recorded { loads, ..Recorded::default() }), expected);
    }

    #[test]
    fn the_same_setting_twice_shows_the_difference_of_nothing() {
        let loads = vec![load([98.0, 99.0, 100.0, 101.0, 102.0, 103.0])];
        let table = same_twice(&Recorded { loads, ..Recorded::default() }).unwrap();
        assert!(table.contains("1.005 (0.980 to 1.030)"), "{table}");
        let old = vec![LoadRecord { again: None, ..load([1.0; 6]) }];
        assert_eq!(same_twice(&Recorded { loads: old, ..Recorded::default() }), None);
    }
}
