//! Recorded outcomes: what the default chooses there, and what `evidence/outcomes.md` says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use netsilo_predict::live::claim::Claim;

use super::*;
use crate::experiment::record::Recorded;
use crate::outcome::forecasts::Checked;

/// The recordings whose tables are in `evidence/outcomes.md`.
const SHOWN: [&str; 5] = ["guest", "guest8", "veths-4", "guest16", "forward"];

/// Those on veths, one line each; the last is the newest.
const VETHS: [&str; 5] = ["veth", "veths", "veths-2", "veths-3", "veths-4"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All recordings, read once: each bundle has some 2000 files.
static RECORDED: LazyLock<BTreeMap<&str, RecordedOutcomes>> = LazyLock::new(|| {
    let names: BTreeSet<&str> = SHOWN.into_iter().chain(VETHS).collect();
    let read = |name| {
        let folder = root().join("fixtures/outcomes").join(name);
        RecordedOutcomes::new(&folder, Recorded::read(&folder).unwrap().unwrap()).unwrap()
    };
    names.into_iter().map(|name| (name, read(name))).collect()
});

fn recorded(name: &str) -> &'static RecordedOutcomes {
    &RECORDED[name]
}

#[test]
fn the_default_chooses_what_measured_best_in_the_guest() {
    let regrets = recorded("guest").regrets(Assumed::default()).unwrap();
    assert_eq!(regrets.iter().map(|regret| regret.value).collect::<Vec<_>>(), [0.0, 0.0]);
}

/// Five starts of each load. Of DNS, one queue had no traffic in one window; of the streams, one
/// had flows of three readers.
#[test]
fn the_start_does_not_matter_in_a_guest() {
    let guest = recorded("guest8");
    for load in &guest.recorded.loads {
        let chosen = guest.chosen(load, Assumed::default()).unwrap();
        let best = chosen.iter().filter(|it| **it == load.best()).count();
        let elsewhere = usize::from(["dns", "stream"].contains(&load.name.as_str()));
        assert_eq!((best, chosen.len()), (5 - elsewhere, 5), "{}: {chosen:?}", load.name);
    }
}

/// 5 % on average; the loads beyond 15 % are few. No assumption was chosen by the last three, and
/// nothing at all by the last.
#[test]
fn the_regret_over_veths_is_within_the_goal() {
    for (name, beyond) in VETHS.into_iter().zip([0, 1, 2, 0, 0]) {
        let regrets = recorded(name).regrets(Assumed::default()).unwrap();
        let mean = regrets.iter().map(|it| it.value.max(0.0)).sum::<f64>() / regrets.len() as f64;
        let worse = regrets.iter().filter(|it| it.value > 0.15).count();
        assert!(mean <= 0.05 && worse == beyond, "{name}: {regrets:?}");
    }
}

/// By how much a forecast was off, as the logarithm of a ratio of rates.
fn residual(it: &Checked) -> f64 {
    ((1.0 + it.measured) / (1.0 + it.expected.value)).ln()
}

/// Nine of ten by the intervals. Each load is left out in turn: the width that the others ask for
/// holds its forecasts. A forecast is not much further off than a measurement of the same change on
/// another day.
#[test]
fn the_intervals_of_forecasts_hold_what_placements_measured() {
    let of = |name: &'static str| {
        let forecasts = recorded(name).forecasts().unwrap().into_iter();
        forecasts.map(move |(load, it)| ((name, load), it))
    };
    let all: Vec<((&str, usize), Checked)> = VETHS.into_iter().flat_map(of).collect();
    let share = |count: usize| count as f64 / all.len() as f64;
    let left_out = |(load, it): &&((&str, usize), Checked)| {
        let others = all.iter().filter(|(other, _)| other != load);
        residual(it).abs() <= 1.645 * root_mean_square(others.map(|(_, it)| residual(it)))
    };
    let held = share(all.iter().filter(|(_, it)| it.is_held()).count());
    let left_out = share(all.iter().filter(left_out).count());
    let loads = all.iter().map(|(load, _)| *load).collect();
    let off = root_mean_square(all.iter().map(|(_, it)| residual(it)));
    let off_by_recordings = root_mean_square(off_by_other_recordings(&loads).into_iter());
    let changed = || all.iter().filter(|(_, it)| it.measured.abs() > 0.1);
    let clear = changed().filter(|(_, it)| it.claim != Claim::NoClearChange).count();
    println!("{} changed by more than 10 %, {clear} of these are clear", changed().count());
    println!(
        "{} forecasts: intervals hold {held:.3}, with each load left out {left_out:.3}; off by \
         {off:.2}, what the other recordings measured of the same change by {off_by_recordings:.2}",
        all.len()
    );
    assert!((0.8..=0.97).contains(&held) && (0.8..=0.97).contains(&left_out), "{held} {left_out}");
    assert!(off < 1.35 * off_by_recordings, "{off} {off_by_recordings}");
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let squares: Vec<f64> = values.map(|it| it * it).collect();
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// By how much a change is off, as the logarithm of a ratio of rates, if it is taken from the same
/// load and placements in the other recordings.
fn off_by_other_recordings(loads: &BTreeSet<(&'static str, usize)>) -> Vec<f64> {
    let mut measured: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for (name, number) in loads {
        let load = &recorded(name).recorded.loads[*number];
        let pairs = load.placements().flat_map(|from| load.placements().map(move |to| [from, to]));
        for pair in pairs.filter(|[from, to]| from < to) {
            let cpus = pair.map(|it| load.settings[it].cpus.clone());
            let [from, to] = pair.map(|it| load.rate(it));
            measured.entry((load.name.clone(), cpus)).or_default().push((to / from).ln());
        }
    }
    let off = |changes: Vec<f64>| {
        let (sum, others) = (changes.iter().sum::<f64>(), changes.len() as f64 - 1.0);
        changes.into_iter().map(move |it| it - (sum - it) / others)
    };
    measured.into_values().filter(|it| it.len() > 1).flat_map(off).collect()
}

/// A stream's CPUs are about equally full either way: where the default sends its kthread, it
/// leaves it.
#[test]
fn a_stream_does_not_move_again() {
    for name in VETHS {
        let outcomes = recorded(name);
        let load = outcomes.recorded.loads.iter().find(|it| it.name == "TCP_STREAM x 1").unwrap();
        let chosen = outcomes.chosen(load, Assumed::default()).unwrap();
        assert!(chosen.iter().all(|it| chosen[*it] == *it), "{name}: {chosen:?}");
    }
}

/// Each block of the page is between `<!-- outcome NAME -->` and `<!-- end -->`. `make generate`
/// writes the page.
#[test]
fn the_tables_are_as_documented() {
    let page = root().join("evidence/outcomes.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    let shown = |name| (name, tables(recorded(name)).unwrap().join("\n\n"));
    let mut blocks: Vec<(&str, String)> = SHOWN.into_iter().map(shown).collect();
    let veths = VETHS.map(|name| (name, recorded(name)));
    blocks.push(("recordings", table::recordings(&veths, Assumed::default()).unwrap()));
    blocks.push(("sensitivity", table::sensitivity(RECORDED.values()).unwrap()));
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always");
    for (name, block) in blocks {
        let start = format!("<!-- outcome {name} -->\n");
        let (before, rest) = text.split_once(&start).expect(&start);
        let (documented, after) = rest.split_once("<!-- end -->").expect("an end");
        let block = format!("{}\n", block.trim());
        if update {
            text = format!("{before}{start}{block}<!-- end -->{after}");
        } else {
            assert_eq!(documented, block, "of {name}: the page is written by `make generate`");
        }
    }
    if update {
        std::fs::write(page, text).unwrap();
    }
}
