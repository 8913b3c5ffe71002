//! Checks whether the documentation files that the program's own code generates are current.

use std::fs;
use std::path::Path;

/// The command that writes all generated files. The message of a failing test names it.
pub(crate) const GENERATED: &str = "written by `make generate`";

/// Compares a file with its expected contents. The path is relative to the workspace. With
/// `INSTA_UPDATE=always` (`make generate`) the file is written first.
pub(crate) fn assert_current(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "{path} is not current: it is {GENERATED}; look then at what `git diff {path}` shows"
    );
}
