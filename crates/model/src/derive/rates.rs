//! Rates between two snapshots: events per second and shares of time.
//!
//! Absent is absent, never 0: a CPU, interrupt or netdev missing from one snapshot, or with a
//! counter that was reset, has no rate.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::Irq;
use crate::snapshot::host::{CpuCounters, CpuStat, Ipi, IrqState, Snapshot, Softnet};
use crate::snapshot::netdev::Netdev;

/// Upper limit of a CPU counter's growth per second; a decrease that implies more is a reset, not a
/// wrap-around.
const FASTEST_PER_S: f64 = 1e8;

/// Share of an interrupt from which a CPU is the one where it arrives.
const NEARLY_ALL: f64 = 0.9;

/// Least number of interrupts that show where one arrives. On x86, the first one after a change of
/// affinity still arrives on the old CPU.
const ENOUGH: f64 = 20.0;

/// Share of an interrupt below which some arrived on a CPU by chance.
const STRAY: f64 = 0.01;

/// Rates between two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rates {
    /// Time between the snapshots; zero, and then no rates, when they are of different boots or out
    /// of order.
    pub elapsed: Duration,
    /// CPUs online in both snapshots.
    pub cpus: BTreeMap<CpuId, CpuRates>,
    /// Interrupts with the same actions in both snapshots.
    pub irqs: BTreeMap<Irq, IrqRates>,
    /// Counters of `/sys/class/net/<dev>/statistics` per second, by interface name; a counter that
    /// was reset is left out.
    pub netdevs: BTreeMap<String, BTreeMap<String, f64>>,
    /// Protocol counters per second, with the names of `nstat`; a counter that was reset is left
    /// out.
    #[serde(default)]
    pub protocols: BTreeMap<String, f64>,
}

impl Rates {
    /// The CPU of an interrupt: the only one that is requested or, of several, effective. Where the
    /// kernel does not say (before 4.13), or the interrupt ignores it, the one on which nearly all
    /// of it arrived.
    pub fn cpu_of_irq(&self, settings: &Snapshot, irq: Irq) -> Option<CpuId> {
        let (state, rates) = (settings.irqs.get(&irq)?, self.irqs.get(&irq));
        let settings = [&state.requested, &state.effective].into_iter().flatten();
        let set = settings.filter(|_| !rates.is_some_and(|rates| rates.ignores_affinity));
        let mut single = set.filter_map(CpuSet::single);
        single.next().or_else(|| rates?.mostly_on())
    }
}

/// Rates of one CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuRates {
    /// Shares of the clock ticks; `None` without ticks or when a counter was reset.
    pub shares: Option<Shares>,
    /// NET_RX softirqs raised per second.
    pub net_rx_per_s: Option<f64>,
    /// NET_TX softirqs raised per second.
    pub net_tx_per_s: Option<f64>,
    /// Function-call IPIs per second (`CAL`), including scheduler wakeups.
    pub cal_per_s: Option<f64>,
    /// `/proc/net/softnet_stat` per second.
    pub softnet: Option<SoftnetRates>,
}

/// Shares of one CPU's clock ticks, each 0..=1, sum 1.
///
/// Sampled at ticks: under load irq and softirq are underestimated unless the kernel has
/// IRQ_TIME_ACCOUNTING.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "names of mpstat")]
pub struct Shares {
    pub usr: f64,
    pub nice: f64,
    pub sys: f64,
    pub irq: f64,
    pub softirq: f64,
    pub idle: f64,
    pub iowait: f64,
    pub steal: f64,
}

impl Shares {
    /// The share of time in use: neither idle, nor in iowait, nor stolen by the hypervisor.
    pub fn busy(&self) -> f64 {
        self.usr + self.nice + self.sys + self.irq + self.softirq
    }
}

/// `/proc/net/softnet_stat` of one CPU, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "names of the kernel")]
pub struct SoftnetRates {
    pub processed_per_s: Option<f64>,
    pub dropped_per_s: Option<f64>,
    pub time_squeeze_per_s: Option<f64>,
    pub received_rps_per_s: Option<f64>,
    #[serde(default)]
    pub flow_limit_per_s: Option<f64>,
}

/// Rates of one interrupt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IrqRates {
    /// Interrupts per second by CPU; leaves out CPUs that took none or were offline in one
    /// snapshot.
    pub per_s: BTreeMap<CpuId, f64>,
    /// Sum over these CPUs.
    pub total_per_s: f64,
    /// It was requested on the same CPUs in both snapshots, and arrived only on others: its
    /// controller accepts an affinity and ignores it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignores_affinity: bool,
}

impl IrqRates {
    /// The CPU on which nearly all of these interrupts arrived: those before a move, and stray
    /// ones, may have arrived elsewhere.
    pub fn mostly_on(&self) -> Option<CpuId> {
        let least = (NEARLY_ALL * self.total_per_s).max(f64::MIN_POSITIVE);
        self.per_s.iter().find(|(_, rate)| **rate >= least).map(|(cpu, _)| *cpu)
    }
}

/// Computes the rates between two snapshots of one host.
pub fn rates(before: &Snapshot, after: &Snapshot) -> Rates {
    if !after.follows(before) {
        return Rates::default();
    }
    let elapsed = after.at.saturating_sub(before.at);
    Rates {
        elapsed,
        cpus: cpus(before, after, elapsed),
        irqs: irqs(before, after, elapsed),
        netdevs: netdevs(before, after, elapsed),
        protocols: protocols(before, after, elapsed),
    }
}

fn cpus(before: &Snapshot, after: &Snapshot, elapsed: Duration) -> BTreeMap<CpuId, CpuRates> {
    let calls = [before, after].map(|snapshot| snapshot.ipis(Ipi::FunctionCall));
    let cal = |cpu: CpuId| {
        let [old, new] =
            calls.each_ref().map(|row| row.as_ref().map(|row| row.get(&cpu).copied().unwrap_or(0)));
        per_s(growth(old?, new?, elapsed)?, elapsed)
    };
    let pairs = after.cpus.iter().filter_map(|(cpu, new)| Some((*cpu, before.cpus.get(cpu)?, new)));
    pairs
        .map(|(cpu, old, new)| {
            (cpu, CpuRates { cal_per_s: cal(cpu), ..cpu_rates(old, new, elapsed) })
        })
        .collect()
}

fn cpu_rates(old: &CpuCounters, new: &CpuCounters, elapsed: Duration) -> CpuRates {
    let softirq = |vector: &str| {
        per_s(growth(old.softirqs.get(vector)?, new.softirqs.get(vector)?, elapsed)?, elapsed)
    };
    CpuRates {
        shares: shares(&old.stat, &new.stat),
        net_rx_per_s: softirq("NET_RX"),
        net_tx_per_s: softirq("NET_TX"),
        cal_per_s: None,
        softnet: old
            .softnet
            .as_ref()
            .zip(new.softnet.as_ref())
            .map(|(old, new)| softnet(old, new, elapsed)),
    }
}

/// The shares between two readings; `None` when a counter was reset.
///
/// `idle` and `iowait` may decrease slightly without a reset
/// (`kernel/time/tick-sched.c:get_cpu_idle_time_us`): such a decrease counts as 0. Any other
/// decrease is a reset.
fn shares(old: &CpuStat, new: &CpuStat) -> Option<Shares> {
    let usr = new.user.checked_sub(old.user)?;
    let nice = new.nice.checked_sub(old.nice)?;
    let sys = new.system.checked_sub(old.system)?;
    let irq = new.irq.checked_sub(old.irq)?;
    let softirq = new.softirq.checked_sub(old.softirq)?;
    let idle = new.idle.saturating_sub(old.idle);
    let iowait = new.iowait.saturating_sub(old.iowait);
    let steal = new.steal.checked_sub(old.steal)?;
    let total = [nice, sys, irq, softirq, idle, iowait, steal]
        .into_iter()
        .try_fold(usr, u64::checked_add)?;
    let share = |ticks: u64| ticks as f64 / total as f64;
    (total > 0).then(|| Shares {
        usr: share(usr),
        nice: share(nice),
        sys: share(sys),
        irq: share(irq),
        softirq: share(softirq),
        idle: share(idle),
        iowait: share(iowait),
        steal: share(steal),
    })
}

fn softnet(old: &Softnet, new: &Softnet, elapsed: Duration) -> SoftnetRates {
    let rate = |old: u32, new: u32| per_s(growth(old.into(), new.into(), elapsed)?, elapsed);
    SoftnetRates {
        processed_per_s: old.processed.zip(new.processed).and_then(|(old, new)| rate(old, new)),
        dropped_per_s: rate(old.dropped, new.dropped),
        time_squeeze_per_s: rate(old.time_squeeze, new.time_squeeze),
        received_rps_per_s: rate(old.received_rps, new.received_rps),
        flow_limit_per_s: rate(old.flow_limit_count, new.flow_limit_count),
    }
}

fn irqs(before: &Snapshot, after: &Snapshot, elapsed: Duration) -> BTreeMap<Irq, IrqRates> {
    let stayed = before.topology.online.and(&after.topology.online);
    let pairs = after.irqs.iter().filter_map(|(irq, new)| Some((*irq, before.irqs.get(irq)?, new)));
    let same = pairs.filter(|(_, old, new)| old.actions == new.actions);
    same.filter_map(|(irq, old, new)| {
        let rates = irq_rates(old, new, |cpu| stayed.contains(cpu), elapsed)?;
        let ignores_affinity = ignores_affinity(old, new, &rates, &stayed, elapsed);
        Some((irq, IrqRates { ignores_affinity, ..rates }))
    })
    .collect()
}

/// Whether an interrupt arrived nowhere that was requested of it all the time.
fn ignores_affinity(
    old: &IrqState,
    new: &IrqState,
    rates: &IrqRates,
    online: &CpuSet,
    elapsed: Duration,
) -> bool {
    let Some(requested) = new.requested.as_ref().filter(|_| old.requested == new.requested) else {
        return false;
    };
    let there: f64 =
        rates.per_s.iter().filter(|(cpu, _)| requested.contains(**cpu)).map(|it| it.1).sum();
    // Where the kernel shows another effective CPU, somebody else moved it, or vectors ran out.
    let is_accepted = new.effective.as_ref().is_none_or(|cpus| cpus.intersects(requested));
    is_accepted
        && requested.intersects(online)
        && rates.total_per_s * elapsed.as_secs_f64() >= ENOUGH
        && there < STRAY * rates.total_per_s
}

/// The rates of one interrupt; `None` when a count was reset: another interrupt then has the same
/// number and name.
fn irq_rates(
    old: &IrqState,
    new: &IrqState,
    stayed: impl Fn(CpuId) -> bool,
    elapsed: Duration,
) -> Option<IrqRates> {
    let grew = both(&old.counts, &new.counts).filter(|(cpu, old, new)| old != new && stayed(*cpu));
    let rate = |(cpu, old, new)| Some((cpu, per_s(growth(old, new, elapsed)?, elapsed)?));
    let per_s: BTreeMap<CpuId, f64> = grew.map(rate).collect::<Option<_>>()?;
    Some(IrqRates { total_per_s: per_s.values().sum(), per_s, ignores_affinity: false })
}

/// The counts of each CPU in both maps, in one pass; a missing count is 0.
fn both<'a>(
    old: &'a BTreeMap<CpuId, u64>,
    new: &'a BTreeMap<CpuId, u64>,
) -> impl Iterator<Item = (CpuId, u64, u64)> + 'a {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        let cpu = [old.peek(), new.peek()].into_iter().flatten().map(|(cpu, _)| **cpu).min()?;
        let old = old.next_if(|(at, _)| **at == cpu).map_or(0, |(_, count)| *count);
        let new = new.next_if(|(at, _)| **at == cpu).map_or(0, |(_, count)| *count);
        Some((cpu, old, new))
    })
}

fn netdevs(
    before: &Snapshot,
    after: &Snapshot,
    elapsed: Duration,
) -> BTreeMap<String, BTreeMap<String, f64>> {
    let pairs = after.netdevs.iter().filter_map(|new| Some((before.netdevs.same(new)?, new)));
    pairs.map(|(old, new)| (new.name.clone(), statistics(old, new, elapsed))).collect()
}

fn statistics(old: &Netdev, new: &Netdev, elapsed: Duration) -> BTreeMap<String, f64> {
    let rate = |(name, new): (&String, &u64)| {
        let delta = new.checked_sub(*old.statistics.get(name)?)?;
        Some((name.clone(), per_s(delta, elapsed)?))
    };
    new.statistics.iter().filter_map(rate).collect()
}

/// Protocol rates; empty when the network namespaces differ.
fn protocols(before: &Snapshot, after: &Snapshot, elapsed: Duration) -> BTreeMap<String, f64> {
    let same = before.machine.netns == after.machine.netns;
    let rate = |(name, new): (&String, &u64)| {
        let delta = growth(*before.protocols.get(name)?, *new, elapsed)?;
        Some((name.clone(), per_s(delta, elapsed)?))
    };
    after.protocols.iter().filter(|_| same).filter_map(rate).collect()
}

/// The growth of a kernel counter; `None` when it was reset.
///
/// Interrupt, softirq and softnet counters are `unsigned int` in the kernel (`struct irqstat`,
/// `struct kernel_stat`, `struct softnet_data`). Protocol counters are `unsigned long`, which has
/// 32 bits on some machines. A decrease from below 2^32 is a wrap-around if the counter can have
/// grown that far.
pub fn growth(old: u64, new: u64, elapsed: Duration) -> Option<u64> {
    const WRAP: u64 = 1 << 32;
    if new >= old {
        return Some(new - old);
    }
    let delta = WRAP.checked_sub(old)?.checked_add(new)?;
    (delta as f64 <= FASTEST_PER_S * elapsed.as_secs_f64()).then_some(delta)
}

fn per_s(delta: u64, elapsed: Duration) -> Option<f64> {
    let seconds = elapsed.as_secs_f64();
    (seconds > 0.0).then(|| delta as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64, cpus: &[u32]) -> Snapshot {
        let mut snapshot = Snapshot { at: Duration::from_secs(seconds), ..Snapshot::default() };
        for &cpu in cpus {
            snapshot.cpus.insert(CpuId(cpu), CpuCounters::default());
            Arc::make_mut(&mut snapshot.topology).online.insert(CpuId(cpu));
        }
        snapshot
    }

    fn with_irq(mut snapshot: Snapshot, action: &str, counts: &[(u32, u64)]) -> Snapshot {
        let counts = counts.iter().map(|(cpu, count)| (CpuId(*cpu), *count)).collect();
        let state = IrqState { actions: vec![action.into()], counts, ..IrqState::default() };
        snapshot.irqs.insert(Irq(7), state);
        snapshot
    }

    fn cpu_ticks(snapshot: &mut Snapshot, cpu: u32, stat: CpuStat) {
        snapshot.cpus.get_mut(&CpuId(cpu)).unwrap().stat = stat;
    }

    #[test]
    fn a_softnet_counter_that_wraps_at_2_to_the_32_keeps_its_rate() {
        let (mut before, mut after) = (at(0, &[0]), at(2, &[0]));
        let softnet =
            |processed| Some(Softnet { processed: Some(processed), ..Softnet::default() });
        before.cpus.get_mut(&CpuId(0)).unwrap().softnet = softnet(u32::MAX - 99);
        after.cpus.get_mut(&CpuId(0)).unwrap().softnet = softnet(100);
        let rates = rates(&before, &after);
        assert_eq!(rates.cpus[&CpuId(0)].softnet.unwrap().processed_per_s, Some(100.0));
    }

    #[test]
    fn an_interrupt_counter_that_was_reset_has_no_rate() {
        let before = with_irq(at(0, &[0]), "eth0-rx-0", &[(0, 5_000)]);
        let after = with_irq(at(1, &[0]), "eth0-rx-0", &[(0, 3)]);
        assert!(rates(&before, &after).irqs.is_empty());
    }

    #[test]
    fn an_interrupt_number_with_new_actions_has_no_rate() {
        let before = with_irq(at(0, &[0]), "nvme0q1", &[(0, 1)]);
        let after = with_irq(at(1, &[0]), "eth0-rx-0", &[(0, 3)]);
        assert!(rates(&before, &after).irqs.is_empty());
    }

    #[test]
    fn a_cpu_that_came_or_went_is_absent_not_zero() {
        let before = with_irq(at(0, &[0, 1]), "eth0-rx-0", &[(0, 10), (1, 10)]);
        let after = with_irq(at(1, &[0, 2]), "eth0-rx-0", &[(0, 15), (2, 900)]);
        let rates = rates(&before, &after);
        assert_eq!(rates.cpus.keys().copied().collect::<CpuSet>(), CpuSet::from_cpu(CpuId(0)));
        assert_eq!(rates.irqs[&Irq(7)].per_s, [(CpuId(0), 5.0)].into());
        assert_eq!(rates.irqs[&Irq(7)].total_per_s, 5.0);
    }

    #[test]
    fn a_small_decrease_of_idle_keeps_the_shares() {
        let (mut before, mut after) = (at(0, &[0]), at(1, &[0]));
        cpu_ticks(&mut before, 0, CpuStat { idle: 1000, user: 10, ..CpuStat::default() });
        cpu_ticks(&mut after, 0, CpuStat { idle: 998, user: 110, ..CpuStat::default() });
        assert_eq!(rates(&before, &after).cpus[&CpuId(0)].shares.unwrap().usr, 1.0);
    }

    #[test]
    fn a_netdev_that_was_replaced_under_its_name_has_no_rate() {
        let dev = |ifindex, rx: u64| Netdev {
            name: "eth0".into(),
            ifindex,
            statistics: [("rx_packets".to_owned(), rx)].into(),
            ..Netdev::default()
        };
        let (mut before, mut after) = (at(0, &[0]), at(2, &[0]));
        before.netdevs = vec![dev(2, 10)].into();
        after.netdevs = vec![dev(2, 30)].into();
        assert_eq!(rates(&before, &after).netdevs["eth0"]["rx_packets"], 10.0);
        after.netdevs = vec![dev(9, 30)].into();
        assert!(rates(&before, &after).netdevs.is_empty());
    }

    #[test]
    fn protocol_counters_wrap_at_32_bits_and_need_the_same_namespace() {
        let (mut before, mut after) = (at(0, &[0]), at(2, &[0]));
        before.protocols =
            [("UdpRcvbufErrors".to_owned(), (1 << 32) - 5), ("TcpInSegs".to_owned(), 1 << 40)]
                .into();
        after.protocols = [("UdpRcvbufErrors".to_owned(), 5), ("TcpInSegs".to_owned(), 7)].into();
        assert_eq!(rates(&before, &after).protocols, [("UdpRcvbufErrors".to_owned(), 5.0)].into());
        after.machine.netns = 9;
        assert!(rates(&before, &after).protocols.is_empty());
    }

    #[test]
    fn snapshots_of_two_boots_have_no_rates() {
        let (mut before, after) = (at(0, &[0]), at(1, &[0]));
        before.machine.boot_id = "another".into();
        assert_eq!(rates(&before, &after), Rates::default());
    }

    proptest! {
        #[test]
        fn a_32_bit_counter_gives_the_added_amount(
            old in 0..1u64 << 32,
            added in 0..50_000_000u64,
        ) {
            let new = (old + added) % (1 << 32);
            prop_assert_eq!(growth(old, new, Duration::from_secs(1)), Some(added));
        }

        #[test]
        fn shares_are_between_0_and_1_and_sum_to_1(
            old in prop::array::uniform8(0..1u64 << 40),
            added in prop::array::uniform8(0..100_000u64),
        ) {
            let stat = |t: [u64; 8]| CpuStat {
                user: t[0], nice: t[1], system: t[2], irq: t[3],
                softirq: t[4], idle: t[5], iowait: t[6], steal: t[7],
                ..CpuStat::default()
            };
            let new = std::array::from_fn(|i| old[i] + added[i]);
            match shares(&stat(old), &stat(new)) {
                None => prop_assert_eq!(added.iter().sum::<u64>(), 0),
                Some(s) => {
                    let all = [s.usr, s.nice, s.sys, s.irq, s.softirq, s.idle, s.iowait, s.steal];
                    prop_assert!(all.iter().all(|share| (0.0..=1.0).contains(share)));
                    prop_assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                }
            }
        }

        #[test]
        fn an_interrupts_total_is_the_sum_over_remaining_cpus(
            counts in prop::collection::btree_map(0..16u32, (0..1u64 << 31, 0..1000u64), 0..16),
            gone in 0..16u32,
        ) {
            let cpus: Vec<u32> = (0..16).collect();
            let rest: Vec<u32> = (0..16).filter(|cpu| *cpu != gone).collect();
            let old: Vec<_> = counts.iter().map(|(cpu, (old, _))| (*cpu, *old)).collect();
            let new: Vec<_> = counts.iter().filter(|(cpu, _)| **cpu != gone)
                .map(|(cpu, (old, added))| (*cpu, old + added)).collect();
            let before = with_irq(at(0, &cpus), "x", &old);
            let rates = rates(&before, &with_irq(at(1, &rest), "x", &new));
            let expected: u64 = counts.iter().filter(|(cpu, _)| **cpu != gone)
                .map(|(_, (_, added))| added).sum();
            prop_assert!((rates.irqs[&Irq(7)].total_per_s - expected as f64).abs() < 1e-6);
            prop_assert!(!rates.irqs[&Irq(7)].per_s.contains_key(&CpuId(gone)));
        }
    }
}
