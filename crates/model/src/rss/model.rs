//! Receive side scaling reckoned by hand: which queue a NIC gives a flow, and whether the flows
//! that arrived bear that out.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::machine::ids::NapiId;
use crate::rss::toeplitz::{Transform, hash, input, parse_key};
use crate::snapshot::ethtool::{Ethtool, FlowType, HashFields, HashFunction};
use crate::snapshot::flow::{Ends, Flow, Outer};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;

/// Bytes of key that these drivers take of what the kernel hands them (`NETDEV_RSS_KEY_LEN` is 52
/// or 256).
const HIDDEN_KEY_LEN: usize = 40;
/// Drivers that show no key but use `net.core.netdev_rss_key`: igb_setup_mrqc, igc_setup_mrqc,
/// vmxnet3_setup_driver_shared.
const HIDDEN_KEY_DRIVERS: [&str; 3] = ["igb", "igc", "vmxnet3"];
/// A model fits when this share of the flows arrived where it says.
const FITS: f64 = 0.95;

/// How one netdev turns addresses and ports into an rx queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    key: Vec<u8>,
    key_source: KeySource,
    table: Vec<u32>,
    transform: Option<Transform>,
    fields: BTreeMap<FlowType, HashFields>,
}

/// Where a hash key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// The driver shows it.
    Driver,
    /// The driver shows none, and is known to use `net.core.netdev_rss_key`.
    NetdevRssKey,
}

/// Where a flow is bound to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Predicted {
    /// The hash; `None` where the NIC hashes nothing of such packets.
    pub hash: Option<u32>,
    /// The entry of the indirection table.
    pub entry: u32,
    /// The rx queue.
    pub queue: u32,
    /// What is hashed.
    pub fields: HashFields,
}

impl Model {
    /// From what ethtool tells, or why that does not do.
    ///
    /// `netdev_rss_key` is the sysctl `net.core.netdev_rss_key`, as printed.
    pub fn of(ethtool: &Ethtool, netdev_rss_key: &str) -> Result<Self, String> {
        let rss = match (ethtool.rss.value(), ethtool.rss.reason()) {
            (Some(rss), _) => rss,
            (None, why) => {
                return Err(format!("it tells nothing of its RSS: {}", why.unwrap_or("no answer")));
            }
        };
        if rss.indirection.is_empty() {
            return Err("it has no indirection table".into());
        }
        if let Some(function) = rss.function.filter(|function| *function != HashFunction::Toeplitz)
        {
            return Err(format!("its hash function is {}, not toeplitz", function.as_word()));
        }
        let driver = ethtool.driver.value().map_or("", |driver| driver.driver.as_str());
        let (key, key_source) = match &rss.key {
            Some(key) => (key.clone(), KeySource::Driver),
            None if HIDDEN_KEY_DRIVERS.contains(&driver) => {
                let key = parse_key(netdev_rss_key)
                    .and_then(|key| Some(key.get(..HIDDEN_KEY_LEN)?.to_vec()));
                let why = "it shows no hash key, and net.core.netdev_rss_key, which its driver takes, is not known";
                (key.ok_or(why)?, KeySource::NetdevRssKey)
            }
            None => return Err("it shows no hash key".into()),
        };
        let fields =
            ethtool.flow_hash.iter().filter_map(|(flow, fields)| Some((*flow, *fields.value()?)));
        Ok(Self {
            key,
            key_source,
            table: rss.indirection.clone(),
            transform: Transform::of(rss.input_xfrm)?,
            fields: fields.collect(),
        })
    }

    /// Where the key comes from.
    pub fn key_source(&self) -> KeySource {
        self.key_source
    }

    /// Where packets with these headers arrive, or why that can't be reckoned.
    pub fn predict(
        &self,
        outer: Outer,
        ends: Option<Ends>,
        fragments: bool,
    ) -> Result<Predicted, String> {
        let Some(ends) = ends else { return self.entry(None, HashFields::default()) };
        let v6 = ends.target.is_ipv6();
        let fields = match outer.flow_type(v6) {
            // what has no ports, as far as the NIC sees, is hashed as any IP packet
            None => HashFields::ADDRESSES,
            Some(_) if fragments => HashFields::ADDRESSES,
            Some(flow) => *self
                .fields
                .get(&flow)
                .ok_or_else(|| format!("it does not tell what it hashes of {flow}"))?,
        };
        if fields.is_empty() {
            return self.entry(None, fields);
        }
        let ports = match fields {
            HashFields::ADDRESSES => false,
            HashFields::ADDRESSES_AND_PORTS => true,
            other => {
                return Err(format!(
                    "it hashes `{other}`: only `sd` and `sdfn` are the same with all NICs"
                ));
            }
        };
        let input = input(ends.source, ends.target, ports, self.transform)
            .ok_or("the addresses are of two families")?;
        let hash = hash(&self.key, &input).ok_or("its hash key is too short")?;
        self.entry(Some(hash), fields)
    }

    fn entry(&self, hash: Option<u32>, fields: HashFields) -> Result<Predicted, String> {
        let entry = hash.unwrap_or(0) % self.table.len() as u32;
        let queue =
            self.table.get(entry as usize).copied().ok_or("its indirection table is empty")?;
        Ok(Predicted { hash, entry, queue, fields })
    }
}

/// How far a model agrees with flows that arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// Flows whose queue, addresses and prediction are known.
    pub flows: usize,
    /// Those that arrived on the predicted queue.
    pub as_predicted: usize,
    /// Those of the others to which the NIC gave another hash.
    pub other_hash: usize,
    /// Those of the others that have the predicted hash, but not its queue.
    pub other_queue: usize,
}

impl Fit {
    fn add(&mut self, flow: &Flow, predicted: Predicted) {
        self.flows += 1;
        let same_hash = flow.hash.is_some() && flow.hash == predicted.hash;
        match flow.queue {
            Some(queue) if queue == predicted.queue => self.as_predicted += 1,
            _ if same_hash => self.other_queue += 1,
            _ => self.other_hash += usize::from(flow.hash.is_some()),
        }
    }

    /// Share of the flows that arrived as predicted; `None` without flows.
    pub fn share(&self) -> Option<f64> {
        (self.flows > 0).then(|| self.as_predicted as f64 / self.flows as f64)
    }

    /// Whether nothing speaks against the model: without flows nothing does.
    pub fn holds(&self) -> bool {
        self.share().is_none_or(|share| share >= FITS)
    }

    /// What the flows that arrived elsewhere have in common.
    pub fn likely_cause(&self) -> Option<&'static str> {
        let others = self.flows - self.as_predicted;
        if others == 0 {
            None
        } else if self.other_queue * 2 > others {
            Some(
                "the hash is as reckoned, yet other queues take them: steering rules, aRFS or the NIC's flow director",
            )
        } else if self.other_hash * 2 > others {
            Some("the NIC gives them another hash: its key or fields are not those that it shows")
        } else {
            Some("the NIC tells no hash that would say why")
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} flows seen arrived where reckoned", self.as_predicted, self.flows)
    }
}

/// A model beside what arrived, for each type of flow and for all together (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calibrated {
    /// The model.
    pub model: Model,
    fits: BTreeMap<Option<FlowType>, Fit>,
}

impl Calibrated {
    /// The netdev's model, beside the flows that were seen of it; or why it has none.
    pub fn of(observation: &Observation, netdev: &Netdev) -> Result<Self, String> {
        let ethtool = netdev.ethtool.as_ref().ok_or("nothing was asked of it through ethtool")?;
        let key =
            observation.after.net.sysctls.get("net.core.netdev_rss_key").map_or("", String::as_str);
        let model = Model::of(ethtool, key)?;
        let mut fits: BTreeMap<Option<FlowType>, Fit> = BTreeMap::from([(None, Fit::default())]);
        for flow in
            flows_of(observation, netdev).filter(|flow| flow.queue.is_some() && flow.ends.is_some())
        {
            let Ok(predicted) = model.predict(flow.outer, flow.ends, flow.fragments) else {
                continue;
            };
            fits.entry(None).or_default().add(flow, predicted);
            if let Some(kind) = flow.outer.flow_type(flow.v6) {
                fits.entry(Some(kind)).or_default().add(flow, predicted);
            }
        }
        Ok(Self { model, fits })
    }

    /// How it fits flows of this type, if any were seen; else all flows.
    pub fn fit(&self, kind: Option<FlowType>) -> Fit {
        let of = |kind| self.fits.get(&kind).copied();
        of(kind).or_else(|| of(None)).unwrap_or_default()
    }

    /// The queue of a flow; an error says why there is no telling.
    pub fn predict(&self, outer: Outer, ends: Ends) -> Result<Predicted, String> {
        let fit = self.fit(outer.flow_type(ends.target.is_ipv6()));
        if !fit.holds() {
            let cause = fit.likely_cause().unwrap_or("the flows do not say why");
            return Err(format!("the model does not fit this NIC: only {fit}; {cause}"));
        }
        self.model.predict(outer, Some(ends), false)
    }
}

/// The flows that came through this netdev.
pub fn flows_of<'a>(
    observation: &'a Observation,
    netdev: &'a Netdev,
) -> impl Iterator<Item = &'a Flow> {
    let ours = observation.after.machine.netns;
    let flows = observation.attribution.flows.iter();
    flows.filter(move |flow| {
        flow.ifindex == netdev.ifindex && (ours == 0 || flow.netns == 0 || flow.netns == ours)
    })
}

/// How one netdev steers packets that arrive for one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steering {
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// The NAPI of each rx queue, where known.
    pub napis: BTreeMap<u32, NapiId>,
    /// How it chooses a queue.
    pub model: Model,
}

impl Steering {
    /// The rx queue of TCP packets from `remote` to `local`; `None` where this can't be reckoned.
    pub fn tcp_queue(&self, remote: SocketAddr, local: SocketAddr) -> Option<u32> {
        let ends = Ends { source: remote, target: local };
        let predicted = self.model.predict(Outer::Tcp, Some(ends), false).ok()?;
        predicted.hash.map(|_| predicted.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::reading::Part;
    use crate::rss::toeplitz::tests::{KEY, SUITE};
    use crate::snapshot::ethtool::{Driver, Rss};

    fn ethtool(driver: &str, key: Option<&[u8]>, fields: &str, input_xfrm: u8) -> Ethtool {
        let driver =
            Driver { driver: driver.into(), version: None, fw_version: None, bus_info: None };
        let rss = Rss {
            function: Some(HashFunction::Toeplitz),
            key: key.map(<[u8]>::to_vec),
            indirection: (0..128).map(|entry| entry % 8).collect(),
            input_xfrm,
        };
        Ethtool {
            driver: Part::Value(driver),
            rss: Part::Value(rss),
            flow_hash: BTreeMap::from([
                (FlowType::Tcp4, Part::Value(fields.parse().unwrap())),
                (FlowType::Udp4, Part::Value(HashFields::ADDRESSES)),
            ]),
            ..Ethtool::untold("not asked")
        }
    }

    fn model(driver: &str, key: Option<&[u8]>, fields: &str, xfrm: u8) -> Result<Model, String> {
        let printed: Vec<String> =
            KEY.iter().chain(&[0; 12]).map(|byte| format!("{byte:02x}")).collect();
        Model::of(&ethtool(driver, key, fields, xfrm), &printed.join(":"))
    }

    fn ends(at: usize) -> Option<Ends> {
        Some(Ends { source: SUITE[at].0.parse().unwrap(), target: SUITE[at].1.parse().unwrap() })
    }

    fn queue(model: &Model, outer: Outer, at: usize) -> u32 {
        model.predict(outer, ends(at), false).unwrap().queue
    }

    #[test]
    fn the_queue_is_the_table_entry_of_the_hash_of_the_fields_of_that_type_of_flow() {
        let with_ports = model("ice", Some(&KEY), "sdfn", 0).unwrap();
        assert_eq!(queue(&with_ports, Outer::Tcp, 0), 0x78 % 8);
        assert_eq!(queue(&with_ports, Outer::Udp, 0), 0x42 % 8);
        assert_eq!(queue(&with_ports, Outer::Vxlan, 0), 0x42 % 8);
        assert_eq!(queue(&with_ports, Outer::Gre, 0), 0x42 % 8);
        let pieces = with_ports.predict(Outer::Tcp, ends(0), true).unwrap();
        assert_eq!((pieces.hash, pieces.fields), (Some(SUITE[0].2), HashFields::ADDRESSES));
        assert!(with_ports.predict(Outer::Tcp, ends(5), false).unwrap_err().contains("tcp6"));
    }

    #[test]
    fn what_is_not_hashed_goes_by_entry_0() {
        let none = model("ice", Some(&KEY), "", 0).unwrap();
        let at_0 = Predicted { hash: None, entry: 0, queue: 0, fields: HashFields::default() };
        assert_eq!(none.predict(Outer::Tcp, ends(0), false), Ok(at_0));
        assert_eq!(none.predict(Outer::Ethernet(0x0806), None, false), Ok(at_0));
    }

    #[test]
    fn igb_hides_its_key_which_is_the_kernels_and_others_without_a_key_stay_unknown() {
        let hidden = model("igb", None, "sdfn", 0).unwrap();
        assert_eq!(
            (hidden.key.as_slice(), hidden.key_source),
            (KEY.as_slice(), KeySource::NetdevRssKey)
        );
        assert_eq!(model("gve", None, "sdfn", 0).unwrap_err(), "it shows no hash key");
        assert!(
            Model::of(&ethtool("igb", None, "sdfn", 0), "00:00")
                .unwrap_err()
                .contains("netdev_rss_key")
        );
    }

    #[test]
    fn a_hash_that_nobody_can_reckon_is_no_model() {
        assert!(model("ice", Some(&KEY), "sdfn", 4).is_err());
        let sorted = model("ice", Some(&KEY), "sdf", 0).unwrap();
        assert!(sorted.predict(Outer::Tcp, ends(0), false).unwrap_err().contains("`sdf`"));
        let mut xor = ethtool("ena", Some(&KEY), "sdfn", 0);
        if let Part::Value(rss) = &mut xor.rss {
            rss.function = Some(HashFunction::Xor);
        }
        assert!(Model::of(&xor, "").unwrap_err().contains("xor"));
    }

    fn seen(hash: Option<u32>, queue: u32, at: usize) -> Flow {
        Flow {
            ifindex: 2,
            outer: Outer::Tcp,
            hash,
            queue: Some(queue),
            ends: ends(at),
            ..Flow::default()
        }
    }

    fn calibrated(flows: Vec<Flow>) -> Calibrated {
        let mut observation = Observation::default();
        observation.attribution.flows = flows;
        let netdev = Netdev {
            ifindex: 2,
            ethtool: Some(ethtool("ice", Some(&KEY), "sdfn", 0)),
            ..Netdev::default()
        };
        Calibrated::of(&observation, &netdev).unwrap()
    }

    #[test]
    fn flows_that_arrive_elsewhere_forbid_predictions_and_tell_why() {
        let of = |at: usize| SUITE[at].3;
        let good = calibrated((0..5).map(|at| seen(Some(of(at)), of(at) % 8, at)).collect());
        assert_eq!(
            good.fit(Some(FlowType::Tcp4)),
            Fit { flows: 5, as_predicted: 5, ..Fit::default() }
        );
        assert_eq!(good.predict(Outer::Tcp, ends(0).unwrap()).unwrap().queue, of(0) % 8);
        let steered = calibrated((0..5).map(|at| seen(Some(of(at)), 1 + of(at) % 8, at)).collect());
        assert!(
            steered.predict(Outer::Tcp, ends(0).unwrap()).unwrap_err().contains("steering rules")
        );
        let keyed = calibrated((0..5).map(|at| seen(Some(7), 1 + of(at) % 8, at)).collect());
        assert!(keyed.predict(Outer::Tcp, ends(0).unwrap()).unwrap_err().contains("another hash"));
        assert!(
            keyed.predict(Outer::Udp, ends(0).unwrap()).is_err(),
            "for want of UDP flows, all speak"
        );
    }

    #[test]
    fn without_flows_nothing_speaks_against_a_model() {
        let untried = calibrated(Vec::new());
        assert_eq!(untried.fit(None).share(), None);
        assert!(untried.predict(Outer::Tcp, ends(0).unwrap()).is_ok());
    }
}
