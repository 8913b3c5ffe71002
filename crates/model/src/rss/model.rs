//! Predicts the rx queue that a NIC's receive side scaling assigns to a flow, and checks the
//! prediction against flows that arrived.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::drivers::name::DriverName;
use crate::machine::ids::NapiId;
use crate::rss::toeplitz::{Transform, hash, input, parse_key};
use crate::snapshot::ethtool::{Ethtool, FlowType, HashFields, HashFunction};
use crate::snapshot::flow::{Ends, Flow, Outer};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;

/// Bytes of the kernel's key that these drivers use (`NETDEV_RSS_KEY_LEN` is 52 or 256).
const HIDDEN_KEY_LEN: usize = 40;
/// Drivers that show no key but use `net.core.netdev_rss_key`: igb_setup_mrqc, igc_setup_mrqc,
/// vmxnet3_setup_driver_shared.
const HIDDEN_KEY_DRIVERS: [&str; 3] = ["igb", "igc", "vmxnet3"];
/// A model fits if at least this share of the flows arrived on the predicted queue.
const FITS: f64 = 0.95;

/// The function of one netdev from addresses and ports to an rx queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssModel {
    key: Vec<u8>,
    key_source: KeySource,
    table: Vec<u32>,
    transform: Option<Transform>,
    fields: BTreeMap<FlowType, HashFields>,
}

/// Source of a hash key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// The driver shows it.
    Driver,
    /// The driver shows no key, but is known to use `net.core.netdev_rss_key`.
    NetdevRssKey,
}

/// The predicted path of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PredictedQueue {
    /// The hash; `None` if the NIC does not hash packets of this kind.
    pub hash: Option<u32>,
    /// The entry of the indirection table.
    pub entry: u32,
    /// The rx queue.
    pub queue: u32,
    /// The hashed fields.
    pub fields: HashFields,
}

impl RssModel {
    /// Builds the model from ethtool's report. The error is the reason why that is not possible.
    ///
    /// `netdev_rss_key` is the sysctl `net.core.netdev_rss_key`, as printed.
    pub fn from_ethtool(ethtool: &Ethtool, netdev_rss_key: &str) -> Result<Self, String> {
        let rss = match (ethtool.rss.value(), ethtool.rss.reason()) {
            (Some(rss), _) => rss,
            (None, why) => {
                return Err(format!("it does not report its RSS: {}", why.unwrap_or("no answer")));
            }
        };
        if rss.indirection.is_empty() {
            return Err("it has no indirection table".into());
        }
        if let Some(function) = rss.function.filter(|function| *function != HashFunction::Toeplitz)
        {
            return Err(format!("its hash function is {}, not toeplitz", function.as_word()));
        }
        let driver = DriverName::of_ethtool(ethtool);
        let (key, key_source) = match &rss.key {
            Some(key) => (key.clone(), KeySource::Driver),
            None if driver.is_some_and(|driver| driver.is_in(&HIDDEN_KEY_DRIVERS)) => {
                let key = parse_key(netdev_rss_key)
                    .and_then(|key| Some(key.get(..HIDDEN_KEY_LEN)?.to_vec()));
                let why = "it shows no hash key, and net.core.netdev_rss_key, which its driver \
                           uses, is not known";
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
            transform: Transform::from_input_xfrm(rss.input_xfrm)?,
            fields: fields.collect(),
        })
    }

    /// Source of the key.
    pub fn key_source(&self) -> KeySource {
        self.key_source
    }

    /// Predicts the queue of packets with these headers. The error is the reason why that is not
    /// possible.
    pub fn predict(
        &self,
        outer: Outer,
        ends: Option<Ends>,
        fragments: bool,
    ) -> Result<PredictedQueue, String> {
        let Some(ends) = ends else { return self.entry(None, HashFields::default()) };
        let v6 = ends.target.is_ipv6();
        let fields = match outer.flow_type(v6) {
            // Packets in which the NIC finds no ports are hashed by their addresses.
            None => HashFields::ADDRESSES,
            Some(_) if fragments => HashFields::ADDRESSES,
            Some(flow) => *self
                .fields
                .get(&flow)
                .ok_or_else(|| format!("it does not report the hash fields of {flow}"))?,
        };
        if fields.is_empty() {
            return self.entry(None, fields);
        }
        let ports = match fields {
            HashFields::ADDRESSES => false,
            HashFields::ADDRESSES_AND_PORTS => true,
            other => {
                return Err(format!(
                    "it hashes `{other}`: only `sd` and `sdfn` work the same on all NICs"
                ));
            }
        };
        let input = input(ends.source, ends.target, ports, self.transform)
            .ok_or("the addresses are of different families")?;
        let hash = hash(&self.key, &input).ok_or("its hash key is too short")?;
        self.entry(Some(hash), fields)
    }

    fn entry(&self, hash: Option<u32>, fields: HashFields) -> Result<PredictedQueue, String> {
        let entry = hash.unwrap_or(0) % self.table.len() as u32;
        let queue =
            self.table.get(entry as usize).copied().ok_or("its indirection table is empty")?;
        Ok(PredictedQueue { hash, entry, queue, fields })
    }
}

/// How well a model agrees with flows that arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fit {
    /// Flows with a known queue, known addresses and a prediction.
    pub flows: usize,
    /// Flows that arrived on the predicted queue.
    pub as_predicted: usize,
    /// Flows on another queue whose hash differs from the predicted one.
    pub other_hash: usize,
    /// Flows with the predicted hash on another queue.
    pub other_queue: usize,
}

impl Fit {
    fn add(&mut self, flow: &Flow, predicted: PredictedQueue) {
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

    /// Whether the flows do not contradict the model; without flows, they do not.
    pub fn holds(&self) -> bool {
        self.share().is_none_or(|share| share >= FITS)
    }

    /// The likely reason why flows arrived on other queues.
    pub fn likely_cause(&self) -> Option<&'static str> {
        let others = self.flows - self.as_predicted;
        if others == 0 {
            None
        } else if self.other_queue * 2 > others {
            Some(
                "the hash is as predicted, but the flows arrive on other queues: steering rules, \
                 aRFS or the NIC's flow director",
            )
        } else if self.other_hash * 2 > others {
            Some("the NIC computes another hash: its key or fields differ from what it shows")
        } else {
            Some("the NIC reports no hash that would show the cause")
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} flows arrived on the predicted queue", self.as_predicted, self.flows)
    }
}

/// A model with its agreement, for each type of flow and for all together (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedModel {
    /// The model.
    pub model: RssModel,
    fits: BTreeMap<Option<FlowType>, Fit>,
}

impl CheckedModel {
    /// Builds the netdev's model and checks it against the observed flows. The error is the reason
    /// why there is no model.
    pub fn from_observation(observation: &Observation, netdev: &Netdev) -> Result<Self, String> {
        let ethtool = netdev.ethtool.as_ref().ok_or("ethtool was not queried")?;
        let key =
            observation.after.net.sysctls.get("net.core.netdev_rss_key").map_or("", String::as_str);
        let model = RssModel::from_ethtool(ethtool, key)?;
        let mut fits: BTreeMap<Option<FlowType>, Fit> = BTreeMap::from([(None, Fit::default())]);
        for flow in
            flows_on(observation, netdev).filter(|flow| flow.queue.is_some() && flow.ends.is_some())
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

    /// Agreement for flows of this type, if any arrived; otherwise for all flows.
    pub fn fit(&self, kind: Option<FlowType>) -> Fit {
        let of = |kind| self.fits.get(&kind).copied();
        of(kind).or_else(|| of(None)).unwrap_or_default()
    }

    /// Predicts the queue of a flow. The error is the reason why that is not possible.
    pub fn predict(&self, outer: Outer, ends: Ends) -> Result<PredictedQueue, String> {
        let fit = self.fit(outer.flow_type(ends.target.is_ipv6()));
        if !fit.holds() {
            let cause = fit.likely_cause().unwrap_or("the flows do not show why");
            return Err(format!("the model does not fit this NIC: only {fit}; {cause}"));
        }
        self.model.predict(outer, Some(ends), false)
    }
}

/// The flows that arrived on this netdev.
pub fn flows_on<'a>(
    observation: &'a Observation,
    netdev: &'a Netdev,
) -> impl Iterator<Item = &'a Flow> {
    let machine = &observation.after.machine;
    let flows = observation.attribution.flows.iter();
    flows.filter(|flow| flow.ifindex == netdev.ifindex && machine.is_own_netns(flow.netns))
}

/// How packets are steered that arrive for one of the netdev's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicSteering {
    /// The netdev's own addresses.
    pub addresses: Vec<IpAddr>,
    /// The NAPI of each rx queue, if known.
    pub napis: BTreeMap<u32, NapiId>,
    /// The RSS model.
    pub model: RssModel,
}

impl NicSteering {
    /// Predicts the rx queue of TCP packets from `remote` to `local`; `None` if that is not
    /// possible.
    pub fn tcp_queue(&self, remote: SocketAddr, local: SocketAddr) -> Option<u32> {
        let ends = Ends { source: remote, target: local };
        let predicted = self.model.predict(Outer::Tcp, Some(ends), false).ok()?;
        predicted.hash.map(|_| predicted.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::reading::Reading;
    use crate::rss::suite::{KEY, SUITE};
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
            driver: Reading::Value(driver),
            rss: Reading::Value(rss),
            flow_hash: BTreeMap::from([
                (FlowType::Tcp4, Reading::Value(fields.parse().unwrap())),
                (FlowType::Udp4, Reading::Value(HashFields::ADDRESSES)),
            ]),
            ..Ethtool::unavailable("not asked")
        }
    }

    fn model(driver: &str, key: Option<&[u8]>, fields: &str, xfrm: u8) -> Result<RssModel, String> {
        let printed: Vec<String> =
            KEY.iter().chain(&[0; 12]).map(|byte| format!("{byte:02x}")).collect();
        RssModel::from_ethtool(&ethtool(driver, key, fields, xfrm), &printed.join(":"))
    }

    fn ends(at: usize) -> Option<Ends> {
        Some(Ends { source: SUITE[at].0.parse().unwrap(), target: SUITE[at].1.parse().unwrap() })
    }

    fn queue(model: &RssModel, outer: Outer, at: usize) -> u32 {
        model.predict(outer, ends(at), false).unwrap().queue
    }

    #[test]
    fn the_hash_of_the_flow_types_fields_selects_the_table_entry() {
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
    fn packets_without_a_hash_use_entry_0() {
        let none = model("ice", Some(&KEY), "", 0).unwrap();
        let at_0 = PredictedQueue { hash: None, entry: 0, queue: 0, fields: HashFields::default() };
        assert_eq!(none.predict(Outer::Tcp, ends(0), false), Ok(at_0));
        assert_eq!(none.predict(Outer::Ethernet(0x0806), None, false), Ok(at_0));
    }

    #[test]
    fn igb_without_a_key_uses_the_kernels_and_other_drivers_have_no_model() {
        let hidden = model("igb", None, "sdfn", 0).unwrap();
        assert_eq!(
            (hidden.key.as_slice(), hidden.key_source),
            (KEY.as_slice(), KeySource::NetdevRssKey)
        );
        assert_eq!(model("gve", None, "sdfn", 0).unwrap_err(), "it shows no hash key");
        assert!(
            RssModel::from_ethtool(&ethtool("igb", None, "sdfn", 0), "00:00")
                .unwrap_err()
                .contains("netdev_rss_key")
        );
    }

    #[test]
    fn an_unknown_hash_gives_no_model() {
        assert!(model("ice", Some(&KEY), "sdfn", 4).is_err());
        let sorted = model("ice", Some(&KEY), "sdf", 0).unwrap();
        assert!(sorted.predict(Outer::Tcp, ends(0), false).unwrap_err().contains("`sdf`"));
        let mut xor = ethtool("ena", Some(&KEY), "sdfn", 0);
        if let Reading::Value(rss) = &mut xor.rss {
            rss.function = Some(HashFunction::Xor);
        }
        assert!(RssModel::from_ethtool(&xor, "").unwrap_err().contains("xor"));
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

    fn calibrated(flows: Vec<Flow>) -> CheckedModel {
        let mut observation = Observation::default();
        observation.attribution.flows = flows;
        let netdev = Netdev {
            ifindex: 2,
            ethtool: Some(ethtool("ice", Some(&KEY), "sdfn", 0)),
            ..Netdev::default()
        };
        CheckedModel::from_observation(&observation, &netdev).unwrap()
    }

    #[test]
    fn flows_on_other_queues_forbid_predictions_with_a_reason() {
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
        let other_key = calibrated((0..5).map(|at| seen(Some(7), 1 + of(at) % 8, at)).collect());
        assert!(
            other_key.predict(Outer::Tcp, ends(0).unwrap()).unwrap_err().contains("another hash")
        );
        assert!(
            other_key.predict(Outer::Udp, ends(0).unwrap()).is_err(),
            "without UDP flows, all flows count"
        );
    }

    #[test]
    fn without_flows_a_model_holds() {
        let unchecked = calibrated(Vec::new());
        assert_eq!(unchecked.fit(None).share(), None);
        assert!(unchecked.predict(Outer::Tcp, ends(0).unwrap()).is_ok());
    }
}
