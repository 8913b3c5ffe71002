use super::*;

fn irqs(names: &[&str]) -> BTreeMap<Irq, Vec<String>> {
    (30..).zip(names).map(|(irq, name)| (Irq(irq), vec![(*name).to_owned()])).collect()
}

fn edges(device: &Device<'_>, irqs: &BTreeMap<Irq, Vec<String>>, owned: bool) -> Edges {
    let vectors: Vec<Vector<'_>> =
        irqs.iter().map(|(irq, actions)| Vector { irq: *irq, actions, arrived: true }).collect();
    super::edges(device, &vectors, owned)
}

fn of(driver: &str) -> Netdev {
    Netdev { driver: Some(driver.into()), ..Netdev::default() }
}

/// Writes the interrupts of each queue as `rx: irq irq.. tx: irq irq..`, with `-` for a queue
/// without interrupt and `?` after a guess.
fn shown(driver: &str, name: &str, queues: (u32, u32), names: &[&str]) -> String {
    let (others, netdev) = (["eth0".to_owned(), "eth1".to_owned()], of(driver));
    let device = Device {
        name,
        driver: DriverName::of(&netdev),
        device: "1000.ethernet",
        virtio: Some("virtio1"),
        up: true,
        rx_queues: queues.0,
        tx_queues: queues.1,
        others: &others,
        release: "6.12",
        ..Device::default()
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
    let old = |p: &&Pattern| p.is_of(DriverName::of(&of(p.drivers[0])).unwrap(), "6.12");
    for pattern @ Pattern { drivers, name, serves, .. } in PATTERNS.iter().filter(old) {
        let filled = name.replace("{dev}", "eth0").replace("{virtio}", "virtio1");
        let filled = filled.replace("{device}", "1000.ethernet");
        let number = |n: u32| filled.replace("{any}", "any").replace("{n}", &n.to_string());
        let names: Vec<String> = (0..4).map(number).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let names = &names[..if pattern.has_number() { 4 } else { 2 }];
        let (rx, tx) = match serves {
            Serves::Rx | Serves::RxInOrder => ("rx 30 31 ", ""),
            Serves::Tx | Serves::TxInOrder => ("rx", " tx 30 31"),
            Serves::Both | Serves::BothInOrder => ("rx 30 31 ", " tx 30 31"),
            Serves::TxThenRx => ("rx 32 33 ", " tx 30 31"),
            Serves::Sides([Side::All]) => ("rx 30 30 ", " tx 30 30"),
            Serves::Sides([Side::Rx, Side::Tx]) => ("rx 30 30 ", " tx 31 31"),
            Serves::Sides([Side::Tx, Side::Rx]) => ("rx 31 31 ", " tx 30 30"),
            Serves::Sides([Side::Tx]) => ("rx - - ", " tx 30 30"),
            Serves::Sides(_) => ("rx 30 30 ", " tx - -"),
        };
        for driver in *drivers {
            let found = shown(driver, "eth0", (2, 2), names);
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
    let two = |a: &str, b: &str, c: &str, driver: &str| shown(driver, "eth0", (2, 2), &[a, b, c]);
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
    assert_eq!(two("i40e-0000:08:00.0:misc", "i40e-eth0-TxRx-0", "i40e-eth0-TxRx-1", "i40e"), both);
    assert_eq!(two("ice-0000:08:00.0:misc", "ice-eth0-TxRx-0", "ice-eth0-TxRx-1", "ice"), both);
    assert_eq!(two("iavf-0000:08:02.0:mbx", "iavf-eth0-TxRx-0", "iavf-eth0-TxRx-1", "iavf"), both);
    assert_eq!(two("eth0", "eth0-TxRx-0", "eth0-TxRx-1", "ixgbe"), both);
    assert_eq!(two("eth0", "eth0-TxRx-0", "eth0-TxRx-1", "igb"), both);
    assert_eq!(two("bnxt", "eth0-TxRx-0", "eth0-TxRx-1", "bnxt_en"), both);
    let hns3 = ["hclge-misc-0000:7d:00.0", "hns3-0000:7d:00.0-TxRx-0", "hns3-0000:7d:00.0-TxRx-1"];
    assert_eq!(shown("hns3", "eth0", (2, 2), &hns3), both);
    assert_eq!(shown("e1000e", "eth0", (1, 1), &["eth0-rx-0", "eth0-tx-0", "eth0"]), "rx 30 tx 31");
    assert_eq!(
        shown("igb", "eth0", (2, 2), &["eth0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0"]),
        "rx 31 32 tx 33 -"
    );
}

#[test]
fn a_rename_does_not_matter_but_another_netdevs_name_does() {
    assert_eq!(shown("igb", "ens5", (2, 2), &["lan0-TxRx-0", "lan0-TxRx-1"]), "rx 30 31 tx 30 31");
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
    let netdev = of("vif");
    let device = Device {
        name: "eth0",
        driver: DriverName::of(&netdev),
        rx_queues: 2,
        tx_queues: 2,
        ..Device::default()
    };
    let irqs =
        irqs(&["eth0-q0-tx", "eth0-q0-rx", "eth0-q1-tx", "eth0-q1-rx", "eth1-q0-tx", "eth1-q0-rx"]);
    assert_eq!(show(&edges(&device, &irqs, false), (2, 2)), "rx 31 33 tx 30 32");
}

#[test]
fn vectors_with_one_name_are_counted_in_their_order() {
    let same = ["eth0"; 4];
    assert_eq!(shown("atlantic", "eth0", (2, 2), &same), "rx 30 31 tx 30 31");
    assert_eq!(shown("macb", "eth0", (2, 2), &same[..2]), "rx 30 31 tx 30 31");
    assert_eq!(shown("newnic", "eth0", (2, 2), &same), "rx - - tx - -");
    assert_eq!(shown("bcmgenet", "eth0", (1, 2), &same[..2]), "rx 30 tx - -");
    let netdev = of("bcmgenet");
    let device = Device {
        name: "eth0",
        driver: DriverName::of(&netdev),
        rx_queues: 1,
        tx_queues: 2,
        release: "6.15.0",
        ..Device::default()
    };
    assert_eq!(show(&edges(&device, &irqs(&same[..2]), false), (1, 2)), "rx 31 tx 31 31");
}

#[test]
fn a_platform_driver_names_its_interrupts_by_the_device() {
    let device = "1000.ethernet";
    assert_eq!(shown("mtk_soc_eth", "eth0", (1, 1), &[device]), "rx 30 tx 30");
    assert_eq!(shown("mtk_soc_eth", "eth0", (1, 1), &[device, device]), "rx 31 tx 30");
    assert_eq!(shown("cpsw", "eth0", (1, 1), &[device; 3]), "rx 30 tx 31");
    assert_eq!(shown("fec", "eth0", (1, 1), &[device, "other"]), "rx 30 tx 30");
    assert_eq!(shown("fec", "eth0", (1, 1), &[device; 3]), "rx - tx -", "all have arrived");
    let rings = [&format!("{device}:rxq0")[..], &format!("{device}:rxq3")];
    assert_eq!(shown("ess_edma", "eth0", (2, 1), &rings), "rx 30? 31? tx -");
}

#[test]
fn of_several_interrupts_with_the_devices_name_the_only_one_that_arrived_counts() {
    let names = vec!["1000.ethernet".to_owned()];
    let vector = |irq, arrived| Vector { irq: Irq(irq), actions: &names, arrived };
    let device = Device { device: "1000.ethernet", rx_queues: 1, ..Device::default() };
    let vectors = [vector(208, false), vector(209, false), vector(210, true)];
    let edges = super::edges(&device, &vectors, false);
    assert_eq!(edges.rx[&0].to, Irq(210));
    assert_eq!(edges.rx[&0].confidence, Confidence::Named);
}

#[test]
fn a_number_after_the_netdev_is_a_guess_for_any_driver() {
    let four = ["eth0-0", "eth0-1", "eth0-2", "eth0-3"];
    assert_eq!(shown("bnx2", "eth0", (2, 2), &four), "rx 30 31 tx 30 31");
    assert_eq!(shown("mlx5_core", "eth0", (2, 2), &four), "rx 30 31 tx 30 31");
    assert_eq!(shown("r8125", "eth0", (2, 2), &four), "rx 30? 31? tx 30? 31?");
    assert_eq!(shown("be2net", "eth0", (1, 1), &["eth0-q0"]), "rx 30 tx 30");
    assert_eq!(
        shown("gvnic", "ens4", (1, 1), &["eth%d-ntfy-block.0", "eth%d-ntfy-block.1"]),
        "rx 31 tx 30"
    );
    let mlx4 = ["mlx4-async@pci:0000:09:00.0", "mlx4-1@0000:09:00.0", "mlx4-2@0000:09:00.0"];
    assert_eq!(shown("mlx4_core", "eth0", (2, 2), &mlx4), "rx 31 32 tx 31 32");
}

#[test]
fn a_vector_that_serves_no_queue_proves_nothing() {
    let misc = [
        "i40e-0000:c3:00.1:misc",
        "ena-mgmnt@pci:0000:00:05.0",
        "mlx5_async0@pci:0000:08:00.0",
        "eth0-event-4",
        "virtio1-config",
        "iavf-0000:08:02.0:mbx",
        "i40e-eth0:fdir-TxRx-0",
        "mana_hwc@pci:0000:08:00.0",
        "eth0:wol",
        "eth0-err",
    ];
    for name in misc {
        for driver in ["i40e", "newnic"] {
            assert_eq!(shown(driver, "eth0", (2, 1), &[name]), "rx - - tx -", "{name}");
        }
    }
    // a port that is down has requested only the vector of its link
    let netdev = of("igb");
    let down =
        Device { name: "eth0", driver: DriverName::of(&netdev), rx_queues: 2, ..Device::default() };
    let vectors = irqs(&["eth0", ""])
        .into_iter()
        .map(|(irq, actions)| (irq, actions.into_iter().filter(|name| !name.is_empty()).collect()))
        .collect();
    assert_eq!(show(&edges(&down, &vectors, true), (2, 0)), "rx - - tx ");
    let up = Device { up: true, ..down };
    assert_eq!(show(&edges(&up, &vectors, true), (2, 0)), "rx 30 30 tx ");
}

#[test]
fn an_interrupt_with_the_drivers_name_is_known_if_there_is_one_netdev() {
    let names = vec!["mvneta".to_owned()];
    let netdev = |path: &str| Netdev {
        driver: Some("mvneta".into()),
        device_path: Some(path.into()),
        rx_queues: vec![Default::default()],
        ..Netdev::default()
    };
    let vectors = [26, 27].map(|irq| Vector { irq: Irq(irq), actions: &names, arrived: true });
    let edge = |netdev: &Netdev| {
        let irq = netdev.rx_queues[0].irq.as_ref()?;
        Some((irq.to.0, irq.confidence))
    };
    let mut both = [netdev("/b"), netdev("/a")];
    edges_from_driver_names(&mut both, &vectors);
    assert_eq!(
        both.each_ref().map(edge),
        [Some((27, Confidence::Guess)), Some((26, Confidence::Guess))]
    );
    let mut one = [netdev("/a")];
    edges_from_driver_names(&mut one, &vectors);
    assert_eq!(edge(&one[0]), None, "two interrupts for one netdev");
    edges_from_driver_names(&mut one, &vectors[..1]);
    assert_eq!(edge(&one[0]), Some((26, Confidence::Named)));
}

#[test]
fn a_vlan_like_name_keeps_its_dashes() {
    let matched = |pattern, action| {
        let found = matched(pattern, action, &Device::default())?;
        Some((found.number, found.dev))
    };
    assert_eq!(matched("{dev}-rx-{n}", "a-rx-b-rx-3"), Some((3, Some("a-rx-b"))));
    assert_eq!(matched("{dev}-rx-{n}", "eth0-rx-"), None);
    assert_eq!(matched("{dev}-rx-{n}", "eth0-rx-3x"), None);
}

proptest::proptest! {
    #[test]
    fn no_name_panics(name in "\\PC{0,24}", number in 0u64..1 << 40) {
        let (device, virtio) = ("1000.ethernet", Some("virtio1"));
        let device = Device { device, virtio, ..Device::default() };
        for pattern in PATTERNS.iter().chain(COMMON) {
            let _ = matched(pattern.name, &name, &device);
            let filled = pattern.name.replace("{dev}", &name)
                .replace("{any}", &name).replace("{n}", &number.to_string());
            let _ = matched(pattern.name, &filled, &device);
        }
    }
}
