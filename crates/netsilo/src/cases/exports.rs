//! Plans in the formats of other programs, as golden text, and checks by those programs.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use netsilo_decide::plan::Plan;
use netsilo_decide::plan::export::{self, ExportedFile};

use crate::verbs::export::Format;

/// The order of the formats in golden texts.
const FORMATS: [Format; 4] =
    [Format::Script, Format::IrqbalancePolicy, Format::Tuned, Format::SystemdLink];

/// The reason that every change has in golden text.
const REASON: &str = "because";

/// A plan in which all reasons are the same. The real reasons belong to the algorithms and change
/// with them.
fn with_one_reason(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.placements.iter_mut().for_each(|it| it.basis = REASON.into());
    plan.changes.iter_mut().for_each(|it| *it = it.clone().because(REASON));
    plan
}

/// The plan in each format, and what no format can express.
fn exported(plan: &Plan) -> (Vec<ExportedFile>, Vec<String>) {
    let (files, beyond): (Vec<_>, Vec<_>) =
        FORMATS.iter().map(|format| format.export(plan)).unzip();
    (files.into_iter().flatten().collect(), beyond.into_iter().flatten().collect())
}

/// All formats of a plan as golden text, without comments.
pub(super) fn all(plan: &Plan) -> String {
    let (files, beyond) = exported(&with_one_reason(plan));
    let beyond = beyond.iter().map(|what| format!("not in .link files: {what}\n"));
    let text = |file: &ExportedFile| {
        format!("==== {}\n{}", file.name, without_comments(own_lines(&file.text)))
    };
    beyond.chain(files.iter().map(text)).collect()
}

/// The lines that another program reads, and the reasons, which all equal [`REASON`].
fn without_comments(text: &str) -> String {
    let is_read =
        |line: &&str| !line.is_empty() && (!line.starts_with('#') || line.ends_with(REASON));
    text.lines().filter(is_read).map(|line| format!("{line}\n")).collect()
}

/// The lines that a change adds to each format.
pub(super) fn of_knob(plan: &Plan) -> String {
    let ((files, beyond), (without, _)) =
        (exported(&with_one_reason(plan)), exported(&Plan::default()));
    let lines = |file: &ExportedFile| {
        let same = without.iter().find(|it| it.name == file.name);
        let common: Vec<&str> = same.iter().flat_map(|it| it.text.lines()).collect();
        let own = without_comments(own_lines(&file.text));
        let own = own.lines().filter(|line| !common.contains(line));
        own.map(|line| format!("{}: {line}\n", file.name)).collect::<String>()
    };
    let beyond = beyond.iter().map(|what| format!("not in .link files: {}\n", subject(what)));
    files.iter().map(lines).chain(beyond).collect()
}

/// The part of a sentence before its colon.
fn subject(sentence: &str) -> &str {
    sentence.split_once(": ").map_or(sentence, |(subject, _)| subject)
}

/// Cuts off the functions of a script, because they are the same in every script.
fn own_lines(text: &str) -> &str {
    text.rsplit_once("cannot be moved to cpus $3\"\n    fi\n}\n\n").map_or(text, |(_, own)| own)
}

fn accepts(program: &str, arguments: &[&str], file: &ExportedFile) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(&file.name);
    fs::write(&path, &file.text).unwrap();
    match std::process::Command::new(program).args(arguments).arg(&path).output() {
        Ok(output) => {
            let output_text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} on {}: {output_text}", file.name);
        }
        Err(e) if std::env::var_os("NETSILO_NO_SKIP").is_none() => {
            println!("SKIPPED: {program}: {e}")
        }
        Err(e) => panic!("{program}: {e}"),
    }
}

/// Checks that dash accepts the scripts, that shellcheck has no complaint, and that each file names
/// the command that writes it.
pub(super) fn checked(plan: &Plan) {
    let files = [export::irqbalance_policy(plan), export::tuned(plan)];
    for file in files.iter().chain(&export::systemd_link(plan).0) {
        assert!(file.text.contains("# Written by `netsilo export "), "{}", file.text);
    }
    for file in
        [export::script(plan), export::irqbalance_policy(plan), export::irqbalance_suggest()]
    {
        accepts("dash", &["-n"], &file);
        accepts("shellcheck", &["--shell=sh"], &file);
    }
}

/// A plan in which every name and text tries to run `touch FILE` in each format.
fn hostile(file: &Path) -> Plan {
    use netsilo_model::change::{Change, Words, knobs};
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::snapshot::netdev::NetdevIdentity;
    let touch = format!("touch {}", file.display());
    let text = format!(
        "e'; {touch}; '$({touch})`{touch}`\n{touch}\nexit 0\n[sysctl]\n${{f:exec:{touch}}}"
    );
    let cpus = CpuSet::first(2);
    let netdev = || NetdevIdentity {
        name: text.as_str().into(),
        device_path: Some(text.clone()),
        ifindex: None,
    };
    let netdevs = [netdev(), NetdevIdentity { device_path: None, ..netdev() }];
    let mut changes = Vec::new();
    for netdev in netdevs {
        let rps = knobs::RpsCpus { netdev: netdev.clone(), queue: 0 };
        changes.push(Change::new(rps, CpuSet::new(), cpus.clone(), text.as_str()));
        let offload = knobs::Offload { netdev, feature: text.as_str().into() };
        changes.push(Change::new(offload, false, true, text.as_str()));
    }
    let sysctl = knobs::Sysctl { name: text.as_str().into() };
    changes.push(Change::new(sysctl, Words::default(), Words::new(&text), text.as_str()));
    let known = knobs::Sysctl { name: "net.ipv4.tcp_rmem".into() };
    changes.push(Change::new(known, Words::default(), Words::new(&text), text.as_str()));
    let irq = knobs::IrqAffinity {
        irq: netsilo_model::machine::ids::Irq(7),
        action: text.as_str().into(),
        netdev: None,
    };
    changes.push(Change::new(irq, CpuSet::new(), cpus, text.as_str()));
    Plan { changes, ..Plan::default() }
}

/// Runs a script with its functions replaced, so that nothing on this machine is written.
fn runs_nothing(script: &ExportedFile, made: &Path) {
    let path = made.with_file_name(&script.name);
    let own = own_lines(&script.text);
    let stubs = "put() { :; }; interrupt() { :; }; queue() { :; }; setting() { :; }\n\
        device() { :; }; kthread() { :; }; failed=0\n";
    fs::write(&path, format!("{stubs}{own}")).unwrap();
    let ran = std::process::Command::new("sh").arg(&path).arg("").arg("0").status().unwrap();
    assert!(ran.success() && !made.exists(), "{own}");
}

#[test]
fn no_name_of_a_plan_becomes_code_in_any_format() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let plan = hostile(&made);
    for format in Format::value_variants() {
        let (files, _) = format.export(&plan);
        match format {
            Format::Script | Format::IrqbalancePolicy => runs_nothing(&files[0], &made),
            Format::SystemdLink => assert_eq!(files, []),
            Format::Tuned => {
                let is_code = |line: &&str| !line.starts_with('#') && line.contains("touch");
                let text = &files[0].text;
                assert_eq!(text.lines().find(is_code), None, "{text}");
            }
        }
    }
}

#[test]
fn golden_texts_have_each_format() {
    let missing = Format::value_variants().iter().find(|it| !FORMATS.contains(it));
    assert_eq!(missing, None, "add it to FORMATS, and to `checked` if it is a script");
}
