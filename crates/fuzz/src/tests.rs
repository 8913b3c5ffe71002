//! Tries the seeds of a target and a fixed number of changed ones.
//!
//! A process of its own tries them, and writes the number of each input into a file before it tries
//! the input. So an input is also known if it ends the process: by a stack that overflows, or by
//! more memory or CPU time than allowed.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::{FuzzTarget, TARGETS, bytes};

/// The variable with the path of the file to which the other process writes the number.
const NUMBER_FILE: &str = "NETSILO_FUZZ_NUMBER_FILE";
/// The longest input.
const MAX_BYTES: usize = 256 << 10;
/// Most address space of the process.
const MAX_MEMORY: u64 = 1 << 30;
/// Most CPU time for one input.
const MAX_SECONDS: u64 = 20;

/// The test of a target.
pub(crate) fn try_inputs(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    if let Some(file) = env::var_os(NUMBER_FILE) {
        return try_each(target, Path::new(&file));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    let output = Command::new(env::current_exe().unwrap())
        .args(["--nocapture", "--exact", &format!("targets::tests::{name}")])
        .env(NUMBER_FILE, &file)
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return assert!(text.contains("1 passed"), "{text}");
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let Ok(number) = fs::read(file).unwrap_or_default().try_into() else {
        panic!("{name} cannot start: {error}")
    };
    let number = u64::from_ne_bytes(number);
    let input = inputs(target).nth(number as usize).unwrap();
    panic!(
        "{name} fails: {}\n{error}\ninput {number}: b\"{}\"\n\
         fix it, add a test to the parser, and keep the input:\n\
         mkdir -p crates/fuzz/seeds/{name} && base64 -d > crates/fuzz/seeds/{name}/NAME <<< '{}'",
        output.status,
        input[..input.len().min(1000)].escape_ascii(),
        STANDARD.encode(&input),
    );
}

fn try_each(target: &FuzzTarget, file: &Path) {
    limit(Resource::As, MAX_MEMORY);
    let file = File::create(file).unwrap();
    for (number, input) in (0_u64..).zip(inputs(target)) {
        file.write_all_at(&number.to_ne_bytes(), 0).unwrap();
        let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec as u64;
        limit(Resource::Cpu, used + MAX_SECONDS);
        target.check(&input);
    }
}

fn limit(resource: Resource, most: u64) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
}

/// The seeds as they are, then changed ones, the same each time. The variables of proptest choose
/// others, or fewer.
fn inputs(target: &FuzzTarget) -> impl Iterator<Item = Vec<u8>> {
    let variable =
        |name, default| env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let mut rng = Rng::with_seed(variable("PROPTEST_RNG_SEED", 1));
    let changed = target.inputs * variable("PROPTEST_CASES", 256) as usize / 256;
    let seeds = target.seeds();
    (0..seeds.len() + changed).map(move |number| {
        if number < seeds.len() {
            return seeds[number].clone();
        }
        let [seed, other] = [0; 2].map(|_| &seeds[rng.usize(..seeds.len())]);
        let mut input =
            (target.mutate)(seed, &mut rng).unwrap_or_else(|| bytes::mutate(seed, other, &mut rng));
        input.truncate(MAX_BYTES);
        input
    })
}
