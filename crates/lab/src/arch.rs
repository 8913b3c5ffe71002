//! The architecture of a guest, and what an arm64 guest sees instead of the host's root.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;

/// Architecture of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Arch {
    /// That of the host, whose root and programs the guest has
    #[default]
    Amd64,
    /// Emulated, with the root and the programs that `scripts/aarch64` makes
    Arm64,
}

impl Arch {
    /// Debian's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns a name in the cache of what depends on the architecture.
    pub(crate) fn cached(self, name: impl std::fmt::Display) -> String {
        match self {
            Self::Amd64 => name.to_string(),
            Self::Arm64 => format!("{name}-arm64"),
        }
    }

    /// QEMU's program, and Debian's package of it.
    pub(crate) fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Self::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }
}

/// The root of an arm64 guest.
#[derive(Debug)]
pub(crate) struct ArmRoot {
    /// The root in which the guest's commands run.
    pub(crate) root: PathBuf,
    /// The folder of the programs for aarch64.
    pub(crate) programs: PathBuf,
    /// The folder of the host's programs. In the guest it has those for aarch64, so that commands
    /// are the same as on the host.
    pub(crate) seen_at: PathBuf,
}

impl ArmRoot {
    /// Finds what `scripts/aarch64` made for the profile of this program.
    pub(crate) fn find() -> Result<Self> {
        let netsilo_lab = crate::exact::program()?;
        let host = netsilo_lab.parent().context("no folder of programs")?;
        let profile = host.file_name().context("no profile")?;
        let made = host.with_file_name("aarch64");
        let programs = made.join("aarch64-unknown-linux-gnu").join(profile);
        let release = if profile == "release" { " --release" } else { "" };
        ensure!(
            programs.join(AGENT).is_file(),
            "no {AGENT} in {}: run  {BUILD}{release}",
            programs.display()
        );
        let (root, seen_at) = (made.join("root"), host.to_owned());
        // The guest cannot make a mount point in a root that is read-only.
        fs::create_dir_all(root.join(seen_at.strip_prefix("/")?))?;
        Ok(Self { root, programs, seen_at })
    }

    /// The agent for the initrd.
    pub(crate) fn agent(&self) -> Result<Vec<u8>> {
        Ok(fs::read(self.programs.join(AGENT))?)
    }
}

const BUILD: &str = "scripts/aarch64 build -p netsilo -p netsilo-lab --bins --example tracer";
const AGENT: &str = "netsilo-lab-agent";
