//! Interrupt names to queues. Input, first lines: driver, netdev, virtio or platform device, rx and
//! tx queues; then one name per line.

use std::collections::BTreeMap;

use netsilo_model::drivers::irq_names::{Device, Vector, edges};
use netsilo_model::drivers::name::DriverName;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::{Confidence, Netdev};

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { inputs: 10_000, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let (driver, name, virtio) = (next(), next(), next());
    let mut counts = [next(), next()].map(|count| count.parse::<u32>().unwrap_or(4) % 257);
    counts.sort();
    let irqs: BTreeMap<Irq, Vec<String>> = (30..)
        .map(Irq)
        .zip(lines.map(|names| names.split(',').map(str::to_owned).collect()))
        .collect();
    let others = ["eth0".to_owned(), "eth1".to_owned(), name.to_owned()];
    let vectors: Vec<Vector<'_>> = irqs
        .iter()
        .map(|(irq, actions)| Vector { irq: *irq, actions, arrived: irq.0 % 2 == 0 })
        .collect();
    for (owned, driver) in [(true, Some(driver)), (false, Some(driver)), (true, None)] {
        let virtio = Some(virtio).filter(|name| !name.is_empty());
        let netdev = Netdev { driver: driver.map(str::to_owned), ..Netdev::default() };
        let device = Device {
            name,
            driver: DriverName::of(&netdev),
            device: virtio.unwrap_or_default(),
            virtio,
            shares_device: counts[0] > 4,
            up: counts[1] != 3,
            rx_queues: counts[1],
            tx_queues: counts[0],
            others: &others,
            release: "6.12",
        };
        let edges = edges(&device, &vectors, owned);
        for (side, count) in [(&edges.rx, device.rx_queues), (&edges.tx, device.tx_queues)] {
            assert!(side.keys().all(|queue| *queue < count));
            assert!(side.values().all(|edge| irqs.contains_key(&edge.to)));
            // no edge is certain for an interrupt that may belong to another device
            assert!(owned || side.values().all(|edge| edge.confidence < Confidence::Certain));
        }
    }
}
