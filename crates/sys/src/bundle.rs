//! A bundle: what `netsilo capture` saves, so that every read-only verb works on another machine.
//!
//! `host.tar.zst` holds `manifest.json`, `attribution.json`, and the trees of two samples `0/` and
//! `1/`. Each tree is a [`Root`] and also has the answers of ethtool and netlink, as
//! `ethtool/<dev>.json` and `netdev_genl.json`. Opening a bundle runs the same readers on the
//! trees. A bundle never has payload; it has addresses only on request.

pub mod redact;
pub mod unpack;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::observation::Observation;
use serde::{Deserialize, Serialize};

use crate::bundle::redact::Redaction;
use crate::bundle::unpack::{UnpackError, unpack};
use crate::files::error::ReadError;
use crate::files::private_dir::PrivateDir;
use crate::files::recorder::Recorder;
use crate::files::root::Root;
use crate::read::snapshot::snapshot;

/// The schema version that this netsilo writes and the newest that it reads.
pub const SCHEMA: u32 = 1;

/// Largest `manifest.json` and `attribution.json` in bytes;
const MOST_JSON: usize = 16 << 20;

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file on this machine cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It is not a bundle, or was tampered with.
    #[error("not a netsilo bundle: {0}")]
    Invalid(#[from] UnpackError),
    /// A part of it is missing or malformed.
    #[error("not a netsilo bundle: {part}: {source}")]
    Reading {
        /// The file in the bundle.
        part: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A newer netsilo wrote it.
    #[error(
        "the bundle has layout {found}, this netsilo reads up to {SCHEMA}: \
         use netsilo {written_by} or newer"
    )]
    TooNew {
        /// Its schema version.
        found: u32,
        /// The netsilo version that wrote it.
        written_by: String,
    },
    /// The readers reject its trees, or a tree cannot be saved.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The description of a bundle (`manifest.json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Schema version of the bundle.
    pub schema: u32,
    /// Version of the netsilo that wrote it.
    pub netsilo: String,
    /// Kernel release of the machine.
    pub kernel: String,
    /// Whether hardware and network addresses and the host name are unchanged.
    pub with_addresses: bool,
    /// Its contents, in words.
    pub holds: Vec<String>,
}

/// Whether a bundle has the real addresses and host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// Replaced by synthetic ones, consistently within the bundle.
    Replace,
    /// Unchanged.
    Keep,
}

/// A capture in progress.
#[derive(Debug)]
pub struct Capture {
    dir: PrivateDir,
    samples: Vec<Arc<Recorder>>,
}

impl Capture {
    /// Starts a capture; its trees are in a temporary directory until it is written or dropped.
    pub fn start() -> Result<Self, BundleError> {
        let dir = PrivateDir::new("netsilo-capture");
        let dir = dir.map_err(|source| BundleError::File { path: std::env::temp_dir(), source })?;
        Ok(Self { dir, samples: Vec::new() })
    }

    /// Wraps the root so that the next sample is saved; call before the first and after the last
    /// one.
    pub fn sample(&mut self, root: &Root) -> Result<Root, BundleError> {
        let (root, recorder) =
            root.recording(&self.dir.path().join(self.samples.len().to_string()))?;
        self.samples.push(recorder);
        Ok(root)
    }

    /// Writes the bundle; `attribution` has the counts between the two samples.
    pub fn write(
        self,
        path: &Path,
        attribution: &Attribution,
        kernel: &str,
        addresses: Addresses,
    ) -> Result<Manifest, BundleError> {
        let dir = self.dir.path();
        for recorder in &self.samples {
            recorder.finish()?;
        }
        let manifest = Manifest {
            schema: SCHEMA,
            netsilo: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.to_owned(),
            with_addresses: addresses == Addresses::Keep,
            holds: holds(addresses),
        };
        let redaction = match addresses {
            Addresses::Keep => None,
            Addresses::Replace => {
                Some(Redaction::of(dir).map_err(|source| file_error(dir, source))?)
            }
        };
        let attribution = match &redaction {
            None => attribution.clone(),
            Some(redaction) => redaction.attribution(attribution),
        };
        save(dir, "manifest.json", &manifest)?;
        save(dir, "attribution.json", &attribution)?;
        pack(dir, path, redaction.as_ref()).map_err(|source| file_error(path, source))?;
        Ok(manifest)
    }
}

/// Opens a bundle and reads it as the machine itself would be read.
pub fn open(path: impl AsRef<Path>) -> Result<Observation, BundleError> {
    let path = path.as_ref();
    let dir = PrivateDir::new("netsilo-bundle");
    let dir = dir.map_err(|source| BundleError::File { path: std::env::temp_dir(), source })?;
    let file = File::open(path).map_err(|source| file_error(path, source))?;
    unpack(file, dir.path())?;
    let manifest: Manifest = load(dir.path(), "manifest.json")?;
    if manifest.schema > SCHEMA {
        return Err(BundleError::TooNew { found: manifest.schema, written_by: manifest.netsilo });
    }
    let sample = |number: &str| -> Result<_, BundleError> {
        Ok(snapshot(&Root::at(dir.path().join(number))?)?)
    };
    let mut attribution: Attribution = load(dir.path(), "attribution.json")?;
    attribution.escape_names();
    Ok(Observation { before: sample("0")?, after: sample("1")?, attribution })
}

fn holds(addresses: Addresses) -> Vec<String> {
    let kept = match addresses {
        Addresses::Keep => {
            "hardware addresses, the ends of flows and connections, the host name, \
             the kernel command line as they are"
        }
        Addresses::Replace => {
            "hardware addresses and the host name replaced, the ends of flows and connections left \
             out; of the kernel command line the words about cpus and interrupts"
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
    let mut encoder = zstd::Encoder::new(BufWriter::new(File::create(path)?), 0)?;
    {
        let mut archive = tar::Builder::new(&mut encoder);
        archive.follow_symlinks(false);
        append(&mut archive, dir, "", redaction)?;
        archive.finish()?;
    }
    encoder.finish()?.flush()
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
    names.sort();
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

fn save(dir: &Path, part: &'static str, value: &impl Serialize) -> Result<(), BundleError> {
    let error = |source| BundleError::Reading { part, source };
    let json = serde_json::to_vec_pretty(value).map_err(|e| error(io::Error::other(e)))?;
    fs::write(dir.join(part), json).map_err(error)
}

fn load<T: for<'a> Deserialize<'a>>(dir: &Path, part: &'static str) -> Result<T, BundleError> {
    let error = |source| BundleError::Reading { part, source };
    let json = fs::read(dir.join(part)).map_err(error)?;
    if json.len() > MOST_JSON {
        return Err(error(io::Error::other("it is too large")));
    }
    serde_json::from_slice(&json).map_err(|e| error(io::Error::other(e)))
}

fn file_error(path: &Path, source: io::Error) -> BundleError {
    BundleError::File { path: path.to_owned(), source }
}
