//! Snapshots of this machine and of captured trees.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::interrupts::IrqRow;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle::{Addresses, Bundle, Capture, open};
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_sys::read::irq::{interrupts, rows};
use netsilo_sys::read::topology::topology;

use netsilo_sys::snapshot;

#[test]
fn a_saved_tree_gives_the_same_snapshot_again() {
    let dir = tempfile::tempdir().unwrap();
    let (root, recorder) = Root::live().recording(dir.path()).unwrap();
    let live = snapshot(&root).unwrap();
    recorder.finish().unwrap();
    let again = snapshot(&Root::at(dir.path()).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&live).unwrap());
    assert!(!live.topology.online.is_empty() && !live.irqs.is_empty());
    let again_saved = tempfile::tempdir().unwrap();
    let (root, recorder) = Root::at(dir.path()).unwrap().recording(again_saved.path()).unwrap();
    snapshot(&root).unwrap();
    recorder.finish().unwrap();
}

/// Two samples of this machine, and a bundle made of them.
fn captured(addresses: Addresses) -> (Observation, Observation) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.tar.zst");
    let mut capture = Capture::start().unwrap();
    let live = Observation {
        before: snapshot(&capture.sample(&Root::live()).unwrap()).unwrap(),
        after: snapshot(&capture.sample(&Root::live()).unwrap()).unwrap(),
        attribution: Attribution { lost_events: 7, ..Attribution::default() },
    };
    capture.window(&live.attribution);
    let manifest = capture.write(&path, &live.after.machine.release, addresses).unwrap();
    assert_eq!((manifest.schema, manifest.with_addresses), (1, addresses == Addresses::Keep));
    (live, open(&path).unwrap())
}

#[test]
fn a_bundle_gives_the_same_observation_again() {
    let (live, bundled) = captured(Addresses::Keep);
    assert_eq!(bundled, live);
}

/// The first bundle in each folder of the project's fixtures and cases.
fn bundles(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) =
        entries.partition(|path| path.is_dir() && !path.is_symlink());
    files.retain(|file| file.to_str().unwrap().ends_with(".tar.zst"));
    files.into_iter().min().into_iter().chain(folders.iter().flat_map(|it| bundles(it))).collect()
}

#[test]
fn a_bundle_in_memory_is_read_as_its_files_on_a_disk() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = ["fixtures", "cases"].map(|folder| bundles(&project.join(folder))).concat();
    assert!(all.len() > 5);
    for bundle in all {
        let dir = tempfile::tempdir().unwrap();
        let bytes = zstd::Decoder::new(File::open(&bundle).unwrap()).unwrap();
        tar::Archive::new(bytes).unpack(dir.path()).unwrap();
        let on_disk = |sample| snapshot(&Root::at(dir.path().join(sample)).unwrap()).unwrap();
        let read = open(&bundle).unwrap();
        assert_eq!(read.before, on_disk("0"), "{}", bundle.display());
        assert_eq!(read.after, on_disk("1"), "{}", bundle.display());
    }
}

#[test]
fn a_bundle_of_several_windows_gives_each_and_all_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.tar.zst");
    let mut capture = Capture::start().unwrap();
    let samples: Vec<Snapshot> =
        (0..5).map(|_| snapshot(&capture.sample(&Root::live()).unwrap()).unwrap()).collect();
    for lost_events in 1..4 {
        capture.window(&Attribution { lost_events, ..Attribution::default() });
    }
    // the last sample has no counts, because a signal arrived
    let manifest = capture.write(&path, "6.1", Addresses::Keep).unwrap();
    assert_eq!((manifest.schema, manifest.windows), (2, 3));
    let mut bundle = Bundle::open(&[&path]).unwrap();
    for n in 0..3 {
        let window = bundle.next_window().unwrap().unwrap();
        assert_eq!((&window.before, &window.after), (&samples[n], &samples[n + 1]));
        assert_eq!(window.attribution.lost_events, n as u64 + 1);
    }
    assert!(bundle.next_window().unwrap().is_none());
    let whole = open(&path).unwrap();
    assert_eq!((&whole.before, &whole.after), (&samples[0], &samples[3]));
    assert_eq!(whole.attribution.lost_events, 6);
}

#[test]
fn a_capture_without_a_window_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.tar.zst");
    let mut capture = Capture::start().unwrap();
    snapshot(&capture.sample(&Root::live()).unwrap()).unwrap();
    let error = capture.write(&path, "6.1", Addresses::Keep).unwrap_err();
    assert_eq!(error.to_string(), "nothing to save: no window has ended yet");
    assert!(!path.exists());
}

#[test]
fn a_bundle_without_addresses_differs_in_them_only() {
    let (mut live, mut bundled) = captured(Addresses::Replace);
    assert!(bundled.after.machine.hostname.starts_with("host-"));
    for observation in [&mut live, &mut bundled] {
        for snapshot in [&mut observation.before, &mut observation.after] {
            snapshot.machine.hostname.clear();
            snapshot.machine.cmdline.clear();
            snapshot.netdevs.iter_mut().for_each(|netdev| netdev.mac = None);
            let connections = snapshot.audit.as_mut().map(|audit| &mut audit.connections);
            if let Some(Reading::Value(connections)) = connections {
                connections.busiest.iter_mut().for_each(|connection| connection.peer = None);
            }
        }
    }
    assert_eq!(bundled, live);
}

#[test]
fn sysfs_and_the_table_agree_about_an_interrupt() {
    let root = Root::live();
    let possible = topology(&root).unwrap().possible;
    let named = |row: &IrqRow| (row.chip.clone(), row.actions.clone());
    let table = interrupts(&root, None).unwrap().irqs;
    let irqs: BTreeSet<Irq> = table.keys().copied().chain([Irq(99_999)]).collect();
    let rows = rows(&root, &irqs, &possible).unwrap();
    let later = interrupts(&root, None).unwrap().irqs;
    assert_eq!(rows.keys().collect::<Vec<_>>(), table.keys().collect::<Vec<_>>());
    for (irq, row) in &rows {
        // x86 prints no level; on other architectures it follows
        assert!(
            named(&table[irq]).0.starts_with(&row.chip) && row.actions == table[irq].actions,
            "{row:?}"
        );
        for (cpu, count) in &row.counts {
            let (first, last) =
                (table[irq].counts.get(cpu).copied().unwrap_or(0), later[irq].counts[cpu]);
            assert!((first..=last).contains(count), "irq {irq} cpu {cpu}: {first} {count} {last}");
        }
    }
}

/// A search looks at each of its windows: on a host with a thousand namespaces, that was longer
/// than the windows.
#[test]
fn only_who_looks_for_losses_reads_other_namespaces() {
    let reads = |options| {
        let root = Root::live();
        let mut observer = Observer::start_with(&root, CountingMode::WithoutBpf, options).unwrap();
        let seen = observer.next(&root, Duration::ZERO, |_| {}).unwrap();
        [&seen.before, &seen.after].map(|it| it.namespaces.is_some())
    };
    assert_eq!(reads(Options::default()), [false; 2]);
    assert_eq!(reads(Options::for_findings()), [true; 2]);
}
