//! `apply` and `undo`: their messages and exit codes.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use netsilo_lab::output_of;
use netsilo_model::machine::cpuset::CpuSet;

use super::conforms::conforming;
use super::host::Host;

#[test]
fn apply_reports_its_changes_and_undo_restores_them() {
    let host = Host::new();
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("irq 27 (virtio0-input.0): 0 -> 4"), "{text}");
    let hint = format!("transaction 1: 2 changes applied; `{}` restores them", host.hint("undo"));
    assert!(text.contains(&hint), "{text}");
    assert!(text.contains("0 of 2 arrived on their new cpus; 2 had none yet"), "{text}");
    assert_eq!(host.affinities(), ["10", "10"]);
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!(
        (code, host.affinities()),
        (Some(0), ["01\n".to_owned(), "01\n".to_owned()]),
        "{text}"
    );
    assert!(text.contains("transaction 1: 2 of 2 settings restored"), "{text}");
    assert_eq!(output_of(&host.run("undo", &[])), (Some(0), "nothing to undo\n".into()));
}

#[test]
fn undo_of_one_transaction_leaves_the_others() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes"])).0, Some(0));
    let other = host.run("undo", &["--transaction", "2"]);
    let hint = host.hint("undo --list");
    let why = format!("netsilo: no transaction 2 since boot; {hint} shows them\n");
    assert_eq!(output_of(&other), (Some(1), why));
    assert_eq!(host.affinities(), ["10", "10"]);
    let (code, text) = output_of(&host.run("undo", &["--transaction", "1"]));
    assert_eq!((code, host.affinities()), (Some(0), ["01\n", "01\n"].map(str::to_owned)));
    assert!(text.contains("transaction 1: 2 of 2 settings restored"), "{text}");
    let again = host.run("undo", &["--transaction", "1"]);
    assert_eq!(output_of(&again), (Some(0), "nothing to undo\n".into()));
}

#[test]
fn an_undo_that_a_full_disk_cannot_record_says_what_was_restored() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes"])).0, Some(0));
    let journal = host.state().join("journal");
    assert!(std::fs::metadata(&journal).unwrap().len() > 512);
    // The journal cannot grow.
    let script = format!("trap '' XFSZ; ulimit -f 1; exec {}", host.words("undo", &[]));
    let (code, text) = output_of(&Command::new("sh").args(["-c", &script]).output().unwrap());
    assert!(text.contains("transaction 1 was undone, but this cannot be recorded: "), "{text}");
    assert_eq!((code, host.affinities()), (Some(21), ["01\n", "01\n"].map(str::to_owned)));
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    assert_eq!(output_of(&host.run("undo", &[])), (Some(0), "nothing to undo\n".into()));
    // Time of a journal that somebody has edited.
    let edited = std::fs::read_to_string(&journal).unwrap();
    let at = edited.find("\"at\":").unwrap() + 5;
    let end = at + edited[at..].find(|it: char| !it.is_ascii_digit()).unwrap();
    let edited = format!("{}9223372036854775808{}", &edited[..at], &edited[end..]);
    std::fs::write(&journal, edited).unwrap();
    let (code, text) = output_of(&host.run("undo", &["--list"]));
    assert_eq!((code, text.contains("transaction 1, by apply: undone")), (Some(0), true), "{text}");
}

#[test]
fn a_plan_cannot_write_lines_of_its_own() {
    let host = Host::new();
    let plan = std::fs::read_to_string(host.root().join("plan.json")).unwrap();
    let reason = plan.find("\"reason\":\"").unwrap() + 10;
    host.put("plan.json", &format!("{}x\\n0 changes{}", &plan[..reason], &plan[reason..]));
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert!(text.contains("plan.json has a line break or another control character"), "{text}");
    assert_eq!((code, host.affinities()), (Some(1), ["01\n", "01\n"].map(str::to_owned)));
    let long = "x".repeat(5000);
    host.put("plan.json", &format!("{}{long}{}", &plan[..reason], &plan[reason..]));
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert!(text.ends_with("plan.json has a text of more than 4096 bytes\n"), "{text}");
    assert_eq!(code, Some(1));
}

#[test]
fn without_a_terminal_and_without_yes_nothing_is_written() {
    let host = Host::new();
    let (code, text) = output_of(&host.run("apply", &[]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("use --yes"), "{text}");
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}

#[test]
fn json_has_the_outcome() {
    let host = Host::new();
    let applied = host.run("apply", &["--yes", "--json"]);
    let applied = conforming("apply", &applied.stdout);
    assert_eq!(applied["transaction"], 1);
    assert_eq!(applied["changes"][1]["value"]["cpus"], "4");
    assert_eq!(applied["arrivals"][0]["arrival"], "no_traffic");
    let undone = host.run("undo", &["--json"]);
    let undone = conforming("undo", &undone.stdout);
    assert_eq!(undone["transactions"][0]["knobs"][0]["fate"], "restored");
}

#[test]
fn a_failed_write_ends_with_20_and_everything_is_restored() {
    let host = Host::new();
    // A kernel file that reads as a mask but that not even root can write: EACCES
    // (kernfs_fop_open).
    let stubborn = "/sys/devices/system/cpu/kernel_max";
    std::fs::remove_file(host.affinity_file(28)).unwrap();
    std::os::unix::fs::symlink(stubborn, host.affinity_file(28)).unwrap();
    let old = CpuSet::parse_mask(&std::fs::read_to_string(stubborn).unwrap()).unwrap();
    host.edit_plan(|plan| plan["changes"][1]["old"]["cpus"] = old.to_string().into());
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    if !rustix::process::geteuid().is_root() {
        return assert_eq!(code, Some(77), "{text}");
    }
    assert_eq!(code, Some(20), "{text}");
    assert!(text.contains("cannot write 4: Permission denied"), "{text}");
    assert!(text.contains("irq 27 (virtio0-input.0): restored"), "{text}");
    assert_eq!(host.affinities()[0], "01\n");
    assert_eq!(output_of(&host.run("undo", &[])), (Some(0), "nothing to undo\n".into()));
}

/// Without the sync, a power failure could leave a setting of which nothing has the old value.
#[test]
fn a_journal_that_cannot_be_synced_refuses_before_any_write() {
    let host = Host::new();
    let calls = host.root().join("calls");
    let traced = |fault: &[&str]| {
        let apply = host.verb("apply", &["--yes"]);
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-e", "trace=write,fsync"]).args(fault).arg("-o").arg(&calls);
        let strace = strace.arg(apply.get_program()).args(apply.get_args()).output();
        let ended = output_of(&strace.expect("strace is installed (scripts/setup --test)"));
        let calls = std::fs::read_to_string(&calls).unwrap();
        let writes = calls.lines().filter(|call| call.contains("/smp_affinity>")).count();
        (ended, writes)
    };
    let ((code, text), writes) = traced(&["-e", "inject=fsync:error=EIO"]);
    assert!(text.contains("cannot sync "), "{text}");
    assert_eq!((code, writes), (Some(1), 0), "{text}");
    let ((code, text), writes) = traced(&[]);
    assert_eq!((code, writes), (Some(0), 2), "{text}");
}

#[test]
fn what_cannot_be_restored_ends_with_21_until_undo_succeeds() {
    let host = Host::new();
    let mut apply = host.hanging_apply("broken\n", &["--yes"]);
    host.let_it_write();
    assert_eq!(apply.wait().unwrap().code(), Some(21));
    assert_eq!(host.affinities(), ["01\n", "broken\n"]);
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!(code, Some(21));
    assert!(text.contains("irq 28 (virtio0-input.1): NOT RESTORED"), "{text}");
    host.put("proc/irq/28/smp_affinity", "10\n");
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}

#[test]
fn a_plan_also_comes_from_standard_input() {
    let host = Host::new();
    let plan = host.root().join("plan.json").display().to_string();
    let apply = host.words("apply", &["--yes"]).replace(&plan, "-");
    let piped = format!("cat '{plan}' | {apply}");
    let (code, text) = output_of(&Command::new("sh").arg("-c").arg(piped).output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(host.affinities()[1].trim(), "10", "{text}");
}

#[test]
fn an_outdated_plan_ends_with_1() {
    let host = Host::new();
    host.put("proc/irq/28/smp_affinity", "08\n");
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert_eq!(code, Some(1));
    assert!(
        text.contains("irq 28 (virtio0-input.1) was 0 when the plan was made and is 3 now"),
        "{text}"
    );
    assert_eq!(host.affinities(), ["01\n", "08\n"]);
}

#[test]
fn another_owner_that_runs_now_ends_with_30() {
    let host = Host::new();
    host.put("proc/812/comm", "irqbalance\n");
    host.put("proc/812/cmdline", "/usr/sbin/irqbalance\0--foreground\0");
    let (code, text) = output_of(&host.run("apply", &["--yes"]));
    assert_eq!(code, Some(30), "{text}");
    assert!(
        text.contains("irqbalance (pid 812) writes these settings too: make a new plan"),
        "{text}"
    );
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
    host.edit_plan(|plan| plan["even_if_owned"] = true.into());
    assert_eq!(output_of(&host.run("apply", &["--yes"])).0, Some(0));
}

#[test]
fn a_plan_of_a_file_is_refused_what_planning_refuses_unless_forced() {
    let at_boot = ("sys/devices/system/cpu/isolated", "4-5\n", "cpu 4 is isolated");
    let by_partition = ("sys/fs/cgroup/cpuset.cpus.isolated", "4\n", "cpu 4 is isolated");
    let offline = ("sys/devices/system/cpu/online", "0-3\n", "cpu 4 is not online");
    for (file, text, why) in [at_boot, by_partition, offline] {
        let host = Host::new();
        host.put(file, text);
        let plan = host.root().join("plan.json").display().to_string();
        let compared = ["--b", &plan, "--yes", "--", "echo", "1"];
        for (verb, more) in [("apply", &["--yes"][..]), ("ab", &compared)] {
            let (code, text) = output_of(&host.run(verb, more));
            assert_eq!(code, Some(1), "{verb}: {text}");
            for irq in ["irq 27 (virtio0-input.0)", "irq 28 (virtio0-input.1)"] {
                assert!(text.contains(&format!("{irq}: {why}")), "{verb}: {text}");
            }
            assert_eq!(host.affinities(), ["01\n", "01\n"]);
        }
        let (code, text) = output_of(&host.run("apply", &["--yes", "--force"]));
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(&format!("forced: irq 27 (virtio0-input.0): {why}")), "{text}");
        assert_eq!(host.affinities(), ["10", "10"]);
    }
}

#[test]
fn a_plan_with_only_refusals_ends_like_plan() {
    let host = Host::new();
    for (cause, expected) in [("other_owner", 30), ("managed_irq", 1)] {
        host.edit_plan(|plan| {
            plan["changes"] = serde_json::json!([]);
            plan["refusals"] =
                serde_json::json!([{ "subject": "irq 29", "cause": cause, "reason": "because" }]);
        });
        let (code, text) = output_of(&host.run("apply", &[]));
        assert_eq!((code, text.contains("irq 29: because")), (Some(expected), true), "{text}");
    }
}

/// Runs apply on a terminal, where a person types this. `more` is for the shell.
pub(crate) fn on_a_terminal(host: &Host, more: &str, typed: &str) -> (Option<i32>, String) {
    use std::io::{ErrorKind, Write as _};
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", &format!("exec {} {more}", host.words("apply", &[])), "/dev/null"]);
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut terminal = terminal.spawn().unwrap();
    // A program that refuses may have ended before.
    let typed = terminal.stdin.as_mut().unwrap().write_all(typed.as_bytes());
    assert!(typed.is_ok() || typed.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe));
    output_of(&terminal.wait_with_output().unwrap())
}

#[test]
fn on_a_terminal_apply_asks_first() {
    let host = Host::new();
    for no in ["n\n", "\n"] {
        let (code, text) = on_a_terminal(&host, "", no);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("apply 2 changes? [y/N]") && text.contains("nothing was written"),
            "{text}"
        );
        assert_eq!(host.affinities(), ["01\n", "01\n"]);
    }
    let (code, text) = on_a_terminal(&host, "", "y\n");
    assert_eq!((code, host.affinities()), (Some(0), ["10".to_owned(), "10".to_owned()]), "{text}");
}

#[test]
fn without_root_the_error_comes_before_anything_is_written() {
    let host = Host::new();
    for path in [host.root().to_owned(), host.root().join("plan.json")] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        let (code, text) = output_of(
            &host.verb("apply", &["--yes", "--state-dir", "/proc/netsilo"]).output().unwrap(),
        );
        return assert_eq!(code, Some(77), "{text}");
    }
    // As user nobody, with a program in a folder that nobody may enter.
    let program = host.root().join("netsilo");
    std::fs::copy(env!("CARGO_BIN_EXE_netsilo"), &program).unwrap();
    let as_nobody = |state: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command
            .args(["apply", "--yes", "--root"])
            .arg(host.root())
            .arg("--plan")
            .arg(host.root().join("plan.json"));
        output_of(&command.args(["--state-dir", state]).output().unwrap())
    };
    let (code, text) = as_nobody(&host.root().join("run/netsilo").to_string_lossy());
    assert_eq!(code, Some(77), "{text}");
    let own = tempfile::tempdir().unwrap();
    rustix::fs::chown(own.path(), rustix::fs::Uid::from_raw(65534).into(), None).unwrap();
    let (code, text) = as_nobody(&own.path().join("state").to_string_lossy());
    assert_eq!(code, Some(77), "{text}");
    assert!(text.contains("run as root; nothing was written"), "{text}");
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}

#[test]
fn there_is_nothing_to_undo_only_where_nobody_else_can_have_taken_the_journal_away() {
    let host = Host::new();
    assert_eq!(output_of(&host.run("apply", &["--yes", "--confirm-within", "1h"])).0, Some(0));
    let run = host.root().join("run");
    let mode = |mode| std::fs::set_permissions(&run, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o777);
    std::fs::rename(host.state(), run.join("moved")).unwrap();
    for verb in ["undo", "confirm", "apply"] {
        let more: &[&str] = if verb == "apply" { &["--yes"] } else { &[] };
        let (code, text) = output_of(&host.run(verb, more));
        assert_eq!(code, Some(1), "{verb}: {text}");
        assert!(text.contains("/run can be written by others"), "{verb}: {text}");
        assert!(!host.state().exists(), "{verb} made the folder");
    }
    let state = host.state();
    let status = Command::new(env!("CARGO_BIN_EXE_netsilo"))
        .args(["status", "--state-dir"])
        .arg(&state)
        .output()
        .unwrap();
    let (code, text) = output_of(&status);
    assert_eq!((code, text.contains("can be written by others")), (Some(1), true), "{text}");
    mode(0o755);
    std::fs::rename(run.join("moved"), &state).unwrap();
    assert_eq!(output_of(&host.run("undo", &[])).0, Some(0));
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
}
