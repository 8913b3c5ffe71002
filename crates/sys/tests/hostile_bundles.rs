//! Limits what a stranger's bundle can cost: the memory of this process, which runs no other test.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

#[path = "trees/big_host.rs"]
mod big_host;

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::Path;

use big_host::BigHost;
use flate2::Compression;
use flate2::write::GzEncoder;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_sys::bundle::{self, Addresses, Capture};
use netsilo_sys::daemon::self_cost::peak_bytes;
use netsilo_sys::files::root::Root;
use tar::EntryType;

type GzArchive = tar::Builder<GzEncoder<File>>;

type Archive = tar::Builder<zstd::Encoder<'static, File>>;

fn header(name: &str, kind: EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

/// Opens a bundle that `fill` writes. Returns why it is refused.
fn refused(what: &str, fill: impl FnOnce(&mut Archive) -> io::Result<()>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.tar.zst");
    let mut archive = Archive::new(zstd::Encoder::new(File::create(&path).unwrap(), 1).unwrap());
    fill(&mut archive).unwrap();
    archive.into_inner().unwrap().finish().unwrap();
    refused_file(what, &path)
}

fn refused_file(what: &str, path: &Path) -> String {
    let size = path.metadata().unwrap().len();
    assert!(size < 1 << 20, "{what}: {size} bytes");
    let begin = std::time::Instant::now();
    let error = bundle::open(path).unwrap_err().to_string();
    let (time, peak) = (begin.elapsed(), peak_bytes().unwrap());
    let _ = writeln!(io::stderr(), "{what}: {size} bytes, {time:.1?}, peak {} MiB", peak >> 20);
    assert!(peak < 64 << 20, "{what}: {peak} bytes of memory");
    error
}

/// So many bytes, all the same; `io::repeat` takes seconds for them without optimization.
fn letters(count: u64) -> impl io::Read {
    struct Letters;
    impl io::Read for Letters {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes.fill(b'a');
            Ok(bytes.len())
        }
    }
    Letters.take(count)
}

fn add_long_name(archive: &mut Archive, name: &str) -> io::Result<()> {
    archive.append(&header("l", EntryType::GNULongName, name.len() as u64), name.as_bytes())?;
    archive.append(&header("x", EntryType::Regular, 0), io::empty())
}

#[test]
fn a_hostile_bundle_is_refused_within_64_mib() {
    const LARGE: u64 = 300 << 20;
    use EntryType as E;
    for kind in [E::GNULongName, E::GNULongLink, E::XHeader, E::XGlobalHeader, E::Regular] {
        let what = format!("{kind:?} of 300 MiB");
        let error =
            refused(&what, |archive| archive.append(&header("x", kind, LARGE), letters(LARGE)));
        assert!(
            error.contains("too long") || error.contains("not a file") || error.contains("more")
        );
    }
    let error =
        refused("a path of 40,000 folders", |archive| add_long_name(archive, &"a/".repeat(40_000)));
    assert!(error.contains("too long"), "{error}");
    let error = refused("many folders", |archive| {
        (0..20_000).try_for_each(|n| add_long_name(archive, &format!("{n}/{}", "b/".repeat(35))))
    });
    assert!(error.contains("entries"), "{error}");
    let error = refused("many files", |archive| {
        (0..100_001).try_for_each(|n| {
            archive.append(&header(&n.to_string(), EntryType::Regular, 0), io::empty())
        })
    });
    assert!(error.contains("entries"), "{error}");
    let error = refused("long names", |archive| {
        (0..20_000).try_for_each(|n| add_long_name(archive, &format!("{n}/{}", "c".repeat(1000))))
    });
    assert!(error.contains("more than"), "{error}");
    let error = refused("the last of 200 MiB", |archive| {
        for name in ["a", "b", "c", "d", "a"] {
            archive.append(&header(name, EntryType::Regular, 50 << 20), letters(50 << 20))?;
        }
        Ok(())
    });
    assert!(error.contains("exists"), "{error}");
    hostile_reports_are_refused();
    // a frame with a window of 2^27 bytes, and one block: a byte, repeated
    let dir = tempfile::tempdir().unwrap();
    let window = dir.path().join("window");
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, (27 - 10) << 3, 0x03, 0x00, 0x10, b'a'];
    std::fs::write(&window, frame).unwrap();
    let error = refused_file("a window of 128 MiB", &window);
    assert!(error.contains("cannot unpack") && error.contains("memory"), "{error}");
}

/// The same of a sosreport, as tar.gz.
fn hostile_reports_are_refused() {
    let refused = |what: &str, fill: &dyn Fn(&mut GzArchive) -> io::Result<()>| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sosreport.tar.gz");
        let file = File::create(&path).unwrap();
        let mut archive = GzArchive::new(GzEncoder::new(file, Compression::best()));
        fill(&mut archive).unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        refused_file(what, &path)
    };
    let many = |archive: &mut GzArchive, name: &str, kind, size, times| {
        (0..times).try_for_each(|n| {
            let name = name.replace('N', &n.to_string());
            archive.append(&header(&name, kind, size), letters(size))
        })
    };
    let file = EntryType::Regular;
    let large = |archive: &mut GzArchive| many(archive, "x/proc/stat", file, 40 << 20, 1);
    assert!(refused("a file of 40 MiB", &large).contains("at most 48 MiB"));
    let files =
        |archive: &mut GzArchive| many(archive, "x/proc/irq/N/smp_affinity", file, 0, 100_000);
    assert!(refused("many files of a sosreport", &files).contains("at most 48 MiB"));
    let header = |archive: &mut GzArchive| many(archive, "x", EntryType::XHeader, 60 << 20, 1);
    assert!(refused("an extension header of 60 MiB", &header).contains("too long"));
    let passed_over = |archive: &mut GzArchive| many(archive, "x/etc/N", file, 30 << 20, 8);
    assert!(refused("240 MiB of other files", &passed_over).contains("neither"));
}

/// On a disk with slow deletes (`discard`) the many files of the capture take minutes. With
/// `TMPDIR=/dev/shm` they take seconds.
#[test]
#[ignore = "slow: make test-long"]
fn a_bundle_of_512_cpus_and_4000_interrupts_reads() {
    let host = BigHost { cpus: 512, irqs: 4000, netdevs: 2, queues: 256 };
    let dir = tempfile::tempdir().unwrap();
    host.write(&dir.path().join("tree")).unwrap();
    let opened = captured(&dir.path().join("tree"), dir.path());
    assert_eq!(opened.after.irqs.len(), 4000);
}

fn captured(tree: &Path, dir: &Path) -> netsilo_model::snapshot::observation::Observation {
    let mut capture = Capture::start().unwrap();
    for _ in 0..2 {
        netsilo_sys::snapshot(&capture.sample(&Root::at(tree).unwrap()).unwrap()).unwrap();
    }
    let path = dir.join("host.tar.zst");
    capture.window(&Attribution::default());
    capture.write(&path, "6.1", Addresses::Replace).unwrap();
    let size = path.metadata().unwrap().len();
    let begin = std::time::Instant::now();
    let opened = bundle::open(&path).unwrap();
    let _ = writeln!(io::stderr(), "512 CPUs: {size} bytes, {:.1?}", begin.elapsed());
    opened
}
