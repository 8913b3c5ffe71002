//! What was measured, and how netsilo compares with the best of its peers.

use std::collections::BTreeMap;

use netsilo_stats::{Estimate, median, signed_rank};
use serde::Serialize;

use crate::locality::Shares;
use crate::peers::setting::Setting;
use crate::workload::{Kind, WorkloadMeasured};

/// Probability that the true ratio is outside its interval.
const ERROR_RATE: f64 = 0.05;

/// Share of the best peer's rate below which netsilo's interval must not reach.
const LEAST_RATE: f64 = 0.97;

/// netsilo's rate over irqbalance's, at least, where requests and responses are light.
const LEAST_OVER_IRQBALANCE: f64 = 1.5;

/// Difference of shares of bytes that one second of a light load can show.
const VISIBLE_SHARE: f64 = 0.01;

/// All results of a run, as `--json` writes them.
#[derive(Debug, Serialize)]
pub(crate) struct PeersResults {
    schema: u32,
    guest: String,
    seed: u64,
    rounds: u32,
    seconds: u32,
    pub(crate) workloads: Vec<WorkloadResults>,
}

impl PeersResults {
    pub(crate) fn new(guest: &str, seed: u64, rounds: u32, seconds: u32) -> Self {
        Self { schema: 1, guest: guest.to_owned(), seed, rounds, seconds, workloads: Vec::new() }
    }
}

/// The results of one workload.
#[derive(Debug, Serialize)]
pub(crate) struct WorkloadResults {
    pub(crate) workload: &'static str,
    pub(crate) settings: Vec<SettingResults>,
    /// netsilo's default beside the best peer of each quantity; empty without one of both.
    pub(crate) comparisons: Vec<Comparison>,
    /// What is missing because a guest hung or failed.
    pub(crate) lost: Vec<Lost>,
}

/// What a guest that hung or failed took with it.
#[derive(Debug, Serialize)]
pub(crate) struct Lost {
    /// The setting that is not measured; `None` if rounds of all settings are missing.
    pub(crate) setting: Option<Setting>,
    pub(crate) why: String,
}

/// One state of the knobs.
#[derive(Debug, Serialize)]
pub(crate) struct SettingResults {
    /// The settings that lead to this state.
    pub(crate) settings: Vec<Setting>,
    /// What differs from the booted state, by file.
    pub(crate) changes: BTreeMap<String, String>,
    /// Where the data was read, under a light load; `None` if nobody was seen to read.
    pub(crate) bytes: Option<Shares>,
    pub(crate) rounds: Vec<Round>,
}

/// One measurement; counts per transaction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Round {
    pub(crate) per_second: f64,
    /// Function-call and rescheduling interrupts: wakeups of other CPUs, mostly.
    pub(crate) ipis: f64,
    pub(crate) softirqs: f64,
    pub(crate) switches: f64,
}

impl From<&WorkloadMeasured> for Round {
    fn from(measured: &WorkloadMeasured) -> Self {
        let per_transaction = |count: u64| count as f64 / measured.clients.transactions;
        let spent = &measured.spent;
        Self {
            per_second: measured.clients.per_second,
            ipis: per_transaction(spent.calls + spent.reschedules),
            softirqs: per_transaction(spent.net_rx),
            switches: per_transaction(spent.switches),
        }
    }
}

impl SettingResults {
    /// The median of a figure over all rounds.
    pub(crate) fn median(&self, figure: fn(&Round) -> f64) -> f64 {
        median(&self.figures(figure)).unwrap_or(f64::NAN)
    }

    fn figures(&self, figure: fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }
}

/// netsilo's default beside one peer.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) quantity: &'static str,
    pub(crate) peer: Setting,
    /// The medians.
    pub(crate) netsilo: f64,
    pub(crate) other: f64,
    /// netsilo's figure over the peer's in the same round; `None` with too few rounds, or if a
    /// figure is 0.
    pub(crate) ratio: Option<Estimate>,
    /// Whether it is shown that netsilo misses the goal here.
    pub(crate) falls_short: bool,
}

/// A quantity with its name, its figure, and whether more of it is better.
type Quantity = (&'static str, fn(&Round) -> f64, bool);

const RATE: Quantity = ("per_second", |round| round.per_second, true);

const QUANTITIES: [Quantity; 4] = [
    RATE,
    ("ipis", |round| round.ipis, false),
    ("softirqs", |round| round.softirqs, false),
    ("switches", |round| round.switches, false),
];

impl WorkloadResults {
    pub(crate) fn new(kind: Kind, settings: Vec<SettingResults>, lost: Vec<Lost>) -> Self {
        let comparisons = comparisons(&settings);
        Self { workload: kind.name(), settings, comparisons, lost }
    }

    /// netsilo's rate over irqbalance's; it also falls short if it is less than half as much again
    /// where requests and responses are light.
    pub(crate) fn over_irqbalance(&self) -> Option<Comparison> {
        let of = |wanted| self.settings.iter().find(|row| row.settings.contains(&wanted));
        let (netsilo, irqbalance) = (of(Setting::Netsilo)?, of(Setting::Irqbalance)?);
        let compared = compare(RATE, netsilo, irqbalance, Setting::Irqbalance);
        let is_light = [Kind::TcpRr, Kind::UdpRr].iter().any(|it| it.name() == self.workload);
        let misses = |ratio: Estimate| is_light && ratio.value < LEAST_OVER_IRQBALANCE;
        let falls_short = compared.falls_short || compared.ratio.is_some_and(misses);
        Some(Comparison { falls_short, ..compared })
    }
}

fn comparisons(settings: &[SettingResults]) -> Vec<Comparison> {
    let Some(netsilo) = settings.iter().find(|row| row.settings.contains(&Setting::Netsilo)) else {
        return Vec::new();
    };
    // The first name of a state that a peer leads to.
    let peer = |row: &SettingResults| row.settings.iter().copied().find(|it| it.is_peer());
    let peers: Vec<_> = settings.iter().filter_map(|row| Some((row, peer(row)?))).collect();
    let best = |figure: &dyn Fn(&SettingResults) -> f64| {
        peers.iter().min_by(|(a, _), (b, _)| figure(a).total_cmp(&figure(b))).copied()
    };
    let counted = QUANTITIES.into_iter().filter_map(|quantity| {
        let (_, figure, more_is_better) = quantity;
        let sign = if more_is_better { -1.0 } else { 1.0 };
        let (row, peer) = best(&|row| sign * row.median(figure))?;
        Some(compare(quantity, netsilo, row, peer))
    });
    let share = |row: &SettingResults| row.bytes.map(|bytes| bytes.remote);
    let remote = best(&|row| share(row).unwrap_or(f64::INFINITY)).and_then(|(row, peer)| {
        let (ours, theirs) = (share(netsilo)?, share(row)?);
        Some(Comparison {
            quantity: "bytes_remote",
            peer,
            netsilo: ours,
            other: theirs,
            ratio: None,
            falls_short: ours > theirs + VISIBLE_SHARE,
        })
    });
    counted.chain(remote).collect()
}

/// Compares the figures of the same rounds. A state that both lead to was measured once: its ratio
/// is 1.
fn compare(
    (quantity, figure, more_is_better): Quantity,
    netsilo: &SettingResults,
    other: &SettingResults,
    peer: Setting,
) -> Comparison {
    let (ours, theirs) = (netsilo.figures(figure), other.figures(figure));
    let logs: Vec<f64> =
        ours.iter().zip(&theirs).map(|(ours, theirs)| (ours / theirs).ln()).collect();
    let ratio =
        signed_rank::interval(&logs, ERROR_RATE).filter(|_| logs.iter().all(|it| it.is_finite()));
    let ratio = ratio.map(|logs| logs.map(f64::exp));
    let misses = |ratio: Estimate| {
        if more_is_better { ratio.low < LEAST_RATE } else { ratio.low > 1.0 }
    };
    Comparison {
        quantity,
        peer,
        netsilo: netsilo.median(figure),
        other: other.median(figure),
        ratio,
        falls_short: ratio.is_some_and(misses),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with these transactions per second and interrupts per transaction in each round.
    fn state(settings: &[Setting], per_second: f64, ipis: f64, remote: f64) -> SettingResults {
        let round = |n: u32| {
            let noise = 1.0 + 0.001 * f64::from(n);
            Round { per_second: per_second * noise, ipis, softirqs: 1.0, switches: 2.0 }
        };
        SettingResults {
            settings: settings.to_vec(),
            changes: BTreeMap::new(),
            bytes: Some(Shares { same_cpu: 1.0 - remote, same_llc: 0.0, remote }),
            rounds: (0..6).map(round).collect(),
        }
    }

    fn named<'a>(comparisons: &'a [Comparison], quantity: &str) -> &'a Comparison {
        comparisons.iter().find(|it| it.quantity == quantity).unwrap()
    }

    #[test]
    fn each_quantity_has_its_own_best_peer() {
        let all = comparisons(&[
            state(&[Setting::AsBooted], 100.0, 0.5, 0.0),
            state(&[Setting::Rps], 90.0, 0.25, 0.5),
            state(&[Setting::Netsilo, Setting::NetsiloRun], 200.0, 0.5, 0.0),
        ]);
        let rate = named(&all, "per_second");
        assert_eq!((rate.peer, rate.falls_short), (Setting::AsBooted, false));
        assert!((rate.ratio.unwrap().value - 2.0).abs() < 1e-9);
        let ipis = named(&all, "ipis");
        assert_eq!((ipis.peer, ipis.falls_short), (Setting::Rps, true));
        assert!((ipis.ratio.unwrap().value - 2.0).abs() < 1e-9);
        assert!(!named(&all, "bytes_remote").falls_short);
    }

    #[test]
    fn a_slower_rate_and_bytes_across_sockets_fall_short() {
        let all = comparisons(&[
            state(&[Setting::AsBooted], 100.0, 0.0, 0.0),
            state(&[Setting::Netsilo], 90.0, 0.0, 0.25),
        ]);
        assert!(named(&all, "per_second").falls_short);
        assert!(named(&all, "bytes_remote").falls_short);
        let ipis = named(&all, "ipis");
        assert_eq!((ipis.ratio, ipis.falls_short), (None, false));
    }

    #[test]
    fn light_requests_need_half_as_much_again_as_under_irqbalance() {
        let falls_short = |kind, rate| {
            let settings = vec![
                state(&[Setting::Irqbalance], 100.0, 0.5, 0.0),
                state(&[Setting::Netsilo], rate, 0.5, 0.0),
            ];
            WorkloadResults::new(kind, settings, Vec::new()).over_irqbalance().unwrap().falls_short
        };
        assert!(falls_short(Kind::TcpRr, 149.0) && !falls_short(Kind::TcpRr, 151.0));
        assert!(falls_short(Kind::Redis, 96.0) && !falls_short(Kind::Redis, 101.0));
    }

    #[test]
    fn a_state_of_netsilo_and_a_peer_is_compared_with_itself() {
        let all = comparisons(&[
            state(&[Setting::Spread], 50.0, 0.5, 0.0),
            state(&[Setting::AsBooted, Setting::Netsilo], 100.0, 0.25, 0.0),
        ]);
        let rate = named(&all, "per_second");
        let one = Estimate { value: 1.0, low: 1.0, high: 1.0 };
        assert_eq!((rate.peer, rate.ratio), (Setting::AsBooted, Some(one)));
        assert_eq!(comparisons(&[state(&[Setting::Spread], 50.0, 0.5, 0.0)]), []);
    }
}
