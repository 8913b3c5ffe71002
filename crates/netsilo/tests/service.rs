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

/// Describes the drop-ins of the unit.
const PAGE: &str = include_str!("../../../docs/daemon.md");

/// Runs `systemd-analyze` on the unit, with the tested program in place of the installed one, and
/// with this drop-in. Returns `None` on a machine without systemd.
fn analyze(arguments: &[&str], drop_in: &str) -> Option<(Option<i32>, String)> {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("netsilo.service.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("one.conf"), drop_in).unwrap();
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
fn systemd_has_no_complaint_about_the_unit_and_its_drop_ins() {
    let drop_ins = PAGE.split("      [Service]\n").skip(1);
    let drop_ins = drop_ins.map(|it| it.split("\n\n").next().unwrap().replace("      ", ""));
    let drop_ins: Vec<String> = drop_ins.map(|it| format!("[Service]\n{it}\n")).collect();
    assert_eq!(drop_ins.len(), 3, "{drop_ins:?}");
    for drop_in in [String::new()].iter().chain(&drop_ins) {
        let Some(verified) = analyze(&["verify"], drop_in) else { return };
        assert_eq!(verified, (Some(0), String::new()), "{drop_in}");
    }
    // a key that it does not know is one
    let Some((_, text)) = analyze(&["verify"], "[Service]\nRestrictNamespace=net\n") else {
        return;
    };
    assert!(text.contains("RestrictNamespace"), "the drop-in is read: {text}");
}

#[test]
fn the_units_exposure_is_at_most_2_5() {
    // In tenths. Without the unit's last protection the value would be 2.6, so the limit is tight.
    let Some((code, text)) = analyze(&["security", "--offline=true", "--threshold=25"], "") else {
        return;
    };
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Overall exposure level for netsilo.service: 2."), "{text}");
}
