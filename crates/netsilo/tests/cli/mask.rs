//! Sets of CPUs on the command line, and `netsilo mask`.

use crate::bundles::VIRTIO;
use crate::{code, refusal, run, stderr, stdout};

#[test]
fn every_notation_of_a_set_is_read_and_printed() {
    for notation in ["0-3,40", "100,0000000f", "0x100,0000000f"] {
        let output = run(&["mask", notation, "--width", "48", "--from", &VIRTIO]);
        assert_eq!((code(&output), stderr(&output)), (0, ""), "{notation}");
        insta::allow_duplicates! {
            insta::assert_snapshot!(stdout(&output), @"
            cpus 0-3,40: 5 cpus
              list  0-3,40                      smp_affinity_list, cpuset.cpus, taskset -c
              mask  0100,0000000f               smp_affinity, rps_cpus, xps_cpus
              hex   0x1000000000f               taskset
            ");
        }
    }
}

#[test]
fn an_invalid_set_is_a_usage_error_that_names_the_column() {
    let place = |text: &str| refusal(&["mask", text]);
    insta::assert_snapshot!(place("0-3,x"), @r#"2 netsilo: unexpected 'x' at column 5 of "0-3,x""#);
    insta::assert_snapshot!(place("1,,2"), @r#"2 netsilo: empty cpu set at column 3 of "1,,2""#);
    insta::assert_snapshot!(
        place("5-3"),
        @r#"2 netsilo: range runs backwards at column 1 of "5-3""#
    );
    insta::assert_snapshot!(
        place("8192"),
        @r#"2 netsilo: cpu 8192 is out of range (the highest is 8191) at column 1 of "8192""#
    );
    insta::assert_snapshot!(place("0x0"), @r#"2 netsilo: empty cpu set at column 1 of "0x0""#);
    insta::assert_snapshot!(
        place("123456789f"),
        @"2 netsilo: mask group longer than 8 hexadecimal digits at column 9 of \"123456789f\""
    );
    insta::assert_snapshot!(
        refusal(&["mask", "ff", "--width", "4"]),
        @r#"2 netsilo: cpu 7 is out of range (the highest is 3) at column 1 of "ff""#
    );
    insta::assert_snapshot!(refusal(&["plan", "--cpus", "0-", "--from", "nowhere"]), @r#"
    2 error: invalid value '0-' for '--cpus <CPUS>': empty cpu set at column 3 of "0-"

    For more information, try '--help'.
    "#);
}

#[test]
fn caches_nodes_and_neighbours_are_those_of_the_bundles_machine() {
    let first_lines = |arguments: &[&str]| {
        let output = run(&[&["mask", "--from", &VIRTIO], arguments].concat());
        stdout(&output).lines().filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(first_lines(&["--llc"]), @r#"
    llc 0: 4 cpus
    llc 1: 3 cpus
    "#);
    insta::assert_snapshot!(first_lines(&["--node", "1"]), @"node 1: 3 cpus");
    insta::assert_snapshot!(first_lines(&["--near", "cpu0"]), @"near cpu 0: 2 cpus");
    insta::assert_snapshot!(
        refusal(&["mask", "--from", &VIRTIO, "--node", "7"]),
        @"1 netsilo: there is no node 7 on this machine; it has 0, 1"
    );
    insta::assert_snapshot!(
        refusal(&["mask", "--from", &VIRTIO, "--near", "cpu80"]),
        @"1 netsilo: there is no cpu 80 on this machine; it has 0-7"
    );
}
