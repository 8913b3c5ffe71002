//! The description of a guest.

use crate::arch::Arch;
use crate::kernels::Kernel;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// A guest to boot. `Spec::default()` has 8 CPUs, Debian 12's kernel and a 4-queue virtio-net.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Kernel to boot.
    pub kernel: Kernel,
    /// Architecture of the guest.
    pub arch: Arch,
    /// Whether the DMA of PCI devices goes through an emulated IOMMU of Intel's.
    pub iommu: bool,
    /// Logical CPUs, an even number from 2 to 32: two sockets, each a NUMA node with one L3. If the
    /// number per socket is even, each core has two threads (amd64), or two cores are a cluster
    /// (arm64).
    pub cpus: u32,
    /// `eth0`, `eth1`, ... in the guest, each with its own peer.
    pub nics: Vec<Nic>,
    /// Memory in MiB, half on each node.
    pub memory_mib: u32,
    /// How emulation runs the guest's CPUs.
    pub threads: Threads,
    /// The guest's first process.
    pub init: Init,
    /// A disk with the guest's /etc and /var, which survive its reboot: a file, made with a copy of
    /// the host's /etc and an empty /var if it is not there. Without it both are the host's,
    /// read-only.
    pub disk: Option<PathBuf>,
    /// Whether it has an NVMe disk with nothing on it, `/dev/nvme0n1` (`modprobe nvme`): the kernel
    /// manages the interrupts of its queues.
    pub nvme: bool,
    /// Additions to the kernel's command line, for example `isolcpus=2,3`.
    pub kernel_args: Vec<String>,
    /// Folders under the host's /tmp or /run that the guest sees at the same path, read-only, in
    /// addition to the current folder and the running program's build folder. Folders elsewhere are
    /// visible anyway.
    pub shares: Vec<PathBuf>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            kernel: Kernel::default(),
            arch: Arch::default(),
            iommu: false,
            cpus: 8,
            nics: vec![Nic::default()],
            memory_mib: 1024,
            threads: Threads::default(),
            init: Init::default(),
            disk: None,
            nvme: false,
            kernel_args: Vec::new(),
            shares: Vec::new(),
        }
    }
}

impl Spec {
    /// Returns the default guest with this kernel and one NIC of this model.
    pub fn new(kernel: Kernel, model: NicModel) -> Self {
        Self { kernel, nics: vec![Nic::from(model)], ..Self::default() }
    }

    /// Returns the oldest major version of QEMU that runs this guest.
    ///
    /// With parallel CPUs, QEMU 7.2 may run an outdated version of code that another CPU has
    /// changed. A CPU then hits the same breakpoint of `text_poke` forever, and the guest hangs.
    /// For arm64, the lab uses QEMU 10.
    pub(crate) fn min_qemu_major(&self) -> u32 {
        let is_new = self.threads == Threads::Multi || self.arch == Arch::Arm64;
        let least = if is_new { 10 } else { 0 };
        self.nics.iter().map(|nic| nic.model.min_qemu_major()).fold(least, u32::max)
    }

    /// Returns cores per socket and threads per core.
    pub(crate) fn cores_and_threads(&self) -> (u32, u32) {
        let per_socket = self.cpus / 2;
        if per_socket.is_multiple_of(2) { (per_socket / 2, 2) } else { (per_socket, 1) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.arch == Arch::Arm64 {
            if self.iommu {
                bail!("arm64: the lab has no IOMMU for it");
            }
            if self.init == Init::Systemd || self.disk.is_some() || !self.shares.is_empty() {
                bail!(
                    "arm64: the guest does not have the host's root, so no systemd, disk and shares"
                );
            }
            if self.nics.iter().any(|nic| nic.node.is_some()) {
                bail!("arm64: QEMU describes no node of a NIC to a guest without ACPI");
            }
        }
        if !self.cpus.is_multiple_of(2) || !(2..=32).contains(&self.cpus) {
            bail!(
                "{} cpus: the lab has two sockets; choose an even number from 2 to 32",
                self.cpus
            );
        }
        if self.nics.len() > 8 {
            bail!("{} nics: a guest has at most 8", self.nics.len());
        }
        for nic in &self.nics {
            if !(1..=32).contains(&nic.queues) {
                bail!("{} queues: virtio-net has 1 to 32", nic.queues);
            }
            if nic.model == NicModel::VirtioRss && self.kernel != Kernel::V6_1 {
                bail!("kernel {}: virtio-net with RSS receives packets only with 6.1", self.kernel);
            }
            if nic.node.is_some_and(|node| node > 1) {
                bail!("node {:?}: the lab has nodes 0 and 1", nic.node.unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// One network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nic {
    /// Model of the card.
    pub model: NicModel,
    /// Queue pairs, for virtio-net only: igb and vmxnet3 have 8, e1000e has 1.
    pub queues: u32,
    /// NUMA node of its slot; `None` for a slot that reports no node, as on many machines.
    pub node: Option<u32>,
}

impl Default for Nic {
    fn default() -> Self {
        Self::from(NicModel::default())
    }
}

impl From<NicModel> for Nic {
    fn from(model: NicModel) -> Self {
        Self { model, queues: 4, node: None }
    }
}

impl Nic {
    /// Returns the same card on NUMA node `node`.
    pub fn on_node(self, node: u32) -> Self {
        Self { node: Some(node), ..self }
    }
}

/// Network card models that QEMU emulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum NicModel {
    /// Paravirtual, separate vectors for input and output, no RSS table
    #[default]
    VirtioNet,
    /// virtio-net with a settable RSS table and key, and reported hashes; only with kernel 6.1,
    /// because later guests stop receiving
    VirtioRss,
    /// Intel 82576: 8 `eth0-TxRx-N` vectors, working RSS table and hash fields; needs QEMU 8, which
    /// is fetched
    Igb,
    /// VMware: 8 `eth0-rxtx-N` vectors, RSS table without hash fields
    Vmxnet3,
    /// Intel 82574: one queue
    E1000e,
}

impl NicModel {
    /// Returns the name of the guest's driver. Except for virtio, this is also QEMU's device name.
    pub fn driver(self) -> &'static str {
        match self {
            Self::VirtioNet | Self::VirtioRss => "virtio_net",
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
            Self::E1000e => "e1000e",
        }
    }

    /// Whether the card is one of the two virtio models.
    pub(crate) fn is_virtio(self) -> bool {
        matches!(self, Self::VirtioNet | Self::VirtioRss)
    }

    /// Returns the oldest major version of QEMU that has the model.
    pub(crate) fn min_qemu_major(self) -> u32 {
        if self == Self::Igb { 8 } else { 0 }
    }
}

/// The first process of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Init {
    /// A shell that starts the lab's agent
    #[default]
    Lab,
    /// The host's systemd, with the agent and systemd-journald as its only services
    Systemd,
}

/// How software emulation runs the guest's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Threads {
    /// One after another: deterministic, faster, never stalls
    #[default]
    Single,
    /// In parallel: shows effects of parallelism, with noise
    Multi,
}
