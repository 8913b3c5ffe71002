//! Helpers that tests in the lab share: when to skip, how to wait, what a program printed.

use std::fmt::Debug;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::time::PATIENCE;

/// For tests: prints why the lab cannot run here and returns `true`. Fails instead if
/// `NETSILO_NO_SKIP` is set.
pub fn skip() -> Result<bool> {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/net/tun").exists() {
        "/dev/net/tun"
    } else {
        return Ok(false);
    };
    if std::env::var_os("NETSILO_NO_SKIP").is_some() {
        bail!("the lab needs {missing}, and NETSILO_NO_SKIP is set");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED: the lab needs {missing}");
    Ok(true)
}

/// For tests: the path of `netsilo-bench`, built in the same folder as this `netsilo`.
///
/// # Panics
///
/// If it is not built.
pub fn bench_of(netsilo: &str) -> String {
    let path = Path::new(netsilo).with_file_name("netsilo-bench");
    assert!(path.is_file(), "not built: run `cargo build -p netsilo-bench`");
    path.display().to_string()
}

/// For tests: calls `look` until its value `fits`. The error shows the last value.
pub fn until<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    mut fits: impl FnMut(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if fits(&seen) {
            return Ok(seen);
        }
        if Instant::now() > end {
            bail!("not within {PATIENCE:?}: {what}; last seen: {seen:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// For tests: returns the exit code of a program that ran here, and all its output.
pub fn output_of(output: &std::process::Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// For tests: runs a command whose reader of standard output has gone.
///
/// # Panics
/// If it cannot be run.
#[allow(clippy::unwrap_used, reason = "a part of tests")]
pub fn unread(mut command: Command) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

/// For tests: runs a command whose standard output is on a full disk.
///
/// # Panics
/// If it cannot be run.
#[allow(clippy::unwrap_used, reason = "a part of tests")]
pub fn on_a_full_disk(mut command: Command) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}
