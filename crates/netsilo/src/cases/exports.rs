//! Plans in the formats of other programs, as golden text, and what those programs say of them.

use std::fs;

use netsilo_decide::plan::Plan;
use netsilo_decide::plan::export::{self, ExportedFile};

/// All formats of a plan as golden text.
///
/// Without reasons, which belong to the algorithms and change with them.
pub(super) fn all(plan: &Plan) -> String {
    let mut plan = plan.clone();
    plan.placements.iter_mut().for_each(|it| it.basis = "because".into());
    plan.changes.iter_mut().for_each(|it| *it = it.clone().because("because"));
    let (links, beyond) = export::systemd_link(&plan);
    let files = [export::script(&plan), export::irqbalance_policy(&plan), export::tuned(&plan)];
    let beyond: String =
        beyond.iter().map(|what| format!("not in .link files: {what}\n")).collect();
    beyond
        + &files
            .into_iter()
            .chain(links)
            .map(|file| format!("==== {}\n{}", file.name, own_lines(&file.text)))
            .collect::<String>()
}

/// The lines that a change adds to each format.
pub(super) fn of_knob(plan: &Plan) -> String {
    let (links, beyond) = export::systemd_link(plan);
    let lines = |file: &export::ExportedFile, without: &str| {
        let common: Vec<&str> = without.lines().collect();
        let own =
            own_lines(&file.text).lines().filter(|line| !line.is_empty() && !common.contains(line));
        own.map(|line| format!("{}: {line}\n", file.name)).collect::<String>()
    };
    let nothing = Plan::default();
    lines(&export::script(plan), &export::script(&nothing).text)
        + &lines(&export::tuned(plan), &export::tuned(&nothing).text)
        + &links.iter().map(|link| lines(link, "")).collect::<String>()
        + &beyond.iter().map(|what| format!("not in .link files: {what}\n")).collect::<String>()
}

/// Cuts off the script's functions, which are the same in every script.
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

/// Checks that dash accepts the scripts and shellcheck has no complaint.
pub(super) fn checked(plan: &Plan) {
    for file in
        [export::script(plan), export::irqbalance_policy(plan), export::irqbalance_suggest()]
    {
        accepts("dash", &["-n"], &file);
        accepts("shellcheck", &["--shell=sh"], &file);
    }
}
