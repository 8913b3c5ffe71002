//! The names that drivers give their interrupts, from their sources.
//!
//! `docs/drivers.md` shows this table.

use std::fmt::Write as _;

use crate::drivers::name::DriverName;
use crate::parse::scalar::version;

/// A driver's name for its interrupts.
///
/// `{dev}` is the netdev (any name), `{own}` its present name, `{device}` the last part of its
/// device's path, `{virtio}` the virtio device, `{n}` a number, `{any}` any text. Without `{n}`
/// several interrupts have the same name: then their order counts.
pub(super) struct Pattern {
    pub(super) drivers: &'static [&'static str],
    pub(super) name: &'static str,
    pub(super) serves: Serves,
    /// The function in the driver's source that registers the name.
    source: &'static str,
    /// The first kernel with it, and the first without it.
    kernels: (Option<&'static str>, Option<&'static str>),
}

/// The queues that an interrupt serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
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
    /// All queues of these sides, by the order of the interrupts.
    Sides(&'static [Side]),
}

/// The queues of a netdev that one interrupt serves together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Rx,
    Tx,
    All,
    /// No queue, or some that the name does not tell.
    Unknown,
}

impl Serves {
    fn label(self) -> &'static str {
        match self {
            Self::Rx => "rx queue n",
            Self::Tx => "tx queue n",
            Self::Both => "rx and tx queue n",
            Self::RxInOrder => "rx queues, in order",
            Self::TxInOrder => "tx queues, in order",
            Self::BothInOrder => "rx and tx queues, in order",
            Self::TxThenRx => "tx queues, then rx queues",
            Self::Sides([Side::All]) => "all queues (the first)",
            Self::Sides([Side::Unknown, Side::All]) => "all queues (the second)",
            Self::Sides([Side::Rx, Side::Tx]) => "all rx queues, then all tx queues",
            Self::Sides([Side::Tx, Side::Rx]) => "all tx queues, then all rx queues",
            Self::Sides([Side::Tx]) => "all tx queues",
            Self::Sides(_) => "all rx queues (the first)",
        }
    }
}

const ALL: Serves = Serves::Sides(&[Side::All]);

const fn pattern(
    drivers: &'static [&'static str],
    name: &'static str,
    serves: Serves,
    source: &'static str,
) -> Pattern {
    Pattern { drivers, name, serves, source, kernels: (None, None) }
}

impl Pattern {
    const fn until(self, kernel: &'static str) -> Self {
        Self { kernels: (None, Some(kernel)), ..self }
    }

    const fn since(self, kernel: &'static str) -> Self {
        Self { kernels: (Some(kernel), None), ..self }
    }

    /// Whether the driver of a kernel release registers it. A release that cannot be parsed is
    /// taken for a new one.
    pub(super) fn is_of(&self, driver: DriverName<'_>, release: &str) -> bool {
        let running = version(release).unwrap_or((u32::MAX, 0));
        let (since, until) = self.kernels;
        let parsed = |kernel: Option<&str>| kernel.and_then(version);
        driver.is_in(self.drivers)
            && parsed(since).is_none_or(|since| since <= running)
            && parsed(until).is_none_or(|until| running < until)
    }

    /// Whether the interrupts that it names are numbered.
    pub(super) fn has_number(&self) -> bool {
        self.name.contains("{n}")
    }
}

const INTEL: &[&str] = &["ixgbe", "ixgbevf", "igb", "igbvf", "igc", "fm10k", "fbnic"];
const INTEL_40G: &[&str] = &["i40e", "ice", "iavf", "idpf"];
const INTEL_SOURCE: &str = "igb_request_msix, ixgbe_request_msix_irqs";
const INTEL_40G_SOURCE: &str = "i40e_vsi_request_irq_msix, ice_vsi_req_irq_msix";

pub(super) const PATTERNS: &[Pattern] = &[
    pattern(&["virtio_net"], "{virtio}-input.{n}", Serves::Rx, "vp_request_msix_vectors"),
    pattern(&["virtio_net"], "{virtio}-output.{n}", Serves::Tx, "vp_request_msix_vectors"),
    // too few vectors
    pattern(&["virtio_net"], "{virtio}-virtqueues", ALL, "vp_request_msix_vectors"),
    // without MSI, and virtio-mmio
    pattern(&["virtio_net"], "{virtio}", ALL, "vp_find_vqs_intx, vm_find_vqs"),
    // the number is the vector number
    pattern(&["vmxnet3"], "{dev}-rxtx-{n}", Serves::BothInOrder, "vmxnet3_request_irqs"),
    pattern(&["vmxnet3"], "{dev}-rx-{n}", Serves::RxInOrder, "vmxnet3_request_irqs"),
    pattern(&["vmxnet3"], "{dev}-tx-{n}", Serves::TxInOrder, "vmxnet3_request_irqs"),
    // channel n polls completion vector n
    pattern(&["mlx5_core"], "mlx5_comp{n}@{any}", Serves::Both, "mlx5_irq_alloc"),
    pattern(&["mlx5_core"], "mlx5_comp{n}", Serves::Both, "mlx5_irq_alloc"),
    pattern(&["mlx5_core"], "{dev}-{n}", Serves::Both, "mlx5_rename_eq of MLNX_OFED"),
    // event queue 0 is the asynchronous one; with two ports a port takes any of them
    pattern(&["mlx4_en"], "mlx4-{n}@{any}", Serves::BothInOrder, "mlx4_assign_eq"),
    pattern(&["mlx4_en"], "{dev}-{n}", Serves::Both, "mlx4_rename_eq of MLNX_OFED"),
    pattern(&["ena"], "{dev}-Tx-Rx-{n}", Serves::Both, "ena_setup_io_intr"),
    pattern(&["gve"], "gve-ntfy-blk{n}@{any}", Serves::TxThenRx, "gve_alloc_notify_blocks"),
    pattern(&["gve"], "{dev}-ntfy-block.{n}", Serves::TxThenRx, "gve_alloc_notify_blocks"),
    pattern(&["mana"], "mana_q{n}@{any}", Serves::Both, "mana_gd_setup_irqs"),
    pattern(INTEL_40G, "{any}-TxRx-{n}", Serves::Both, INTEL_40G_SOURCE),
    pattern(INTEL_40G, "{any}-rx-{n}", Serves::Rx, INTEL_40G_SOURCE),
    pattern(INTEL_40G, "{any}-tx-{n}", Serves::Tx, INTEL_40G_SOURCE),
    pattern(INTEL, "{dev}-TxRx-{n}", Serves::Both, INTEL_SOURCE),
    pattern(INTEL, "{dev}-rx-{n}", Serves::Rx, INTEL_SOURCE),
    pattern(INTEL, "{dev}-tx-{n}", Serves::Tx, INTEL_SOURCE),
    // with separate rings the numbers continue from rx to tx
    pattern(&["bnxt_en"], "{dev}-TxRx-{n}", Serves::BothInOrder, "bnxt_setup_msix"),
    pattern(&["bnxt_en"], "{dev}-rx-{n}", Serves::RxInOrder, "bnxt_setup_msix"),
    pattern(&["bnxt_en"], "{dev}-tx-{n}", Serves::TxInOrder, "bnxt_setup_msix"),
    // the name contains the address of the PCI function
    pattern(&["hns3"], "{any}-TxRx-{n}", Serves::Both, "hns3_nic_init_irq"),
    pattern(&["hns3"], "{any}-Rx-{n}", Serves::Rx, "hns3_nic_init_irq"),
    pattern(&["hns3"], "{any}-Tx-{n}", Serves::Tx, "hns3_nic_init_irq"),
    pattern(&["e1000e"], "{dev}-rx-{n}", Serves::Rx, "e1000_request_msix"),
    pattern(&["e1000e"], "{dev}-tx-{n}", Serves::Tx, "e1000_request_msix"),
    pattern(&["bnx2"], "{dev}-{n}", Serves::Both, "bnx2_setup_int_mode"),
    pattern(&["tg3"], "{dev}-txrx-{n}", Serves::BothInOrder, "tg3_request_irq"),
    pattern(&["tg3"], "{dev}-rx-{n}", Serves::RxInOrder, "tg3_request_irq"),
    pattern(&["tg3"], "{dev}-tx-{n}", Serves::TxInOrder, "tg3_request_irq"),
    pattern(
        &["bnx2x", "qede"],
        "{dev}-fp-{n}",
        Serves::Both,
        "bnx2x_req_msix_irqs, qede_req_msix_irqs",
    ),
    // a tx queue shares the interrupt of its rx queue unless they were split
    pattern(&["ionic"], "ionic-{dev}-L{any}-tx{n}", Serves::Tx, "ionic_request_irq"),
    pattern(&["ionic"], "ionic-{dev}-L{any}-rx{n}", Serves::Both, "ionic_request_irq"),
    pattern(&["be2net"], "{dev}-q{n}", Serves::Both, "be_msix_register"),
    pattern(&["octeon_ep"], "{dev}-q{n}", Serves::Both, "octep_request_irqs"),
    pattern(
        &["nfp", "nicvf", "rvu_nicpf", "rvu_nicvf"],
        "{dev}-rxtx-{n}",
        Serves::Both,
        "nfp_net_prepare_vector, nicvf_register_interrupts, otx2_open",
    ),
    // the numbers are channel numbers
    pattern(&["sfc"], "{dev}-rx-{n}", Serves::RxInOrder, "efx_get_channel_name"),
    pattern(&["sfc"], "{dev}-tx-{n}", Serves::TxInOrder, "efx_get_channel_name"),
    pattern(&["sfc"], "{dev}-{n}", Serves::BothInOrder, "efx_get_channel_name"),
    pattern(&["cxgb4"], "{dev}-Rx{n}", Serves::Rx, "name_msix_vecs"),
    pattern(&["enic"], "{dev}-rx-{n}", Serves::Rx, "enic_request_intr"),
    pattern(&["enic"], "{dev}-tx-{n}", Serves::Tx, "enic_request_intr"),
    pattern(&["xen-netfront"], "{dev}-q{n}-rx", Serves::Rx, "setup_netfront_split"),
    pattern(&["xen-netfront"], "{dev}-q{n}-tx", Serves::Tx, "setup_netfront_split"),
    pattern(&["xen-netfront"], "{dev}-q{n}", Serves::Both, "setup_netfront_single"),
    // the ring vectors come first, then those of the link and of PTP
    pattern(&["atlantic"], "{dev}", Serves::BothInOrder, "aq_nic_start, aq_pci_func_alloc_irq"),
    // the first also serves tx queue 0, the second the other tx queues
    pattern(&["bcmgenet"], "{dev}", Serves::Sides(&[Side::Rx]), "bcmgenet_open").until("6.15"),
    pattern(
        &["bcmgenet"],
        "{dev}",
        Serves::Sides(&[Side::Unknown, Side::All]),
        "bcmgenet_open, bcmgenet_isr1",
    )
    .since("6.15"),
    pattern(&["macb"], "{dev}", Serves::BothInOrder, "macb_init"),
    // a vector for each thread polls its rx queue
    pattern(&["mvpp2"], "{dev}", Serves::RxInOrder, "mvpp2_irqs_init"),
    pattern(&["stmmac"], "{dev}:rx-{n}", Serves::Rx, "stmmac_request_irq_multi_msi"),
    pattern(&["stmmac"], "{dev}:tx-{n}", Serves::Tx, "stmmac_request_irq_multi_msi"),
    pattern(&["stmmac"], "{dev}", ALL, "stmmac_request_irq_single"),
    pattern(
        &["mtk_soc_eth"],
        "{device}",
        Serves::Sides(&[Side::Tx, Side::Rx]),
        "mtk_probe, with separate interrupts",
    ),
    pattern(&["mtk_soc_eth"], "{device} RX {n}", Serves::Rx, "mtk_probe of MediaTek's SDK"),
    pattern(
        &["mtk_soc_eth"],
        "{device} RX",
        Serves::Sides(&[Side::Rx]),
        "mtk_probe of MediaTek's SDK",
    ),
    pattern(
        &["mtk_soc_eth"],
        "{device} TX",
        Serves::Sides(&[Side::Tx]),
        "mtk_probe of MediaTek's SDK",
    ),
    pattern(&["cpsw"], "{device}", Serves::Sides(&[Side::Rx, Side::Tx]), "cpsw_probe"),
    pattern(&["am65-cpsw-nuss"], "{device}-rx{n}", Serves::Rx, "am65_cpsw_nuss_init_rx_chns"),
    pattern(&["am65-cpsw-nuss"], "{device}-tx{n}", Serves::Tx, "am65_cpsw_nuss_ndev_add_tx_napi"),
];

/// Patterns of many drivers, used as a guess for unknown drivers.
pub(super) const COMMON: &[Pattern] = &[
    pattern(&[], "{dev}-TxRx-{n}", Serves::Both, ""),
    pattern(&[], "{dev}-Tx-Rx-{n}", Serves::Both, ""),
    pattern(&[], "{dev}-rxtx-{n}", Serves::BothInOrder, ""),
    pattern(&[], "{dev}-txrx-{n}", Serves::BothInOrder, ""),
    pattern(&[], "{dev}-fp-{n}", Serves::Both, ""),
    pattern(&[], "{dev}-rx-{n}", Serves::RxInOrder, ""),
    pattern(&[], "{dev}-tx-{n}", Serves::TxInOrder, ""),
    pattern(&[], "{dev}:rx-{n}", Serves::RxInOrder, ""),
    pattern(&[], "{dev}:tx-{n}", Serves::TxInOrder, ""),
    pattern(&[], "{own}-q{n}", Serves::Both, ""),
    pattern(&[], "{own}-{n}", Serves::BothInOrder, ""),
    pattern(&[], "{device}:rxq{n}", Serves::RxInOrder, ""),
    pattern(&[], "{device}:txq{n}", Serves::TxInOrder, ""),
    pattern(&[], "{device}-rx{n}", Serves::RxInOrder, ""),
    pattern(&[], "{device}-tx{n}", Serves::TxInOrder, ""),
];

/// The table of names, as markdown.
pub(crate) fn as_markdown() -> String {
    let mut text =
        "| driver | interrupt | serves | kernel | source |\n|---|---|---|---|---|\n".to_owned();
    for pattern in PATTERNS {
        let kernel = match pattern.kernels {
            (Some(since), _) => format!("from {since}"),
            (_, Some(until)) => format!("before {until}"),
            (None, None) => "any".to_owned(),
        };
        let (drivers, serves) = (pattern.drivers.join(", "), pattern.serves.label());
        let _ = writeln!(
            text,
            "| {drivers} | `{}` | {serves} | {kernel} | `{}` |",
            pattern.name, pattern.source
        );
    }
    text
}
