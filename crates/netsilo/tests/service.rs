//! The systemd units, without a guest; `lab_service` runs the daemon in its unit, `lab_keep` what
//! is kept in the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::path::PathBuf;
use std::process::Command;

use netsilo_lab::output_of;

const DAEMON: (&str, &str) = ("netsilo.service", include_str!("../../../dist/netsilo.service"));
const KEEP: (&str, &str) =
    ("netsilo-keep.service", include_str!("../../../dist/netsilo-keep.service"));

/// Describes the drop-ins of the unit.
const PAGE: &str = include_str!("../../../docs/daemon.md");

/// Runs `systemd-analyze` on a unit, with the tested program in place of the installed one, and
/// with this drop-in. Returns `None` on a machine without systemd.
fn analyze(
    (name, unit): (&str, &str),
    arguments: &[&str],
    drop_in: &str,
) -> Option<(Option<i32>, String)> {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(format!("{name}.d"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("one.conf"), drop_in).unwrap();
    let path: PathBuf = dir.path().join(name);
    std::fs::write(&path, unit.replace("/usr/local/bin/netsilo", env!("CARGO_BIN_EXE_netsilo")))
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
        let Some(verified) = analyze(DAEMON, &["verify"], drop_in) else { return };
        assert_eq!(verified, (Some(0), String::new()), "{drop_in}");
    }
    let verified = analyze(KEEP, &["verify"], "").unwrap();
    assert_eq!(verified, (Some(0), String::new()));
    // a key that it does not know is one
    let Some((_, text)) = analyze(DAEMON, &["verify"], "[Service]\nRestrictNamespace=net\n") else {
        return;
    };
    assert!(text.contains("RestrictNamespace"), "the drop-in is read: {text}");
}

#[test]
fn the_units_exposure_is_at_most_2_5() {
    // In tenths. Without the last protection the value would be 2.6, so the limit is tight.
    for unit in [DAEMON, KEEP] {
        let Some((code, text)) =
            analyze(unit, &["security", "--offline=true", "--threshold=25"], "")
        else {
            return;
        };
        assert_eq!(code, Some(0), "{text}");
        let says = format!("Overall exposure level for {}: 2.", unit.0);
        assert!(text.contains(&says), "{text}");
    }
}

#[test]
fn both_units_have_one_sandbox() {
    let sandbox = |(_, text): (&'static str, &'static str)| -> Vec<&str> {
        let from = text.lines().skip_while(|line| !line.starts_with("CapabilityBoundingSet"));
        let lines = from.take_while(|line| !line.starts_with("[Install]"));
        // the daemon alone serves metrics, on this machine
        let lines = lines.filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.filter(|line| *line != "IPAddressAllow=localhost").collect()
    };
    assert_eq!(sandbox(DAEMON), sandbox(KEEP));
    assert!(sandbox(KEEP).len() > 25);
}
