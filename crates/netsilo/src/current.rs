//! Files of the documentation that the program's own code makes: whether they are current.

use std::fs;
use std::path::Path;

/// The command that writes all generated files, as the message of a failing test names it.
pub(crate) const GENERATED: &str = "written by `make generate`";

/// Compares a file, named from the workspace's folder, with what it should hold.
/// With `INSTA_UPDATE=always` (`make generate`) it is written first.
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
