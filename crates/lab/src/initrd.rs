//! The guest's initrd: a static busybox, modules to reach the host's root, and the agent.

use crate::arch::ArmRoot;
use crate::cache;
use crate::cache::Cache;
use crate::command::Shown;
use crate::command::output;
use crate::kernels;
use crate::kernels::Image;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
const INIT: &[u8] = include_bytes!("../agent/init.sh");
const MODPROBE: &[u8] = include_bytes!("../agent/modprobe.sh");
const BUSYBOX: &str = "bin/busybox";
/// Busybox applets that the two scripts use.
const APPLETS: [&str; 13] = [
    "cat",
    "chmod",
    "chroot",
    "cp",
    "hostname",
    "insmod",
    "ip",
    "ln",
    "mkdir",
    "mount",
    "poweroff",
    "sh",
    "switch_root",
];
/// Modules to reach the lab, the host's root and a disk, and NIC drivers. From here they load in a
/// fraction of the time that `modprobe` takes over 9p. Other modules load from the host's root.
const MODULES: [&str; 10] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "virtio_blk",
    "ext4",
    "virtio_net",
    "igb",
    "vmxnet3",
    "e1000e",
];

/// Returns the initrd for `image` and, in an arm64 guest, `arm`. Builds it if no cached one has the
/// same content.
pub(crate) fn build(cache: &Cache, image: &Image, arm: Option<&ArmRoot>) -> Result<PathBuf> {
    let root = arm.map_or(Path::new("/"), |arm| &arm.root);
    let busybox = fs::read(root.join(BUSYBOX)).with_context(|| {
        let by =
            arm.map_or("scripts/setup installs busybox-static", |_| "scripts/aarch64 makes it");
        format!("cannot read {BUSYBOX} in {}: {by}", root.display())
    })?;
    let agent = arm.map_or(Ok(AGENT.to_vec()), ArmRoot::agent)?;
    let mut hasher = DefaultHasher::new();
    (&agent, INIT, MODPROBE, &busybox, &image.version, APPLETS, MODULES).hash(&mut hasher);
    let folder = cache.path(format!("initrd/{}", image.release));
    let path = folder.join(format!("{:016x}.cpio", hasher.finish()));
    if let Ok(file) = File::options().append(true).open(&path) {
        // A file that was used counts as new, so that it is not removed below.
        file.set_modified(SystemTime::now())?;
        return Ok(path);
    }
    let archive = archive(image, &busybox, &agent).context("cannot build the initrd")?;
    fs::create_dir_all(&folder)?;
    for old in cache::oldest_first(&folder).iter().rev().skip(3) {
        let _ = fs::remove_file(old);
    }
    let scratch = cache.path("scratch.cpio");
    fs::write(&scratch, archive)
        .and_then(|()| fs::rename(&scratch, &path))
        .context("cannot write the initrd")?;
    Ok(path)
}

/// Builds the archive uncompressed, because unpacking in the guest takes longer than copying by
/// QEMU.
fn archive(image: &Image, busybox: &[u8], agent: &[u8]) -> Result<Vec<u8>> {
    let mut cpio = Cpio::default();
    for dir in ["bin", "sbin", "dev", "proc", "sys", "modules"] {
        cpio.entry(dir, 0o040_755, &[])?;
    }
    cpio.entry("bin/busybox", 0o100_755, busybox)?;
    for applet in APPLETS {
        cpio.entry(&format!("bin/{applet}"), 0o120_777, b"busybox")?;
    }
    cpio.entry("init", 0o100_755, INIT)?;
    cpio.entry("sbin/modprobe", 0o100_755, MODPROBE)?;
    cpio.entry("agent", 0o100_755, agent)?;
    let mut known = Vec::new();
    for wanted in MODULES {
        let mut order = String::new();
        for module in kernels::modules(image, wanted)? {
            let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.split(".ko").next().unwrap_or_default().to_owned() + ".ko";
            order += &format!("{name}\n");
            if !known.contains(&name) {
                cpio.entry(&format!("modules/{name}"), 0o100_644, &uncompressed(&module)?)?;
                known.push(name);
            }
        }
        cpio.entry(&format!("modules/{wanted}"), 0o100_644, order.as_bytes())?;
    }
    cpio.entry("TRAILER!!!", 0, &[])?;
    Ok(cpio.bytes)
}

fn uncompressed(module: &Path) -> Result<Vec<u8>> {
    let program = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(fs::read(module)?),
    };
    let scratch = tempfile::tempdir()?;
    let plain = scratch.path().join("module.ko");
    let script = format!("{program} -dc \"$1\" >\"$2\"");
    output(Command::new("sh").args(["-c", &script, "sh", &module.shown(), &plain.shown()]))?;
    Ok(fs::read(plain)?)
}

/// A "newc" archive, as in the kernel's
/// Documentation/driver-api/early-userspace/buffer-format.rst.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

impl Cpio {
    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        let name_length = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        let fields = [self.inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        write!(self.bytes, "070701")?;
        for field in fields {
            write!(self.bytes, "{field:08x}")?;
        }
        write!(self.bytes, "{name}\0")?;
        self.pad();
        self.bytes.extend(data);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
