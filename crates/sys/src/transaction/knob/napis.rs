//! Checks whether all NAPIs of a netdev are enabled. While one is not, some writes never return.

use std::io;

use netsilo_model::change::{EthtoolSetting, Settings};
use netsilo_model::machine::cpuset::CpuSet;

use crate::transaction::kernel::{Kernel, KnobAddress};

/// Why NAPIs of a netdev are, or may be, disabled.
#[derive(Debug, thiserror::Error)]
pub enum NapisDisabled {
    /// The netdev is down.
    #[error(
        "waiting: {0} is down, and from 6.17 on the kernel does not return from this write until \
         it is up; run `ip link set {0} up`, then this command again"
    )]
    Down(String),
    /// The driver has NAPIs for channels that are switched off.
    #[error(
        "waiting: {netdev} has {now} channels, and its driver i40e keeps disabled NAPIs for \
         {at_load}: from 6.17 on the kernel never returns from this write; run \
         `ethtool -L {netdev} combined {at_load}`, then this command again"
    )]
    FewerChannels {
        /// The netdev.
        netdev: String,
        /// Its channels.
        now: u32,
        /// The number of channels that the driver made when it was loaded.
        at_load: u32,
    },
    /// It cannot be found out.
    #[error("cannot find out whether {netdev} is ready for this write: {source}")]
    Unknown {
        /// The netdev.
        netdev: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Checks that no NAPI of a netdev is known to be disabled.
pub(crate) fn enabled(kernel: &dyn Kernel, netdev: &str) -> Result<(), NapisDisabled> {
    let unknown = |source| NapisDisabled::Unknown { netdev: netdev.to_owned(), source };
    if !is_up(kernel, netdev).map_err(unknown)? {
        return Err(NapisDisabled::Down(netdev.to_owned()));
    }
    let driver = kernel.read_link(&format!("/sys/class/net/{netdev}/device/driver"));
    if !driver.is_ok_and(|link| link.ends_with("/i40e")) {
        return Ok(());
    }
    let combined = |setting| -> io::Result<u32> {
        let text = kernel.get(&KnobAddress::Ethtool(netdev.to_owned(), setting))?;
        Ok(text.trim().parse::<Settings>().map_err(io::Error::other)?.get("combined"))
    };
    let now = combined(EthtoolSetting::Channels).map_err(unknown)?;
    let most = combined(EthtoolSetting::MostChannels).map_err(unknown)?;
    let online = kernel.read("/sys/devices/system/cpu/online").map_err(unknown)?;
    let online = CpuSet::parse_list(&online).map_err(|e| unknown(io::Error::other(e)))?;
    // `i40e_determine_queue_usage`: one per online CPU, if the device has that many.
    let at_load = most.min(online.len() as u32);
    if now < at_load {
        return Err(NapisDisabled::FewerChannels { netdev: netdev.to_owned(), now, at_load });
    }
    Ok(())
}

/// Whether a netdev is up (`IFF_UP`): its driver enables NAPIs when it is opened.
pub(crate) fn is_up(kernel: &dyn Kernel, netdev: &str) -> io::Result<bool> {
    const IFF_UP: u32 = 1;
    let text = kernel.read(&format!("/sys/class/net/{netdev}/flags"))?;
    let flags = text.trim().trim_start_matches("0x");
    let flags = u32::from_str_radix(flags, 16)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(flags & IFF_UP != 0)
}
