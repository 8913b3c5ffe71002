//! What commands about a bundle take, built without optimization and counted by valgrind, is not
//! more than `costs.json` records.
//!
//! `INSTA_UPDATE=always cargo test --workspace --test costs` records anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "clippy lets only functions marked as tests do so"
)]

#[path = "../benches/guard/counted.rs"]
mod counted;

use std::collections::BTreeMap;
use std::path::Path;

use counted::{Counted, counted};

/// How much more a command may take than recorded. Other compilers and C libraries make some
/// percent; the counts of one machine are equal.
const MOST: f64 = 1.1;

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/costs.json");
const BUNDLE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/outcomes/guest/irqbalance.tar.zst");

#[test]
fn commands_take_no_more_than_recorded() {
    let netsilo = Path::new(env!("CARGO_BIN_EXE_netsilo-bench")).with_file_name("netsilo");
    assert!(netsilo.is_file(), "not built: cargo build -p netsilo");
    let now: BTreeMap<&str, Counted> =
        ["check", "plan"].map(|it| (it, counted(&netsilo, &[it, "--from", BUNDLE]))).into();
    if std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always") {
        let text = serde_json::to_string_pretty(&now).unwrap() + "\n";
        return std::fs::write(RECORD, text).unwrap();
    }
    let recorded: BTreeMap<String, Counted> =
        serde_json::from_str(&std::fs::read_to_string(RECORD).unwrap()).unwrap();
    let mut more = Vec::new();
    for (command, now) in now {
        for ((what, recorded), (_, now)) in recorded[command].each().into_iter().zip(now.each()) {
            if now as f64 > recorded as f64 * MOST {
                more.push(format!("{command}: {now} {what}, recorded are {recorded}"));
            }
        }
    }
    assert!(
        more.is_empty(),
        "{more:#?}\nfind out why (`valgrind --tool=callgrind target/debug/netsilo ...`), or, if it \
         is worth it, record it: INSTA_UPDATE=always"
    );
}
