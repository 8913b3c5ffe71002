//! Reports of other collectors with `--from`.

use crate::{code, refusal, run, stderr, stdout};

const SOSREPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/sosreport");

#[test]
fn show_of_a_sosreport_names_what_was_not_recorded() {
    let output = run(&["show", "--from", SOSREPORT]);
    assert_eq!(code(&output), 0);
    insta::assert_snapshot!("show_of_a_sosreport", stdout(&output));
    assert!(stderr(&output).contains("totals since boot (1.1 hours)"), "{}", stderr(&output));
}

#[test]
fn what_was_not_recorded_is_never_off() {
    let check = run(&["check", "-v", "--from", SOSREPORT]);
    let text = stdout(&check);
    let rps = "RPS on ens1f0: unknown\n  gain not known: averages since boot do not show";
    assert!(text.contains(rps), "{text}");
    let of_now = [
        "no cpu is overloaded",
        "finds no better cpus",
        "% of the load that fits",
        "have idle time",
    ];
    assert!(!of_now.iter().any(|words| text.contains(words)), "{text}");
    let plan = run(&["plan", "--rps", "0-1", "--from", SOSREPORT]);
    let refused = "ens1f0 rx-0-1: its rps_cpus was not recorded";
    assert!(stdout(&plan).contains(refused), "{}", stdout(&plan));
    let rss = run(&["rss", "show", "--netdev", "ens1f0", "--from", SOSREPORT]);
    assert!(stdout(&rss).contains("not recorded: ethtool -x ens1f0"), "{}", stdout(&rss));
}

#[test]
fn other_files_and_pairs_are_refused() {
    let unknown = refusal(&["show", "--from", "/etc/passwd"]);
    assert!(unknown.contains("neither a netsilo bundle nor a sosreport"), "{unknown}");
    let order = refusal(&["check", "--from", SOSREPORT, "--from", SOSREPORT]);
    assert!(order.contains("older than the first"), "{order}");
    let page = ["report", "--incident", "-o", "/dev/null", "--from", SOSREPORT];
    assert!(refusal(&page).contains("this is no bundle"), "{}", refusal(&page));
}
