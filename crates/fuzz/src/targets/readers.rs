//! The readers and their parsers: whatever one of the kernel's files holds, no reader panics, and
//! the snapshot comes back from its JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use netsilo_model::snapshot::host::Snapshot;
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

use crate::target::FuzzTarget;

/// A tree that has each file which readers read.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/every-field");

static COPY: LazyLock<PathBuf> = LazyLock::new(|| {
    let copy = std::env::temp_dir().join(format!("netsilo-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&copy);
    add(Path::new(FIXTURE), &mut |path| {
        let to = copy.join(path);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a temporary folder");
        let from = Path::new(FIXTURE).join(path);
        match fs::read_link(&from) {
            Ok(target) => std::os::unix::fs::symlink(target, to).expect("a new link"),
            Err(_) => _ = fs::copy(from, to).expect("a new file"),
        }
    });
    copy
});

static FILES: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let mut files = Vec::new();
    add(Path::new(FIXTURE), &mut |path| files.push(path.to_owned()));
    files.retain(|path| !Path::new(FIXTURE).join(path).is_symlink());
    files.sort();
    files
});

/// Calls a function with the path of each file and link below a folder of the fixture.
fn add(folder: &Path, call: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).expect("the fixture").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            add(&path, call);
        } else {
            call(path.strip_prefix(FIXTURE).expect("it is below"));
        }
    }
}

// The first byte is the number of the file that has the other bytes.
pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, inputs: 1_000, ..FuzzTarget::bytes(holds) };

fn holds(input: &[u8]) {
    let Some((number, bytes)) = input.split_first() else { return };
    let Some(file) = FILES.get(usize::from(*number)) else { return };
    fs::write(COPY.join(file), bytes).expect("a copy of the fixture");
    if let Ok(snapshot) = snapshot(&Root::at(&*COPY).expect("a tree")) {
        let json = serde_json::to_string(&snapshot).expect("plain values");
        assert_eq!(serde_json::from_str::<Snapshot>(&json).expect("a snapshot"), snapshot);
    }
    fs::copy(Path::new(FIXTURE).join(file), COPY.join(file)).expect("a copy of the fixture");
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |(number, file): (usize, &PathBuf)| {
        let bytes = fs::read(Path::new(FIXTURE).join(file)).expect("the fixture");
        [&[u8::try_from(number).expect("less than 256 files")], &bytes[..]].concat()
    };
    FILES.iter().enumerate().map(seed).collect()
}
