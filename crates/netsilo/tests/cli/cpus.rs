//! Sets of CPUs on the command line.

use crate::bundles::VIRTIO;
use crate::conforms::conforming;
use crate::{code, refusal, run, stderr, stdout};

/// An observation of a guest with igb.
const IGB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/igb-6.12.tar.zst");

#[test]
fn a_set_is_read_in_both_notations_of_the_kernel() {
    let plan = |cpus: &str| {
        let output = run(&["plan", "--cpus", cpus, "--from", &VIRTIO]);
        (code(&output), stdout(&output).to_owned())
    };
    let first = plan("0-3");
    assert_eq!(first.0, 0, "{}", first.1);
    assert_ne!(first, plan("4-5"));
    for notation in ["0,1-3", "0x0f", "0xf", "00000000,0000000f"] {
        assert_eq!(plan(notation), first, "{notation}");
    }
}

#[test]
fn an_invalid_set_is_a_usage_error_that_names_the_column() {
    for (text, why) in [
        ("0-3,x", "unexpected 'x' at column 5"),
        ("1,,2", "empty cpu set at column 3"),
        ("0-", "empty cpu set at column 3"),
        ("5-3", "range runs backwards at column 1"),
        ("8192", "cpu 8192 is out of range (the highest is 8191) at column 1"),
        ("0x0", "empty cpu set at column 1"),
        ("123456789f", "mask group longer than 8 hexadecimal digits at column 9"),
    ] {
        let printed = refusal(&["plan", "--cpus", text, "--from", "nowhere"]);
        let expected =
            format!("2 error: invalid value '{text}' for '--cpus <CPUS>': {why} of \"{text}\"");
        assert_eq!(printed.lines().next(), Some(expected.as_str()));
    }
}

#[test]
fn check_of_cpus_prints_who_interrupted_them() {
    let args = ["check", "--cpus", "0-1", "--from", IGB];
    let text = run(&args);
    assert_eq!(code(&text), 0, "{}", stderr(&text));
    insta::assert_snapshot!("check_cpus", stdout(&text));
    let json = conforming("check-cpus", &run(&[&args[..], &["--json"]].concat()).stdout);
    assert!(json["not_known"].as_array().is_some_and(|it| !it.is_empty()), "{json:#}");
    let both = refusal(&[&args[..], &["--fail-on", "info"]].concat());
    assert!(both.starts_with("2 error: the argument '--cpus <CPUS>' cannot be used"), "{both}");
}
