//! Flow steering rules to and from kernel bytes: `struct ethtool_rxnfc` with its `struct
//! ethtool_rx_flow_spec`.

use core::net::IpAddr;

use crate::change::rule::{FlowRule, Steer};
use crate::machine::cpuset::CpuSet;
use crate::parse::ethtool_decode::RXNFC_LEN;
use crate::snapshot::ethtool::FlowType;

// byte offsets in the struct
const RULE_FLOW: usize = 16;
const VALUES: usize = 20;
const VALUES_EXT: usize = 72;
const MASKS: usize = 92;
const MASKS_EXT: usize = 144;
const COOKIE: usize = 168;
const LOCATION: usize = 176;
const CONTEXT: usize = 184;
/// Offset of the number of rules; the same bytes hold a rule's RSS context.
pub const COUNT: usize = CONTEXT;
/// Size of `union ethtool_flow_union`.
const UNION_LEN: usize = 52;
/// Size of `struct ethtool_flow_ext`.
const EXT_LEN: usize = 20;
/// `FLOW_RSS`: the rule steers to an RSS context.
const FLOW_RSS: u32 = 0x2000_0000;
/// `RX_CLS_LOC_ANY`: the driver chooses the location.
pub const ANY_LOCATION: u32 = u32::MAX;

/// An installed rule, and its location in the netdev's rule table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Location in the table.
    pub location: u32,
    /// The rule; `None` if it has fields that [`FlowRule`] cannot express.
    pub rule: Option<FlowRule>,
}

/// Byte offsets in the union: source address, destination address, source port, destination port;
/// then the address length.
fn layout(flow: FlowType) -> Option<([usize; 4], usize)> {
    match flow {
        FlowType::Tcp4 | FlowType::Udp4 | FlowType::Sctp4 => Some(([0, 4, 8, 10], 4)),
        FlowType::Tcp6 | FlowType::Udp6 | FlowType::Sctp6 => Some(([0, 16, 32, 34], 16)),
        FlowType::AhEsp4 | FlowType::AhEsp6 => None,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The struct for `ETHTOOL_SRXCLSRLINS` without its command; `None` for an invalid rule.
///
/// `context` is the RSS context for a rule with several queues.
pub fn encode(rule: &FlowRule, context: u32, location: u32) -> Option<Vec<u8>> {
    let ([src, dst, src_port, dst_port], _) = layout(rule.flow).filter(|_| rule.is_sound())?;
    let (flow, cookie) = match &rule.to {
        Steer::Queue(queue) => (rule.flow.number(), u64::from(*queue)),
        Steer::Queues(_) => (rule.flow.number() | FLOW_RSS, 0),
    };
    let mut bytes = vec![0; RXNFC_LEN];
    let mut put =
        |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
    put(RULE_FLOW, &flow.to_ne_bytes());
    put(COOKIE, &cookie.to_ne_bytes());
    put(LOCATION, &location.to_ne_bytes());
    put(CONTEXT, &context.to_ne_bytes());
    let fields = [
        (src, rule.src_ip.map(octets)),
        (dst, rule.dst_ip.map(octets)),
        (src_port, rule.src_port.map(|port| port.to_be_bytes().to_vec())),
        (dst_port, rule.dst_port.map(|port| port.to_be_bytes().to_vec())),
    ];
    for (offset, value) in fields.into_iter().filter_map(|(offset, value)| Some((offset, value?))) {
        put(VALUES + offset, &value);
        put(MASKS + offset, &vec![0xff; value.len()]);
    }
    Some(bytes)
}

/// Decodes the struct after `ETHTOOL_GRXCLSRULE`. Returns `None` if it is too short.
///
/// `queues` returns the queues of an RSS context.
pub fn decode(bytes: &[u8], queues: impl Fn(u32) -> Option<CpuSet>) -> Option<Installed> {
    let location = word(bytes, LOCATION)?;
    Some(Installed { location, rule: rule(bytes, queues) })
}

/// The rule, if [`FlowRule`] can express all of its fields.
fn rule(bytes: &[u8], queues: impl Fn(u32) -> Option<CpuSet>) -> Option<FlowRule> {
    let number = word(bytes, RULE_FLOW)?;
    let flow = FlowType::ALL.into_iter().find(|flow| flow.number() == number & !FLOW_RSS)?;
    let cookie = u64::from_ne_bytes(bytes.get(COOKIE..)?.first_chunk().copied()?);
    let to = match number & FLOW_RSS {
        0 => Steer::Queue(u32::try_from(cookie).ok()?),
        _ if cookie == 0 => Steer::Queues(queues(word(bytes, CONTEXT)?)?),
        _ => return None,
    };
    let ([src, dst, src_port, dst_port], address) = layout(flow)?;
    let values = bytes.get(VALUES..VALUES + UNION_LEN)?;
    let masks = bytes.get(MASKS..MASKS + UNION_LEN)?;
    // An additional field (type of service, address mask, vlan) shows that the rule is not ours.
    let ext =
        [bytes.get(VALUES_EXT..VALUES_EXT + EXT_LEN)?, bytes.get(MASKS_EXT..MASKS_EXT + EXT_LEN)?];
    let beyond = dst_port + 2..UNION_LEN;
    if ext.concat().iter().chain(&masks[beyond]).any(|byte| *byte != 0) {
        return None;
    }
    let field = |offset: usize, len: usize| -> Option<Option<&[u8]>> {
        let mask = &masks[offset..offset + len];
        if mask.iter().all(|byte| *byte == 0) {
            return Some(None);
        }
        mask.iter().all(|byte| *byte == 0xff).then(|| Some(&values[offset..offset + len]))
    };
    let ip = |offset| field(offset, address).map(|octets| octets.and_then(ip_of));
    let port =
        |offset| field(offset, 2).map(|octets| Some(u16::from_be_bytes(octets?.try_into().ok()?)));
    let rule = FlowRule {
        flow,
        src_ip: ip(src)?,
        dst_ip: ip(dst)?,
        src_port: port(src_port)?,
        dst_port: port(dst_port)?,
        to,
    };
    rule.is_sound().then_some(rule)
}

fn ip_of(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    }
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The struct that selects a rule by its location, without its command.
pub fn at(location: u32) -> Vec<u8> {
    let mut bytes = vec![0; RXNFC_LEN];
    bytes[LOCATION..LOCATION + 4].copy_from_slice(&location.to_ne_bytes());
    bytes
}

/// After `ETHTOOL_GRXCLSRLCNT`: the size of the rule table (0 if unknown), and whether the driver
/// can choose a location.
pub fn table_size(bytes: &[u8]) -> Option<(u32, bool)> {
    /// `RX_CLS_LOC_SPECIAL`.
    const CHOOSES: u64 = 1 << 31;
    let data = u64::from_ne_bytes(bytes.get(8..)?.first_chunk().copied()?);
    Some((u32::try_from(data & !CHOOSES).unwrap_or(u32::MAX), data & CHOOSES != 0))
}

/// The locations in use, after `ETHTOOL_GRXCLSRLALL`.
pub fn locations(bytes: &[u8]) -> Option<Vec<u32>> {
    let count = word(bytes, COUNT)? as usize;
    let all = bytes.get(COUNT + 4..)?.chunks_exact(4).take(count);
    Some(all.filter_map(|location| word(location, 0)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queues(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    #[test]
    fn a_rule_round_trips_at_the_kernels_offsets() {
        let rule: FlowRule = "tcp4 dst-ip 10.0.0.1 dst-port 443 action 3".parse().unwrap();
        let bytes = encode(&rule, 0, ANY_LOCATION).unwrap();
        assert_eq!(bytes.len(), RXNFC_LEN);
        assert_eq!(
            (&bytes[24..28], &bytes[30..32]),
            (&[10, 0, 0, 1][..], &[1, 187][..]),
            "pdst after psrc"
        );
        assert_eq!((&bytes[96..100], &bytes[102..104]), (&[255; 4][..], &[255; 2][..]));
        assert_eq!(
            decode(&bytes, |_| None),
            Some(Installed { location: ANY_LOCATION, rule: Some(rule) })
        );
        let rule: FlowRule = "udp6 src-ip 2001:db8::1 src-port 53 queues 2-3".parse().unwrap();
        let bytes = encode(&rule, 5, 9).unwrap();
        let found = decode(&bytes, |context| (context == 5).then(|| queues("2-3"))).unwrap();
        assert_eq!(found, Installed { location: 9, rule: Some(rule) });
        assert_eq!(decode(&bytes, |_| None).unwrap().rule, None, "an unknown context is not ours");
    }

    #[test]
    fn a_rule_with_additional_fields_is_not_ours() {
        let rule: FlowRule = "tcp4 dst-port 443 action 3".parse().unwrap();
        let bytes = encode(&rule, 0, 1).unwrap();
        let found = |offset: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[offset] = value;
            decode(&bytes, |_| None).unwrap().rule
        };
        assert_eq!(found(MASKS + 12, 0xff), None, "a type of service");
        assert_eq!(found(MASKS, 0xff), None, "a part of an address");
        assert_eq!(found(MASKS_EXT + 10, 0xff), None, "a vlan");
        assert_eq!(found(COOKIE + 4, 1), None, "a virtual function");
        assert_eq!(found(LOCATION, 7), Some(rule), "the location is not part of the rule");
    }

    #[test]
    fn locations_follow_their_count() {
        let mut bytes = vec![0; RXNFC_LEN + 8];
        bytes[8..16].copy_from_slice(&(1u64 << 31 | 1024).to_ne_bytes());
        bytes[CONTEXT..CONTEXT + 4].copy_from_slice(&2u32.to_ne_bytes());
        bytes[CONTEXT + 4] = 7;
        bytes[CONTEXT + 8] = 9;
        assert_eq!((table_size(&bytes), locations(&bytes)), (Some((1024, true)), Some(vec![7, 9])));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..220)) {
            let _ = (decode(&bytes, |_| None), table_size(&bytes), locations(&bytes));
        }
    }
}
