//! Interrupt names to queues. Input, first lines: driver, netdev, virtio device, rx and tx queues;
//! then one name per line.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use netsilo_model::drivers::irq_names::{Device, edges};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::Confidence;

fuzz_target!(|text: &str| {
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
    for (owned, driver) in [(true, Some(driver)), (false, Some(driver)), (true, None)] {
        let virtio = Some(virtio).filter(|name| !name.is_empty());
        let device = Device {
            name,
            driver,
            virtio,
            rx_queues: counts[1],
            tx_queues: counts[0],
            others: &others,
        };
        let edges = edges(&device, &irqs, owned);
        for (side, count) in [(&edges.rx, device.rx_queues), (&edges.tx, device.tx_queues)] {
            assert!(side.keys().all(|queue| *queue < count));
            assert!(side.values().all(|edge| irqs.contains_key(&edge.to)));
            // no edge is certain for an interrupt that may belong to another device
            assert!(owned || side.values().all(|edge| edge.confidence < Confidence::Certain));
        }
    }
});
