//! `.link` files for systemd-udevd: keys as in systemd.link(5).
//!
//! Of all parts of a plan they can express only RPS (`ReceivePacketSteeringCPUMask=`, 256), one set
//! for all queues, and `NTupleFilter=`. `IRQAffinityPolicy=` of newer versions knows only `single`
//! and `spread`, not the CPU of each interrupt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use netsilo_model::change::{NTUPLE_FILTER, Target, Value};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::Plan;
use crate::plan::export::file::{ExportedFile, is_plain};
use crate::plan::export::interrupts::interrupts;

/// Returns one file per netdev with an expressible setting, and the list of what cannot be
/// expressed.
pub fn systemd_link(plan: &Plan) -> (Vec<ExportedFile>, Vec<String>) {
    let mut netdevs: BTreeMap<&NetdevIdentity, LinkSettings> = BTreeMap::new();
    for it in interrupts(plan) {
        if let Some(netdev) = it.netdev {
            netdevs.entry(netdev).or_default().not_expressible.insert("the cpu of each interrupt");
        }
    }
    for change in &plan.changes {
        let Some(netdev) = change.target.netdev() else { continue };
        let mut beyond = |what| {
            netdevs.entry(netdev).or_default().not_expressible.insert(what);
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
            _ => beyond("ethtool settings"),
        }
    }
    let mut files = Vec::new();
    let mut not_expressible: Vec<String> =
        plan.changes.iter().filter_map(|it| other_place(&it.target)).map(str::to_owned).collect();
    for (netdev, mut settings) in netdevs {
        files.extend(settings.file(netdev));
        not_expressible
            .extend(settings.not_expressible.iter().map(|what| format!("{}: {what}", netdev.name)));
    }
    not_expressible.sort_unstable();
    not_expressible.dedup();
    (files, not_expressible)
}

/// Settings that belong to no netdev, and where each can be set permanently.
fn other_place(target: &Target) -> Option<&'static str> {
    match target {
        Target::DefaultSmpAffinity(_) => {
            Some("default_smp_affinity: the kernel's command line, irqaffinity=")
        }
        Target::RpsSockFlowEntries(_) => Some("net.core.rps_sock_flow_entries: sysctl.d"),
        Target::RpsDefaultMask(_) => Some("net.core.rps_default_mask: sysctl.d"),
        Target::Sysctl(_) => Some("sysctls: sysctl.d"),
        Target::NapiThread(_) => {
            Some("NAPI kthreads: not possible, their names change with each reset")
        }
        _ => None,
    }
}

/// The settings of one netdev.
#[derive(Default)]
struct LinkSettings<'a> {
    rps: Vec<&'a CpuSet>,
    ntuple: Option<bool>,
    not_expressible: BTreeSet<&'static str>,
}

impl LinkSettings<'_> {
    /// Builds the file, if it has a setting to express.
    fn file(&mut self, netdev: &NetdevIdentity) -> Option<ExportedFile> {
        let rps = match self.rps.as_slice() {
            [] => None,
            [first, rest @ ..] if rest.iter().all(|cpus| cpus == first) => Some(*first),
            _ => {
                self.not_expressible.insert("RPS that differs from queue to queue");
                None
            }
        };
        if rps.is_none() && self.ntuple.is_none() {
            return None;
        }
        if !is_plain(&netdev.name) {
            self.not_expressible.insert("a netdev of this name");
            return None;
        }
        let mut text = format!("# Written by `netsilo export systemd-link` for {}.\n", netdev.name);
        for what in &self.not_expressible {
            let _ = writeln!(text, "# not expressible here: {what}");
        }
        // systemd-udevd applies only the first matching file, so this one repeats the settings of
        // the default file.
        let _ = write!(
            text,
            "[Match]\n{}\n\n\
             [Link]\n\
             # as in systemd's own 99-default.link, which this file replaces\n\
             NamePolicy=keep kernel database onboard slot path\n\
             AlternativeNamesPolicy=database onboard slot path\n\
             MACAddressPolicy=persistent\n",
            match_line(netdev)
        );
        if let Some(cpus) = rps {
            let value = if cpus.is_empty() { "disable".to_owned() } else { cpus.to_string() };
            let _ = writeln!(text, "# RPS of all rx queues, when the device appears (systemd 256)");
            let _ = writeln!(text, "ReceivePacketSteeringCPUMask={value}");
        }
        if let Some(on) = self.ntuple {
            let _ = writeln!(text, "NTupleFilter={}", if on { "yes" } else { "no" });
        }
        Some(ExportedFile {
            name: format!("10-netsilo-{}.link", netdev.name),
            text,
            executable: false,
        })
    }
}

/// The `[Match]` line: udev's `ID_PATH` of a PCI device, or of the PCI parent of a virtio device
/// (`udev-builtin-path_id.c`); otherwise the kernel's name.
fn match_line(netdev: &NetdevIdentity) -> String {
    let path = netdev.device_path.as_deref().unwrap_or_default();
    let mut parts = path.rsplit('/').skip_while(|part| part.starts_with("virtio"));
    match parts.next().filter(|part| is_pci_address(part)) {
        Some(address) => format!("Path=pci-{address}"),
        None => format!("OriginalName={}", netdev.name),
    }
}

/// Whether the text has the shape of a PCI address (`0000:81:00.1`).
fn is_pci_address(part: &str) -> bool {
    let shape: String = part.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect();
    shape == "xxxx:xx:xx.x"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netdev_is_matched_by_its_pci_path_or_else_by_its_name() {
        let match_line = |path: Option<&str>| {
            match_line(&NetdevIdentity {
                name: "eth0".into(),
                device_path: path.map(str::to_owned),
                ifindex: None,
            })
        };
        assert_eq!(
            match_line(Some("/devices/pci0000:80/0000:80:00.0/0000:81:00.0")),
            "Path=pci-0000:81:00.0"
        );
        assert_eq!(
            match_line(Some("/devices/pci0000:00/0000:00:04.0/virtio1")),
            "Path=pci-0000:00:04.0"
        );
        assert_eq!(
            match_line(Some("/devices/LNXSYSTM:00/VMBUS:00/f8615163-0000-1000")),
            "OriginalName=eth0"
        );
        assert_eq!(match_line(None), "OriginalName=eth0");
    }
}
