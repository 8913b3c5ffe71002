//! The interrupt of each queue, from the names that drivers give their interrupts.
//!
//! Pure: takes device and names, returns the interrupt of each queue. The patterns come from driver
//! sources; a comment at each pattern names the function. An interrupt name contains the netdev's
//! name at the time of creation, so a later rename does not change it.

use std::collections::BTreeMap;

use crate::machine::ids::Irq;
use crate::snapshot::netdev::{Association, AssociationSource, Confidence};

/// The known properties of a netdev.
#[derive(Debug, Clone, Default)]
pub struct Device<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its driver.
    pub driver: Option<&'a str>,
    /// Its virtio device (`virtio1`). Its interrupt names contain this name.
    pub virtio: Option<&'a str>,
    /// Number of rx queues.
    pub rx_queues: u32,
    /// Number of tx queues.
    pub tx_queues: u32,
    /// Names of all netdevs of the machine. An interrupt with another netdev's name belongs to that
    /// netdev.
    pub others: &'a [String],
}

/// Interrupts by queue index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edges {
    /// Interrupts of rx queues.
    pub rx: BTreeMap<u32, Association<Irq>>,
    /// Interrupts of tx queues.
    pub tx: BTreeMap<u32, Association<Irq>>,
}

/// The queues that an interrupt serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// The rx queue with the number.
    Rx,
    /// The tx queue with the number.
    Tx,
    /// Both queues with the number.
    Both,
    /// Rx queues, sorted by the numbers, which are vector numbers.
    RxInOrder,
    /// Tx queues, sorted by the numbers, which are vector numbers.
    TxInOrder,
    /// Both, sorted by the numbers, which are vector numbers.
    BothInOrder,
    /// The first half of the numbers are tx queues, the second half are rx queues.
    TxThenRx,
    /// All queues.
    All,
}

/// A driver's naming pattern: `{dev}` is the netdev (any name), `{virtio}` the virtio device, `{n}`
/// a number, `{any}` any text.
struct Pattern {
    drivers: &'static [&'static str],
    name: &'static str,
    serves: Serves,
}

const fn pattern(drivers: &'static [&'static str], name: &'static str, serves: Serves) -> Pattern {
    Pattern { drivers, name, serves }
}

const PATTERNS: &[Pattern] = &[
    // vp_request_msix_vectors, virtnet_find_vqs; one vector for all queues if there are too few
    // vectors
    pattern(&["virtio_net"], "{virtio}-input.{n}", Serves::Rx),
    pattern(&["virtio_net"], "{virtio}-output.{n}", Serves::Tx),
    pattern(&["virtio_net"], "{virtio}-virtqueues", Serves::All),
    // vmxnet3_request_irqs: the number is the vector number
    pattern(&["vmxnet3"], "{dev}-rxtx-{n}", Serves::BothInOrder),
    pattern(&["vmxnet3"], "{dev}-rx-{n}", Serves::RxInOrder),
    pattern(&["vmxnet3"], "{dev}-tx-{n}", Serves::TxInOrder),
    // mlx5_irq_alloc: channel n polls completion vector n
    pattern(&["mlx5_core"], "mlx5_comp{n}@{any}", Serves::Both),
    pattern(&["mlx5_core"], "mlx5_comp{n}", Serves::Both),
    // ena_setup_io_intr
    pattern(&["ena"], "{dev}-Tx-Rx-{n}", Serves::Both),
    // gve_alloc_notify_blocks; gve_tx_idx_to_ntfy, gve_rx_idx_to_ntfy
    pattern(&["gve"], "gve-ntfy-blk{n}@{any}", Serves::TxThenRx),
    pattern(&["gve"], "{dev}-ntfy-block.{n}", Serves::TxThenRx),
    // mana_gd_setup_irqs
    pattern(&["mana"], "mana_q{n}@{any}", Serves::Both),
    // i40e_vsi_request_irq_msix, ice_vsi_req_irq_msix, iavf_request_traffic_irqs,
    // idpf_vport_intr_req_irq
    pattern(&["i40e", "ice", "iavf", "idpf"], "{any}-TxRx-{n}", Serves::Both),
    pattern(&["i40e", "ice", "iavf", "idpf"], "{any}-rx-{n}", Serves::Rx),
    pattern(&["i40e", "ice", "iavf", "idpf"], "{any}-tx-{n}", Serves::Tx),
    // ixgbe_request_msix_irqs, igb_request_msix, igc_request_msix, fm10k_qv_request_irq, ixgbevf,
    // fbnic, atlantic
    pattern(INTEL_LIKE, "{dev}-TxRx-{n}", Serves::Both),
    pattern(INTEL_LIKE, "{dev}-rx-{n}", Serves::Rx),
    pattern(INTEL_LIKE, "{dev}-tx-{n}", Serves::Tx),
    // bnxt_setup_msix: with separate rings the numbers continue from rx to tx
    pattern(&["bnxt_en"], "{dev}-TxRx-{n}", Serves::BothInOrder),
    pattern(&["bnxt_en"], "{dev}-rx-{n}", Serves::RxInOrder),
    pattern(&["bnxt_en"], "{dev}-tx-{n}", Serves::TxInOrder),
    // hns3_nic_init_irq: the name contains the address of the PCI function
    pattern(&["hns3", "hclge", "hclgevf"], "{any}-TxRx-{n}", Serves::Both),
    pattern(&["hns3", "hclge", "hclgevf"], "{any}-Rx-{n}", Serves::Rx),
    pattern(&["hns3", "hclge", "hclgevf"], "{any}-Tx-{n}", Serves::Tx),
    // e1000_request_msix
    pattern(&["e1000e"], "{dev}-rx-{n}", Serves::Rx),
    pattern(&["e1000e"], "{dev}-tx-{n}", Serves::Tx),
    // bnx2x_req_msix_irqs, qede_req_msix_irqs
    pattern(&["bnx2x", "qede"], "{dev}-fp-{n}", Serves::Both),
    // nfp_net_prepare_vector, nicvf_register_interrupts, otx2_open
    pattern(&["nfp", "nicvf", "rvu_nicpf", "rvu_nicvf"], "{dev}-rxtx-{n}", Serves::Both),
    // efx_get_channel_name: the numbers are channel numbers
    pattern(&["sfc"], "{dev}-rx-{n}", Serves::RxInOrder),
    pattern(&["sfc"], "{dev}-tx-{n}", Serves::TxInOrder),
    pattern(&["sfc"], "{dev}-{n}", Serves::BothInOrder),
    // name_msix_vecs
    pattern(&["cxgb4"], "{dev}-Rx{n}", Serves::Rx),
    // enic_request_intr
    pattern(&["enic"], "{dev}-rx-{n}", Serves::Rx),
    pattern(&["enic"], "{dev}-tx-{n}", Serves::Tx),
    // setup_netfront_split
    pattern(&["vif", "xen-netfront"], "{dev}-q{n}-rx", Serves::Rx),
    pattern(&["vif", "xen-netfront"], "{dev}-q{n}-tx", Serves::Tx),
    pattern(&["vif", "xen-netfront"], "{dev}-q{n}", Serves::Both),
];

const INTEL_LIKE: &[&str] = &["ixgbe", "ixgbevf", "igb", "igbvf", "igc", "fm10k", "fbnic"];

/// Patterns of many drivers, used as a guess for unknown drivers.
const COMMON: &[Pattern] = &[
    pattern(&[], "{dev}-TxRx-{n}", Serves::Both),
    pattern(&[], "{dev}-Tx-Rx-{n}", Serves::Both),
    pattern(&[], "{dev}-rxtx-{n}", Serves::BothInOrder),
    pattern(&[], "{dev}-txrx-{n}", Serves::BothInOrder),
    pattern(&[], "{dev}-fp-{n}", Serves::Both),
    pattern(&[], "{dev}-rx-{n}", Serves::RxInOrder),
    pattern(&[], "{dev}-tx-{n}", Serves::TxInOrder),
];

/// The interrupts of each queue.
///
/// `irqs` are the message-signalled interrupts of the device, with their action names. If these are
/// unknown, pass all interrupts of the machine and `owned = false`. Then only actions with the
/// netdev's current name count.
pub fn edges(device: &Device<'_>, irqs: &BTreeMap<Irq, Vec<String>>, owned: bool) -> Edges {
    let known = |p: &&Pattern| device.driver.is_some_and(|driver| p.drivers.contains(&driver));
    for patterns in [PATTERNS.iter().filter(known).collect::<Vec<_>>(), COMMON.iter().collect()] {
        let mut edges = Edges::default();
        for pattern in patterns {
            pattern.apply(device, irqs, owned, &mut edges);
        }
        if edges != Edges::default() {
            return edges;
        }
    }
    only_irq(device, irqs, owned)
}

/// A device with one named interrupt, which serves all queues.
fn only_irq(device: &Device<'_>, irqs: &BTreeMap<Irq, Vec<String>>, owned: bool) -> Edges {
    let mine = |actions: &&Vec<String>| {
        if owned { !actions.is_empty() } else { actions.iter().any(|action| action == device.name) }
    };
    let mut named = irqs.iter().filter(|(_, actions)| mine(actions));
    let (Some((&to, _)), None) = (named.next(), named.next()) else {
        return Edges::default();
    };
    let confidence = if owned { Confidence::Certain } else { Confidence::Named };
    let edge = Association { to, source: AssociationSource::OnlyIrq, confidence };
    Edges {
        rx: (0..device.rx_queues).map(|queue| (queue, edge.clone())).collect(),
        tx: (0..device.tx_queues).map(|queue| (queue, edge.clone())).collect(),
    }
}

impl Pattern {
    fn apply(
        &self,
        device: &Device<'_>,
        irqs: &BTreeMap<Irq, Vec<String>>,
        owned: bool,
        edges: &mut Edges,
    ) {
        let mut found: Vec<(u32, Irq, bool)> = Vec::new();
        for (&irq, actions) in irqs {
            let fits =
                actions.iter().filter_map(|action| matched(self.name, action, device.virtio));
            found.extend(
                fits.filter_map(|m| m.owner(device, owned).map(|sure| (m.number, irq, sure))),
            );
        }
        found.sort_unstable();
        found.dedup_by_key(|(number, ..)| *number);
        let half = found.len() as u32 / 2;
        for (rank, (number, irq, sure)) in (0..).zip(found) {
            let edge = Association {
                to: irq,
                source: AssociationSource::ActionName(self.name.to_owned()),
                confidence: if sure && !self.drivers.is_empty() {
                    Confidence::Named
                } else {
                    Confidence::Guess
                },
            };
            let (rx, tx): (Option<u32>, Option<u32>) = match self.serves {
                Serves::Rx => (Some(number), None),
                Serves::Tx => (None, Some(number)),
                Serves::Both => (Some(number), Some(number)),
                Serves::RxInOrder => (Some(rank), None),
                Serves::TxInOrder => (None, Some(rank)),
                Serves::BothInOrder => (Some(rank), Some(rank)),
                Serves::TxThenRx => (number.checked_sub(half), (number < half).then_some(number)),
                Serves::All => {
                    edges.rx.extend((0..device.rx_queues).map(|queue| (queue, edge.clone())));
                    edges.tx.extend((0..device.tx_queues).map(|queue| (queue, edge.clone())));
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
}

/// The parts of an action name that matches a pattern.
#[derive(Debug, PartialEq, Eq)]
struct Match<'a> {
    number: u32,
    dev: Option<&'a str>,
}

impl Match<'_> {
    /// Whether the interrupt is certain to belong to the device; `None` if it belongs to another
    /// netdev.
    fn owner(&self, device: &Device<'_>, owned: bool) -> Option<bool> {
        match self.dev {
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
fn matched<'a>(pattern: &str, action: &'a str, virtio: Option<&str>) -> Option<Match<'a>> {
    let mut found = Match { number: 0, dev: None };
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
            "virtio" => virtio.filter(|v| rest.starts_with(v))?.len(),
            // longest match: names may contain any character
            _ if literal.is_empty() => rest.len(),
            _ => rest.rfind(literal)?,
        };
        let text = rest.get(..taken).filter(|text| !text.is_empty())?;
        match name {
            "n" => found.number = text.parse().ok()?,
            "dev" => found.dev = Some(text),
            _ => {}
        }
        rest = &rest[taken..];
        pattern = after;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irqs(names: &[&str]) -> BTreeMap<Irq, Vec<String>> {
        (30..).zip(names).map(|(irq, name)| (Irq(irq), vec![(*name).to_owned()])).collect()
    }

    /// Writes the interrupts of each queue as `rx: irq irq.. tx: irq irq..`, with `-` for a queue
    /// without interrupt and `?` after a guess.
    fn shown(driver: &str, name: &str, queues: (u32, u32), names: &[&str]) -> String {
        let others = ["eth0".to_owned(), "eth1".to_owned()];
        let device = Device {
            name,
            driver: Some(driver),
            virtio: Some("virtio1"),
            rx_queues: queues.0,
            tx_queues: queues.1,
            others: &others,
        };
        show(&edges(&device, &irqs(names), true), queues)
    }

    fn show(edges: &Edges, queues: (u32, u32)) -> String {
        let side = |edges: &BTreeMap<u32, Association<Irq>>, count| {
            let one = |queue| match edges.get(&queue) {
                None => "-".to_owned(),
                Some(edge) if edge.confidence == Confidence::Guess => format!("{}?", edge.to),
                Some(edge) => edge.to.to_string(),
            };
            (0..count).map(one).collect::<Vec<_>>().join(" ")
        };
        format!("rx {} tx {}", side(&edges.rx, queues.0), side(&edges.tx, queues.1))
    }

    #[test]
    fn each_pattern_finds_the_vectors_of_its_queues() {
        for Pattern { drivers, name, serves } in PATTERNS {
            let filled = name.replace("{dev}", "eth0").replace("{virtio}", "virtio1");
            let number = |n: u32| filled.replace("{any}", "any").replace("{n}", &n.to_string());
            let names: Vec<String> = (0..4).map(number).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (rx, tx) = match serves {
                Serves::Rx | Serves::RxInOrder => ("rx 30 31 ", ""),
                Serves::Tx | Serves::TxInOrder => ("rx", " tx 30 31"),
                Serves::Both | Serves::BothInOrder => ("rx 30 31 ", " tx 30 31"),
                Serves::TxThenRx => ("rx 32 33 ", " tx 30 31"),
                Serves::All => ("rx 30 30 ", " tx 30 30"),
            };
            for driver in *drivers {
                let found = shown(driver, "eth0", (2, 2), &names);
                assert!(found.starts_with(rx) && found.ends_with(tx), "{driver} {name}: {found}");
            }
        }
    }

    #[test]
    fn virtio_has_separate_input_and_output_names() {
        let names = [
            "virtio1-config",
            "virtio1-input.0",
            "virtio1-output.0",
            "virtio1-input.1",
            "virtio1-output.1",
        ];
        assert_eq!(shown("virtio_net", "eth0", (2, 2), &names), "rx 31 33 tx 32 34");
        let shared = ["virtio1-config", "virtio1-virtqueues"];
        assert_eq!(shown("virtio_net", "eth0", (2, 2), &shared), "rx 31 31 tx 31 31");
    }

    #[test]
    fn virtio_10_is_not_virtio_1() {
        assert_eq!(
            shown("virtio_net", "eth0", (1, 1), &["virtio10-input.0", "virtio10-output.0"]),
            "rx - tx -"
        );
    }

    #[test]
    fn gve_numbers_tx_blocks_before_rx_blocks() {
        let pci = |n: u32| format!("gve-ntfy-blk{n}@pci:0000:00:04.0");
        let names: Vec<String> =
            (0..4).map(pci).chain(["gve-mgmnt@pci:0000:00:04.0".to_owned()]).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(shown("gve", "eth0", (2, 2), &names), "rx 32 33 tx 30 31");
        assert_eq!(
            shown("gve", "eth0", (1, 1), &["eth%d-ntfy-block.0", "eth%d-ntfy-block.1"]),
            "rx 31 tx 30"
        );
    }

    #[test]
    fn vmxnet3_and_bnxt_count_vectors_not_queues() {
        let apart = ["eth0-tx-0", "eth0-tx-1", "eth0-rx-2", "eth0-rx-3", "eth0-event-4"];
        assert_eq!(shown("vmxnet3", "eth0", (2, 2), &apart), "rx 32 33 tx 30 31");
        let buddies = ["eth0-rxtx-0", "eth0-rxtx-1", "eth0-event-2"];
        assert_eq!(shown("vmxnet3", "eth0", (2, 2), &buddies), "rx 30 31 tx 30 31");
        let split = ["eth0-rx-0", "eth0-rx-1", "eth0-tx-2", "eth0-tx-3"];
        assert_eq!(shown("bnxt_en", "eth0", (2, 2), &split), "rx 30 31 tx 32 33");
    }

    #[test]
    fn each_driver_names_its_queues() {
        let both = "rx 31 32 tx 31 32";
        let two =
            |a: &str, b: &str, c: &str, driver: &str| shown(driver, "eth0", (2, 2), &[a, b, c]);
        let pci = "pci:0000:08:00.0";
        assert_eq!(
            two(
                &format!("mlx5_async0@{pci}"),
                &format!("mlx5_comp0@{pci}"),
                &format!("mlx5_comp1@{pci}"),
                "mlx5_core"
            ),
            both
        );
        assert_eq!(two("ena-mgmnt@pci:0000:00:05.0", "eth0-Tx-Rx-0", "eth0-Tx-Rx-1", "ena"), both);
        assert_eq!(
            two(
                &format!("mana_hwc@{pci}"),
                &format!("mana_q0@{pci}"),
                &format!("mana_q1@{pci}"),
                "mana"
            ),
            both
        );
        assert_eq!(
            two("i40e-0000:08:00.0:misc", "i40e-eth0-TxRx-0", "i40e-eth0-TxRx-1", "i40e"),
            both
        );
        assert_eq!(two("ice-0000:08:00.0:misc", "ice-eth0-TxRx-0", "ice-eth0-TxRx-1", "ice"), both);
        assert_eq!(
            two("iavf-0000:08:02.0:mbx", "iavf-eth0-TxRx-0", "iavf-eth0-TxRx-1", "iavf"),
            both
        );
        assert_eq!(two("eth0", "eth0-TxRx-0", "eth0-TxRx-1", "ixgbe"), both);
        assert_eq!(two("eth0", "eth0-TxRx-0", "eth0-TxRx-1", "igb"), both);
        assert_eq!(two("bnxt", "eth0-TxRx-0", "eth0-TxRx-1", "bnxt_en"), both);
        let hns3 =
            ["hclge-misc-0000:7d:00.0", "hns3-0000:7d:00.0-TxRx-0", "hns3-0000:7d:00.0-TxRx-1"];
        assert_eq!(shown("hns3", "eth0", (2, 2), &hns3), both);
        assert_eq!(
            shown("e1000e", "eth0", (1, 1), &["eth0-rx-0", "eth0-tx-0", "eth0"]),
            "rx 30 tx 31"
        );
        assert_eq!(
            shown("igb", "eth0", (2, 2), &["eth0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0"]),
            "rx 31 32 tx 33 -"
        );
    }

    #[test]
    fn a_rename_does_not_matter_but_another_netdevs_name_does() {
        assert_eq!(
            shown("igb", "ens5", (2, 2), &["lan0-TxRx-0", "lan0-TxRx-1"]),
            "rx 30 31 tx 30 31"
        );
        assert_eq!(shown("igb", "ens5", (2, 2), &["eth1-TxRx-0", "eth1-TxRx-1"]), "rx - - tx - -");
    }

    #[test]
    fn an_unknown_driver_gets_guesses() {
        assert_eq!(
            shown("newnic", "eth0", (2, 2), &["eth0-TxRx-0", "eth0-TxRx-1"]),
            "rx 30? 31? tx 30? 31?"
        );
    }

    #[test]
    fn the_only_interrupt_serves_all_queues() {
        assert_eq!(shown("r8169", "eth0", (1, 1), &["eth0"]), "rx 30 tx 30");
        assert_eq!(shown("r8169", "eth0", (1, 1), &["a", "b"]), "rx - tx -");
    }

    #[test]
    fn without_the_devices_list_the_current_name_must_match() {
        let device = Device {
            name: "eth0",
            driver: Some("vif"),
            rx_queues: 2,
            tx_queues: 2,
            ..Device::default()
        };
        let irqs = irqs(&[
            "eth0-q0-tx",
            "eth0-q0-rx",
            "eth0-q1-tx",
            "eth0-q1-rx",
            "eth1-q0-tx",
            "eth1-q0-rx",
        ]);
        assert_eq!(show(&edges(&device, &irqs, false), (2, 2)), "rx 31 33 tx 30 32");
    }

    #[test]
    fn a_vlan_like_name_keeps_its_dashes() {
        assert_eq!(
            matched("{dev}-rx-{n}", "a-rx-b-rx-3", None),
            Some(Match { number: 3, dev: Some("a-rx-b") })
        );
        assert_eq!(matched("{dev}-rx-{n}", "eth0-rx-", None), None);
        assert_eq!(matched("{dev}-rx-{n}", "eth0-rx-3x", None), None);
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(name in "\\PC{0,24}", number in 0u64..1 << 40) {
            for pattern in PATTERNS.iter().chain(COMMON) {
                let _ = matched(pattern.name, &name, Some("virtio1"));
                let filled = pattern.name.replace("{dev}", &name)
                    .replace("{any}", &name).replace("{n}", &number.to_string());
                let _ = matched(pattern.name, &filled, Some("virtio1"));
            }
        }
    }
}
