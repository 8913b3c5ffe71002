//! `netsilo bench stream`: compares ways to send at full speed in one direction: sizes, sendfile,
//! offloads, MTUs, socket buffers, one sender or two.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use netsilo_model::change::{Change, Knob as _, Value, Words, knobs};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_trial::experiment::{Kind, Load, Setting};
use netsilo_trial::traffic::{Spec, Test};

use crate::args::named;
use crate::bench::defined::{Definition, Setup};
use crate::bench::experiment::PeerArgs;
use crate::bench::folder::Sender;
use crate::bench::settings;
use crate::tell::exit::Exit;

/// ethtool's name of each offload, and the kernel's names of its features
/// (`netdev_features_strings`).
const OFFLOADS: [(&str, &[&str]); 5] = [
    ("tso", &["tx-tcp-segmentation", "tx-tcp6-segmentation"]),
    ("gro", &["rx-gro"]),
    ("lro", &["rx-lro"]),
    ("sg", &["tx-scatter-gather"]),
    (
        "checksum",
        &["rx-checksum", "tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"],
    ),
];

/// Kinds of load that stream accepts.
const TESTS: [Test; 3] = [Test::TcpStream, Test::TcpSendfile, Test::UdpStream];

/// Arguments of `netsilo bench stream`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    peer: PeerArgs,
    /// Send from this machine and read at the peer; TSO and scatter-gather only affect the sender
    #[arg(long)]
    send: bool,
    /// Kinds of load, by netperf's names
    #[arg(
        short,
        long,
        value_name = "TEST,..",
        value_delimiter = ',',
        default_values_t = [Test::TcpStream, Test::TcpSendfile],
        ignore_case = true,
        value_parser = named::tests(&TESTS)
    )]
    tests: Vec<Test>,
    /// Bytes per send call
    #[arg(
        short = 'm',
        long,
        value_name = "BYTES,..",
        value_delimiter = ',',
        default_values_t = [1024, 16_384, 131_072]
    )]
    send_bytes: Vec<usize>,
    /// Also run each load but sendfile without copying to the kernel (MSG_ZEROCOPY)
    #[arg(long)]
    zero_copy: bool,
    /// Numbers of concurrent senders
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_values_t = [1, 2],
        value_parser = clap::value_parser!(u32).range(1..=2)
    )]
    senders: Vec<u32>,
    /// Offloads to toggle, one at a time, by ethtool's names
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_values = OFFLOADS.map(|(name, _)| name),
        value_parser = PossibleValuesParser::new(OFFLOADS.map(|(name, _)| name))
    )]
    offloads: Vec<String>,
    /// Largest TCP socket buffers to try
    #[arg(
        long,
        value_name = "BYTES,..",
        value_delimiter = ',',
        default_values_t = [65_536],
        value_parser = clap::value_parser!(u32).range(4096..)
    )]
    buffers: Vec<u32>,
    /// MTUs of this machine to try; the peer must accept the largest [default: none]
    #[arg(
        long,
        value_name = "BYTES,..",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(68..=65_535)
    )]
    mtus: Vec<u32>,
}

/// Runs or resumes the experiment.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let here = |sender: Sender| Sender { agent: None, against: sender.agent };
    let senders = args.peer.senders();
    let senders = if args.send { senders.into_iter().map(here).collect() } else { senders };
    args.peer
        .experiment
        .run(Kind::Stream, args.peer.tuning.even_if_owned(), senders, |setup| define(args, setup))
}

fn define(args: &Args, setup: &mut Setup<'_>) -> Result<Definition> {
    let snapshot = &setup.observation.after;
    let mut all = vec![settings::none("none")];
    for name in &args.offloads {
        let features = OFFLOADS
            .iter()
            .find(|(known, _)| known == name)
            .map_or(&[][..], |(_, features)| features);
        all.extend(offload(name, features, args.peer.tuning.netdevs(snapshot)));
    }
    all.extend(
        args.mtus.iter().filter_map(|bytes| mtu(*bytes, args.peer.tuning.netdevs(snapshot))),
    );
    all.extend(args.buffers.iter().filter_map(|bytes| buffers(*bytes, snapshot)));
    Ok(Definition { settings: all, loads: loads(args) })
}

/// The setting that toggles an offload.
fn offload<'a>(
    name: &str,
    features: &[&str],
    netdevs: impl Iterator<Item = &'a Netdev>,
) -> Option<Setting> {
    let mut changes = Vec::new();
    for netdev in netdevs {
        for feature in
            features.iter().filter_map(|feature| netdev.ethtool.as_ref()?.feature(feature))
        {
            if feature.never_changed || !feature.available {
                continue;
            }
            let knob = knobs::Offload {
                netdev: NetdevIdentity::from_netdev(netdev),
                feature: feature.name.clone(),
            };
            let reason = format!("{name} toggled");
            changes.push(Change::new(knob, feature.active, !feature.active, reason));
        }
    }
    // one direction only: if any feature is on, switch those off; otherwise switch all on
    let on = changes.iter().any(|change| change.old == Value::Switch(true));
    changes.retain(|change| change.old == Value::Switch(on));
    let word = if on { "off" } else { "on" };
    let setting = Setting {
        name: format!("{name} {word}"),
        what: format!("{name} {word}"),
        changes,
        command: None,
    };
    settings::unless_empty(setting)
}

/// The setting with this MTU.
fn mtu<'a>(bytes: u32, netdevs: impl Iterator<Item = &'a Netdev>) -> Option<Setting> {
    let change = |netdev: &Netdev| {
        let knob = knobs::Mtu { netdev: NetdevIdentity::from_netdev(netdev) };
        Change::new(knob, netdev.mtu, bytes, format!("frames of up to {bytes} bytes"))
    };
    let changes = netdevs.map(change).filter(|change| change.old != change.new).collect();
    let what = format!("an MTU of {bytes} bytes on this machine");
    settings::unless_empty(Setting { name: format!("mtu {bytes}"), what, changes, command: None })
}

/// The setting that limits TCP socket buffers to `most` bytes.
fn buffers(most: u32, snapshot: &Snapshot) -> Option<Setting> {
    let change = |name: &str| {
        let knob = knobs::Sysctl { name: name.into() };
        let old = knob.value_in(snapshot)?;
        let numbers: Vec<u64> =
            old.as_str().split(' ').filter_map(|word| word.parse().ok()).collect();
        let [least, usual, _] = numbers[..] else { return None };
        let most = u64::from(most);
        let new = Words::new(&format!("{} {} {most}", least.min(most), usual.min(most)));
        Some(Change::new(knob, old, new, format!("buffers up to {most} bytes")))
    };
    let changes =
        ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"].into_iter().filter_map(change).collect();
    let what = format!("TCP socket buffers of at most {most} bytes");
    settings::unless_empty(Setting {
        name: format!("buffers {most}"),
        what,
        changes,
        command: None,
    })
}

fn loads(args: &Args) -> Vec<Load> {
    let mut loads = Vec::new();
    for test in &args.tests {
        for zero_copy in [false, true]
            .into_iter()
            .filter(|zero| !zero || (args.zero_copy && test.may_zero_copy()))
        {
            for send_bytes in &args.send_bytes {
                for senders in &args.senders {
                    let usual = args.peer.experiment.spec(*test, 1, None);
                    let spec = Spec { send_bytes: *send_bytes, zero_copy, ..usual };
                    let how = if zero_copy { " without a copy" } else { "" };
                    let words = if *senders == 1 { "one sender" } else { "two senders" };
                    let name = format!("{test} {send_bytes} B{how}, {words}");
                    loads.push(Load { name, spec, senders: *senders, early_drop: false });
                }
            }
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_default_buffers_shrink_only_to_the_new_maximum() {
        let mut snapshot = Snapshot::default();
        snapshot.net.sysctls.insert("net.ipv4.tcp_rmem".into(), "4096\t131072\t6291456".into());
        let setting = buffers(65_536, &snapshot).unwrap();
        let shown: Vec<String> =
            setting.changes.iter().map(|it| format!("{} {}", it.target, it.new)).collect();
        assert_eq!(shown, ["net.ipv4.tcp_rmem 4096 65536 65536"]);
        assert!(buffers(65_536, &Snapshot::default()).is_none());
    }
}
