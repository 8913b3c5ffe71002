//! Bundles and reports of other collectors from untrusted sources: opening one writes nothing, and
//! every one that opens gives a plan.

use std::path::Path;

use netsilo_decide::plan::{Goal, plan};
use netsilo_decide::report::Report;
use netsilo_model::derive::analysis::Analysis;
use serde::{Deserialize, Serialize};

use crate::json;
use crate::target::{FuzzTarget, WORKSPACE};

/// An archive entry: a file with its text, a link with its target, or any other tar `kind`.
///
/// Numbers that one mutation makes large: an archive with deep names, many entries, or a size that
/// is a lie.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    path: String,
    kind: char,
    #[serde(default)]
    text: String,
    /// The text is written this many times: a long name, a deep path.
    #[serde(default = "once")]
    repeated: u32,
    /// The entry is written this many times, each with its number in its path.
    #[serde(default = "once")]
    copies: u32,
    /// The size in the header, if it is not that of the text.
    #[serde(default)]
    size: Option<u64>,
}

fn once() -> u32 {
    1
}

/// Most bytes of one archive and most entries of one line; a real bundle has more.
const MOST_BYTES: usize = 4 << 20;
const MOST_COPIES: u32 = 2000;

impl Entry {
    /// The entry as often as it is written, with its whole text.
    fn all(&self) -> impl Iterator<Item = Self> {
        let most = MOST_BYTES / self.text.len().max(1);
        let text = self.text.repeat(most.min(self.repeated as usize));
        (0..self.copies.min(MOST_COPIES)).map(move |copy| {
            let path = if copy == 0 { self.path.clone() } else { format!("{}{copy}", self.path) };
            Self { path, text: text.clone(), ..self.clone() }
        })
    }
}

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, mutate: json::mutate, inputs: 500, ..FuzzTarget::bytes(holds) };

fn holds(json: &[u8]) {
    let Ok(entries) = serde_json::from_slice::<Vec<Entry>>(json) else { return };
    let bundle = std::env::temp_dir().join(format!("netsilo-fuzz-{}", std::process::id()));
    let mut tar = Vec::new();
    for entry in entries.iter().flat_map(Entry::all) {
        tar.extend(tar_entry(&entry));
        if tar.len() > MOST_BYTES {
            break;
        }
    }
    tar.extend([0; 1024]);
    // the same entries as a bundle, and uncompressed as a sosreport
    let archives = [zstd::encode_all(&tar[..], 1).expect("memory"), tar];
    let opened = archives.map(|archive| {
        std::fs::write(&bundle, archive).expect("a temporary folder");
        let opened = netsilo_sys::bundle::open(&bundle);
        std::fs::remove_file(&bundle).expect("it was just written");
        opened
    });
    for entry in &entries {
        if let Some(name) = Path::new(&entry.path).file_name() {
            assert!(
                std::env::temp_dir().join(name).symlink_metadata().is_err(),
                "{:?} escaped",
                entry.path
            );
        }
    }
    for opened in opened {
        match opened {
            Ok(observation) => {
                let goal = Goal::default();
                let analysis = Analysis::new(&observation, &goal.costs);
                let _ = Report::of(&analysis);
                let _ = plan(&analysis, &goal);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Writes a POSIX ustar header by hand, since libraries refuse hostile paths.
fn tar_entry(entry: &Entry) -> Vec<u8> {
    let link = if entry.kind == '2' { entry.text.as_str() } else { "" };
    let text = if entry.kind == '2' { "" } else { entry.text.as_str() };
    let mut header = [0; 512];
    let mut put = |at: usize, width: usize, text: &str| {
        let text = &text.as_bytes()[..text.len().min(width)];
        header[at..at + text.len()].copy_from_slice(text);
    };
    // A longer path continues in the field after the standard's name.
    let cut = entry.path.len().saturating_sub(100);
    let cut = entry.path.char_indices().map(|(at, _)| at).find(|at| *at >= cut).unwrap_or(0);
    put(345, 155, &entry.path[..cut]);
    put(0, 100, &entry.path[cut..]);
    put(100, 8, "0000644");
    let size = entry.size.unwrap_or(text.len() as u64);
    // As GNU tar: a size that has more digits than the field is binary, after a set bit.
    if size < 1 << 33 {
        put(124, 12, &format!("{size:011o}"));
    } else {
        header[124] = 0x80;
        header[128..136].copy_from_slice(&size.to_be_bytes());
    }
    let mut put = |at: usize, width: usize, text: &str| {
        let text = &text.as_bytes()[..text.len().min(width)];
        header[at..at + text.len()].copy_from_slice(text);
    };
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
fn seeds() -> Vec<Vec<u8>> {
    let fixture = Path::new(WORKSPACE).join("fixtures/synthetic-virtio_net-shared");
    let entry = |path: &str, kind, text: &str| entry(path.into(), kind, text.into());
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
        Entry { repeated: 60, ..entry("././@LongLink", 'L', "a/") },
        Entry { repeated: 100_000, ..entry("././@LongLink", 'L', "b") },
        Entry { size: Some(900 << 20), ..entry("././@LongLink", 'L', "c") },
        Entry { size: Some(1 << 40), ..entry("0/large", '0', "d") },
        Entry { size: Some(900 << 20), ..entry("pax", 'x', "12 path=0/x\n") },
        Entry { copies: 300, ..entry("0/folder/x", '5', "") },
        entry(&"0/deep/".repeat(30), '0', "e"),
        entry("././@LongLink", 'K', "../x"),
        entry("pax", 'x', "27 path=0/sys/../../escaped\n"),
        entry("pax", 'g', "20 size=99999999999\n"),
    ];
    let json = |entries: &[Entry]| serde_json::to_vec(entries).expect("plain values");
    let mut seeds: Vec<Vec<u8>> =
        hostile.iter().map(|entry| json(std::slice::from_ref(entry))).collect();
    let mut report = Vec::new();
    add(&mut report, &Path::new(WORKSPACE).join("fixtures/sosreport"), "sosreport-x");
    seeds.extend([json(&whole), json(&hostile[2..]), json(&report)]);
    seeds
}

fn entry(path: String, kind: char, text: String) -> Entry {
    Entry { path, kind, text, repeated: 1, copies: 1, size: None }
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
            entries.push(entry(path, '2', target));
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(file.path()).expect("the fixture"))
                .into_owned();
            entries.push(entry(path, '0', text));
        }
    }
}
