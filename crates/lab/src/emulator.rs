//! Finds a QEMU, and decides how it runs the guest's CPUs.

use crate::apt;
use crate::apt::Suite;
use crate::arch::Arch;
use crate::cache;
use crate::cache::Cache;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

/// A QEMU that runs on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Emulator {
    pub(crate) program: PathBuf,
    /// Firmware folders (`-L`) of a QEMU that is not installed.
    pub(crate) firmware: Vec<PathBuf>,
    pub(crate) version: String,
}

/// How the guest's CPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// In hardware.
    Kvm,
    /// In software. Counts are valid, times are not.
    Tcg,
}

/// Returns the system's QEMU if its major version is at least `least`, else the QEMU of
/// bookworm-backports.
pub(crate) fn find(cache: &Cache, arch: Arch, least: u32, note: &dyn Fn(&str)) -> Result<Emulator> {
    let (program, _) = arch.qemu();
    let system = version(Command::new(program).arg("--version"));
    match system {
        Ok((version, major)) if major >= least => {
            Ok(Emulator { program: program.into(), firmware: Vec::new(), version })
        }
        Err(error) if least == 0 => Err(error),
        _ => backports(cache, arch, note),
    }
}

fn version(command: &mut Command) -> Result<(String, u32)> {
    let output = output(command)?;
    let version = output.split("version ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let version = version.context("QEMU's --version prints no version")?;
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    Ok((version.to_owned(), major.context("QEMU's version does not begin with a number")?))
}

fn backports(cache: &Cache, arch: Arch, note: &dyn Fn(&str)) -> Result<Emulator> {
    let folder = arch.cached("qemu");
    let stamp = format!("{folder}/asked");
    let newest_cached =
        || cache::oldest_first(&cache.path(&folder)).into_iter().rfind(|path| path.is_dir());
    if cache.is_fresh(&stamp)
        && let Some(root) = newest_cached()
    {
        return unpacked(root, arch);
    }
    match download(cache, arch) {
        Ok(root) => {
            cache.touch(&stamp)?;
            unpacked(root, arch)
        }
        Err(error) => {
            let Some(root) = newest_cached() else {
                return Err(error);
            };
            note(&format!("QEMU: using the cached version: {error:#}"));
            unpacked(root, arch)
        }
    }
}

fn download(cache: &Cache, arch: Arch) -> Result<PathBuf> {
    let suite = Suite::new(cache, "bookworm-backports")?;
    suite.update(false)?;
    let mut packages = apt::closure(
        &suite,
        arch.qemu().1,
        &["qemu-system-common", "qemu-system-data", "seabios"],
    )?;
    let version = packages.first().map(|first| first.version.clone()).unwrap_or_default();
    // ipxe-qemu and the libraries come from Debian 12 itself.
    let stable = Suite::new(cache, "bookworm")?;
    stable.update(false)?;
    let from_stable = ["ipxe-qemu", "seabios"].map(|name| stable.package(name));
    let mut rest = Vec::new();
    for package in from_stable.into_iter().filter_map(Result::transpose) {
        let package = package?;
        if !packages.iter().any(|known| known.name == package.name) {
            rest.push(package);
        }
    }
    packages.dedup();
    cache.build(&format!("{}/{version}", arch.cached("qemu")), |dir| {
        suite.unpack(&packages, dir)?;
        stable.unpack(&rest, dir)
    })
}

fn unpacked(root: PathBuf, arch: Arch) -> Result<Emulator> {
    let program = root.join("usr/bin").join(arch.qemu().0);
    let missing: Vec<String> = output(Command::new("ldd").arg(&program))?
        .lines()
        .filter(|line| line.contains("not found"))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect();
    if !missing.is_empty() {
        bail!(
            "{} lacks {}: scripts/setup installs them with qemu-system-x86",
            program.display(),
            missing.join(", ")
        );
    }
    let firmware = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];
    let firmware =
        firmware.map(|dir| root.join(dir)).into_iter().filter(|dir| dir.exists()).collect();
    let (version, _) = version(Command::new(&program).arg("--version"))?;
    Ok(Emulator { program, firmware, version })
}

/// Returns the accelerators to try, best first.
///
/// It is not enough that `/dev/kvm` can be opened, because a nested machine may hang. The guest
/// must also answer in time.
pub(crate) fn accels(arch: Arch) -> Result<Vec<Accel>> {
    // Rarely, one of QEMU's own assertions ends it at boot. Started again, it comes up.
    let twice = [Accel::Tcg, Accel::Tcg];
    if arch == Arch::Arm64 {
        return Ok(twice.to_vec());
    }
    match std::env::var("NETSILO_LAB_ACCEL").as_deref() {
        Ok("kvm") => return Ok(vec![Accel::Kvm]),
        Ok("tcg") => return Ok(twice.to_vec()),
        Ok("") | Err(_) => {}
        Ok(other) => bail!("NETSILO_LAB_ACCEL is {other:?}: set it to tcg or kvm, or unset it"),
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let capable = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    let opens = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let kvm = if capable && opens { &[Accel::Kvm][..] } else { &[] };
    Ok([kvm, &twice].concat())
}
