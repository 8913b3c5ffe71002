//! Taps and peers on the host's side, names and addresses in the guest.

use crate::address;
use crate::arch::ArmRoot;
use crate::command::Shown;
use crate::command::output;
use crate::namespaces::GuestNamespaces;
use crate::namespaces::Peer;
use crate::qemu::mac;
use crate::spec::Spec;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Creates `tap0`, `tap1`, ... in QEMU's network namespace.
pub(crate) fn make_taps(namespaces: &GuestNamespaces, spec: &Spec) -> Result<()> {
    let mut script = String::from("set -e\n");
    for (index, nic) in spec.nics.iter().enumerate() {
        let queues = if nic.model.is_virtio() && nic.queues > 1 { "multi_queue" } else { "" };
        script += &format!("ip tuntap add dev tap{index} mode tap vnet_hdr {queues}\n");
    }
    output(namespaces.command("sh").args(["-c", &script]))
        .context("cannot create taps: the lab needs /dev/net/tun")?;
    Ok(())
}

/// Moves each tap to its own network namespace.
pub(crate) fn make_peers(namespaces: &Arc<GuestNamespaces>, spec: &Spec) -> Result<Vec<Peer>> {
    let mut script = String::from("set -e\n");
    let mut peers = Vec::new();
    for index in 0..spec.nics.len() {
        let netns = format!("peer{index}");
        let address = address::peer(u8::try_from(index)?);
        script += &format!(
            "ip netns add {netns}\n\
             ip link set tap{index} netns {netns}\n\
             ip netns exec {netns} sh -c 'set -e; \
               if [ -e /proc/sys/net/ipv6 ]; then \
               echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; fi; \
               ip link set lo up; ip address add {address}/24 dev tap{index}; \
               ip link set tap{index} up'\n"
        );
        peers.push(Peer { namespaces: Arc::clone(namespaces), netns });
    }
    output(namespaces.command("sh").args(["-c", &script]))
        .context("cannot set up the guest's peers")?;
    Ok(peers)
}

/// Returns the script that mounts `shares` in the guest and names and addresses its cards.
pub(crate) fn guest_script(spec: &Spec, shares: &[PathBuf], arm: Option<&ArmRoot>) -> String {
    let mut script = String::from("set -e\n");
    if let Some(arm) = arm {
        let seen_at = quoted(&arm.seen_at);
        script += &format!(
            "mkdir -p {seen_at}; mount -t 9p \
             -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro programs {seen_at}\n"
        );
    }
    for share in shares {
        let share = quoted(share);
        script += &format!("mkdir -p {share}; mount --bind /run/host{share} {share}\n");
    }
    // Cards appear in bus order, not in the order of the spec. So rename them in two passes,
    // because names may be taken.
    script += "name() { for dir in /sys/class/net/*; do read -r mac <$dir/address || continue; \
               if [ \"$mac\" = $1 ]; then old=${dir##*/}; \
               if [ $old != $2 ]; then ip link set $old name $2; fi; \
               return; fi; done; return 1; }\n";
    for pass in ["lab", "eth"] {
        if pass == "lab" && spec.nics.len() < 2 {
            continue;
        }
        for index in 0..spec.nics.len() {
            script += &format!("name {} {pass}{index}\n", mac(index));
        }
    }
    for index in 0..u8::try_from(spec.nics.len()).unwrap_or(u8::MAX) {
        let address = address::guest(index);
        script +=
            &format!("ip address add {address}/24 dev eth{index}; ip link set eth{index} up\n");
    }
    for index in 0..spec.nics.len() {
        script += &format!(
            "until read -r up </sys/class/net/eth{index}/carrier && [ \"$up\" = 1 ]; \
             do sleep 0.05; done\n"
        );
    }
    script + "touch /run/lab/network\n"
}

/// Makes a guest's disk, unless it is there: a copy of the host's /etc, and an empty /var.
pub(crate) fn make_disk(disk: &Path) -> Result<()> {
    if disk.try_exists()? {
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    // Without checksums, which need another module.
    let script = "cd \"$1\"; mkdir -p root/var/lib root/var/log root/var/tmp root/var/cache
        cp -a /etc root/etc
        mke2fs -q -t ext4 -O ^metadata_csum,^64bit -d root disk 512M
        mv disk \"$2\"";
    let words = ["-ec", script, "sh", &scratch.path().shown(), &disk.shown()];
    output(std::process::Command::new("sh").args(words)).context("cannot make the guest's disk")?;
    Ok(())
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.shown().replace('\'', r"'\''"))
}
