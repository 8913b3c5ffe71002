//! `.link` files for systemd-udevd: keys as in systemd.link(5).
//!
//! Of all that a plan may hold they can express RPS (`ReceivePacketSteeringCPUMask=`, 256), one set
//! for all queues, and `NTupleFilter=` alone. `IRQAffinityPolicy=` of newer versions knows `single`
//! and `spread` only, not where each interrupt shall be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{File, interrupts};
use crate::change::{NTUPLE_FILTER, NetdevIdentity, Target, Value};
use crate::cpuset::CpuSet;
use crate::plan::Plan;

/// One file per netdev for which something can be expressed, and what cannot, in words.
pub fn systemd_link(plan: &Plan) -> (Vec<File>, Vec<String>) {
    let mut netdevs: BTreeMap<&NetdevIdentity, Wanted> = BTreeMap::new();
    for it in interrupts(plan) {
        if let Some(netdev) = it.netdev {
            netdevs.entry(netdev).or_default().beyond.insert("where each interrupt goes");
        }
    }
    for change in &plan.changes {
        let Some(netdev) = change.target.netdev() else { continue };
        let mut beyond = |what| {
            netdevs.entry(netdev).or_default().beyond.insert(what);
        };
        match (&change.target, &change.new) {
            (Target::RpsCpus(_), Value::Cpus(cpus)) => {
                netdevs.entry(netdev).or_default().rps.push(cpus);
            }
            (Target::Offload(knob), Value::Switch(on)) if knob.feature == NTUPLE_FILTER => {
                netdevs.entry(netdev).or_default().ntuple = Some(*on);
            }
            (Target::RpsFlowCnt(_), _) => beyond("RFS (rps_flow_cnt)"),
            (Target::XpsCpus(_), _) => beyond("XPS (xps_cpus)"),
            (Target::IrqAffinity(_), _) => {}
            _ => beyond("settings of ethtool's"),
        }
    }
    let mut files = Vec::new();
    let mut beyond: Vec<String> =
        plan.changes.iter().filter_map(|it| elsewhere(&it.target)).map(str::to_owned).collect();
    for (netdev, mut wanted) in netdevs {
        files.extend(wanted.file(netdev));
        beyond.extend(wanted.beyond.iter().map(|what| format!("{}: {what}", netdev.name)));
    }
    beyond.sort();
    beyond.dedup();
    (files, beyond)
}

/// What belongs to no netdev, and where it can be set for good.
fn elsewhere(target: &Target) -> Option<&'static str> {
    match target {
        Target::DefaultSmpAffinity(_) => {
            Some("default_smp_affinity: the kernel's command line, irqaffinity=")
        }
        Target::RpsSockFlowEntries(_) => Some("net.core.rps_sock_flow_entries: sysctl.d"),
        Target::RpsDefaultMask(_) => Some("net.core.rps_default_mask: sysctl.d"),
        Target::Sysctl(_) => Some("sysctls: sysctl.d"),
        Target::NapiThread(_) => Some("NAPI kthreads: nowhere, their names change with each reset"),
        _ => None,
    }
}

/// What one netdev shall have.
#[derive(Default)]
struct Wanted<'a> {
    rps: Vec<&'a CpuSet>,
    ntuple: Option<bool>,
    beyond: BTreeSet<&'static str>,
}

impl Wanted<'_> {
    /// The file, if there is something that it can say.
    fn file(&mut self, netdev: &NetdevIdentity) -> Option<File> {
        let rps = match self.rps.as_slice() {
            [] => None,
            [first, rest @ ..] if rest.iter().all(|cpus| cpus == first) => Some(*first),
            _ => {
                self.beyond.insert("RPS that differs from queue to queue");
                None
            }
        };
        if rps.is_none() && self.ntuple.is_none() {
            return None;
        }
        let mut text = format!("# Written by `netsilo export systemd-link` for {}.\n", netdev.name);
        for what in &self.beyond {
            let _ = writeln!(text, "# not expressible here: {what}");
        }
        // The first file that matches is the only one: what the default file says must be said
        // again.
        let _ = write!(
            text,
            "[Match]\n{}\n\n\
             [Link]\n\
             # as in systemd's own 99-default.link, which this file takes the place of\n\
             NamePolicy=keep kernel database onboard slot path\n\
             AlternativeNamesPolicy=database onboard slot path\n\
             MACAddressPolicy=persistent\n",
            matched(netdev)
        );
        if let Some(cpus) = rps {
            let value = if cpus.is_empty() { "disable".to_owned() } else { cpus.to_string() };
            let _ = writeln!(text, "# RPS of all rx queues, when the device appears (systemd 256)");
            let _ = writeln!(text, "ReceivePacketSteeringCPUMask={value}");
        }
        if let Some(on) = self.ntuple {
            let _ = writeln!(text, "NTupleFilter={}", if on { "yes" } else { "no" });
        }
        Some(File { name: format!("10-netsilo-{}.link", netdev.name), text, executable: false })
    }
}

/// udev's `ID_PATH` of a PCI device, of a virtio one that of its PCI parent
/// (`udev-builtin-path_id.c`); else the kernel's name.
fn matched(netdev: &NetdevIdentity) -> String {
    let path = netdev.device_path.as_deref().unwrap_or_default();
    let mut parts = path.rsplit('/').skip_while(|part| part.starts_with("virtio"));
    match parts.next().filter(|part| is_pci_address(part)) {
        Some(address) => format!("Path=pci-{address}"),
        None => format!("OriginalName={}", netdev.name),
    }
}

/// `0000:81:00.1`.
fn is_pci_address(part: &str) -> bool {
    let shape: String = part.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect();
    shape == "xxxx:xx:xx.x"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netdev_is_matched_by_its_pci_path_or_else_by_its_name() {
        let matched = |path: Option<&str>| {
            matched(&NetdevIdentity { name: "eth0".into(), device_path: path.map(str::to_owned) })
        };
        assert_eq!(
            matched(Some("/devices/pci0000:80/0000:80:00.0/0000:81:00.0")),
            "Path=pci-0000:81:00.0"
        );
        assert_eq!(
            matched(Some("/devices/pci0000:00/0000:00:04.0/virtio1")),
            "Path=pci-0000:00:04.0"
        );
        assert_eq!(
            matched(Some("/devices/LNXSYSTM:00/VMBUS:00/f8615163-0000-1000")),
            "OriginalName=eth0"
        );
        assert_eq!(matched(None), "OriginalName=eth0");
    }
}
