//! What a guest is to look like.

use crate::kernels::Kernel;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// A guest to boot; `Spec::default()` is 8 CPUs, Debian 12's kernel and a 4-queue virtio-net.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Which kernel.
    pub kernel: Kernel,
    /// Logical CPUs, even, 2 to 32: two sockets, each a NUMA node with one L3, two threads a core
    /// where that divides.
    pub cpus: u32,
    /// `eth0`, `eth1`, ... in the guest, each with a peer of its own.
    pub nics: Vec<Nic>,
    /// The guest's memory, half of it on each node.
    pub memory_mib: u32,
    /// How emulation runs the guest's CPUs.
    pub threads: Threads,
    /// More of the kernel's command line, for example `isolcpus=2,3`.
    pub kernel_args: Vec<String>,
    /// Folders under the host's /tmp or /run that the guest shall see in their place (read-only),
    /// besides the current folder and the one the running program was built in. All others it sees
    /// anyway.
    pub shares: Vec<PathBuf>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            kernel: Kernel::default(),
            cpus: 8,
            nics: vec![Nic::default()],
            memory_mib: 1024,
            threads: Threads::default(),
            kernel_args: Vec::new(),
            shares: Vec::new(),
        }
    }
}

impl Spec {
    /// A guest with this kernel and one NIC of this model, otherwise the default.
    pub fn new(kernel: Kernel, model: NicModel) -> Self {
        Self { kernel, nics: vec![Nic::from(model)], ..Self::default() }
    }

    /// Cores per socket and threads per core.
    pub(crate) fn cores_and_threads(&self) -> (u32, u32) {
        let per_socket = self.cpus / 2;
        if per_socket.is_multiple_of(2) { (per_socket / 2, 2) } else { (per_socket, 1) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.cpus.is_multiple_of(2) || !(2..=32).contains(&self.cpus) {
            bail!(
                "{} cpus: the lab has two sockets; ask for an even number from 2 to 32",
                self.cpus
            );
        }
        if self.nics.len() > 8 {
            bail!("{} nics: a guest has room for 8", self.nics.len());
        }
        for nic in &self.nics {
            if !(1..=32).contains(&nic.queues) {
                bail!("{} queues: virtio-net takes 1 to 32", nic.queues);
            }
            if nic.model == NicModel::VirtioRss && self.kernel != Kernel::V6_1 {
                bail!("kernel {}: virtio-net with RSS receives only with 6.1", self.kernel);
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
    /// What it is.
    pub model: NicModel,
    /// Pairs of queues, of virtio-net only: igb and vmxnet3 have 8, e1000e has 1.
    pub queues: u32,
    /// The NUMA node it is plugged into; `None` says no node, as many machines do.
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
    /// The same card on NUMA node `node`.
    pub fn on_node(self, node: u32) -> Self {
        Self { node: Some(node), ..self }
    }
}

/// Cards that QEMU can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum NicModel {
    /// Paravirtual; vectors for input and output apart; no RSS table.
    #[default]
    VirtioNet,
    /// The same with an RSS table and key that can be set, and hashes told; only with 6.1: later
    /// guests stop receiving.
    VirtioRss,
    /// Intel 82576: 8 `eth0-TxRx-N` vectors, RSS table and hash fields that work. Needs QEMU 8
    /// (fetched).
    Igb,
    /// VMware's: 8 `eth0-rxtx-N` vectors, RSS table without hash fields.
    Vmxnet3,
    /// Intel 82574: one queue.
    E1000e,
}

impl NicModel {
    /// The guest's driver, also QEMU's name of the device but for virtio.
    pub fn driver(self) -> &'static str {
        match self {
            Self::VirtioNet | Self::VirtioRss => "virtio_net",
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
            Self::E1000e => "e1000e",
        }
    }

    /// Paravirtual, of either kind.
    pub(crate) fn is_virtio(self) -> bool {
        matches!(self, Self::VirtioNet | Self::VirtioRss)
    }

    /// The oldest major version of QEMU that has it.
    pub(crate) fn least_qemu(self) -> u32 {
        if self == Self::Igb { 8 } else { 0 }
    }
}

/// How software emulation runs the guest's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Threads {
    /// One after the other: deterministic, faster, never stalls.
    #[default]
    Single,
    /// Side by side: shows parallel effects, noisily.
    Multi,
}
