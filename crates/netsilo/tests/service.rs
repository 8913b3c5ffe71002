//! The systemd unit, without a guest; `lab_service` runs the daemon in it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::path::PathBuf;
use std::process::Command;

use netsilo_lab::output_of;

const UNIT: &str = include_str!("../../../dist/netsilo.service");

/// Runs `systemd-analyze` on the unit, with the tested program in place of the installed one.
/// Returns `None` on a machine without systemd.
fn analyze(arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("netsilo.service");
    std::fs::write(&path, UNIT.replace("/usr/local/bin/netsilo", env!("CARGO_BIN_EXE_netsilo")))
        .unwrap();
    match Command::new("systemd-analyze").args(arguments).arg(&path).output() {
        Ok(output) => Some(output_of(&output)),
        Err(error) if std::env::var_os("NETSILO_NO_SKIP").is_none() => {
            eprintln!("SKIPPED: systemd-analyze: {error}");
            None
        }
        Err(error) => panic!("systemd-analyze: {error}, and NETSILO_NO_SKIP is set"),
    }
}

#[test]
fn systemd_has_no_complaint_about_the_unit() {
    let Some(verified) = analyze(&["verify"]) else { return };
    assert_eq!(verified, (Some(0), String::new()));
}

#[test]
fn the_units_exposure_is_at_most_2_5() {
    // In tenths. Without the unit's last protection the value would be 2.6, so the limit is tight.
    let Some((code, text)) = analyze(&["security", "--offline=true", "--threshold=25"]) else {
        return;
    };
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Overall exposure level for netsilo.service: 2."), "{text}");
}
