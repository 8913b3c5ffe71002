//! Encodes the u32s that `SIOCETHTOOL` takes after its command. `ethtool_decode` is the
//! counterpart.
//!
//! A setting name that ethtool does not know is an error; it is never dropped.

use crate::change::ethtool::settings::{CHANNELS, COALESCE, RINGS};
use crate::change::value::{Key, Settings, Table};
use crate::snapshot::ethtool::{Coalesce, FlowType, HashFields};

/// `ETH_RXFH_INDIR_NO_CHANGE`: keeps the indirection table.
const TABLE_UNCHANGED: u32 = u32::MAX;

/// A setting for which the command has no field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown setting {0}: expected one of {1}")]
pub struct UnknownSetting(String, String);

fn known(settings: &Settings, names: &[&str]) -> Result<(), UnknownSetting> {
    let strange = settings.names().find(|name| !names.contains(name));
    strange.map_or(Ok(()), |name| Err(UnknownSetting(name.to_owned(), names.join(", "))))
}

/// Encodes `struct ethtool_channels`. The kernel ignores the limits that come before the counts.
pub fn channels(settings: &Settings) -> Result<Vec<u32>, UnknownSetting> {
    known(settings, &CHANNELS)?;
    Ok([0; 4].into_iter().chain(CHANNELS.map(|name| settings.get(name))).collect())
}

/// Encodes `struct ethtool_ringparam`. The kernel ignores the limits that come before the counts.
pub fn rings(settings: &Settings) -> Result<Vec<u32>, UnknownSetting> {
    known(settings, &RINGS)?;
    Ok([0; 4].into_iter().chain(RINGS.map(|name| settings.get(name))).collect())
}

/// Encodes `struct ethtool_coalesce`.
pub fn coalesce(settings: &Settings) -> Result<Vec<u32>, UnknownSetting> {
    known(settings, &COALESCE)?;
    let coalesce = Coalesce::of(settings).settings();
    Ok(COALESCE.map(|name| coalesce.get(name)).to_vec())
}

/// Encodes `struct ethtool_rxnfc` for `ETHTOOL_SRXFH`: the flow type, then a u64 of fields.
pub fn flow_hash(flow: FlowType, fields: HashFields) -> Vec<u32> {
    let [a, b, c, d, e, f, g, h] = fields.bits().to_ne_bytes();
    vec![flow.number(), u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// Encodes `struct ethtool_sfeatures` that sets or clears one feature of `count`: pairs of masks
/// (valid, requested) of 32 features each.
pub fn feature(index: usize, count: usize, on: bool) -> Vec<u32> {
    let blocks = count.div_ceil(32);
    let mut words = vec![0; 1 + 2 * blocks];
    words[0] = u32::try_from(blocks).unwrap_or(u32::MAX);
    if let Some([valid, requested]) =
        words.get_mut(1 + 2 * (index / 32)..).and_then(|rest| rest.first_chunk_mut())
    {
        *valid = 1 << (index % 32);
        *requested = u32::from(on) << (index % 32);
    }
    words
}

/// The part of RSS to change, for `ETHTOOL_SRSSH`.
///
/// Every request must contain `input_xfrm`: the kernel applies the value sent (since 6.8; 0
/// before).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RssPart<'a> {
    /// The indirection table.
    Table(&'a Table),
    /// The driver's default table (`ethtool -X <dev> default`).
    DefaultTable,
    /// The hash key.
    Key(&'a Key),
    /// The hash function, by its bit.
    Function(u8),
    /// Deletes the context (`ethtool -X <dev> context <n> delete`).
    Delete,
}

/// Encodes `struct ethtool_rxfh` of a context, followed by table or key. Context 0 is the netdev's
/// own.
pub fn rss(context: u32, part: RssPart<'_>, input_xfrm: u8) -> Vec<u32> {
    let hash = |function: u8| u32::from_ne_bytes([function, input_xfrm, 0, 0]);
    let header =
        |entries: u32, key: u32, function: u8| vec![context, entries, key, hash(function), 0];
    let length = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    match part {
        RssPart::Table(table) => {
            let mut words = header(length(table.0.len()), 0, 0);
            words.extend(&table.0);
            words
        }
        // Length 0 without another part selects the default table of context 0, and deletes any
        // other context.
        RssPart::DefaultTable | RssPart::Delete => header(0, 0, 0),
        RssPart::Key(key) => {
            let mut words = header(TABLE_UNCHANGED, length(key.0.len()), 0);
            words.extend(key.0.chunks(4).map(|bytes| {
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                u32::from_ne_bytes(word)
            }));
            words
        }
        RssPart::Function(bit) => header(TABLE_UNCHANGED, 0, bit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::ethtool_decode as decode;

    /// The struct as the ioctl reads it: the command, then the words.
    fn bytes(words: &[u32]) -> Vec<u8> {
        [0].iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn decoding_an_encoded_struct_gives_the_same_values() {
        let settings = |text: &str| text.parse::<Settings>().unwrap();
        let requested = settings("combined=4 other=1");
        assert_eq!(
            decode::channels(&bytes(&channels(&requested).unwrap())).unwrap().settings(),
            requested
        );
        let requested = settings("rx=4096 tx=512");
        assert_eq!(
            decode::rings(&bytes(&rings(&requested).unwrap())).unwrap().settings(),
            requested
        );
        let requested = settings("rx-usecs=8 tx-frames=9 adaptive-rx=on sample-interval=4");
        assert_eq!(
            decode::coalesce(&bytes(&coalesce(&requested).unwrap())).unwrap().settings(),
            requested
        );
        let fields: HashFields = "sdfn".parse().unwrap();
        assert_eq!(decode::flow_hash(&bytes(&flow_hash(FlowType::Udp4, fields))).unwrap(), fields);
    }

    #[test]
    fn an_unknown_setting_name_is_an_error() {
        let error = rings(&"rx=4096 rxx=1".parse().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown setting rxx: expected one of rx, rx-mini, rx-jumbo, tx"
        );
        assert!(
            channels(&"rx-usecs=1".parse().unwrap()).is_err()
                && coalesce(&"combined=1".parse().unwrap()).is_err()
        );
    }

    #[test]
    fn setting_a_feature_changes_only_its_bit() {
        assert_eq!(feature(33, 40, true), [2, 0, 0, 2, 2]);
        assert_eq!(feature(33, 40, false), [2, 0, 0, 2, 0]);
        assert_eq!(feature(99, 40, true), [2, 0, 0, 0, 0]);
    }

    #[test]
    fn a_table_and_a_key_follow_their_lengths() {
        let table = Table(vec![0, 1, 1]);
        assert_eq!(rss(0, RssPart::Table(&table), 0), [0, 3, 0, 0, 0, 0, 1, 1]);
        assert_eq!(rss(0, RssPart::DefaultTable, 0), [0; 5]);
        let key = Key(vec![1, 2, 3, 4, 5]);
        let words = rss(7, RssPart::Key(&key), 1);
        assert_eq!(words[..3], [7, u32::MAX, 5]);
        assert_eq!(words[3].to_ne_bytes(), [0, 1, 0, 0], "input_xfrm is kept");
        assert_eq!(bytes(&words)[24..29], [1, 2, 3, 4, 5]);
        assert_eq!(rss(0, RssPart::Function(2), 0)[3].to_ne_bytes(), [2, 0, 0, 0]);
    }
}
