//! What a target is, and where its seeds are.

use std::fs;
use std::path::Path;

use fastrand::Rng;

/// The folder of the workspace.
pub(crate) const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A rule that must hold for every input, and inputs to start from.
pub struct FuzzTarget {
    /// The name of its file, and of the folder of its seeds.
    pub name: &'static str,
    pub(crate) check: Check,
    /// Makes seeds. Those made from values follow changes of their types; a stored JSON file would
    /// silently fail to decode.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Changes an input; `None`: change its bytes.
    pub(crate) mutate: fn(&[u8], &mut Rng) -> Option<Vec<u8>>,
    /// Number of changed seeds that the test tries: as many as take about a second.
    pub inputs: usize,
}

/// Panics if the rule does not hold.
pub(crate) enum Check {
    Bytes(fn(&[u8])),
    Text(fn(&str)),
}

impl FuzzTarget {
    /// A target whose seeds are files, and whose inputs are changed as bytes.
    pub(crate) const fn bytes(holds: fn(&[u8])) -> Self {
        Self {
            name: "",
            check: Check::Bytes(holds),
            seeds: Vec::new,
            mutate: |_, _| None,
            inputs: 20_000,
        }
    }

    /// Like [`FuzzTarget::bytes`], for text.
    pub(crate) const fn text(holds: fn(&str)) -> Self {
        Self { check: Check::Text(holds), ..Self::bytes(|_| {}) }
    }

    /// Panics if the rule does not hold for this input. A text ends before the first byte that is
    /// not UTF-8.
    pub fn check(&self, input: &[u8]) {
        match self.check {
            Check::Bytes(holds) => holds(input),
            Check::Text(holds) => {
                holds(input.utf8_chunks().next().map_or("", |chunk| chunk.valid()))
            }
        }
    }

    /// All seeds, each once, in an order that does not depend on the machine.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(WORKSPACE).join("crates/fuzz/seeds").join(self.name);
        let mut seeds = (self.seeds)();
        add_files(&folder, &|_| true, &mut seeds);
        seeds.sort();
        seeds.dedup();
        assert!(!seeds.is_empty(), "{} has no seeds", self.name);
        seeds
    }

    /// Changes an input in the target's own way; `None`: change its bytes.
    pub fn mutate(&self, input: &[u8], seed: u64) -> Option<Vec<u8>> {
        (self.mutate)(input, &mut Rng::with_seed(seed))
    }
}

/// The files of `fixtures/` whose paths are wanted.
pub(crate) fn fixtures(wanted: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    add_files(&Path::new(WORKSPACE).join("fixtures"), &wanted, &mut files);
    files
}

fn add_files(folder: &Path, wanted: &dyn Fn(&str) -> bool, files: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a file that was just listed"));
        if kind.is_dir() {
            add_files(&path, wanted, files);
        } else if kind.is_file() && wanted(&path.to_string_lossy()) {
            files.push(fs::read(&path).expect("a file that was just listed"));
        }
    }
}
