//! Drops datagrams at ingress, before connection tracking, routing and bridging, with nftables
//! rules.
//!
//! The tables belong to a netlink socket (`NFT_TABLE_F_OWNER`, 5.12). When the socket closes, the
//! kernel removes them, however this process ends.

use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use netlink_bindings::nftables::{
    Chained, ChainedFinal, CmpOps, MetaKeys, Nfgenmsg, PayloadBase, PushExprListAttrs,
    PushRuleAttrs, Registers, TableFlags, VerdictCode,
};
use netlink_bindings::traits::NetlinkChained as _;
use netlink_bindings::utils::RequestBuf;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::netdev::has_bridge;
use rustix::net::netlink::NETFILTER;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// `NF_IP_PRI_RAW`: before connection tracking (-200). In a bridge it precedes all hooks of
/// netfilter itself (`NF_BR_PRI_NAT_DST_BRIDGED`).
const PRIORITY: i32 = -300;
/// `NF_INET_PRE_ROUTING`, `NF_BR_PRE_ROUTING`.
const PREROUTING: u32 = 0;
/// `NFNL_SUBSYS_NFTABLES`, the subsystem of the batch.
const NFTABLES: u16 = 10;
/// Sequence number of the first message.
const FIRST: u32 = 1;
/// `NLMSG_ERROR`: an error or an acknowledgement.
const ANSWER: u16 = 2;
const REGISTER: u32 = Registers::Reg1 as u32;

/// Why datagrams cannot be dropped.
#[derive(Debug, thiserror::Error)]
pub enum EarlyDropError {
    /// The two addresses cannot exchange packets.
    #[error("{0} and {1} are addresses of different families")]
    Families(IpAddr, IpAddr),
    /// The kernel lacks rules of this kind, or refuses them.
    #[error(
        "the kernel refuses nftables rules with an owner ({0}): they need CAP_NET_ADMIN, nf_tables \
         and kernel 5.12 or newer"
    )]
    Refused(#[from] io::Error),
}

/// Drops datagrams while it lives.
#[derive(Debug)]
pub struct EarlyDrop {
    _owner: OwnedFd,
}

impl EarlyDrop {
    /// Drops UDP datagrams from the first to the second address of each pair, in this thread's
    /// network namespace.
    ///
    /// Packets that enter a bridge are dropped in the bridge, all others in raw PREROUTING. Without
    /// nftables bridge support, bridged packets are dropped in raw PREROUTING if `br_netfilter`
    /// passes them on.
    pub fn install(root: &Root, flows: &[(IpAddr, IpAddr)]) -> Result<Self, EarlyDropError> {
        let flows: Vec<(IpAddr, IpAddr)> =
            flows.iter().map(|(from, to)| (from.to_canonical(), to.to_canonical())).collect();
        if let Some((from, to)) = flows.iter().find(|(from, to)| from.is_ipv4() != to.is_ipv4()) {
            return Err(EarlyDropError::Families(*from, *to));
        }
        let owner = |families: &[Family]| commit(&batch(&flows, families).finalize());
        let owner = if has_bridge(root) { owner(ALL).or_else(|_| owner(IP))? } else { owner(IP)? };
        Ok(Self { _owner: owner })
    }
}

/// The hook's family (`NFPROTO_IPV4`, `NFPROTO_IPV6`, `NFPROTO_BRIDGE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Ip = 2,
    Ip6 = 10,
    Bridge = 7,
}

impl Family {
    fn sees(self, address: IpAddr) -> bool {
        match self {
            Self::Ip => address.is_ipv4(),
            Self::Ip6 => address.is_ipv6(),
            Self::Bridge => true,
        }
    }
}

const IP: &[Family] = &[Family::Ip, Family::Ip6];
const ALL: &[Family] = &[Family::Ip, Family::Ip6, Family::Bridge];

/// A table, a chain and the rules, in each family that applies to some of the flows.
fn batch(flows: &[(IpAddr, IpAddr)], families: &[Family]) -> Chained<'static> {
    let mut batch = Chained::new(FIRST);
    let mut edge = Nfgenmsg::new();
    edge.set_res_id(NFTABLES);
    batch.request().op_batch_begin_do(&edge);
    let (table, chain) = (name(), c"in");
    for family in families {
        let flows: Vec<_> = flows.iter().filter(|(from, _)| family.sees(*from)).collect();
        if flows.is_empty() {
            continue;
        }
        let header = Nfgenmsg { nfgen_family: *family as u8, ..Nfgenmsg::new() };
        let mut request = batch.request().set_create().set_excl().op_newtable_do(&header);
        request.encode().push_name(&table).push_flags(TableFlags::Owner as u32);
        let mut request = batch.request().set_create().set_excl().op_newchain_do(&header);
        let hook =
            request.encode().push_table(&table).push_name(chain).push_type(c"filter").nested_hook();
        hook.push_num(PREROUTING).push_priority(PRIORITY).end_nested();
        for (from, to) in flows {
            let request = batch.request().set_create().set_append().op_newrule_do(&header);
            let rule =
                request.into_encoder().push_table(&table).push_chain(chain).nested_expressions();
            drop_flow(rule, *family, *from, *to).end_nested();
        }
    }
    batch.request().op_batch_end_do(&edge);
    batch
}

/// The table's name. It is unique to this process, because other processes may measure at the same
/// time.
fn name() -> CString {
    CString::new(format!("netsilo-early-drop-{}", std::process::id())).unwrap_or_default()
}

type Rule<'a> = PushExprListAttrs<PushRuleAttrs<RequestBuf<'a>>>;

/// Adds a rule's expressions: load and compare each field, then the verdict.
///
/// Its parts are not inlined, because otherwise the builders of `netlink-bindings` would be here
/// ten times.
fn drop_flow(rule: Rule<'_>, family: Family, from: IpAddr, to: IpAddr) -> Rule<'_> {
    let ethertype: u16 = if from.is_ipv4() { 0x0800 } else { 0x86dd };
    let rule = if family == Family::Bridge {
        equals(meta(rule, MetaKeys::Protocol), &ethertype.to_be_bytes())
    } else {
        rule
    };
    let rule = equals(meta(rule, MetaKeys::L4Proto), &[libc::IPPROTO_UDP as u8]);
    // offsets of the two addresses in the IPv4 and IPv6 headers
    let (at_from, at_to) = if from.is_ipv4() { (12, 16) } else { (8, 24) };
    let rule =
        [(at_from, from), (at_to, to)].into_iter().fold(
            rule,
            |rule, (at, address)| match address {
                IpAddr::V4(address) => equals(network_header(rule, at, 4), &address.octets()),
                IpAddr::V6(address) => equals(network_header(rule, at, 16), &address.octets()),
            },
        );
    let verdict = rule
        .nested_elem()
        .nested_data_immediate()
        .push_dreg(Registers::RegVerdict as u32)
        .nested_data();
    let verdict =
        verdict.nested_verdict().push_code(VerdictCode::Drop as u32).end_nested().end_nested();
    verdict.end_nested().end_nested()
}

/// Loads packet metadata.
#[inline(never)]
fn meta(rule: Rule<'_>, key: MetaKeys) -> Rule<'_> {
    rule.nested_elem()
        .nested_data_meta()
        .push_key(key as u32)
        .push_dreg(REGISTER)
        .end_nested()
        .end_nested()
}

/// Loads bytes of the IP header.
#[inline(never)]
fn network_header(rule: Rule<'_>, offset: u32, length: u32) -> Rule<'_> {
    let payload = rule
        .nested_elem()
        .nested_data_payload()
        .push_dreg(REGISTER)
        .push_base(PayloadBase::NetworkHeader as u32);
    payload.push_offset(offset).push_len(length).end_nested().end_nested()
}

/// Continues only if the loaded value equals this one.
#[inline(never)]
fn equals<'a>(rule: Rule<'a>, value: &[u8]) -> Rule<'a> {
    let compare =
        rule.nested_elem().nested_data_cmp().push_sreg(REGISTER).push_op(CmpOps::Eq as u32);
    compare.nested_data().push_value(value).end_nested().end_nested().end_nested()
}

/// Sends a batch and checks the replies, which the kernel queues before the send returns.
///
/// The returned socket owns the created tables.
fn commit(batch: &ChainedFinal<'_>) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(NETFILTER),
    )?;
    send(&socket, batch.payload(), SendFlags::empty())?;
    // kernels before 6.10 do not acknowledge the end of a batch, but they acknowledge its last rule
    let last = FIRST + batch.chain_len() as u32 - 2;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let (length, _) = recv(&socket, &mut *buffer, RecvFlags::DONTWAIT)?;
        for (number, errno) in answers(&buffer[..length]) {
            match errno {
                0 if number == last => return Ok(socket),
                0 => {}
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

/// The sequence number to which each reply refers, and its errno or 0.
fn answers(mut bytes: &[u8]) -> Vec<(u32, i32)> {
    let mut answers = Vec::new();
    let word =
        |bytes: &[u8], at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    // struct nlmsghdr: length, type and flags, number, port; then struct nlmsgerr: negative errno,
    // the header of the request
    while let (Some(length), Some(number), Some(error)) =
        (word(bytes, 0), word(bytes, 8), word(bytes, 16))
    {
        if bytes.get(4..6) == Some(&ANSWER.to_ne_bytes()[..]) {
            answers.push((number, error.cast_signed().wrapping_neg()));
        }
        let next = (length as usize).clamp(16, bytes.len().max(16)).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    answers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(number: u32, errno: i32) -> Vec<u8> {
        let words = [
            36,
            u32::from(ANSWER),
            number,
            77,
            errno.wrapping_neg().cast_unsigned(),
            20,
            0,
            number,
            77,
        ];
        words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
    }

    #[test]
    fn each_reply_names_its_message_and_truncated_replies_are_ignored() {
        let bytes = [answer(2, 0), answer(3, libc::EPERM)].concat();
        assert_eq!(answers(&bytes), [(2, 0), (3, libc::EPERM)]);
        assert_eq!(answers(&bytes[..40]), [(2, 0)]);
        assert_eq!(answers(&[0; 64]).len(), 0);
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_terminates(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(answers(&bytes).len() <= bytes.len() / 16);
        }
    }

    #[test]
    fn a_batch_has_a_table_a_chain_and_one_rule_per_flow_in_each_matching_family() {
        let flows = [
            ("192.0.2.1", "198.51.100.1"),
            ("2001:db8::1", "2001:db8::2"),
            ("2001:db8::2", "2001:db8::1"),
        ];
        let flows = flows.map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()));
        let messages = |families: &[Family]| batch(&flows, families).finalize().chain_len();
        // begin and end; IPv4: one rule; IPv6: two; a bridge: all three
        assert_eq!(messages(&[Family::Ip]), 2 + 3);
        assert_eq!(messages(&[Family::Ip, Family::Ip6, Family::Bridge]), 2 + 3 + 4 + 5);
        let crossed =
            EarlyDrop::install(&Root::live(), &[(flows[0].0, flows[1].0)]).unwrap_err().to_string();
        assert_eq!(crossed, "192.0.2.1 and 2001:db8::1 are addresses of different families");
    }
}
