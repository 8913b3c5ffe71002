//! Keys of `--setting` that name knobs of a device. A goal does not have them, because `netsilo
//! plan` does not set these knobs.

use anyhow::{Result, anyhow};
use netsilo_model::change::knobs::{Channels, Coalesce, FlowHash, Threaded};
use netsilo_model::change::{Change, Knob as _, Settings};
use netsilo_model::snapshot::ethtool::{FlowType, HashFields};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::args::parse::on_or_off;
use crate::tell::exit::{Exit, ExitError};

/// The reason of each change. Nothing prints it.
const REASON: &str = "asked for";

/// The values of these keys; `None` leaves the knob as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DeviceKeys {
    rx_usecs: Option<u32>,
    rx_frames: Option<u32>,
    adaptive_rx: Option<bool>,
    threaded: Option<bool>,
    queues: Option<u32>,
    udp_ports: Option<bool>,
    /// Only these netdevs; empty means all.
    netdevs: Vec<String>,
}

/// These keys.
pub(super) const DEVICE_KEYS: [&str; 6] =
    ["rx-usecs", "rx-frames", "adaptive-rx", "threaded", "queues", "udp-ports"];

/// Keys with their values.
type Pairs = Vec<(String, String)>;

impl DeviceKeys {
    /// Removes the keys of devices from all keys. Returns them and the others.
    pub(super) fn take(keys: &[(String, String)]) -> Result<(Self, Pairs)> {
        let (mut its, mut others) = (Self::default(), Vec::new());
        for (key, text) in keys {
            let number = || text.parse::<u32>().map_err(|_| anyhow!("write a number"));
            let result = match key.as_str() {
                "rx-usecs" => number().map(|it| its.rx_usecs = Some(it)),
                "rx-frames" => number().map(|it| its.rx_frames = Some(it)),
                "queues" => match number() {
                    Ok(0) => Err(anyhow!("write a number from 1")),
                    other => other.map(|it| its.queues = Some(it)),
                },
                "adaptive-rx" => on_or_off(text).map(|it| its.adaptive_rx = Some(it)),
                "threaded" => on_or_off(text).map(|it| its.threaded = Some(it)),
                "udp-ports" => on_or_off(text).map(|it| its.udp_ports = Some(it)),
                "netdevs" => {
                    its.netdevs = text.split(',').map(str::to_owned).collect();
                    others.push((key.clone(), text.clone()));
                    Ok(())
                }
                _ => {
                    others.push((key.clone(), text.clone()));
                    Ok(())
                }
            };
            result.map_err(|why| {
                anyhow!(ExitError(Exit::Usage, format!("--setting {key}={text}: {why}")))
            })?;
        }
        Ok((its, others))
    }

    /// The changes that these keys make on a machine, and how many keys no netdev has. Those keys
    /// are reported to `note`.
    pub(super) fn changes(&self, snapshot: &Snapshot, note: impl Fn(&str)) -> (Vec<Change>, usize) {
        let is_asked = |name: &String| self.netdevs.is_empty() || self.netdevs.contains(name);
        let netdevs = snapshot.netdevs.iter().filter(|it| it.up && is_asked(&it.name));
        let netdevs: Vec<NetdevIdentity> = netdevs.map(NetdevIdentity::from_netdev).collect();
        let mut changes = Vec::new();
        let mut known = [false; 4];
        for netdev in netdevs {
            let coalesce = Coalesce { netdev: netdev.clone() };
            if let Some(old) = coalesce.value_in(snapshot).filter(|_| self.coalesces()) {
                known[0] = true;
                changes.extend(Change::of(snapshot, coalesce, self.coalesced(old), REASON));
            }
            let threaded = Threaded { netdev: netdev.clone() };
            known[1] |= threaded.value_in(snapshot).is_some();
            let on = self.threaded.map(u32::from);
            changes.extend(on.and_then(|on| Change::of(snapshot, threaded, on, REASON)));
            let channels = Channels { netdev: netdev.clone() };
            if let (Some(old), Some(count)) = (channels.value_in(snapshot), self.queues) {
                let kind = if old.get("combined") > 0 { "combined" } else { "rx" };
                known[2] = true;
                changes.extend(Change::of(snapshot, channels, old.with(kind, count), REASON));
            }
            for flow_type in [FlowType::Udp4, FlowType::Udp6] {
                let hash = FlowHash { netdev: netdev.clone(), flow_type };
                if let (Some(_), Some(on)) = (hash.value_in(snapshot), self.udp_ports) {
                    let fields =
                        if on { HashFields::ADDRESSES_AND_PORTS } else { HashFields::ADDRESSES };
                    known[3] = true;
                    changes.extend(Change::of(snapshot, hash, fields, REASON));
                }
            }
        }
        let asked = [
            (self.coalesces(), "rx-usecs, rx-frames, adaptive-rx"),
            (self.threaded.is_some(), "threaded"),
            (self.queues.is_some(), "queues"),
            (self.udp_ports.is_some(), "udp-ports"),
        ];
        let mut missing = 0;
        for ((is_asked, key), is_known) in asked.into_iter().zip(known) {
            if is_asked && !is_known {
                missing += 1;
                note(&format!("{key}: no netdev on this machine reports it"));
            }
        }
        (changes, missing)
    }

    /// Whether a key says how interrupts are delayed.
    fn coalesces(&self) -> bool {
        self.rx_usecs.or(self.rx_frames).is_some() || self.adaptive_rx.is_some()
    }

    /// How a device would then delay its interrupts. The numbers apply only if the driver does not
    /// adapt them.
    fn coalesced(&self, old: Settings) -> Settings {
        let mut new = old;
        for (name, number) in [("rx-usecs", self.rx_usecs), ("rx-frames", self.rx_frames)] {
            if let Some(number) = number {
                new = new.with(name, number).with("adaptive-rx", 0);
            }
        }
        match self.adaptive_rx {
            Some(on) => new.with("adaptive-rx", u32::from(on)),
            None => new,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Pairs {
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.to_owned(), value.to_owned())
        };
        text.split_whitespace().map(pair).collect()
    }

    #[test]
    fn keys_of_devices_are_taken_and_the_others_left() {
        let (keys, others) =
            DeviceKeys::take(&pairs("rps=0-3 rx-usecs=50 threaded=on netdevs=eth0")).unwrap();
        assert_eq!((keys.rx_usecs, keys.threaded), (Some(50), Some(true)));
        assert_eq!(
            (keys.netdevs, others),
            (vec!["eth0".to_owned()], pairs("rps=0-3 netdevs=eth0"))
        );
        for (wrong, why) in [
            ("threaded=yes", "--setting threaded=yes: write on or off"),
            ("rx-usecs=x", "--setting rx-usecs=x: write a number"),
            ("queues=0", "--setting queues=0: write a number from 1"),
        ] {
            assert_eq!(DeviceKeys::take(&pairs(wrong)).unwrap_err().to_string(), why);
        }
    }
}
