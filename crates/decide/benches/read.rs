//! Reading a large host: 512 CPUs, 4000 interrupts, 4 netdevs of 64 queues.
//!
//! `cargo bench -p netsilo-sys --bench read`. The tree is on this machine's disk, or better in
//! memory: set `TMPDIR`. On a live kernel each file also costs the kernel's formatting.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../../sys/tests/trees/big_host.rs"]
mod big_host;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{LazyLock, OnceLock};

use big_host::BigHost;
use divan::{Bencher, black_box, counter::BytesCount};
use netsilo_model::machine::ids::Irq;
use netsilo_model::parse::interrupts::{InterruptsParser, interrupts};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::{irq, topology};
use netsilo_sys::snapshot;

const FULL: BigHost = BigHost { cpus: 512, irqs: 4000, netdevs: 4, queues: 64 };

static TEXT: LazyLock<String> = LazyLock::new(|| FULL.interrupts());
static TREE: OnceLock<PathBuf> = OnceLock::new();

fn main() {
    let dir = tempfile::tempdir().unwrap();
    FULL.write(dir.path()).unwrap();
    TREE.set(dir.path().to_owned()).unwrap();
    divan::main();
}

fn root() -> Root {
    Root::at(TREE.get().unwrap()).unwrap()
}

fn wanted() -> BTreeSet<Irq> {
    (1000..1064).map(Irq).collect()
}

/// The obvious first implementation.
fn naive(text: &str) -> BTreeMap<u32, Vec<u64>> {
    let cpus = text.lines().next().unwrap().split_whitespace().count();
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let irq = words.next()?.strip_suffix(':')?.parse().ok()?;
        Some((irq, words.take(cpus).map(|word| word.parse().unwrap()).collect()))
    };
    text.lines().skip(1).filter_map(row).collect()
}

#[divan::bench]
fn interrupts_naive(bencher: Bencher<'_, '_>) {
    let text = TEXT.as_str();
    bencher.counter(BytesCount::of_str(text)).bench(|| naive(black_box(text)));
}

#[divan::bench]
fn interrupts_all(bencher: Bencher<'_, '_>) {
    let text = TEXT.as_bytes();
    bencher.counter(BytesCount::of_slice(text)).bench(|| interrupts(black_box(text)).unwrap());
}

#[divan::bench]
fn interrupts_64_wanted(bencher: Bencher<'_, '_>) {
    let (text, wanted) = (TEXT.as_bytes(), wanted());
    bencher.counter(BytesCount::of_slice(text)).bench(|| {
        let mut reader = InterruptsParser::only(&wanted);
        for line in black_box(text).split(|&b| b == b'\n') {
            reader.line(line).unwrap();
        }
        reader.finish().unwrap()
    });
}

#[divan::bench]
fn interrupts_all_from_the_file(bencher: Bencher<'_, '_>) {
    let root = root();
    bencher.bench(|| irq::interrupts(&root, None).unwrap());
}

#[divan::bench]
fn interrupts_64_wanted_from_the_file(bencher: Bencher<'_, '_>) {
    let (root, wanted) = (root(), wanted());
    bencher.bench(|| irq::interrupts(&root, Some(&wanted)).unwrap());
}

#[divan::bench(sample_count = 20)]
fn topology_of_512_cpus(bencher: Bencher<'_, '_>) {
    let root = root();
    bencher.bench(|| topology::topology(&root).unwrap());
}

#[divan::bench(sample_count = 20)]
fn snapshot_of_all(bencher: Bencher<'_, '_>) {
    let root = root();
    bencher.bench(|| snapshot(&root).unwrap());
}
