//! Sets of CPUs on the command line.

use crate::bundles::VIRTIO;
use crate::{code, refusal, run, stderr, stdout};

#[test]
fn a_set_is_read_in_both_notations_of_the_kernel() {
    let plan = |cpus: &str| {
        let output = run(&["plan", "--cpus", cpus, "--from", &VIRTIO]);
        assert_eq!((code(&output), stderr(&output)), (0, ""), "{cpus}");
        stdout(&output).to_owned()
    };
    let first = plan("0-3");
    assert_ne!(first, plan("4-7"));
    for notation in ["0,1-3", "0x0f", "0xf", "00000000,0000000f"] {
        assert_eq!(plan(notation), first, "{notation}");
    }
}

#[test]
fn an_invalid_set_is_a_usage_error_that_names_the_column() {
    let place = |text: &str| {
        let printed = refusal(&["plan", "--cpus", text, "--from", "nowhere"]);
        printed.lines().next().unwrap().to_owned()
    };
    insta::assert_snapshot!(place("0-3,x"));
    insta::assert_snapshot!(place("1,,2"));
    insta::assert_snapshot!(place("0-"));
    insta::assert_snapshot!(place("5-3"));
    insta::assert_snapshot!(place("8192"));
    insta::assert_snapshot!(place("0x0"));
    insta::assert_snapshot!(place("123456789f"));
}
