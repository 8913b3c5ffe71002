//! A netdev as the ioctl `SIOCETHTOOL` accesses it: the requests, and the reasons for a missing
//! value.
//!
//! Uses the ioctl and not the netlink family: every kernel has the ioctl, and it reports RSS and
//! rx-flow-hash even before 6.8. It accesses the netdevs of the calling thread's network namespace.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;

use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::ethtool_decode as decode;
use netsilo_model::parse::ethtool_decode::TooShort;
use netsilo_model::snapshot::ethtool::{Feature, FlowType, HashFields, Link, Rss};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

// include/uapi/linux/ethtool.h
pub(super) const ETHTOOL_GDRVINFO: u32 = 0x03;
pub(super) const ETHTOOL_GCOALESCE: u32 = 0x0e;
pub(super) const ETHTOOL_GRINGPARAM: u32 = 0x10;
pub(super) const ETHTOOL_GSTRINGS: u32 = 0x1b;
pub(super) const ETHTOOL_GSTATS: u32 = 0x1d;
pub(super) const ETHTOOL_GRXFH: u32 = 0x29;
pub(super) const ETHTOOL_GRXRINGS: u32 = 0x2d;
pub(super) const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
pub(super) const ETHTOOL_GSSET_INFO: u32 = 0x37;
pub(super) const ETHTOOL_GFEATURES: u32 = 0x3a;
pub(super) const ETHTOOL_GCHANNELS: u32 = 0x3c;
pub(super) const ETHTOOL_GRSSH: u32 = 0x46;
pub(super) const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
pub(super) const ETH_SS_STATS: u32 = 1;
pub(super) const ETH_SS_FEATURES: u32 = 4;
/// `IFNAMSIZ`: maximum length of a netdev's name, including its NUL.
pub(super) const IFNAMSIZ: usize = 16;

/// Why ethtool requests cannot be sent at all.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// No socket for the request.
    #[error("cannot open a socket for ethtool requests")]
    Socket(#[source] io::Error),
    /// This network namespace has no netdev with this name.
    #[error("no netdev named `{0}` in this network namespace: `ip link` lists them")]
    NoNetdev(String),
}

/// Why one part has no value. The text is stored in the bundle.
#[derive(Debug, thiserror::Error)]
pub(super) enum Absence {
    #[error("EOPNOTSUPP: the driver does not offer it")]
    NotSupported,
    #[error("the driver has no such string set")]
    NoStringSet,
    #[error("the netdev has neither an RSS table nor a hash key")]
    NoRss,
    #[error("the set of names changed while it was read: run this again")]
    Changed,
    #[error("{}", io::Error::from(*.0))]
    Errno(Errno),
    #[error(transparent)]
    TooShort(#[from] TooShort),
}

impl From<Errno> for Absence {
    fn from(errno: Errno) -> Self {
        if errno == Errno::OPNOTSUPP { Absence::NotSupported } else { Absence::Errno(errno) }
    }
}

/// A netdev by name, and the socket for requests.
pub(super) struct Device {
    socket: OwnedFd,
    name: [u8; IFNAMSIZ],
}

impl Device {
    pub(super) fn open(netdev: &str) -> Result<Self, EthtoolError> {
        let mut name = [0; IFNAMSIZ];
        // one byte less than the field, for the NUL
        match name[..IFNAMSIZ - 1].get_mut(..netdev.len()) {
            Some(field) if !netdev.is_empty() => field.copy_from_slice(netdev.as_bytes()),
            _ => return Err(EthtoolError::NoNetdev(netdev.to_owned())),
        }
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| EthtoolError::Socket(errno.into()))?;
        Ok(Device { socket, name })
    }

    /// Sends a command followed by u32 fields. Returns the `len` bytes that the kernel filled in.
    pub(super) fn get(&self, command: u32, fields: &[u32], len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes: Vec<u8> =
            [command].iter().chain(fields).flat_map(|field| field.to_ne_bytes()).collect();
        bytes.resize(len.max(bytes.len()), 0);
        self.exchange(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a struct that begins with its command. The kernel overwrites it with the answer.
    pub(super) fn exchange(&self, bytes: &mut [u8]) -> Result<(), Errno> {
        siocethtool(&self.socket, self.name, bytes)
    }

    pub(super) fn fixed<T>(
        &self,
        command: u32,
        len: usize,
        decode: fn(&[u8]) -> Result<T, TooShort>,
    ) -> Reading<T> {
        let read = || -> Result<T, Absence> { Ok(decode(&self.get(command, &[], len)?)?) };
        read().into()
    }

    pub(super) fn flow_hash(&self, flow: FlowType) -> Result<HashFields, Absence> {
        let bytes = self.get(ETHTOOL_GRXFH, &[flow.number()], decode::RXNFC_LEN)?;
        Ok(decode::flow_hash(&bytes)?)
    }

    pub(super) fn rss(&self) -> Result<Rss, Absence> {
        self.rss_of(0)
    }

    /// Reads RSS. Reads the sizes first, because the kernel refuses any other size with EINVAL.
    pub(super) fn rss_of(&self, context: u32) -> Result<Rss, Absence> {
        let (entries, key) =
            decode::rss_sizes(&self.get(ETHTOOL_GRSSH, &[context], decode::RXFH_LEN)?)?;
        if entries == 0 && key == 0 {
            return Err(Absence::NoRss);
        }
        let len = decode::RXFH_LEN + 4 * entries as usize + key as usize;
        Ok(decode::rss(&self.get(ETHTOOL_GRSSH, &[context, entries, key], len)?)?)
    }

    pub(super) fn link(&self) -> Result<Link, Absence> {
        let len = decode::LINK_SETTINGS_LEN;
        let words = decode::link_mode_words(&self.get(ETHTOOL_GLINKSETTINGS, &[], len)?)?;
        // the mask size in words is the last byte of the fourth u32; three masks of that size
        // follow the struct
        let fields = [0, 0, u32::from_ne_bytes([0, 0, 0, words])];
        let bytes = self.get(ETHTOOL_GLINKSETTINGS, &fields, len + 3 * 4 * usize::from(words))?;
        Ok(decode::link(&bytes)?)
    }

    pub(super) fn features(&self) -> Result<Vec<Feature>, Absence> {
        let names = self.strings(ETH_SS_FEATURES)?;
        let blocks = names.len().div_ceil(32);
        let len = decode::HEADER_LEN + blocks * decode::FEATURES_BLOCK_LEN;
        let bytes = self.get(ETHTOOL_GFEATURES, &[count(blocks)], len)?;
        Ok(decode::features(&bytes, &names)?)
    }

    pub(super) fn stats(&self) -> Result<Vec<(String, u64)>, Absence> {
        let names = self.strings(ETH_SS_STATS)?;
        let len = decode::HEADER_LEN + 8 * with_slack(names.len());
        let stats = decode::stats(&self.get(ETHTOOL_GSTATS, &[count(names.len())], len)?, &names)?;
        if stats.len() == names.len() { Ok(stats) } else { Err(Absence::Changed) }
    }

    pub(super) fn strings(&self, set: u32) -> Result<Vec<String>, Absence> {
        // struct ethtool_sset_info: reserved, then a u64 mask of the requested sets
        let [a, b, c, d, e, f, g, h] = (1u64 << set).to_ne_bytes();
        let fields = [0, u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])];
        let info = self.get(ETHTOOL_GSSET_INFO, &fields, decode::SSET_INFO_LEN)?;
        let names = decode::sset_count(&info)?.ok_or(Absence::NoStringSet)? as usize;
        let len = decode::GSTRINGS_LEN + decode::GSTRING_LEN * with_slack(names);
        let strings = decode::strings(&self.get(ETHTOOL_GSTRINGS, &[set, count(names)], len)?)?;
        if strings.len() == names { Ok(strings) } else { Err(Absence::Changed) }
    }
}

/// A count in the form that the kernel expects. Kernels of 2026 return 0 names or counters unless
/// it is the current count.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Buffer size for names or counters.
///
/// Older kernels write the *current* number of values, whatever count was passed. A change of
/// channels may have increased it since.
fn with_slack(count: usize) -> usize {
    2 * count + 4096
}

/// `struct ifreq` (include/uapi/linux/if.h) as used by SIOCETHTOOL.
#[repr(C)]
pub(super) struct Ifreq {
    name: [u8; IFNAMSIZ],
    data: *mut c_void,
    /// The rest of the union `ifr_ifru`, 24 bytes in all.
    rest: [u64; 2],
}

/// The only system call in this folder.
#[allow(unsafe_code)]
pub(super) fn siocethtool(
    socket: &OwnedFd,
    name: [u8; IFNAMSIZ],
    bytes: &mut [u8],
) -> Result<(), Errno> {
    /// include/uapi/linux/sockios.h
    const SIOCETHTOOL: rustix::ioctl::Opcode = 0x8946;
    let mut ifreq = Ifreq { name, data: bytes.as_mut_ptr().cast(), rest: [0; 2] };
    // SAFETY: `ifreq` and `bytes` live through the call. Callers give `bytes` the size that the
    // kernel writes for their command. That size is the struct plus its arrays: the kernel takes
    // their length from the request (GRSSH, GFEATURES, GLINKSETTINGS, GRXCLSRLALL), or `with_slack`
    // reserves it (GSTRINGS, GSTATS). The kernel reads data for the driver by the lengths in the
    // struct, which match `bytes` (`ethtool_encode`).
    unsafe {
        rustix::ioctl::ioctl(socket, rustix::ioctl::Updater::<SIOCETHTOOL, Ifreq>::new(&mut ifreq))
    }
}
