//! The targets with libFuzzer, which needs this program built as `scripts/fuzz` does.

#![no_main]
#![allow(clippy::expect_used, reason = "for scripts/fuzz, which shows a panic")]

use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs, process};

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use netsilo_fuzz::{FuzzTarget, TARGETS};

/// The variable with the name of the target.
const NAME: &str = "NETSILO_FUZZ_TARGET";
/// The variable with a folder: writes the target's seeds there, and exits.
const SEEDS_TO: &str = "NETSILO_FUZZ_SEEDS_TO";

static TARGET: LazyLock<&FuzzTarget> = LazyLock::new(|| {
    let name = env::var(NAME).unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("NETSILO_FUZZ_TARGET is the name of a target")
});

fuzz_target!(init: write_seeds_if_requested(), |input: &[u8]| TARGET.check(input));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match TARGET.mutate(&data[..size], seed.into()) {
        Some(input) if input.len() <= max_size => {
            data[..input.len()].copy_from_slice(&input);
            input.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});

fn write_seeds_if_requested() {
    let Some(folder) = env::var_os(SEEDS_TO) else { return };
    for (number, seed) in TARGET.seeds().iter().enumerate() {
        fs::write(Path::new(&folder).join(number.to_string()), seed).expect("the script's folder");
    }
    process::exit(0);
}
