//! The packets of rx queues that no poll counted, by the counters of their drivers and netdevs.

use std::collections::BTreeMap;

use crate::derive::rates::Rates;
use crate::derive::silo::Silo;
use crate::drivers::queue_packets::queue_of;
use crate::snapshot::attribution::AttributionSource;
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;

/// A netdev that received no more packets than these may have received all of them before polls
/// were counted, or after that.
pub const FEW_PACKETS: f64 = 10.0;

/// The sum of a driver's counters of its queues is what the netdev counted, but for this share.
const UNEQUAL: f64 = 0.1;

/// Adds to queues what counters show, and to the others of a netdev that received packets why
/// theirs are not known. Polls of none of a netdev's packets have missed them.
pub(super) fn add_counted(queues: &mut [Silo], observation: &Observation, rates: &Rates) {
    let mut of_netdev: BTreeMap<String, Vec<&mut Silo>> = BTreeMap::new();
    for silo in queues {
        of_netdev.entry(silo.netdev.name.clone()).or_default().push(silo);
    }
    let seconds = rates.elapsed.as_secs_f64();
    for netdev in &observation.after.netdevs {
        let silos = of_netdev.get_mut(&netdev.name);
        let received = rates.netdevs.get(&netdev.name).and_then(|it| it.get("rx_packets"));
        let (Some(silos), Some(received)) = (silos, received.copied()) else { continue };
        if received * seconds <= FEW_PACKETS {
            continue;
        }
        let polled = silos.iter().any(|silo| silo.packets_per_s > Some(0.0));
        if !polled {
            silos.iter_mut().for_each(|silo| silo.packets_per_s = None);
        }
        let by_driver = by_driver(observation, netdev, received * seconds);
        let alone = (silos.len() == 1).then_some(received);
        for silo in silos.iter_mut().filter(|silo| silo.packets_per_s.is_none()) {
            let counted = silo.queue.and_then(|queue| by_driver.get(&queue));
            silo.counted_per_s = counted.map(|packets| packets / seconds).or(alone);
            if silo.counted_per_s.is_none() {
                silo.not_counted = Some(why(observation, netdev, polled));
            }
        }
    }
}

/// The packets of each queue by the driver's counters; empty unless they agree with the netdev's.
fn by_driver(observation: &Observation, netdev: &Netdev, received: f64) -> BTreeMap<u32, f64> {
    let stats = |netdev: &Netdev| Some(netdev.ethtool.as_ref()?.stats.value()?.clone());
    let old = observation.before.netdevs.same(netdev).and_then(stats).unwrap_or_default();
    let new = stats(netdev).filter(|new| new.len() == old.len()).unwrap_or_default();
    let mut queues: BTreeMap<u32, f64> = BTreeMap::new();
    for ((name, before), (_, after)) in old.iter().zip(&new).filter(|(old, new)| old.0 == new.0) {
        if let Some(queue) = queue_of(name) {
            *queues.entry(queue).or_default() += after.saturating_sub(*before) as f64;
        }
    }
    let all: f64 = queues.values().sum();
    if agree(all, received) { queues } else { BTreeMap::new() }
}

/// Whether counters of the queues count the same packets as that of the netdev.
pub(super) fn agree(of_queues: f64, of_netdev: f64) -> bool {
    (of_queues - of_netdev).abs() <= UNEQUAL * of_netdev
}

/// Why the packets of a queue are not known.
fn why(observation: &Observation, netdev: &Netdev, others_polled: bool) -> String {
    let polls = match observation.attribution.source {
        AttributionSource::Bpf if others_polled => "which NAPI polls this queue is not known",
        AttributionSource::Bpf => "no poll of this netdev was seen",
        AttributionSource::SockDiag | AttributionSource::None => "polls were not counted",
    };
    let driver = netdev.driver.as_deref().unwrap_or("its driver");
    format!("{polls}, and {driver} shows no packets by queue")
}

#[cfg(test)]
mod tests {
    use crate::cost::weights::Costs;
    use crate::derive::analysis::Analysis;
    use crate::machine::reading::Reading;
    use crate::snapshot::ethtool::Ethtool;
    use crate::synthetic::grid::Grid;
    use crate::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    /// The packets of each queue of a netdev that receives 9000 per second, if nothing but these
    /// counters of the driver (per second) is known.
    fn known(queues: usize, stats: &[(&str, u64)]) -> Vec<(Option<f64>, bool)> {
        let netdev = SceneNetdev {
            name: "eth0".into(),
            driver: "any".into(),
            queues: vec![SceneQueue::default(); queues],
            per_s: [("rx_packets".to_owned(), 9000)].into(),
            ..SceneNetdev::default()
        };
        let grid = Grid { l2s: 2, ..Grid::default() };
        let scene = Scene { grid, netdevs: vec![netdev], without_bpf: true, ..Scene::default() };
        let mut observation = scene.observation();
        let ethtool = |seconds: u64| {
            let stats = stats.iter().map(|(name, rate)| ((*name).to_owned(), rate * seconds));
            Some(Ethtool { stats: Reading::Value(stats.collect()), ..Ethtool::unavailable("") })
        };
        observation.before.netdevs.iter_mut().for_each(|it| it.ethtool = ethtool(0));
        observation.after.netdevs.iter_mut().for_each(|it| it.ethtool = ethtool(10));
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let silos = analysis.silos.queues.iter();
        silos.map(|silo| (silo.received_per_s(), silo.not_counted.is_some())).collect()
    }

    #[test]
    fn counters_of_the_driver_or_of_a_netdev_with_one_queue_tell_its_packets() {
        assert_eq!(known(1, &[]), [(Some(9000.0), false)]);
        assert_eq!(known(2, &[]), [(None, true); 2]);
        let two = [("rx_queue_0_packets", 8990), ("rx_queue_1_packets", 0)];
        assert_eq!(known(2, &two), [(Some(8990.0), false), (Some(0.0), false)]);
        let of_another_meaning = [("rx_queue_0_packets", 500), ("rx_queue_1_packets", 500)];
        assert_eq!(known(2, &of_another_meaning), [(None, true); 2]);
    }
}
