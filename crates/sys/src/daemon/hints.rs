//! Hints for other balancers. Each interrupt has a file with the CPUs to use and a file with the
//! reason.
//!
//! `<dir>/irq/<n>/affinity_hint` has the format of the kernel's file of that name; `affinity_alg`
//! is one line for people. Files are replaced atomically, written only when the content changes,
//! and removed when the daemon exits.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;

use crate::files::output;

/// The CPUs where an interrupt should arrive, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// The interrupt.
    pub irq: Irq,
    /// The CPUs where it should arrive.
    pub cpus: CpuSet,
    /// The name of the algorithm that suggests these CPUs.
    pub algorithm: &'static str,
    /// The reason, in one line.
    pub reason: String,
}

/// The hints of one daemon. Dropping this value removes them.
#[derive(Debug)]
pub struct Hints {
    dir: PathBuf,
    published: BTreeMap<Irq, [String; 2]>,
}

const FILES: [&str; 2] = ["affinity_hint", "affinity_alg"];

impl Hints {
    /// Removes the files that a killed daemon left in `<state>/irq`, and starts without hints.
    pub fn new(state: &Path) -> io::Result<Self> {
        let dir = state.join("irq");
        remove(&dir)?;
        make(&dir)?;
        Ok(Self { dir, published: BTreeMap::new() })
    }

    /// The folder of the hints.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the wanted CPUs of each interrupt, as masks of `nr_cpu_ids` bits.
    ///
    /// Returns the number of files written or removed.
    pub fn publish(&mut self, hints: &[Hint], nr_cpu_ids: u32) -> io::Result<usize> {
        let texts = |hint: &Hint| {
            let alg = format!("{}: {}\n", hint.algorithm, hint.reason.replace('\n', " "));
            [format!("{}\n", hint.cpus.to_mask(nr_cpu_ids)), alg]
        };
        let wanted: BTreeMap<Irq, [String; 2]> =
            hints.iter().map(|hint| (hint.irq, texts(hint))).collect();
        let mut changed = 0;
        for irq in self.published.keys().filter(|irq| !wanted.contains_key(irq)) {
            remove(&self.dir.join(irq.to_string()))?;
            changed += FILES.len();
        }
        for (irq, texts) in &wanted {
            let before = self.published.get(irq);
            let dir = self.dir.join(irq.to_string());
            if before.is_none() {
                make(&dir)?;
            }
            for (n, (file, text)) in FILES.iter().zip(texts).enumerate() {
                if before.is_none_or(|before| before[n] != *text) {
                    output::write_with_mode(&dir.join(file), 0o644, text.as_bytes())?;
                    changed += 1;
                }
            }
        }
        self.published = wanted;
        Ok(changed)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        let _ = remove(&self.dir);
    }
}

/// Makes a folder that everybody can read, regardless of the umask.
fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn hint(irq: u32, cpus: &str, reason: &str) -> Hint {
        Hint {
            irq: Irq(irq),
            cpus: CpuSet::parse_list(cpus).unwrap(),
            algorithm: "near-consumer",
            reason: reason.into(),
        }
    }

    #[test]
    fn hints_are_in_the_kernels_format_and_written_only_when_they_change() {
        let state = tempfile::tempdir().unwrap();
        let mut hints = Hints::new(state.path()).unwrap();
        let read = |path: &str| fs::read_to_string(state.path().join("irq").join(path)).unwrap();
        let both = [hint(27, "1,33", "next to redis"), hint(28, "2", "a\nb")];
        assert_eq!(hints.publish(&both, 64).unwrap(), 4);
        assert_eq!(read("27/affinity_hint"), "00000002,00000002\n");
        assert_eq!(read("27/affinity_alg"), "near-consumer: next to redis\n");
        assert_eq!(read("28/affinity_alg"), "near-consumer: a b\n");
        let inode = || fs::metadata(state.path().join("irq/27/affinity_hint")).unwrap().ino();
        let before = inode();
        assert_eq!((hints.publish(&both, 64).unwrap(), inode()), (0, before));
        assert_eq!(hints.publish(&[hint(27, "4", "next to redis")], 64).unwrap(), 3);
        assert_ne!(inode(), before, "replaced atomically");
        assert_eq!(fs::read_dir(state.path().join("irq/27")).unwrap().count(), 2);
        assert!(!state.path().join("irq/28").exists());
        drop(hints);
        assert!(!state.path().join("irq").exists());
    }

    #[test]
    fn files_of_a_killed_daemon_are_removed_at_start() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir_all(state.path().join("irq/99")).unwrap();
        fs::write(state.path().join("irq/99/affinity_hint"), "1\n").unwrap();
        let _hints = Hints::new(state.path()).unwrap();
        assert_eq!(fs::read_dir(state.path().join("irq")).unwrap().count(), 0);
    }
}
