//! Finds, unpacks and caches Debian's kernels: image and modules.

use crate::apt;
use crate::apt::Package;
use crate::apt::Suite;
use crate::arch::Arch;
use crate::cache;
use crate::cache::Cache;
use crate::command::Shown;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel of a guest. The exact version is Debian's current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum Kernel {
    /// Debian 12's default kernel
    #[default]
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's newer kernel, from its security or backports suite
    #[value(name = "6.12")]
    V6_12,
    /// The kernel of Debian sid
    #[value(name = "newest")]
    Newest,
}

impl Kernel {
    /// All kernels, oldest first.
    pub const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::Newest];

    /// Asks the mirror now, downloads a new version if there is one, and prepares it to boot.
    pub fn fetch(self) -> Result<Image> {
        fetch(&Cache::open()?, self, Arch::Amd64, true, &crate::message::note)
    }

    /// Suites and packages to search for it, in this order.
    fn packages(self, arch: Arch) -> Vec<(&'static str, String)> {
        let (first, second) = match self {
            Self::V6_1 => (("bookworm-security", ""), Some(("bookworm", ""))),
            Self::V6_12 => (("bookworm-security", "6.12-"), Some(("bookworm-backports", ""))),
            Self::Newest => (("sid", ""), None),
        };
        let package =
            |(suite, version): (_, &str)| (suite, format!("linux-image-{version}{}", arch.name()));
        [Some(first), second].into_iter().flatten().map(package).collect()
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        })
    }
}

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub struct Image {
    /// Release, as `uname -r` prints it in the guest.
    pub release: String,
    /// Version of the Debian package.
    pub version: String,
    /// Folder with `boot/` and `lib/modules/`, for `modprobe -d`.
    pub root: PathBuf,
}

impl Image {
    /// Returns the image that QEMU boots: for amd64 the unpacked one. Unpacking takes three seconds
    /// in a guest but one on the host.
    pub(crate) fn bootable(&self) -> PathBuf {
        let vmlinux = self.vmlinux();
        if vmlinux.exists() { vmlinux } else { self.vmlinuz() }
    }

    fn vmlinux(&self) -> PathBuf {
        self.root.join("vmlinux")
    }

    /// Returns the kernel image as packaged by Debian.
    fn vmlinuz(&self) -> PathBuf {
        // Debian 14 stores it with the modules.
        let with_modules = self.root.join(format!("lib/modules/{}/vmlinuz", self.release));
        if with_modules.exists() {
            with_modules
        } else {
            self.root.join(format!("boot/vmlinuz-{}", self.release))
        }
    }

    fn read(root: PathBuf, arch: Arch) -> Result<Self> {
        let modules = cache::oldest_first(&root.join("lib/modules")).pop();
        let release = modules
            .as_deref()
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy().into_owned());
        let release = release
            .with_context(|| format!("no kernel in {}: remove that folder", root.display()))?;
        let version = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let image = Self { release, version, root };
        let vmlinuz = image.vmlinuz();
        if arch == Arch::Amd64 && !image.vmlinux().exists() {
            unpack_vmlinuz(&vmlinuz, &image.vmlinux())
                .with_context(|| format!("cannot unpack {}", vmlinuz.display()))?;
        }
        Ok(image)
    }
}

/// Prepares `kernel` to boot. Asks the mirror once a day (always if `force`) and downloads a new
/// version if there is one.
///
/// Without a network, uses a cached kernel and reports that through `note`.
pub(crate) fn fetch(
    cache: &Cache,
    kernel: Kernel,
    arch: Arch,
    force: bool,
    note: &dyn Fn(&str),
) -> Result<Image> {
    let folder = format!("kernels/{}", arch.cached(kernel));
    let newest_cached =
        || cache::oldest_first(&cache.path(&folder)).into_iter().rfind(|path| path.is_dir());
    let stamp = format!("{folder}/asked");
    if cache.is_fresh(&stamp)
        && !force
        && let Some(root) = newest_cached()
    {
        return Image::read(root, arch);
    }
    match download(cache, kernel, arch, &folder, force) {
        Ok(root) => {
            cache.touch(&stamp)?;
            remove_all_but_two(&cache.path(&folder));
            Image::read(root, arch)
        }
        Err(error) => {
            let Some(root) = newest_cached() else {
                return Err(error);
            };
            note(&format!("kernel {kernel}: using the cached version: {error:#}"));
            Image::read(root, arch)
        }
    }
}

fn download(
    cache: &Cache,
    kernel: Kernel,
    arch: Arch,
    folder: &str,
    force: bool,
) -> Result<PathBuf> {
    for (suite, meta) in kernel.packages(arch) {
        let suite = Suite::of(cache, suite, arch)?;
        suite.update(force)?;
        if suite.package(&meta)?.is_none() {
            continue;
        }
        let packages = apt::closure(
            &suite,
            &meta,
            &["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"],
        )?;
        let version = packages.first().map(|meta| meta.version.clone()).unwrap_or_default();
        let wanted = format!("{folder}/{version}");
        let root = cache.build(&wanted, |dir| unpack(&suite, &packages, arch, dir))?;
        // If the mirror returns to an older version, that version becomes the newest in the cache.
        output(Command::new("touch").arg(&root))?;
        return Ok(root);
    }
    bail!("the mirror has no kernel {kernel}")
}

fn unpack(suite: &Suite<'_>, packages: &[Package], arch: Arch, dir: &Path) -> Result<()> {
    suite.unpack(packages, dir)?;
    // Debian 14's packages have the modules under usr/ only.
    if !dir.join("lib").exists() {
        symlink("usr/lib", dir.join("lib")).context("cannot link lib")?;
    }
    let image = Image::read(dir.to_owned(), arch)?;
    let modules = dir.join("lib/modules").join(&image.release);
    // These are three quarters of 400 MB and of depmod's time, for hardware that no guest has.
    for unused in [
        "drivers/gpu",
        "drivers/media",
        "drivers/staging",
        "drivers/iio",
        "drivers/net/wireless",
        "sound",
    ] {
        let unused = modules.join("kernel").join(unused);
        if unused.exists() {
            fs::remove_dir_all(unused)?;
        }
    }
    output(Command::new("depmod").arg("-b").arg(dir).arg(&image.release))
        .context("cannot index the kernel's modules")?;
    Ok(())
}

/// Extracts the kernel's ELF image from a bzImage. QEMU finds its PVH entry in it.
///
/// Offsets are those of Documentation/arch/x86/boot.rst.
fn unpack_vmlinuz(vmlinuz: &Path, vmlinux: &Path) -> Result<()> {
    let image = fs::read(vmlinuz)?;
    let number = |at: usize| {
        let bytes = image.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        bytes.map(u32::from_le_bytes).context("too short for a bzImage")
    };
    let setup_sectors = number(0x1f1)? & 0xff;
    let start = ((setup_sectors + 1) * 512 + number(0x248)?) as usize;
    // The last four bytes of the payload are its unpacked length, which decompressors do not
    // expect.
    let end = (start + number(0x24c)? as usize).saturating_sub(4);
    let payload = image.get(start..end).context("the payload ends beyond the file")?;
    let program = match payload {
        [0xfd, b'7', b'z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => bail!("the payload is neither xz, zstd nor gzip"),
    };
    let packed = vmlinux.with_extension("packed");
    fs::write(&packed, payload)?;
    let half_done = vmlinux.with_extension("scratch");
    let script = format!("{program} -dc <\"$1\" >\"$2\" && mv \"$2\" \"$3\"");
    output(
        Command::new("sh").args(["-c", &script, "sh"]).args([&packed, &half_done]).arg(vmlinux),
    )?;
    fs::remove_file(&packed)?;
    Ok(())
}

/// Removes old versions, but keeps the previous one, because another lab may be about to boot it.
fn remove_all_but_two(folder: &Path) {
    let mut versions = cache::oldest_first(folder);
    versions.retain(|path| path.is_dir());
    for old in versions.iter().rev().skip(2) {
        let _ = fs::remove_dir_all(old);
    }
}

/// Returns the module `wanted` after those that it needs, in load order. Empty if it is built in.
pub(crate) fn modules(image: &Image, wanted: &str) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("modprobe");
    command.args(["-d", &image.root.shown(), "-S", &image.release, "--show-depends", wanted]);
    let shown = output(&mut command).context("cannot list the guest's modules")?;
    let paths = shown.lines().filter_map(|line| line.strip_prefix("insmod "));
    Ok(paths.map(|path| PathBuf::from(path.trim())).collect())
}
