//! Bundles from a captured fixture: the same kernel files, with a new host name and time.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_sys::bundle::{Addresses, Capture};
use netsilo_sys::files::root::Root;

/// Time between the two samples of a bundle in seconds.
const INTERVAL: u64 = 10;

/// Writes the bundle of a host with the files of a fixture (a folder of `fixtures/`), and without
/// counts, because nothing was attributed.
pub fn write_bundle(fixture: &Path, host: &str, uptime: u64, path: &Path) -> Result<()> {
    let dir = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut capture = Capture::start()?;
    let mut release = String::new();
    for (name, second) in [("0", uptime), ("1", uptime + INTERVAL)] {
        let tree = dir.path().join(name);
        copy(fixture, &tree)?;
        let put = |file: &str, text: &str| write(&tree.join(file), text);
        // without this, `tree.json` would override the time in `uptime`
        put("tree.json", "{}")?;
        put("proc/uptime", &format!("{second}.00 9.00\n"))?;
        put("proc/sys/kernel/hostname", &format!("{host}\n"))?;
        release = netsilo_sys::snapshot(&capture.sample(&Root::at(tree)?)?)?.machine.release;
    }
    capture.window(&Attribution::default());
    capture.write(path, &release, Addresses::Keep)?;
    Ok(())
}

/// Copies a tree with its links.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    let copied = copied.context("cannot run cp")?.success();
    anyhow::ensure!(copied, "cannot copy {} to {}", from.display(), to.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(cannot)?;
    fs::write(path, text).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_read_with_its_name_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host-000003.tar.zst");
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/virtio-6.1");
        write_bundle(fixture.as_ref(), "host-000003", 500, &path).unwrap();
        let observation = netsilo_sys::bundle::open(&path).unwrap();
        assert_eq!(observation.after.machine.hostname, "host-000003");
        assert!(observation.after.netdevs.iter().any(|netdev| !netdev.irqs.is_empty()));
        assert_eq!(
            observation.after.at - observation.before.at,
            std::time::Duration::from_secs(10)
        );
    }
}
