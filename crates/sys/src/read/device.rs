//! Reads the device behind a netdev: its bus address, driver, node and interrupts.

use std::collections::BTreeMap;

use netsilo_model::drivers::irq_names::{Device, Edges};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::parse::interrupts::msi_vector;
use netsilo_model::parse::scalar;
use netsilo_model::snapshot::host::IrqState;
use netsilo_model::snapshot::netdev::{AssociationSource, Confidence};

use crate::read::gaps::Notes;
use crate::read::topology::numbered;

/// The device behind a netdev.
pub(super) struct Hardware {
    pub(super) path: String,
    pub(super) bus: String,
    pub(super) driver: Option<String>,
    pub(super) virtio: Option<String>,
    pub(super) node: Option<NodeId>,
    pub(super) iommu_domain: Option<String>,
    pub(super) irqs: Vec<Irq>,
    /// Whether it has other netdevs.
    pub(super) is_shared: bool,
    /// The CPU of each VMBus channel, by the queue that it serves.
    pub(super) channels: BTreeMap<u32, CpuId>,
}

pub(super) fn hardware(notes: &Notes<'_>, dir: &str) -> Option<Hardware> {
    let root = notes.root;
    let path = match root.link(&format!("{dir}/device")) {
        Ok(target) => crate::files::root::join(&format!("{dir}/device"), &target),
        Err(e) => return notes.note(Err(e)),
    };
    let link = |of: &str, name: &str| {
        let target = notes.note(root.link(&format!("{of}/{name}")));
        target.map(|target| last(&target).to_owned())
    };
    let virtio =
        (link(&path, "subsystem").as_deref() == Some("virtio")).then(|| last(&path).to_owned());
    // a virtio device has the vectors, address and node of its parent
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let device = if virtio.is_some() { parent } else { path.as_str() };
    Some(Hardware {
        bus: last(device).to_owned(),
        driver: link(&path, "driver"),
        node: node(notes, device),
        iommu_domain: iommu_domain(notes, device),
        irqs: irqs(notes, device),
        is_shared: notes.note(root.list(&format!("{path}/net"))).is_some_and(|it| it.len() > 1),
        channels: channels(notes, device),
        path: path.strip_prefix("/sys").unwrap_or(&path).to_owned(),
        virtio,
    })
}

/// The NUMA node of a device.
///
/// `numa_node`; for a device on a bus without nodes (USB, auxiliary), that of the nearest ancestor.
fn node(notes: &Notes<'_>, device: &str) -> Option<NodeId> {
    let mut dir = device;
    while dir.starts_with("/sys/devices/") {
        if let Some(node) = notes.get(&format!("{dir}/numa_node"), scalar::number_or_none) {
            return node.map(NodeId);
        }
        dir = dir.rsplit_once('/')?.0;
    }
    None
}

fn iommu_domain(notes: &Notes<'_>, device: &str) -> Option<String> {
    let group = format!("{device}/iommu_group");
    let target = notes.note(notes.root.link(&group))?;
    let file = format!("{}/type", crate::files::root::join(&group, &target));
    notes.get(&file, |text| Ok(text.trim().to_owned()))
}

/// The message-signalled interrupts; else those of an auxiliary device (since 6.11); else the
/// legacy interrupt.
fn irqs(notes: &Notes<'_>, device: &str) -> Vec<Irq> {
    for name in ["msi_irqs", "irqs"] {
        let listed = notes.note(notes.root.list(&format!("{device}/{name}"))).unwrap_or_default();
        if !listed.is_empty() {
            return numbered(&listed, "").into_iter().map(Irq).collect();
        }
    }
    let pin = notes.get(&format!("{device}/irq"), scalar::number::<u32>);
    pin.filter(|&irq| irq != 0).map(Irq).into_iter().collect()
}

/// The CPU of each channel, from `/sys/bus/vmbus/devices/*/channels/<relid>`.
///
/// The sub-channel number equals the queue number (`netvsc_open`).
fn channels(notes: &Notes<'_>, device: &str) -> BTreeMap<u32, CpuId> {
    let names = notes.note(notes.root.list(&format!("{device}/channels"))).unwrap_or_default();
    let channel = |relid: u32| {
        let file = |name: &str| format!("{device}/channels/{relid}/{name}");
        let queue = notes.get(&file("subchannel_id"), scalar::number)?;
        Some((queue, CpuId(notes.get(&file("cpu"), scalar::number)?)))
    };
    numbered(&names, "").into_iter().filter_map(channel).collect()
}

/// The interrupts of a device that sysfs does not list: those whose controller tells its address,
/// else those with the name of a platform device.
pub(super) fn irqs_of_device(irqs: &BTreeMap<Irq, IrqState>, bus: &str, device: &str) -> Vec<Irq> {
    let is_named = |action: &String| {
        let rest = action.strip_prefix(device).filter(|_| !bus.contains(':'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '-', ' ']))
    };
    let is_of = |state: &IrqState| {
        msi_vector(&state.chip).is_some_and(|vector| vector.bus == bus)
            || state.actions.iter().any(is_named)
    };
    irqs.iter().filter(|(_, state)| is_of(state)).map(|(irq, _)| *irq).collect()
}

/// The interrupt of the host controller of a USB or MMC device, which announces the packets of its
/// netdev, and the work of all other devices below it.
pub(super) fn edge_from_ancestor(
    notes: &Notes<'_>,
    device: &Device<'_>,
    path: &str,
    irqs: &BTreeMap<Irq, IrqState>,
) -> Option<Edges> {
    let is_bus = |part: &&str| {
        ["usb", "mmc"]
            .iter()
            .any(|kind| part.strip_prefix(kind).is_some_and(|rest| rest.parse::<u32>().is_ok()))
    };
    let bus = path.split('/').find(is_bus)?;
    let (above, _) = path.split_once(&format!("/{bus}/"))?;
    let above = above.strip_suffix("/mmc_host").unwrap_or(above);
    let kind = bus.trim_end_matches(|c: char| c.is_ascii_digit());
    // a USB 3 controller has two buses, and its interrupt the name of the first
    let dir = format!("/sys{above}");
    let beside = notes.note(notes.root.list(&dir)).unwrap_or_default();
    let is_its = |action: &String| {
        let name = action.rsplit(':').next().unwrap_or(action);
        let is_bus = name.strip_prefix(kind).is_some_and(|rest| rest.parse::<u32>().is_ok());
        name == last(above) || name == bus || is_bus && beside.iter().any(|it| it == name)
    };
    let named = |irq: &Irq| irqs.get(irq).is_some_and(|state| !state.actions.is_empty());
    let own: Vec<Irq> = self::irqs(notes, &dir).into_iter().filter(named).collect();
    let by_name = || irqs.iter().filter(|(_, state)| state.actions.iter().any(is_its));
    let mut found = own.into_iter().chain(by_name().map(|(irq, _)| *irq));
    let irq = found.next()?;
    // several interrupters, or several devices with its name
    let confidence =
        if found.all(|other| other == irq) { Confidence::Named } else { Confidence::Guess };
    let source = AssociationSource::Ancestor(last(above).to_owned());
    Some(Edges::all(device, irq, source, confidence))
}

pub(super) fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
