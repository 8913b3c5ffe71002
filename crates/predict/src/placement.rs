//! Where each step of a packet runs.

use netsilo_model::machine::cpuset::CpuId;

/// Maximum number of packets of one poll (`NAPI_POLL_WEIGHT`).
pub(crate) const MOST_BATCH: f64 = 64.0;

/// Shares of 1, by CPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shares(Vec<(CpuId, f64)>);

impl Shares {
    /// All of one CPU.
    pub(crate) fn one(cpu: CpuId) -> Self {
        Self(vec![(cpu, 1.0)])
    }

    /// The CPUs with their shares, in order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (CpuId, f64)> + Clone {
        self.0.iter().copied()
    }

    /// The CPUs, in order.
    pub(crate) fn cpus(&self) -> impl ExactSizeIterator<Item = CpuId> {
        self.iter().map(|(cpu, _)| cpu)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn position(&self, cpu: CpuId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&cpu, |(known, _)| *known)
    }

    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        self.position(cpu).is_ok()
    }

    /// The share of a CPU; 0 of one that is not among these.
    pub(crate) fn of(&self, cpu: CpuId) -> f64 {
        self.position(cpu).map_or(0.0, |at| self.0[at].1)
    }

    /// Adds to the share of a CPU.
    pub(crate) fn add(&mut self, cpu: CpuId, share: f64) {
        match self.position(cpu) {
            Ok(at) => self.0[at].1 += share,
            Err(at) => self.0.insert(at, (cpu, share)),
        }
    }

    /// The same without those that are 0.
    pub(crate) fn without_empty(mut self) -> Self {
        self.0.retain(|(_, share)| *share > 0.0);
        self
    }

    /// These as shares of their sum; empty if that is 0.
    pub(crate) fn normalized(self) -> Self {
        let mut shares = self.without_empty();
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        shares.0.iter_mut().for_each(|(_, share)| *share /= all);
        shares
    }

    /// These shares, with this part replaced by other ones.
    pub(crate) fn blended(&self, other: &Self, part: f64) -> Self {
        let mut all = Self(self.iter().map(|(cpu, share)| (cpu, share * (1.0 - part))).collect());
        other.iter().for_each(|(cpu, share)| all.add(cpu, share * part));
        all.without_empty()
    }
}

/// From shares of different CPUs.
impl FromIterator<(CpuId, f64)> for Shares {
    fn from_iter<I: IntoIterator<Item = (CpuId, f64)>>(shares: I) -> Self {
        let mut all: Vec<(CpuId, f64)> = shares.into_iter().collect();
        all.sort_unstable_by_key(|(cpu, _)| *cpu);
        Self(all)
    }
}

/// Where the steps run, as shares of the packets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    /// By the CPU that polls.
    pub(crate) poll: Shares,
    /// By the CPU that runs the protocol; `None`: each packet stays where it is polled.
    pub(crate) protocol: Option<Shares>,
    /// Share of the data that RFS brings to its reader.
    pub(crate) steered: f64,
    /// Packets of one poll.
    pub(crate) batch: f64,
    /// Share of the polls that begin with an interrupt.
    pub(crate) begun: f64,
    /// Whether a kthread polls.
    pub(crate) is_threaded: bool,
}

impl Placement {
    /// Shares of the packets by the CPU that runs the protocol.
    pub(crate) fn protocol(&self) -> &Shares {
        self.protocol.as_ref().unwrap_or(&self.poll)
    }
}
