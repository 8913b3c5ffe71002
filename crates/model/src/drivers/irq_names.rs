//! The interrupt of each queue, from the names and the order of the device's interrupts.
//!
//! Pure: takes device and interrupts, returns the interrupt of each queue. The names of each driver
//! are in [`super::irq_patterns`]. A name may contain the netdev's name at the time of its
//! creation, so a later rename does not change it.

use std::collections::BTreeMap;

use crate::drivers::irq_patterns::{COMMON, PATTERNS, Pattern, Serves, Side};
use crate::drivers::name::DriverName;
use crate::machine::ids::Irq;
use crate::snapshot::netdev::{Association, AssociationSource, Confidence, Netdev};

/// The known properties of a netdev.
#[derive(Debug, Clone, Default)]
pub struct Device<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its driver.
    pub driver: Option<DriverName<'a>>,
    /// The last part of its device's path (`30be0000.ethernet`).
    pub device: &'a str,
    /// Its virtio device (`virtio1`). Its interrupt names contain this name.
    pub virtio: Option<&'a str>,
    /// Whether other netdevs belong to the same device.
    pub shares_device: bool,
    /// Whether it is up. A driver may request the interrupts of queues only then.
    pub up: bool,
    /// Number of rx queues.
    pub rx_queues: u32,
    /// Number of tx queues.
    pub tx_queues: u32,
    /// Names of all netdevs of the machine. An interrupt with another netdev's name belongs to that
    /// netdev.
    pub others: &'a [String],
    /// The kernel release.
    pub release: &'a str,
}

/// An interrupt that may be the device's.
#[derive(Debug, Clone, Copy)]
pub struct Vector<'a> {
    /// Its number.
    pub irq: Irq,
    /// Its action names.
    pub actions: &'a [String],
    /// Whether it has arrived since boot.
    pub arrived: bool,
}

/// Interrupts by queue index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edges {
    /// Interrupts of rx queues.
    pub rx: BTreeMap<u32, Association<Irq>>,
    /// Interrupts of tx queues.
    pub tx: BTreeMap<u32, Association<Irq>>,
}

/// Whether a name in the table is of this driver.
#[cfg(test)]
pub(crate) fn lists(driver: DriverName<'_>) -> bool {
    PATTERNS.iter().any(|pattern| driver.is_in(pattern.drivers))
}

/// The interrupts of each queue.
///
/// `vectors` are the interrupts of the device in their order. If these are unknown, pass all
/// interrupts of the machine and `owned = false`. Then only actions with the netdev's current name
/// or the device's name count.
pub fn edges(device: &Device<'_>, vectors: &[Vector<'_>], owned: bool) -> Edges {
    let serves_queues = |vector: &&Vector<'_>| !serves_no_queue(device, vector);
    let named: Vec<Vector<'_>> = vectors.iter().filter(serves_queues).copied().collect();
    let of_driver =
        |p: &&Pattern| device.driver.is_some_and(|driver| p.is_of(driver, device.release));
    for patterns in [PATTERNS.iter().filter(of_driver).collect::<Vec<_>>(), COMMON.iter().collect()]
    {
        let mut edges = Edges::default();
        for pattern in patterns {
            pattern.apply(device, &named, owned, &mut edges);
        }
        if edges != Edges::default() {
            return edges;
        }
    }
    named_like_device(device, &named).unwrap_or_else(|| only_irq(device, vectors, &named, owned))
}

/// The interrupt with the device's name: the only one, or the only one of several that has arrived
/// since boot (fec has three).
fn named_like_device(device: &Device<'_>, vectors: &[Vector<'_>]) -> Option<Edges> {
    let is_named = |vector: &&Vector<'_>| vector.actions.iter().any(|name| name == device.device);
    let named: Vec<&Vector<'_>> = vectors.iter().filter(is_named).collect();
    let mut arrived = named.iter().filter(|vector| named.len() == 1 || vector.arrived);
    let (only, None) = (arrived.next()?, arrived.next()) else { return None };
    let source = AssociationSource::DeviceName("{device}".to_owned());
    Some(Edges::all(device, only.irq, source, Confidence::Named))
}

/// A device with one interrupt that can serve queues: it serves them all.
fn only_irq(
    device: &Device<'_>,
    vectors: &[Vector<'_>],
    named: &[Vector<'_>],
    owned: bool,
) -> Edges {
    let mine = |vector: &&Vector<'_>| {
        if owned {
            !vector.actions.is_empty()
        } else {
            vector.actions.iter().any(|action| action == device.name)
        }
    };
    let mut found = named.iter().filter(mine);
    let (Some(only), None) = (found.next(), found.next()) else {
        return Edges::default();
    };
    // a port that is down has requested only vectors that serve no queue
    let has_others = owned && vectors.len() > 1;
    if has_others && !device.up {
        return Edges::default();
    }
    let confidence = if owned && !has_others { Confidence::Certain } else { Confidence::Named };
    Edges::all(device, only.irq, AssociationSource::OnlyIrq, confidence)
}

/// Words in the names of vectors that announce no packets.
const NO_QUEUE: &[&str] = &[
    "adminq", "admin", "aer", "async", "ce", "cmd", "cmdq", "config", "control", "ctrl", "err",
    "error", "event", "events", "exn", "fdir", "fw", "hwc", "lpi", "lsc", "mailbox", "mbox", "mbx",
    "mgmnt", "misc", "notify", "other", "pages", "pps", "ptp", "safety", "service", "slowpath",
    "sp", "ue", "wake", "wakeup", "wol",
];

/// Whether a vector proves nothing about queues: those of firmware events, mailboxes, errors, of a
/// flow director, a clock.
fn serves_no_queue(device: &Device<'_>, vector: &Vector<'_>) -> bool {
    let is_other = |action: &String| {
        let own = action.replacen(device.name, "", usize::from(!device.name.is_empty()));
        let mut words = own.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| {
            let word = word.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
            NO_QUEUE.contains(&word.as_str())
        })
    };
    !vector.actions.is_empty() && vector.actions.iter().all(is_other)
}

impl Edges {
    /// One interrupt for all queues.
    pub fn all(
        device: &Device<'_>,
        to: Irq,
        source: AssociationSource,
        confidence: Confidence,
    ) -> Self {
        let edge = Association { to, source, confidence };
        Self {
            rx: (0..device.rx_queues).map(|queue| (queue, edge.clone())).collect(),
            tx: (0..device.tx_queues).map(|queue| (queue, edge.clone())).collect(),
        }
    }
}

/// Gives netdevs without a known interrupt those that have their driver's name, if there are as
/// many as netdevs of the driver: with one of each it is known, else the order is a guess.
///
/// `mvneta` did so before 4.3 (`mvneta_open`), Wi-Fi drivers do.
pub fn edges_from_driver_names(netdevs: &mut [Netdev], vectors: &[Vector<'_>]) {
    let mut drivers: BTreeMap<String, Vec<&mut Netdev>> = BTreeMap::new();
    for netdev in netdevs.iter_mut().filter(|netdev| netdev.device_path.is_some()) {
        let is_known = netdev.rx_queues.iter().any(|queue| queue.irq.is_some());
        let driver = netdev.driver.clone().filter(|_| !is_known && netdev.irqs.is_empty());
        if let Some(driver) = driver {
            drivers.entry(driver).or_default().push(netdev);
        }
    }
    for (driver, mut netdevs) in drivers {
        let is_named = |vector: &&Vector<'_>| vector.actions.contains(&driver);
        let named: Vec<Irq> = vectors.iter().filter(is_named).map(|vector| vector.irq).collect();
        if named.len() != netdevs.len() {
            continue;
        }
        let confidence = if named.len() == 1 { Confidence::Named } else { Confidence::Guess };
        netdevs.sort_by(|a, b| a.device_path.cmp(&b.device_path));
        for (netdev, irq) in netdevs.into_iter().zip(named) {
            let edge = Association { to: irq, source: AssociationSource::DriverName, confidence };
            netdev.rx_queues.iter_mut().for_each(|queue| queue.irq = Some(edge.clone()));
            netdev.tx_queues.iter_mut().for_each(|queue| queue.irq = Some(edge.clone()));
        }
    }
}

impl Pattern {
    fn apply(&self, device: &Device<'_>, vectors: &[Vector<'_>], owned: bool, edges: &mut Edges) {
        let mut found: Vec<(u32, Irq, bool)> = Vec::new();
        // of a netdev that has been renamed
        let is_same_name =
            |dev: &str| vectors.iter().all(|vector| vector.actions.iter().all(|name| name == dev));
        for vector in vectors {
            let fits = vector.actions.iter().filter_map(|name| matched(self.name, name, device));
            for m in fits {
                let Some(sure) = m.owner(device, owned) else { continue };
                if self.has_number() {
                    found.push((m.number, vector.irq, sure));
                } else if m.dev.is_none_or(|dev| dev == device.name || is_same_name(dev)) {
                    found.push((found.len() as u32, vector.irq, sure));
                }
            }
        }
        found.sort_unstable();
        found.dedup_by_key(|(number, ..)| *number);
        let half = found.len() as u32 / 2;
        // one interrupt instead of one for each side
        let sides: &[Side] = match self.serves {
            Serves::Sides(sides) if sides.len() > 1 && found.len() == 1 => &[Side::All],
            Serves::Sides(sides) => sides,
            _ => &[],
        };
        let is_sure = |sure: bool| {
            // the vectors of several netdevs of one device are counted together
            let of_several = device.shares_device && self.name.starts_with("mlx4-");
            sure && !self.drivers.is_empty() && !of_several
        };
        for (rank, (number, irq, sure)) in (0..).zip(found) {
            let edge = Association {
                to: irq,
                source: self.association(),
                confidence: if is_sure(sure) { Confidence::Named } else { Confidence::Guess },
            };
            let (rx, tx): (Option<u32>, Option<u32>) = match self.serves {
                Serves::Rx => (Some(number), None),
                Serves::Tx => (None, Some(number)),
                Serves::Both => (Some(number), Some(number)),
                Serves::RxInOrder => (Some(rank), None),
                Serves::TxInOrder => (None, Some(rank)),
                Serves::BothInOrder => (Some(rank), Some(rank)),
                Serves::TxThenRx => (number.checked_sub(half), (number < half).then_some(number)),
                Serves::Sides(_) => {
                    let (rx, tx) = match sides.get(rank as usize) {
                        Some(Side::All) => (device.rx_queues, device.tx_queues),
                        Some(Side::Rx) => (device.rx_queues, 0),
                        Some(Side::Tx) => (0, device.tx_queues),
                        Some(Side::Unknown) | None => (0, 0),
                    };
                    edges.rx.extend((0..rx).map(|queue| (queue, edge.clone())));
                    edges.tx.extend((0..tx).map(|queue| (queue, edge.clone())));
                    continue;
                }
            };
            if let Some(queue) = rx.filter(|&queue| queue < device.rx_queues) {
                edges.rx.entry(queue).or_insert_with(|| edge.clone());
            }
            if let Some(queue) = tx.filter(|&queue| queue < device.tx_queues) {
                edges.tx.entry(queue).or_insert(edge);
            }
        }
    }

    fn association(&self) -> AssociationSource {
        let pattern = self.name.to_owned();
        if pattern.contains("{device}") {
            AssociationSource::DeviceName(pattern)
        } else if self.has_number() || self.serves == Serves::Sides(&[Side::All]) {
            AssociationSource::ActionName(pattern)
        } else {
            AssociationSource::VectorOrder(pattern)
        }
    }
}

/// The parts of an action name that matches a pattern.
#[derive(Debug, PartialEq, Eq)]
struct Match<'a> {
    number: u32,
    dev: Option<&'a str>,
    /// Whether it contains the name of the device.
    is_of_device: bool,
}

impl Match<'_> {
    /// Whether the interrupt is certain to belong to the device; `None` if it belongs to another
    /// netdev.
    fn owner(&self, device: &Device<'_>, owned: bool) -> Option<bool> {
        match self.dev {
            _ if self.is_of_device => Some(true),
            None => Some(owned),
            Some(dev) if dev == device.name => Some(true),
            Some(_) if !owned => None,
            Some(dev) if device.others.iter().any(|other| other == dev) => None,
            // the netdev has been renamed
            Some(_) => Some(true),
        }
    }
}

/// Matches an action name. The last number in the pattern counts.
fn matched<'a>(pattern: &str, action: &'a str, device: &Device<'_>) -> Option<Match<'a>> {
    let mut found = Match { number: 0, dev: None, is_of_device: false };
    let mut rest = action;
    let mut pattern = pattern;
    while !pattern.is_empty() {
        let hole = pattern.find('{').unwrap_or(pattern.len());
        rest = rest.strip_prefix(&pattern[..hole])?;
        pattern = &pattern[hole..];
        let Some((name, after)) = pattern.strip_prefix('{').and_then(|p| p.split_once('}')) else {
            continue;
        };
        let literal = &after[..after.find('{').unwrap_or(after.len())];
        let taken = match name {
            "n" => rest.bytes().take_while(u8::is_ascii_digit).count(),
            "virtio" => device.virtio.filter(|v| rest.starts_with(v))?.len(),
            "own" => Some(device.name).filter(|it| rest.starts_with(it))?.len(),
            "device" => Some(device.device).filter(|it| rest.starts_with(it))?.len(),
            // longest match: names may contain any character
            _ if literal.is_empty() => rest.len(),
            _ => rest.rfind(literal)?,
        };
        let text = rest.get(..taken).filter(|text| !text.is_empty())?;
        match name {
            "n" => found.number = text.parse().ok()?,
            "dev" | "own" => found.dev = Some(text),
            "device" | "virtio" => found.is_of_device = true,
            _ => {}
        }
        rest = &rest[taken..];
        pattern = after;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests;
