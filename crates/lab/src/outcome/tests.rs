//! Recorded outcomes: what the default chooses there, and what `docs/outcomes.md` says of it.

use std::path::{Path, PathBuf};

use super::*;

/// The recordings whose tables are in `docs/outcomes.md`.
const RECORDED: [&str; 8] =
    ["guest", "lab", "veth", "veths", "veths-2", "veths-3", "guest16", "forward"];

/// Those without the long table of all settings.
const CHOICES_ONLY: [&str; 2] = ["veths-2", "veths-3"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded(name: &str) -> Outcomes {
    Outcomes::read(&root().join("fixtures/outcomes").join(name)).unwrap()
}

#[test]
fn the_default_chooses_what_measured_best_in_the_guest() {
    let regrets = recorded("guest").regrets(Assumed::default()).unwrap();
    assert_eq!(regrets.iter().map(|regret| regret.value).collect::<Vec<_>>(), [0.0, 0.0]);
}

#[test]
fn the_start_does_not_matter_in_a_guest() {
    let lab = recorded("lab");
    for load in &lab.recorded.loads {
        assert_eq!(load.starts.len(), 5);
        let chosen = lab.chosen(load, Assumed::default()).unwrap();
        let regrets: Vec<f64> = chosen.iter().map(|it| load.regret(*it).value).collect();
        assert!(regrets.iter().all(|it| *it <= 0.05), "{}: {regrets:?}", load.name);
    }
}

/// 5 % on average; the loads beyond 15 % are few. No assumption was chosen by the last two.
#[test]
fn the_regret_over_veths_is_within_the_goal() {
    for (name, beyond) in [("veth", 0), ("veths", 1), ("veths-2", 2), ("veths-3", 0)] {
        let regrets = recorded(name).regrets(Assumed::default()).unwrap();
        let mean = regrets.iter().map(|it| it.value.max(0.0)).sum::<f64>() / regrets.len() as f64;
        let worse = regrets.iter().filter(|it| it.value > 0.15).count();
        assert!(mean <= 0.05 && worse == beyond, "{name}: {regrets:?}");
    }
}

/// A stream's CPUs are about equally full either way: where the default sends its kthread, it
/// leaves it.
#[test]
fn a_stream_does_not_move_again() {
    for name in ["veth", "veths", "veths-2", "veths-3"] {
        let outcomes = recorded(name);
        let load = outcomes.recorded.loads.iter().find(|it| it.name == "TCP_STREAM x 1").unwrap();
        let chosen = outcomes.chosen(load, Assumed::default()).unwrap();
        assert!(chosen.iter().all(|it| chosen[*it] == *it), "{name}: {chosen:?}");
    }
}

/// Each block of the page is between `<!-- outcome NAME -->` and `<!-- end -->`. With
/// `INSTA_UPDATE=always` the page is written anew.
#[test]
fn the_tables_are_as_documented() {
    let page = root().join("docs/outcomes.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    let all = RECORDED.map(recorded);
    let mut blocks: Vec<(String, String)> = (RECORDED.iter().zip(&all))
        .map(|(name, outcomes)| {
            let mut all = tables(outcomes).unwrap();
            all.truncate(if CHOICES_ONLY.contains(name) { 1 } else { all.len() });
            ((*name).to_owned(), all.join("\n\n"))
        })
        .collect();
    blocks.push(("sensitivity".to_owned(), table::sensitivity(&all).unwrap()));
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always");
    for (name, block) in blocks {
        let start = format!("<!-- outcome {name} -->\n");
        let (before, rest) = text.split_once(&start).expect(&start);
        let (documented, after) = rest.split_once("<!-- end -->").expect("an end");
        let block = format!("{}\n", block.trim());
        if update {
            text = format!("{before}{start}{block}<!-- end -->{after}");
        } else {
            assert_eq!(documented, block, "of {name}: INSTA_UPDATE=always writes the page");
        }
    }
    if update {
        std::fs::write(page, text).unwrap();
    }
}
