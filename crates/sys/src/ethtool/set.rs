//! Reads and writes one ethtool setting of a netdev as a text, by `SIOCETHTOOL`, as if the setting
//! were a file.
//!
//! Texts use ethtool's words and are complete: a write sets every field, and a missing name means
//! 0.

use std::io;

use netsilo_model::change::ethtool::encode;
use netsilo_model::change::ethtool::encode::RssPart;
use netsilo_model::change::ethtool::rule as rules;
use netsilo_model::change::ethtool::rule::Installed;
use netsilo_model::change::{EthtoolSetting, FlowRule, Key, Settings, Steer, Table};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::parse::ethtool_decode as decode;
use netsilo_model::snapshot::ethtool::{Feature, HashFields, Rss};
use rustix::io::Errno;

use crate::ethtool::device::{
    Absence, Device, ETH_SS_FEATURES, ETHTOOL_GCHANNELS, ETHTOOL_GCOALESCE, ETHTOOL_GRINGPARAM,
    ETHTOOL_GRXCLSRLCNT,
};

// include/uapi/linux/ethtool.h
const ETHTOOL_SCOALESCE: u32 = 0x0f;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_SRXFH: u32 = 0x2a;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_SRSSH: u32 = 0x47;
/// `ETH_RXFH_CONTEXT_ALLOC`: a new context.
const NEW_CONTEXT: u32 = u32::MAX;
/// RSS contexts are searched up to this number. The kernel numbers them from 1 upwards.
const CONTEXTS: u32 = 64;
/// The text that restores the driver's default RSS table (`ethtool -X <dev> default`).
pub(crate) const DEFAULT: &str = "default";

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn unsupported() -> io::Error {
    Errno::OPNOTSUPP.into()
}

impl From<Absence> for io::Error {
    fn from(absence: Absence) -> Self {
        match absence {
            Absence::Errno(errno) => errno.into(),
            Absence::NotSupported | Absence::NoRss => unsupported(),
            other => invalid(other),
        }
    }
}

/// A netdev of this thread's network namespace.
fn open(netdev: &str) -> io::Result<Device> {
    Device::open(netdev).map_err(io::Error::other)
}

/// The text of a setting, with a newline at the end, as in a file.
pub(crate) fn get(netdev: &str, setting: &EthtoolSetting) -> io::Result<String> {
    let device = open(netdev)?;
    let text = match setting {
        EthtoolSetting::Channels => device.channels()?.settings().to_string(),
        EthtoolSetting::MostChannels => device.channels()?.most().to_string(),
        EthtoolSetting::Rings => device.rings()?.settings().to_string(),
        EthtoolSetting::MostRings => device.rings()?.most().to_string(),
        EthtoolSetting::Coalesce => device.coalesce()?.to_string(),
        EthtoolSetting::CoalesceNumber(name) => device.coalesce()?.get(name).to_string(),
        EthtoolSetting::Offload(name) => offload_text(&device.offload(name)?.0),
        EthtoolSetting::FlowHash(flow) => match device.flow_hash(*flow)? {
            fields if fields.is_empty() => "none".to_owned(),
            fields => fields.to_string(),
        },
        EthtoolSetting::RssTable(context) => {
            let table = device.rss_of(*context)?.indirection;
            if table.is_empty() {
                return Err(unsupported());
            }
            table.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
        EthtoolSetting::RssKey => Key(device.rss_of(0)?.key.ok_or_else(unsupported)?).to_string(),
        EthtoolSetting::RssHash => {
            device.rss_of(0)?.hash_words().ok_or_else(unsupported)?.to_string()
        }
        EthtoolSetting::RssContext(queues) => there(device.context_over(queues)?),
        EthtoolSetting::Rule(rule) => there(device.location_of(rule)?),
    };
    Ok(text + "\n")
}

/// Writes a setting; the text has the form that [`get`] returns.
pub(crate) fn set(netdev: &str, setting: &EthtoolSetting, text: &str) -> io::Result<()> {
    let device = open(netdev)?;
    let text = text.trim();
    let settings = || text.parse::<Settings>().map_err(invalid);
    match setting {
        EthtoolSetting::MostChannels | EthtoolSetting::MostRings => Err(unsupported()),
        EthtoolSetting::Channels => {
            device.send(ETHTOOL_SCHANNELS, &encode::channels(&settings()?).map_err(invalid)?)
        }
        EthtoolSetting::Rings => {
            device.send(ETHTOOL_SRINGPARAM, &encode::rings(&settings()?).map_err(invalid)?)
        }
        EthtoolSetting::Coalesce => device.set_coalesce(&settings()?),
        EthtoolSetting::CoalesceNumber(name) => {
            let number = text.parse().map_err(invalid)?;
            device.set_coalesce(&device.coalesce()?.with(name, number))
        }
        EthtoolSetting::Offload(name) => device.switch(name, text),
        EthtoolSetting::FlowHash(flow) => {
            let letters = if text == "none" { "" } else { text };
            let fields: HashFields = letters.parse().map_err(invalid)?;
            device.get(ETHTOOL_SRXFH, &encode::flow_hash(*flow, fields), decode::RXNFC_LEN)?;
            Ok(())
        }
        EthtoolSetting::RssTable(0) if text == DEFAULT => device.set_rss(0, RssPart::DefaultTable),
        EthtoolSetting::RssTable(context) => {
            let table: Table = text.parse().map_err(invalid)?;
            device.set_rss(*context, RssPart::Table(&table))
        }
        EthtoolSetting::RssKey => device.set_rss(0, RssPart::Key(&text.parse().map_err(invalid)?)),
        EthtoolSetting::RssHash => {
            let (function, input_xfrm) =
                Rss::hash_of_words(text).ok_or_else(|| invalid("no such hash function"))?;
            device
                .send(ETHTOOL_SRSSH, &encode::rss(0, RssPart::Function(function.bit()), input_xfrm))
        }
        EthtoolSetting::RssContext(queues) => device.set_context(queues, switch(text)?.is_some()),
        EthtoolSetting::Rule(rule) => device.set_rule(rule, switch(text)?),
    }
}

/// An offload in ethtool's words.
fn offload_text(feature: &Feature) -> String {
    let word = |on| if on { "on" } else { "off" };
    let active = word(feature.active);
    if feature.requested == feature.active || feature.fixed() {
        return active.to_owned();
    }
    format!("{active} [requested {}]", word(feature.requested))
}

/// Formats whether a context or rule exists, and its number.
fn there(number: Option<u32>) -> String {
    number.map_or_else(|| "off".to_owned(), |number| format!("on {number}"))
}

/// Reads the text of [`there`]. Returns `None` for off, else the number, if the text has one.
fn switch(text: &str) -> io::Result<Option<Option<u32>>> {
    match text.split_once(' ') {
        None if text == "off" => Ok(None),
        None if text == "on" => Ok(Some(None)),
        Some(("on", number)) => number.parse().map(|number| Some(Some(number))).map_err(invalid),
        _ => Err(invalid(format!("{text:?} is neither on nor off"))),
    }
}

impl Device {
    /// Sends a command whose answer does not matter.
    fn send(&self, command: u32, fields: &[u32]) -> io::Result<()> {
        self.get(command, fields, 4 * (fields.len() + 1))?;
        Ok(())
    }

    fn channels(&self) -> io::Result<netsilo_model::snapshot::ethtool::Channels> {
        decode::channels(&self.get(ETHTOOL_GCHANNELS, &[], decode::CHANNELS_LEN)?).map_err(invalid)
    }

    fn rings(&self) -> io::Result<netsilo_model::snapshot::ethtool::Rings> {
        decode::rings(&self.get(ETHTOOL_GRINGPARAM, &[], decode::RINGPARAM_LEN)?).map_err(invalid)
    }

    fn coalesce(&self) -> io::Result<Settings> {
        let bytes = self.get(ETHTOOL_GCOALESCE, &[], decode::COALESCE_LEN)?;
        Ok(decode::coalesce(&bytes).map_err(invalid)?.settings())
    }

    fn set_coalesce(&self, settings: &Settings) -> io::Result<()> {
        self.send(ETHTOOL_SCOALESCE, &encode::coalesce(settings).map_err(invalid)?)
    }

    /// An offload: its index among all offloads, and how many there are.
    fn offload(&self, name: &str) -> io::Result<(Feature, usize, usize)> {
        let names = self.strings(ETH_SS_FEATURES)?;
        let index = names.iter().position(|known| known == name).ok_or(Errno::NOENT)?;
        let feature = self
            .features()?
            .into_iter()
            .find(|feature| feature.name == name)
            .ok_or(Errno::NOENT)?;
        Ok((feature, index, names.len()))
    }

    /// Switches an offload, both requested and effective. If the driver does not follow, the
    /// request is reverted.
    ///
    /// If the text has a requested state, only the request is restored: the kernel derives the
    /// effective state from it, as before.
    fn switch(&self, name: &str, text: &str) -> io::Result<()> {
        let on = |word: &str| match word {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(invalid(format!("{text:?} is neither on nor off"))),
        };
        let (before, index, count) = self.offload(name)?;
        if let Some((_, requested)) = text.split_once(" [requested ") {
            return self.send(
                ETHTOOL_SFEATURES,
                &encode::feature(index, count, on(requested.trim_end_matches(']'))?),
            );
        }
        let wanted = on(text)?;
        if before.fixed() && before.active != wanted {
            return Err(unsupported());
        }
        self.send(ETHTOOL_SFEATURES, &encode::feature(index, count, wanted))?;
        if self.offload(name)?.0.active != wanted {
            self.send(ETHTOOL_SFEATURES, &encode::feature(index, count, before.requested))?;
            return Err(io::Error::other(
                "the driver did not follow: another offload or setting prevents it",
            ));
        }
        Ok(())
    }

    /// Changes a part of RSS and keeps the transformation of its input.
    fn set_rss(&self, context: u32, part: RssPart<'_>) -> io::Result<()> {
        let input_xfrm = self.rss_of(context)?.input_xfrm;
        self.send(ETHTOOL_SRSSH, &encode::rss(context, part, input_xfrm))
    }

    /// All RSS contexts except 0: their numbers, and the queues over which they spread packets.
    fn contexts(&self) -> io::Result<Vec<(u32, CpuSet)>> {
        let mut all = Vec::new();
        for context in 1..=CONTEXTS {
            match self.rss_of(context) {
                Ok(rss) => all.push((context, rss.indirection.into_iter().map(CpuId).collect())),
                // Kernels and drivers return different errors for a context that does not exist.
                Err(Absence::NotSupported) => return Err(unsupported()),
                Err(_) => {}
            }
        }
        Ok(all)
    }

    fn context_over(&self, queues: &CpuSet) -> io::Result<Option<u32>> {
        Ok(self
            .contexts()?
            .into_iter()
            .find(|(_, over)| over == queues)
            .map(|(context, _)| context))
    }

    /// Makes or deletes the context that spreads packets over exactly these queues.
    fn set_context(&self, queues: &CpuSet, on: bool) -> io::Result<()> {
        match (on, self.context_over(queues)?) {
            (true, Some(_)) | (false, None) => Ok(()),
            (false, Some(context)) => {
                self.send(ETHTOOL_SRSSH, &encode::rss(context, RssPart::Delete, 0))
            }
            (true, None) => {
                let queues: Vec<u32> = queues.iter().map(|queue| queue.0).collect();
                let buckets = self.rss_of(0)?.indirection.len();
                let by_turns = Table::equal(buckets, queues.len() as u32).0;
                let table = Table(
                    by_turns
                        .into_iter()
                        .filter_map(|turn| queues.get(turn as usize).copied())
                        .collect(),
                );
                self.send(ETHTOOL_SRSSH, &encode::rss(NEW_CONTEXT, RssPart::Table(&table), 0))
            }
        }
    }

    /// The rules of the netdev.
    fn rules(&self) -> io::Result<Vec<Installed>> {
        let count = decode::rule_count(&self.get(ETHTOOL_GRXCLSRLCNT, &[], decode::RXNFC_LEN)?)
            .map_err(invalid)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        // The count is in the field where a rule has its context; that many locations may follow.
        let mut bytes =
            [ETHTOOL_GRXCLSRLALL.to_ne_bytes().to_vec(), vec![0; decode::RXNFC_LEN - 4]].concat();
        bytes[rules::COUNT..rules::COUNT + 4].copy_from_slice(&count.to_ne_bytes());
        bytes.resize(decode::RXNFC_LEN + 4 * count as usize, 0);
        self.exchange(&mut bytes)?;
        let contexts = self.contexts().unwrap_or_default();
        let queues = |context| {
            contexts.iter().find(|(known, _)| *known == context).map(|(_, over)| over.clone())
        };
        let mut all = Vec::new();
        for location in rules::locations(&bytes).unwrap_or_default() {
            let mut bytes = rules::at(location);
            bytes[..4].copy_from_slice(&ETHTOOL_GRXCLSRULE.to_ne_bytes());
            match self.exchange(&mut bytes) {
                Ok(()) => all.extend(rules::decode(&bytes, queues)),
                // deleted since
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(all)
    }

    fn location_of(&self, rule: &FlowRule) -> io::Result<Option<u32>> {
        let same = |it: &Installed| it.rule.as_ref() == Some(rule);
        Ok(self.rules()?.into_iter().find(same).map(|installed| installed.location))
    }

    /// Installs a rule, at a given location or a free one; or deletes the rule that has exactly
    /// this content.
    fn set_rule(&self, rule: &FlowRule, on: Option<Option<u32>>) -> io::Result<()> {
        let there = self.location_of(rule)?;
        match (on, there) {
            (None, None) | (Some(_), Some(_)) => Ok(()),
            (None, Some(location)) => {
                let mut bytes = rules::at(location);
                bytes[..4].copy_from_slice(&ETHTOOL_SRXCLSRLDEL.to_ne_bytes());
                Ok(self.exchange(&mut bytes)?)
            }
            (Some(place), None) => {
                let context = match &rule.to {
                    Steer::Queue(_) => 0,
                    Steer::Queues(queues) => self.context_over(queues)?.ok_or_else(|| {
                        io::Error::new(
                            io::ErrorKind::NotFound,
                            format!("no rss context over queues {queues}"),
                        )
                    })?,
                };
                let location = place.map_or_else(|| self.free_location(), Ok)?;
                let mut bytes = rules::encode(rule, context, location).ok_or(Errno::INVAL)?;
                bytes[..4].copy_from_slice(&ETHTOOL_SRXCLSRLINS.to_ne_bytes());
                Ok(self.exchange(&mut bytes)?)
            }
        }
    }

    /// Any location if the driver chooses it itself; otherwise the last free one, because earlier
    /// rules take precedence.
    fn free_location(&self) -> io::Result<u32> {
        let bytes = self.get(ETHTOOL_GRXCLSRLCNT, &[], decode::RXNFC_LEN)?;
        let (size, chooses) = rules::table_size(&bytes).ok_or(Errno::INVAL)?;
        if chooses {
            return Ok(rules::ANY_LOCATION);
        }
        let taken: Vec<u32> =
            self.rules()?.into_iter().map(|installed| installed.location).collect();
        // If the driver reports no size, the first free location is used.
        let free = |location: &u32| !taken.contains(location);
        let found = if size == 0 {
            (0..=taken.len() as u32).find(free)
        } else {
            (0..size).rev().find(free)
        };
        found.ok_or_else(|| Errno::NOSPC.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_that_is_wanted_and_not_in_effect_says_both() {
        let feature = |active, requested| Feature {
            name: "rx-lro".into(),
            available: true,
            requested,
            active,
            never_changed: false,
        };
        assert_eq!(offload_text(&feature(true, true)), "on");
        assert_eq!(offload_text(&feature(false, true)), "off [requested on]");
        assert_eq!(offload_text(&Feature { never_changed: true, ..feature(false, true) }), "off");
    }

    #[test]
    fn what_is_there_has_a_number_and_what_is_not_has_none() {
        assert_eq!((there(None), there(Some(1023))), ("off".to_owned(), "on 1023".to_owned()));
        assert_eq!(switch("on 1023").unwrap(), Some(Some(1023)));
        assert_eq!((switch("on").unwrap(), switch("off").unwrap()), (Some(None), None));
        assert!(switch("on x").is_err() && switch("1").is_err());
    }

    #[test]
    fn loopback_tells_its_offloads_and_refuses_what_it_does_not_have() {
        assert_eq!(get("lo", &EthtoolSetting::Offload("loopback".into())).unwrap(), "on\n");
        let errno = |setting| get("lo", &setting).unwrap_err().raw_os_error();
        assert_eq!(errno(EthtoolSetting::Channels), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(EthtoolSetting::RssTable(0)), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(EthtoolSetting::CoalesceNumber("rx-usecs")), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(EthtoolSetting::Offload("no-such".into())), Some(libc::ENOENT));
        let fixed = set("lo", &EthtoolSetting::Offload("loopback".into()), "off").unwrap_err();
        assert_eq!(fixed.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
