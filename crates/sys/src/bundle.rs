//! A bundle is what `netsilo capture` saves. Every read-only verb can read it on another machine.
//!
//! `host.tar.zst` holds `manifest.json`, `attribution.json`, and the trees of two samples, `0/` and
//! `1/`. Each tree is a [`Root`]; it also has the answers of ethtool and netlink, as
//! `ethtool/<dev>.json` and `netdev_genl.json`. Opening a bundle runs the same readers on the
//! trees. A bundle never contains payload, and contains addresses only on request.
//!
//! A bundle of several windows has more for each further window N (from 2 on). `N/` has the files
//! that differ from the sample before, `gone-N.json` has the paths that this sample lacks, and
//! `attribution-N.json` has the counts.
//!
//! A report of another collector (a sosreport, a folder of command outputs) is read as a bundle of
//! one window, which begins at boot, or as two reports the start and the end of one.

mod delta;
mod interval;
pub mod redact;
mod report;
pub mod unpack;
mod unpack_report;

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netsilo_model::derive::observed_irqs::name_observed_interrupts;
use netsilo_model::machine::schema::{NETSILO, Stamp, UnknownSchema};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use crate::bundle::interval::IntervalError;
use crate::bundle::redact::Redaction;
use crate::bundle::report::Sample;
use crate::bundle::unpack::{UnpackError, unpack};
use crate::bundle::unpack_report::{archive, folder};
use crate::files::error::ReadError;
use crate::files::memory_tree::MemoryTree;
use crate::files::output;
use crate::files::private_dir::PrivateDir;
use crate::files::recorder::Recorder;
use crate::files::regular;
use crate::files::root::Root;
use crate::read::netdev::NET;
use crate::read::snapshot::snapshot;

/// The schema version that this netsilo writes for bundles of several windows. It is also the
/// newest version that it reads. A bundle of one window has version 1.
pub const SCHEMA: u32 = 2;

/// A capture takes no more windows once all samples have this many files or bytes. The limits are a
/// little below those for unpacking.
const MOST_FILES: usize = 60_000;
const MOST_BYTES: u64 = 192 << 20;

/// Largest `manifest.json` and `attribution.json` in bytes;
const MOST_JSON: usize = 16 << 20;

/// The file with the [`Manifest`].
const MANIFEST: &str = "manifest.json";

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file on this machine could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It is not a bundle, or someone tampered with it.
    #[error("not a netsilo bundle: {0}")]
    Invalid(#[from] UnpackError),
    /// A part of it is missing or malformed.
    #[error("not a netsilo bundle: {part}: {source}")]
    Reading {
        /// The file in the bundle.
        part: String,
        /// The error.
        source: io::Error,
    },
    /// A newer netsilo wrote it.
    #[error("the bundle has {0}")]
    Schema(#[from] UnknownSchema),
    /// It is neither a bundle nor a report.
    #[error(
        "{}: neither a netsilo bundle nor a sosreport (tar.xz, tar.gz, tar.bz2, tar), nor a \
         folder with a sosreport's files or outputs of commands",
        .0.display()
    )]
    Unknown(PathBuf),
    /// A report that cannot be used.
    #[error("{}: {source}", path.display())]
    Report {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: UnpackError,
    },
    /// Two reports are not of one interval.
    #[error(transparent)]
    Interval(#[from] IntervalError),
    /// More paths than one bundle or two reports.
    #[error("--from takes one bundle, one report, or two reports of one host")]
    Several,
    /// The capture ended before its first window.
    #[error("nothing to save: no window has ended yet")]
    Empty,
    /// The readers reject its trees, or a tree could not be saved.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The description of a bundle (`manifest.json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Manifest {
    /// Schema version of the bundle.
    pub schema: u32,
    /// Version of the netsilo that wrote it.
    pub netsilo: String,
    /// Kernel release of the machine.
    pub kernel: String,
    /// Whether hardware addresses, network addresses and the host name are the real ones.
    pub with_addresses: bool,
    /// Its contents, in words.
    pub holds: Vec<String>,
    /// Number of windows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub windows: usize,
}

fn one() -> usize {
    1
}

fn is_one(windows: &usize) -> bool {
    *windows == 1
}

/// Whether a bundle has the real addresses and host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// Synthetic addresses and host name; the same address has the same replacement everywhere in
    /// the bundle.
    Replace,
    /// Unchanged.
    Keep,
}

/// A capture in progress.
#[derive(Debug)]
pub struct Capture {
    dir: PrivateDir,
    /// Whole trees of those samples that `dir` has only as differences; at most two at a time.
    whole: PrivateDir,
    /// Number of samples started.
    samples: usize,
    /// The recorder of the sample that is being read.
    recorder: Option<Arc<Recorder>>,
    /// The counts of each window.
    windows: Vec<Attribution>,
    files: usize,
    bytes: u64,
}

impl Capture {
    /// Starts a capture. Its trees are in a temporary directory until the capture is written or
    /// dropped.
    pub fn start() -> Result<Self, BundleError> {
        Ok(Self {
            dir: private_dir("netsilo-capture")?,
            whole: private_dir("netsilo-capture")?,
            samples: 0,
            recorder: None,
            windows: Vec::new(),
            files: 0,
            bytes: 0,
        })
    }

    /// Wraps the root so that the next sample is saved. A sample is what is read before the first
    /// window or at the end of a window.
    pub fn sample(&mut self, root: &Root) -> Result<Root, BundleError> {
        self.finish_sample()?;
        let (root, recorder) = root.recording(&self.whole(self.samples))?;
        self.samples += 1;
        self.recorder = Some(recorder);
        Ok(root)
    }

    /// Adds the counts of the time between the last two samples.
    pub fn window(&mut self, attribution: &Attribution) {
        self.windows.push(attribution.clone());
    }

    /// Whether another window could make the bundle too large to open.
    pub fn is_full(&self) -> bool {
        self.files > MOST_FILES || self.bytes > MOST_BYTES
    }

    /// The folder with a sample's whole tree.
    fn whole(&self, sample: usize) -> PathBuf {
        let dir = if sample < 2 { &self.dir } else { &self.whole };
        dir.path().join(sample.to_string())
    }

    /// Completes the tree of the last sample. From the third sample on, only the difference is
    /// kept.
    fn finish_sample(&mut self) -> Result<(), BundleError> {
        let Some(recorder) = self.recorder.take() else { return Ok(()) };
        recorder.finish()?;
        let (dir, last) = (self.dir.path(), self.samples - 1);
        let part = dir.join(last.to_string());
        let failed = |source| file_error(&part, source);
        if last >= 2 {
            let before = self.whole(last - 1);
            let gone = delta::difference(&before, &self.whole(last), &part).map_err(failed)?;
            save(dir, &gone_from(last), &gone)?;
            if last > 2 {
                fs::remove_dir_all(&before).map_err(failed)?;
            }
        }
        let (files, bytes) = size(&part).map_err(failed)?;
        self.files += files;
        self.bytes += bytes;
        Ok(())
    }

    /// Writes the bundle. Leaves out the last sample if the counts of its window are missing.
    pub fn write(
        mut self,
        path: &Path,
        kernel: &str,
        addresses: Addresses,
    ) -> Result<Manifest, BundleError> {
        if self.windows.is_empty() {
            return Err(BundleError::Empty);
        }
        if self.samples == self.windows.len() + 1 {
            self.finish_sample()?;
        }
        let (dir, windows) = (self.dir.path(), self.windows.len());
        let manifest = Manifest {
            schema: if windows == 1 { 1 } else { SCHEMA },
            netsilo: NETSILO.to_owned(),
            kernel: kernel.to_owned(),
            with_addresses: addresses == Addresses::Keep,
            holds: holds(addresses),
            windows,
        };
        let redaction = match addresses {
            Addresses::Keep => None,
            Addresses::Replace => {
                Some(Redaction::of(dir).map_err(|source| file_error(dir, source))?)
            }
        };
        save(dir, MANIFEST, &manifest)?;
        for (window, attribution) in (1..).zip(&self.windows) {
            match &redaction {
                None => save(dir, &counts_of(window), attribution)?,
                Some(redaction) => {
                    save(dir, &counts_of(window), &redaction.attribution(attribution))?;
                }
            }
        }
        pack(dir, path, redaction.as_ref()).map_err(|source| file_error(path, source))?;
        Ok(manifest)
    }

    /// Opens the capture as a reader of the bundle would, without keeping the bundle.
    pub fn reopen(self, kernel: &str, addresses: Addresses) -> Result<Bundle, BundleError> {
        let dir = private_dir("netsilo-capture")?;
        let path = dir.path().join("host.tar.zst");
        self.write(&path, kernel, addresses)?;
        Bundle::open(&[path])
    }
}

/// Opens a bundle and reads it as the machine itself would be read. All its windows become one.
pub fn open(path: impl AsRef<Path>) -> Result<Observation, BundleError> {
    Bundle::open(&[path])?.whole()
}

/// An open bundle. Its windows are read in order.
#[derive(Debug)]
pub struct Bundle {
    /// The files that were not read yet.
    parts: MemoryTree,
    /// The tree of the sample at the end of the last window that was read; before that, the first
    /// sample.
    tree: Arc<MemoryTree>,
    manifest: Manifest,
    /// The number of the next window, from 1 on.
    next: usize,
    /// The sample at its start.
    before: Snapshot,
    /// The only window of reports of another collector.
    of_reports: Option<Box<Observation>>,
}

impl Bundle {
    /// Unpacks a bundle into memory and reads its first sample; or reads one or two reports of
    /// another collector.
    pub fn open(paths: &[impl AsRef<Path>]) -> Result<Self, BundleError> {
        let [path, others @ ..] = paths else { return Err(BundleError::Several) };
        let path = path.as_ref();
        let file = if path.is_dir() { None } else { Some(opened(path)?) };
        match file.map(|mut file| Ok((is_zstd(&mut file)?, file))).transpose() {
            Err(source) => Err(file_error(path, source)),
            Ok(Some((true, file))) if others.is_empty() => Self::of_archive(file),
            Ok(Some((true, _))) => Err(BundleError::Several),
            Ok(_) => Self::of_reports(paths),
        }
    }

    fn of_archive(file: File) -> Result<Self, BundleError> {
        let mut parts = unpack(file)?;
        load::<Stamp>(&parts, MANIFEST)?.check(SCHEMA)?;
        let manifest: Manifest = load(&parts, MANIFEST)?;
        let before = snapshot(&Root::in_memory(Arc::new(take(&mut parts, "0")?))?)?;
        let tree = Arc::new(take(&mut parts, "1")?);
        Ok(Self { parts, tree, manifest, next: 1, before, of_reports: None })
    }

    fn of_reports(paths: &[impl AsRef<Path>]) -> Result<Self, BundleError> {
        let observation = match paths {
            [one] => interval::since_boot(of_report(one.as_ref())?.0),
            [first, second] => {
                let (before, btime) = of_report(first.as_ref())?;
                let (after, later_btime) = of_report(second.as_ref())?;
                interval::between(before, after, [btime, later_btime])?
            }
            _ => return Err(BundleError::Several),
        };
        let manifest = Manifest {
            schema: 1,
            netsilo: NETSILO.to_owned(),
            kernel: observation.after.machine.release.clone(),
            with_addresses: true,
            holds: vec!["reports of another collector, with their real names".to_owned()],
            windows: 1,
        };
        Ok(Self {
            parts: MemoryTree::default(),
            tree: Arc::default(),
            manifest,
            next: 1,
            before: Snapshot::default(),
            of_reports: Some(Box::new(observation)),
        })
    }

    /// Whether these are reports of another collector.
    pub fn is_of_reports(&self) -> bool {
        self.of_reports.is_some()
    }

    /// What a reader of such reports must know.
    pub fn caveat(&self) -> Option<String> {
        self.of_reports.as_deref().and_then(interval::caveat)
    }

    /// Its description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Number of its windows.
    pub fn windows(&self) -> usize {
        self.manifest.windows.max(1)
    }

    /// The next window; `None` after the last one.
    pub fn next_window(&mut self) -> Result<Option<Observation>, BundleError> {
        if self.next > self.windows() {
            return Ok(None);
        }
        if let Some(observation) = &self.of_reports {
            self.next += 1;
            return Ok(Some(Observation::clone(observation)));
        }
        let attribution = self.counts()?;
        let after = self.sample()?;
        let before = std::mem::take(&mut self.before);
        self.next += 1;
        let mut window = Observation { before, after, attribution };
        name_observed_interrupts(&mut window);
        self.before = window.after.clone();
        window.name_users_of_queues();
        Ok(Some(window))
    }

    /// All windows that were not read yet, as one.
    pub fn whole(mut self) -> Result<Observation, BundleError> {
        if let Some(observation) = self.of_reports {
            return Ok(*observation);
        }
        let mut attribution = self.counts()?;
        while self.next < self.windows() {
            self.advance()?;
            self.next += 1;
            attribution.append(self.counts()?);
        }
        let after = self.sample()?;
        let mut whole = Observation { before: self.before, after, attribution };
        name_observed_interrupts(&mut whole);
        whole.name_users_of_queues();
        Ok(whole)
    }

    /// The counts of the next window.
    fn counts(&self) -> Result<Attribution, BundleError> {
        let mut counts: Attribution = load(&self.parts, &counts_of(self.next))?;
        counts.escape_names();
        Ok(counts)
    }

    /// The sample at the end of the next window.
    fn sample(&mut self) -> Result<Snapshot, BundleError> {
        self.advance()?;
        Ok(snapshot(&Root::in_memory(Arc::clone(&self.tree))?)?)
    }

    /// Turns the tree into that of the sample at the end of the next window.
    fn advance(&mut self) -> Result<(), BundleError> {
        if self.next > 1 {
            let gone: Vec<String> = load(&self.parts, &gone_from(self.next))?;
            let difference = take(&mut self.parts, &self.next.to_string())?;
            delta::apply(Arc::make_mut(&mut self.tree), difference, &gone);
        }
        Ok(())
    }
}

fn opened(path: &Path) -> Result<File, BundleError> {
    regular::open(path).map_err(|source| file_error(path, source))
}

/// Whether a file begins as a bundle does.
fn is_zstd(file: &mut File) -> io::Result<bool> {
    let mut start = [0; 4];
    let read = file.read(&mut start)?;
    file.rewind()?;
    Ok(start[..read] == [0x28, 0xb5, 0x2f, 0xfd])
}

/// Reads a report of another collector. Also returns when the machine booted, in seconds since
/// 1970, if `/proc/stat` is there.
fn of_report(path: &Path) -> Result<(Snapshot, Option<u64>), BundleError> {
    let refused = |source| {
        let is_large = matches!(source, UnpackError::TooLarge);
        let source = if is_large { UnpackError::TooLargeReport } else { source };
        BundleError::Report { path: path.to_owned(), source }
    };
    let files = if path.is_dir() {
        folder(path).map(Some).map_err(refused)?
    } else {
        archive(opened(path)?).map_err(refused)?
    };
    let is_empty = |tree: &MemoryTree| tree.folder("").is_ok_and(|names| names.is_empty());
    let files = files.filter(|files| !is_empty(&files.tree));
    let Sample { tree, mut gaps } =
        report::sample(files.ok_or_else(|| BundleError::Unknown(path.to_owned()))?)?
            .ok_or_else(|| refused(UnpackError::TooLargeReport))?;
    let btime = tree.file("proc/stat").ok().and_then(|stat| {
        let text = String::from_utf8_lossy(stat);
        text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
    });
    let mut snapshot = snapshot(&Root::in_memory(Arc::new(tree))?)?;
    // what is missing is named with the command that adds it
    gaps.extend(
        snapshot.gaps.into_iter().filter(|gap| !gap.why.starts_with("ENOENT") && gap.what != NET),
    );
    snapshot.gaps = gaps;
    Ok((snapshot, btime))
}

fn private_dir(prefix: &str) -> Result<PrivateDir, BundleError> {
    PrivateDir::new(prefix).map_err(|source| file_error(&std::env::temp_dir(), source))
}

/// The file with the paths that a sample lacks.
fn gone_from(sample: usize) -> String {
    format!("gone-{sample}.json")
}

/// The file with the counts of a window.
fn counts_of(window: usize) -> String {
    if window == 1 { "attribution.json".into() } else { format!("attribution-{window}.json") }
}

/// Number of files and folders in a tree, and their bytes.
fn size(tree: &Path) -> io::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(tree)? {
        let path = entry?.path();
        let meta = path.symlink_metadata()?;
        let below = if meta.is_dir() { size(&path)? } else { (0, meta.len()) };
        files += 1 + below.0;
        bytes += below.1;
    }
    Ok((files, bytes))
}

fn holds(addresses: Addresses) -> Vec<String> {
    let kept = match addresses {
        Addresses::Keep => {
            "hardware addresses, addresses of flows and connections, host name and kernel command \
             line, all unchanged"
        }
        Addresses::Replace => {
            "hardware addresses and host name, replaced; no addresses of flows and connections; of \
             the kernel command line, only the words about cpus and interrupts"
        }
    };
    let mut holds = vec![
        "cpu topology, interrupts, their placement and counts, per-cpu times and softirqs, twice",
        "network devices, queues, driver settings, RSS keys, statistics and network sysctls, twice",
        "kernel threads of threaded NAPI, and programs that also place interrupts, \
         with their command lines",
        "tcp connections in numbers, links, queueing disciplines, frequency and idle states, twice",
        "flows: the device's hash, protocol, rx queue, packets and bytes; no payload",
        "who read how many bytes of which queue on which cpu: names, cgroups and counts of \
         programs, no payload",
    ];
    holds.push(kept);
    holds.into_iter().map(str::to_owned).collect()
}

fn pack(dir: &Path, path: &Path, redaction: Option<&Redaction>) -> io::Result<()> {
    output::write(path, |file| {
        let mut encoder = zstd::Encoder::new(file, 0)?;
        {
            let mut archive = tar::Builder::new(&mut encoder);
            archive.follow_symlinks(false);
            append(&mut archive, dir, "", redaction)?;
            archive.finish()?;
        }
        encoder.finish()?;
        Ok(())
    })
}

/// Adds the contents of `dir/path`, sorted by name, without owners and times.
fn append(
    archive: &mut tar::Builder<impl Write>,
    dir: &Path,
    path: &str,
    redaction: Option<&Redaction>,
) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(dir.join(path))?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<_>>()?;
    names.sort_unstable();
    for name in names {
        let name = name.to_string_lossy();
        let inner = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
        let shown = redaction.map_or_else(|| inner.clone(), |redaction| redaction.text(&inner));
        let kind = dir.join(&inner).symlink_metadata()?.file_type();
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(0);
        if kind.is_dir() {
            header.set_mode(0o755);
            header.set_entry_type(tar::EntryType::Directory);
            archive.append_data(&mut header, format!("{shown}/"), io::empty())?;
            append(archive, dir, &inner, redaction)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(dir.join(&inner))?;
            let target = target.to_string_lossy();
            let target = redaction
                .map_or_else(|| target.clone().into_owned(), |redaction| redaction.text(&target));
            header.set_entry_type(tar::EntryType::Symlink);
            archive.append_link(&mut header, shown, target)?;
        } else {
            let contents = fs::read(dir.join(&inner))?;
            let contents = match redaction {
                None => contents,
                Some(redaction) => redaction.file(&inner, contents),
            };
            header.set_size(contents.len() as u64);
            archive.append_data(&mut header, shown, contents.as_slice())?;
        }
    }
    Ok(())
}

fn save(dir: &Path, part: &str, value: &impl Serialize) -> Result<(), BundleError> {
    let error = |source| BundleError::Reading { part: part.to_owned(), source };
    let json = serde_json::to_vec_pretty(value).map_err(|e| error(io::Error::other(e)))?;
    fs::write(dir.join(part), json).map_err(error)
}

fn load<T: for<'a> Deserialize<'a>>(parts: &MemoryTree, part: &str) -> Result<T, BundleError> {
    let error = |source| BundleError::Reading { part: part.to_owned(), source };
    let json = parts.file(part).map_err(error)?;
    if json.len() > MOST_JSON {
        return Err(error(io::Error::other("it is too large")));
    }
    serde_json::from_slice(json).map_err(|e| error(io::Error::other(e)))
}

/// Takes a sample out of a bundle.
fn take(parts: &mut MemoryTree, sample: &str) -> Result<MemoryTree, BundleError> {
    parts.remove(Path::new(sample)).ok_or_else(|| BundleError::Reading {
        part: sample.to_owned(),
        source: Errno::NOENT.into(),
    })
}

fn file_error(path: &Path, source: io::Error) -> BundleError {
    BundleError::File { path: path.to_owned(), source }
}
