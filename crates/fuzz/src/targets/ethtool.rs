//! Buffers of ethtool ioctls: every decoder accepts any bytes and returns no more data than they
//! contain.

use netsilo_model::change::ethtool::rule;
use netsilo_model::change::{FlowRule, Key, Settings, Table};
use netsilo_model::parse::ethtool_decode::*;
use netsilo_model::snapshot::ethtool::{HashFunction, Rss};

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget::bytes(holds);

fn holds(bytes: &[u8]) {
    let names = strings(bytes).unwrap_or_default();
    assert!(
        names.len() * GSTRING_LEN <= bytes.len() && names.iter().all(|name| !name.contains('\0'))
    );
    let stats = stats(bytes, &names).unwrap_or_default();
    assert!(stats.len() <= names.len() && stats.len() * 8 <= bytes.len());
    let features = features(bytes, &names).unwrap_or_default();
    assert!(features.iter().all(|feature| names.contains(&feature.name)));
    if let Ok(rss) = rss(bytes) {
        assert_eq!(self::rss(&encode(&rss)), Ok(rss));
    }
    if let Ok(fields) = flow_hash(bytes)
        && let Ok(again) = fields.to_string().parse()
    {
        assert_eq!(fields, again);
    }
    let _ = (
        driver(bytes),
        channels(bytes),
        rings(bytes),
        coalesce(bytes),
        sset_count(bytes),
        rss_sizes(bytes),
    );
    let _ = (rx_rings(bytes), rule_count(bytes), link(bytes));
    assert!(link_mode_words(bytes).is_err() || bytes.len() > 15);
    let _ = (rule::table_size(bytes), rule::locations(bytes));
    // A decoded rule encodes and decodes to the same rule.
    if let Some(rule) = rule::decode(bytes, |_| None).and_then(|installed| installed.rule) {
        let again = rule::encode(&rule, 0, 0).and_then(|bytes| rule::decode(&bytes, |_| None));
        assert_eq!(again.and_then(|installed| installed.rule).as_ref(), Some(&rule));
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(settings) = text.parse::<Settings>() {
            assert_eq!(settings.to_string().parse(), Ok(settings));
        }
        let _ = (
            text.parse::<Table>().map(|table| table.to_string()),
            text.parse::<Key>(),
            text.parse::<FlowRule>(),
        );
    }
}

/// `struct ethtool_rxfh`.
fn encode(rss: &Rss) -> Vec<u8> {
    let key = rss.key.as_deref().unwrap_or_default();
    let function = match rss.function {
        None => 0,
        Some(HashFunction::Toeplitz) => 1,
        Some(HashFunction::Xor) => 2,
        Some(HashFunction::Crc32) => 4,
        Some(HashFunction::Other(bits)) => bits,
    };
    let sizes =
        [0, 0, rss.indirection.len() as u32, key.len() as u32].map(u32::to_ne_bytes).concat();
    let table: Vec<u8> = rss.indirection.iter().flat_map(|queue| queue.to_ne_bytes()).collect();
    [&sizes, &[function, rss.input_xfrm, 0, 0, 0, 0, 0, 0][..], &table, key].concat()
}
