//! How netsilo compares with the best of its peers.

use anyhow::Result;
use netsilo_trial::stats::Estimate;

use crate::experiment::record::{self, LoadRecord, SettingRecord, middle};
use crate::peers::setting::{PeerSetting, State};
use crate::workload::Kind;

/// netsilo's interval must not reach below this share of the best peer's rate.
const LEAST_RATE: f64 = 0.97;

/// Minimum ratio of netsilo's rate to irqbalance's, if requests and responses are light.
const LEAST_OVER_IRQBALANCE: f64 = 1.5;

/// Minimum difference of shares of bytes that one second of a light load can show.
const VISIBLE_SHARE: f64 = 0.01;

/// The figure for the bytes that another socket reads.
const REMOTE: &str = "bytes_remote";

/// The results of one workload.
#[derive(Debug)]
pub(crate) struct Results<'a> {
    pub(crate) load: &'a LoadRecord,
    pub(crate) states: Vec<PeerState<'a>>,
}

/// What was measured in one state of the knobs, as counts per transaction.
#[derive(Debug)]
pub(crate) struct PeerState<'a> {
    /// The settings that produce this state.
    settings: Vec<PeerSetting>,
    pub(crate) measured: &'a SettingRecord,
}

/// netsilo's default compared with one peer.
#[derive(Debug, PartialEq)]
pub(crate) struct PeerComparison {
    pub(crate) quantity: &'static str,
    pub(crate) peer: PeerSetting,
    /// The medians.
    pub(crate) netsilo: f64,
    pub(crate) other: f64,
    /// netsilo's figure divided by the peer's in the same round; `None` with too few rounds, or if
    /// a figure is 0.
    pub(crate) ratio: Option<Estimate>,
    /// Whether it is shown that netsilo misses the goal here.
    pub(crate) falls_short: bool,
}

/// The rate. More of it is better; for all other figures, less is better.
const RATE: &str = "per_second";

const QUANTITIES: [&str; 4] = [RATE, "ipis", "softirqs", "switches"];

impl PeerState<'_> {
    /// A figure by round: the rate, or a count.
    fn figures(&self, quantity: &str) -> &[f64] {
        match quantity {
            RATE => &self.measured.rates,
            other => self.measured.figures.get(other).map_or(&[], Vec::as_slice),
        }
    }

    /// The median of a figure over all rounds.
    pub(crate) fn median(&self, quantity: &str) -> f64 {
        middle(self.figures(quantity))
    }

    /// The first name of a state that a peer produces.
    fn peer(&self) -> Option<PeerSetting> {
        self.settings.iter().copied().find(|it| it.is_peer())
    }
}

impl<'a> Results<'a> {
    pub(crate) fn new(load: &'a LoadRecord) -> Result<Self> {
        let state = |measured: &'a SettingRecord| {
            let State { settings, .. } = measured.details()?;
            Ok(PeerState { settings, measured })
        };
        Ok(Self { load, states: load.settings.iter().map(state).collect::<Result<_>>()? })
    }

    fn state(&self, wanted: PeerSetting) -> Option<&PeerState<'a>> {
        self.states.iter().find(|state| state.settings.contains(&wanted))
    }

    /// netsilo's default compared with the best peer in each quantity. Empty unless both were
    /// measured.
    pub(crate) fn comparisons(&self) -> Vec<PeerComparison> {
        let Some(netsilo) = self.state(PeerSetting::Netsilo) else { return Vec::new() };
        let peers = self.states.iter().filter_map(|state| Some((state, state.peer()?)));
        let best = |quantity: &str| {
            let sign = if quantity == RATE { -1.0 } else { 1.0 };
            let of = |state: &PeerState<'_>| sign * state.median(quantity);
            let measured = peers.clone().filter(|(state, _)| !of(state).is_nan());
            measured.min_by(|(a, _), (b, _)| of(a).total_cmp(&of(b)))
        };
        let counted = QUANTITIES.into_iter().filter_map(|quantity| {
            let (state, peer) = best(quantity)?;
            Some(compare(quantity, netsilo, state, peer))
        });
        let remote = best(REMOTE).and_then(|(state, peer)| {
            let (netsilo, other) = (netsilo.median(REMOTE), state.median(REMOTE));
            let falls_short = netsilo > other + VISIBLE_SHARE;
            let comparison =
                PeerComparison { quantity: REMOTE, peer, netsilo, other, ratio: None, falls_short };
            (!netsilo.is_nan()).then_some(comparison)
        });
        counted.chain(remote).collect()
    }

    /// netsilo's rate divided by irqbalance's. If requests and responses are light, it also falls
    /// short if the ratio is below 1.5.
    pub(crate) fn over_irqbalance(&self) -> Option<PeerComparison> {
        let netsilo = self.state(PeerSetting::Netsilo)?;
        let irqbalance = self.state(PeerSetting::Irqbalance)?;
        let compared = compare(RATE, netsilo, irqbalance, PeerSetting::Irqbalance);
        let is_light = [Kind::TcpRr, Kind::UdpRr].iter().any(|it| it.name() == self.load.name);
        let misses = |ratio: Estimate| is_light && ratio.value < LEAST_OVER_IRQBALANCE;
        let falls_short = compared.falls_short || compared.ratio.is_some_and(misses);
        Some(PeerComparison { falls_short, ..compared })
    }
}

/// Compares the figures of the same rounds. A state that both produce was measured once, so its
/// ratio is 1.
fn compare(
    quantity: &'static str,
    netsilo: &PeerState<'_>,
    other: &PeerState<'_>,
    peer: PeerSetting,
) -> PeerComparison {
    let ratio = record::ratio(netsilo.figures(quantity), other.figures(quantity));
    let misses = |ratio: Estimate| {
        if quantity == RATE { ratio.low < LEAST_RATE } else { ratio.low > 1.0 }
    };
    PeerComparison {
        quantity,
        peer,
        netsilo: netsilo.median(quantity),
        other: other.median(quantity),
        ratio,
        falls_short: ratio.is_some_and(misses),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load whose states have these settings, transactions per second, and, per transaction,
    /// interrupts and bytes across sockets.
    fn load(kind: Kind, states: &[(&[PeerSetting], f64, f64, f64)]) -> LoadRecord {
        let state = |(settings, per_second, ipis, remote): &(&[PeerSetting], f64, f64, f64)| {
            let state = State { settings: settings.to_vec(), changes: [].into() };
            let mut setting = SettingRecord::with("", &state).unwrap();
            setting.rates = (0..6).map(|n| per_second * (1.0 + 0.001 * f64::from(n))).collect();
            for (name, figure) in [("ipis", *ipis), ("softirqs", 1.0), ("switches", 2.0)] {
                setting.figures.insert(name.to_owned(), vec![figure; 6]);
            }
            setting.figures.insert(REMOTE.to_owned(), vec![*remote]);
            setting
        };
        let settings = states.iter().map(state).collect();
        LoadRecord { name: kind.name().to_owned(), settings, ..LoadRecord::default() }
    }

    fn comparisons(states: &[(&[PeerSetting], f64, f64, f64)]) -> Vec<PeerComparison> {
        Results::new(&load(Kind::Redis, states)).unwrap().comparisons()
    }

    fn named<'a>(comparisons: &'a [PeerComparison], quantity: &str) -> &'a PeerComparison {
        comparisons.iter().find(|it| it.quantity == quantity).unwrap()
    }

    #[test]
    fn each_quantity_has_its_own_best_peer() {
        let all = comparisons(&[
            (&[PeerSetting::AsBooted], 100.0, 0.5, 0.0),
            (&[PeerSetting::Rps], 90.0, 0.25, 0.5),
            (&[PeerSetting::Netsilo, PeerSetting::NetsiloRun], 200.0, 0.5, 0.0),
        ]);
        let rate = named(&all, "per_second");
        assert_eq!((rate.peer, rate.falls_short), (PeerSetting::AsBooted, false));
        assert!((rate.ratio.unwrap().value - 2.0).abs() < 1e-9);
        let ipis = named(&all, "ipis");
        assert_eq!((ipis.peer, ipis.falls_short), (PeerSetting::Rps, true));
        assert!((ipis.ratio.unwrap().value - 2.0).abs() < 1e-9);
        assert!(!named(&all, "bytes_remote").falls_short);
    }

    #[test]
    fn a_slower_rate_and_bytes_across_sockets_fall_short() {
        let all = comparisons(&[
            (&[PeerSetting::AsBooted], 100.0, 0.0, 0.0),
            (&[PeerSetting::Netsilo], 90.0, 0.0, 0.25),
        ]);
        assert!(named(&all, "per_second").falls_short);
        assert!(named(&all, "bytes_remote").falls_short);
        let ipis = named(&all, "ipis");
        assert_eq!((ipis.ratio, ipis.falls_short), (None, false));
    }

    #[test]
    fn light_requests_need_half_as_much_again_as_under_irqbalance() {
        let falls_short = |kind, rate| {
            let load = load(
                kind,
                &[
                    (&[PeerSetting::Irqbalance], 100.0, 0.5, 0.0),
                    (&[PeerSetting::Netsilo], rate, 0.5, 0.0),
                ],
            );
            Results::new(&load).unwrap().over_irqbalance().unwrap().falls_short
        };
        assert!(falls_short(Kind::TcpRr, 149.0) && !falls_short(Kind::TcpRr, 151.0));
        assert!(falls_short(Kind::Redis, 96.0) && !falls_short(Kind::Redis, 101.0));
    }

    #[test]
    fn a_state_of_netsilo_and_a_peer_is_compared_with_itself() {
        let all = comparisons(&[
            (&[PeerSetting::Spread], 50.0, 0.5, 0.0),
            (&[PeerSetting::AsBooted, PeerSetting::Netsilo], 100.0, 0.25, 0.0),
        ]);
        let rate = named(&all, "per_second");
        let one = Estimate { value: 1.0, low: 1.0, high: 1.0 };
        assert_eq!((rate.peer, rate.ratio), (PeerSetting::AsBooted, Some(one)));
        assert_eq!(comparisons(&[(&[PeerSetting::Spread], 50.0, 0.5, 0.0)]), []);
    }
}
