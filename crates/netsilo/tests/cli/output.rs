//! Standard output without a reader, and on a full disk: the effect on the exit code.

use std::io::Write as _;
use std::process::Stdio;

use netsilo_lab::{on_a_full_disk, unread};

use super::bundles::{OWNED, VIRTIO};
use super::conforms::conforming;
use super::{code, netsilo, run, stderr, stdout};

/// An observation, as `capture --ndjson` prints it.
const HOST: &str = include_str!("../../../../fixtures/observation-schema-1.ndjson");

const SCENARIO: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/predict/request-response.toml");

#[test]
fn two_bundles_are_compared() {
    let compare = ["show", "--from", &OWNED, "--against", &VIRTIO];
    let text = run(&compare);
    assert_eq!((code(&text), stderr(&text)), (0, ""));
    assert!(stdout(&text).contains("\n  irqbalance: - -> runs\n"), "{}", stdout(&text));
    assert!(stdout(&text).contains("\nplaces: no difference\n"), "{}", stdout(&text));
    let json = conforming("show-against", &run(&[&compare[..], &["--json"]].concat()).stdout);
    assert_eq!(json["settings"], serde_json::json!({ "irqbalance": [null, "runs"] }));
    let missing = run(&["show", "--against", "/nowhere.tar.zst"]);
    assert!(stderr(&missing).contains("--against /nowhere.tar.zst"), "{}", stderr(&missing));
}

/// Verbs whose work is their output.
fn reading() -> Vec<Vec<&'static str>> {
    let of_a_bundle = [
        &["show"][..],
        &["show", "-j"],
        &["check"],
        &["check", "-j"],
        &["plan"],
        &["plan", "-j"],
        &["plan", "--detailed-exitcode"],
        &["plan", "--detailed-exitcode", "-j"],
        &["explain", "cpu", "1"],
        &["export", "script"],
    ];
    let others = [
        &["--help"][..],
        &["--version"],
        &["help", "plan"],
        &["help", "topics"],
        &["explain"],
        &["explain", "nic-drops"],
        &["calibrate", "--time", "100ms", "--dry-run"],
        &["show", "--no-bpf", "--interval", "1ms"],
        &["doctor"],
        &["predict", "--scenario", SCENARIO],
    ];
    let of_a_bundle = of_a_bundle.map(|verb| [verb, &["--from", VIRTIO.as_str()]].concat());
    of_a_bundle.into_iter().chain(others.map(<[_]>::to_vec)).collect()
}

#[test]
fn a_reader_that_left_changes_no_exit_code() {
    let mut codes = Vec::new();
    for verb in reading() {
        let (read, left) = (run(&verb), unread(netsilo(&verb)));
        assert_eq!(code(&left), code(&read), "{verb:?}: {}", stderr(&left));
        assert!(!stderr(&left).contains("stdout"), "{verb:?}: {}", stderr(&left));
        codes.push(code(&read));
    }
    assert!(codes.contains(&10) && codes.contains(&11), "{codes:?}");
}

#[test]
fn a_full_disk_fails_a_verb_whose_work_is_its_output() {
    for verb in reading() {
        let output = on_a_full_disk(netsilo(&verb));
        let error = "netsilo: cannot write to stdout: No space left on device";
        assert_eq!(code(&output), 1, "{verb:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).matches(error).count(), 1, "{verb:?}: {}", stderr(&output));
    }
}

#[test]
fn watching_ends_when_its_reader_left() {
    for json in [&[][..], &["--json"]] {
        let watch = [&["show", "--watch", "--no-bpf", "--interval", "1ms"], json].concat();
        assert_eq!(code(&unread(netsilo(&watch))), 0);
        assert_eq!(code(&on_a_full_disk(netsilo(&watch))), 1);
    }
}

#[test]
fn the_filter_ends_when_its_reader_left_although_more_input_may_come() {
    for verb in ["plan", "check", "predict"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = netsilo(&[verb, "--ndjson"]);
        let mut filter = command.stdin(Stdio::piped()).stdout(writer).spawn().unwrap();
        let mut input = filter.stdin.take().unwrap();
        input.write_all(HOST.as_bytes()).unwrap();
        assert_eq!(filter.wait().unwrap().code(), Some(0), "{verb}");
        drop(input);
    }
}

#[test]
fn a_measurement_is_stored_whoever_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    for end in [unread, on_a_full_disk] {
        let folder = dir.path().to_str().unwrap();
        let output = end(netsilo(&["calibrate", "--time", "100ms", "--costs-dir", folder]));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot write to stdout: "), "{}", stderr(&output));
        std::fs::remove_file(dir.path().join("costs.json")).unwrap();
    }
}

#[test]
fn a_file_that_is_written_replaces_a_link_and_never_follows_it() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (name, target) = (dir.path().join("host.tar.zst"), dir.path().join("passwd"));
    let folder = dir.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let script = folder.join("netsilo-placement.sh");
    let (bundle, into) = (name.to_str().unwrap(), folder.to_str().unwrap());
    let verbs = [
        (&name, vec!["capture", "--no-bpf", "--interval", "1ms", "-o", bundle]),
        (&script, vec!["export", "script", "--from", VIRTIO.as_str(), "--dir", into]),
    ];
    for (link, verb) in verbs {
        std::fs::write(&target, "root").unwrap();
        symlink(&target, link).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(link, Some(4242), None).unwrap();
        }
        assert_eq!(code(&run(&verb)), 0, "{verb:?}");
        assert!(link.symlink_metadata().unwrap().is_file(), "{verb:?}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "root", "{verb:?}");
    }
    let printed = run(&["capture", "--no-bpf", "--interval", "1ms", "-o", "/dev/stdout"]);
    assert_eq!((code(&printed), &printed.stdout[..4]), (0, &[0x28, 0xb5, 0x2f, 0xfd][..]));
    assert!(std::path::Path::new("/dev/stdout").is_symlink());
}
