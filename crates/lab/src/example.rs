//! Finds the helper programs of tests. They are examples of the test's own package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// For tests: returns the path of an example of the package in folder `package`
/// (`env!("CARGO_MANIFEST_DIR")`), built like this test. Guests have it at the same path.
///
/// `cargo test` builds examples unless some tests are selected. A missing or outdated example is
/// built here.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent).context("this test has no target folder")?;
    let program = profile.join("examples").join(name);
    if is_outdated(&program) {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--example", name, "--manifest-path"]);
        build.arg(Path::new(package).join("Cargo.toml"));
        if let Some(target) = profile.parent() {
            build.arg("--target-dir").arg(target);
        }
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.status().context("cannot run cargo")?;
        ensure!(built.success(), "cannot build the example {name}: {built}");
    }
    Ok(program)
}

/// Whether a program does not exist, or is older than one of its sources.
///
/// Cargo lists the sources next to it: `PROGRAM: SOURCE SOURCE ..`.
fn is_outdated(program: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let (Ok(built), Ok(list)) = (time(program), fs::read_to_string(program.with_extension("d")))
    else {
        return true;
    };
    let sources = list.split_whitespace().skip(1);
    sources.map(Path::new).any(|source| time(source).is_ok_and(|changed| changed > built))
}
