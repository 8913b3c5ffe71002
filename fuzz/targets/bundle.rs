//! Bundles from untrusted sources: opening one writes nothing outside its own folder and removes
//! that folder; every bundle that opens gives a plan.

#![no_main]

use std::path::{Path, PathBuf};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use netsilo_decide::plan::{Goal, plan};
use netsilo_decide::report::Report;
use netsilo_model::derive::analysis::Analysis;
use serde::{Deserialize, Serialize};

/// An archive entry: a file with its text, a link with its target, or any other tar `kind`.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: String,
    kind: char,
    #[serde(default)]
    text: String,
}

fuzz_target!(init: netsilo_fuzz::write_seeds_if_requested(seeds), |json: &[u8]| {
    let Ok(entries) = serde_json::from_slice::<Vec<Entry>>(json) else { return };
    let bundle = std::env::temp_dir().join(format!("netsilo-fuzz-{}", std::process::id()));
    let tar: Vec<u8> = entries.iter().flat_map(tar_entry).chain([0; 1024]).collect();
    std::fs::write(&bundle, zstd::encode_all(&tar[..], 1).expect("memory"))
        .expect("a temporary folder");
    let opened = netsilo_sys::bundle::open(&bundle);
    std::fs::remove_file(&bundle).expect("it was just written");
    for entry in &entries {
        if let Some(name) = Path::new(&entry.path).file_name() {
            assert!(std::env::temp_dir().join(name).symlink_metadata().is_err(),
                "{:?} escaped", entry.path);
        }
    }
    match opened {
        Ok(observation) => {
            let goal = Goal::default();
            let analysis = Analysis::new(&observation, &goal.costs);
            let _ = Report::of(&analysis);
            let _ = plan(&analysis, &goal);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    netsilo_fuzz::json::mutate(data, size, max_size, seed)
});

/// Writes a POSIX ustar header by hand, since libraries refuse hostile paths.
fn tar_entry(entry: &Entry) -> Vec<u8> {
    let link = if entry.kind == '2' { entry.text.as_str() } else { "" };
    let text = if entry.kind == '2' { "" } else { entry.text.as_str() };
    let mut header = [0; 512];
    let mut put = |at: usize, width: usize, text: &str| {
        let text = &text.as_bytes()[..text.len().min(width)];
        header[at..at + text.len()].copy_from_slice(text);
    };
    put(0, 100, &entry.path);
    put(100, 8, "0000644");
    put(124, 12, &format!("{:011o}", text.len()));
    put(148, 8, "        ");
    put(156, 1, &entry.kind.to_string());
    put(157, 100, link);
    put(257, 8, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = text.len().next_multiple_of(512) - text.len();
    [&header, text.as_bytes(), &vec![0; padding]].concat()
}

/// The smallest fixture as a bundle, and hostile bundles.
fn seeds() -> Vec<String> {
    let fixture = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/synthetic-virtio_net-shared"
    ));
    let entry = |path: &str, kind, text: &str| Entry { path: path.into(), kind, text: text.into() };
    let manifest = r#"{"schema":1,"netsilo":"0","kernel":"6.1","with_addresses":false,"holds":[]}"#;
    let attribution =
        serde_json::to_string(&netsilo_model::snapshot::attribution::Attribution::default())
            .expect("plain values");
    let mut whole =
        vec![entry("manifest.json", '0', manifest), entry("attribution.json", '0', &attribution)];
    for sample in ["0", "1"] {
        add(&mut whole, &fixture, sample);
    }
    let hostile = vec![
        entry("../escaped", '0', "x"),
        entry("/escaped", '0', "x"),
        entry("0/up", '2', "../.."),
        entry("0/a/up", '2', ".."),
        entry("0/a/up/up/escaped", '0', "x"),
        entry("0/hard", '1', "x"),
        entry("0/device", '3', ""),
        entry("././@LongLink", 'L', &"a/".repeat(60)),
        entry("././@LongLink", 'K', "../x"),
        entry("pax", 'x', "27 path=0/sys/../../escaped\n"),
        entry("pax", 'g', "20 size=99999999999\n"),
    ];
    let json = |entries: &[Entry]| serde_json::to_string(entries).expect("plain values");
    let mut seeds: Vec<String> =
        hostile.iter().map(|entry| json(std::slice::from_ref(entry))).collect();
    seeds.extend([json(&whole), json(&hostile[2..])]);
    seeds
}

fn add(entries: &mut Vec<Entry>, dir: &Path, inner: &str) {
    for file in std::fs::read_dir(dir).expect("the fixture").flatten() {
        let path = format!("{inner}/{}", file.file_name().to_string_lossy());
        let kind = file.file_type().expect("the fixture");
        if kind.is_dir() {
            add(entries, &file.path(), &path);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(file.path())
                .expect("the fixture")
                .to_string_lossy()
                .into_owned();
            entries.push(Entry { path, kind: '2', text: target });
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(file.path()).expect("the fixture"))
                .into_owned();
            entries.push(Entry { path, kind: '0', text });
        }
    }
}
