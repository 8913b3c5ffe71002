//! The settings of a netdev's queues that a write of another knob may reset: CPUs and scheduling of
//! its NAPIs' kthreads, CPUs of its interrupts, RPS, flow counts, XPS, the RSS table.
//!
//! When a driver recreates its queues, interrupts or NAPIs (`threaded`, channels, rings, MTU, some
//! offloads), it chooses these settings itself. So a transaction records them before its first
//! write. It restores them by queue after the write, unless channels were changed, and after undo.
//! If another program has set a value since, that value is kept instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use netsilo_model::change::{EthtoolSetting, Location, Target};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::transaction::kernel::{Kernel, KnobAddress};
use crate::transaction::knob;
use crate::transaction::queues::{Finder, QueueSetting};

/// The settings of one netdev's queues, as the kernel printed them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The netdev.
    pub netdev: NetdevIdentity,
    /// If the netdev is virtual: which creation of it this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// Each setting with its text.
    pub settings: Vec<(QueueSetting, String)>,
}

/// The result for a setting that had to be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedRow {
    /// The netdev's name now.
    pub netdev: String,
    /// The setting; `None` for all settings of a netdev that is down.
    pub setting: Option<QueueSetting>,
    /// Its result.
    pub result: AttachedResult,
}

/// The result of restoring a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachedResult {
    /// It has its old value again.
    Restored,
    /// Another program has set this value since, and it was restored.
    Kept(String),
    /// The kernel or the driver chooses the CPU of this interrupt itself.
    PlacedByKernel,
    /// The queue, interrupt or kthread does not exist now.
    Gone,
    /// It could not be restored, for this reason.
    Failed(String),
}

impl AttachedRow {
    /// Whether the kernel still has a value of ours, or one that a write of ours caused.
    pub fn is_failure(&self) -> bool {
        matches!(self.result, AttachedResult::Failed(_))
    }

    /// The setting for people.
    pub fn name(&self) -> String {
        match &self.setting {
            Some(setting) => format!("{} {setting}", self.netdev),
            None => format!("{} queues", self.netdev),
        }
    }
}

impl fmt::Display for AttachedResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored => f.write_str("restored"),
            Self::Kept(text) => write!(f, "left alone: another program has changed it to {text}"),
            Self::PlacedByKernel => {
                f.write_str("left alone: the kernel chooses the cpu of this interrupt")
            }
            Self::Gone => f.write_str("gone (no such queue, interrupt or kthread any more)"),
            Self::Failed(why) => write!(f, "NOT RESTORED ({why})"),
        }
    }
}

/// The texts by setting.
type Texts = BTreeMap<QueueSetting, String>;

/// The settings that writes of these knobs may reset, with their current texts.
pub(crate) fn before<'a>(
    kernel: &dyn Kernel,
    targets: impl Iterator<Item = &'a Target>,
) -> Vec<Attached> {
    let mut channels: BTreeMap<&NetdevIdentity, bool> = BTreeMap::new();
    for target in targets.filter(|target| target.may_reset_queues()) {
        if let Some(netdev) = target.netdev() {
            *channels.entry(netdev).or_default() |= is_channels(target);
        }
    }
    let finder = Finder::new(kernel);
    let one = |(netdev, channels): (&NetdevIdentity, bool)| {
        let (name, created) = knob::present_netdev(kernel, netdev)?;
        let places = finder.places(&name);
        let settings = texts(kernel, places, &|it| channels || *it != QueueSetting::RssTable);
        (!settings.is_empty()).then(|| Attached {
            netdev: netdev.clone(),
            created,
            settings: settings.into_iter().collect(),
        })
    };
    channels.into_iter().filter_map(one).collect()
}

fn is_channels(target: &Target) -> bool {
    matches!(target.location(), Location::Ethtool { setting: EthtoolSetting::Channels, .. })
}

fn texts(
    kernel: &dyn Kernel,
    places: BTreeMap<QueueSetting, KnobAddress>,
    is_wanted: &dyn Fn(&QueueSetting) -> bool,
) -> Texts {
    let wanted = places.into_iter().filter(|(setting, _)| is_wanted(setting));
    wanted.filter_map(|(setting, place)| Some((setting, kernel.get(&place).ok()?))).collect()
}

/// Restores what writes of a transaction have reset. `written` has the text of each place that the
/// transaction itself wrote before. Do not call it after a change of channels: the driver then has
/// another number of interrupts to spread.
pub(crate) fn keep(
    kernel: &dyn Kernel,
    before: &[Attached],
    targets: &[&Target],
    written: &BTreeMap<KnobAddress, String>,
) -> Vec<AttachedRow> {
    let sets = |netdev: &NetdevIdentity, is: &dyn Fn(&Target) -> bool| {
        targets.iter().any(|target| target.netdev() == Some(netdev) && is(target))
    };
    let is_threaded = |target: &Target| target.facts().waits_for_napis;
    let mut rows = Vec::new();
    for attached in before.iter().filter(|it| !sets(&it.netdev, &is_channels)) {
        let threaded = sets(&attached.netdev, &is_threaded);
        let mut attached = attached.clone();
        let is_set = |it: &QueueSetting| threaded && matches!(it, QueueSetting::NapiThreaded(_));
        attached.settings.retain(|(setting, _)| !is_set(setting));
        rows.extend(restore(kernel, std::slice::from_ref(&attached), &[], &|place| {
            written.get(place).cloned().map_or(Wish::Recorded, Wish::Text)
        }));
    }
    rows
}

/// The settings that now differ from `before`.
pub(crate) fn changed(kernel: &dyn Kernel, before: &[Attached]) -> Vec<Attached> {
    let finder = Finder::new(kernel);
    before.iter().filter_map(|it| changed_of(kernel, &finder, it, &|_| true)).collect()
}

/// The settings, except those that `others` have with the same text.
pub(crate) fn without(mut all: Vec<Attached>, others: &[Attached]) -> Vec<Attached> {
    for attached in &mut all {
        let same = others.iter().filter(|it| it.netdev == attached.netdev);
        let same: BTreeSet<_> = same.flat_map(|it| &it.settings).collect();
        attached.settings.retain(|setting| !same.contains(setting));
    }
    all.retain(|attached| !attached.settings.is_empty());
    all
}

/// The settings of one netdev that differ from their earlier text, at the wanted places.
fn changed_of(
    kernel: &dyn Kernel,
    finder: &Finder<'_>,
    attached: &Attached,
    is_wanted: &dyn Fn(&KnobAddress) -> bool,
) -> Option<Attached> {
    let (name, _) = knob::present_netdev(kernel, &attached.netdev)?;
    let then: Texts = attached.settings.iter().cloned().collect();
    let now = |(setting, place): (QueueSetting, KnobAddress)| {
        let old = then.get(&setting)?;
        let text = kernel.get(&place).ok()?;
        (text != *old && is_wanted(&place)).then_some((setting, text))
    };
    let settings: Vec<_> = finder.places(&name).into_iter().filter_map(now).collect();
    (!settings.is_empty()).then(|| Attached { settings, ..attached.clone() })
}

/// The settings that another program has changed since: they differ from `before` and from `after`,
/// their text after our writes. Empty if `after` is not known because netsilo was killed between a
/// write and its record. For a place that a transaction itself writes, `is_ours` decides instead.
pub(crate) fn foreign(
    kernel: &dyn Kernel,
    before: &[Attached],
    after: Option<&[Attached]>,
    is_ours: &dyn Fn(&KnobAddress) -> Option<bool>,
) -> Vec<Attached> {
    let finder = Finder::new(kernel);
    let changed = |attached: &Attached| {
        changed_of(kernel, &finder, attached, &|place| !is_ours(place).unwrap_or(after.is_none()))
    };
    without(before.iter().filter_map(changed).collect(), after.unwrap_or_default())
}

/// The text that a place gets back.
pub(crate) enum Wish {
    /// The recorded text.
    Recorded,
    /// This text.
    Text(String),
    /// It is left as it is.
    Nothing,
}

/// Restores each setting to its text in `kept`, else to the one in `before`, unless there is a
/// `wish` for its place. Settings that have their text already are not in the rows.
pub(crate) fn restore(
    kernel: &dyn Kernel,
    before: &[Attached],
    kept: &[Attached],
    wish: &dyn Fn(&KnobAddress) -> Wish,
) -> Vec<AttachedRow> {
    let mut rows = Vec::new();
    for attached in before {
        let Some((name, created)) = knob::present_netdev(kernel, &attached.netdev) else {
            continue;
        };
        if matches!((created, attached.created), (Some(now), Some(then)) if now != then) {
            continue;
        }
        let kept = kept.iter().find(|it| it.netdev == attached.netdev);
        let kept: Texts = kept.into_iter().flat_map(|it| it.settings.iter().cloned()).collect();
        restore_netdev(kernel, &name, attached, &kept, wish, &mut rows);
    }
    rows
}

fn restore_netdev(
    kernel: &dyn Kernel,
    netdev: &str,
    attached: &Attached,
    kept: &Texts,
    wish: &dyn Fn(&KnobAddress) -> Wish,
    rows: &mut Vec<AttachedRow>,
) {
    let mut places = Finder::new(kernel).places(netdev);
    let (mut gone, mut threaded) = (false, false);
    for (setting, old) in &attached.settings {
        // The kthreads exist once their NAPIs are threaded.
        if threaded && !matches!(setting, QueueSetting::NapiThreaded(_)) {
            places = Finder::new(kernel).places(netdev);
            threaded = false;
        }
        let result = match places.get(setting) {
            None => {
                gone = true;
                Some(AttachedResult::Gone)
            }
            Some(place) => {
                let kept = kept.get(setting);
                match wish(place) {
                    Wish::Recorded => back(kernel, netdev, place, kept.unwrap_or(old), kept),
                    Wish::Text(text) => back(kernel, netdev, place, &text, None),
                    Wish::Nothing => None,
                }
            }
        };
        threaded |= matches!(setting, QueueSetting::NapiThreaded(_)) && result.is_some();
        rows.extend(result.map(|result| {
            let (netdev, setting) = (netdev.to_owned(), Some(setting.clone()));
            AttachedRow { netdev, setting, result }
        }));
    }
    // A netdev that is down has no interrupts; if it is virtual, it has no kthreads.
    if gone && !knob::is_up(kernel, netdev).unwrap_or(true) {
        rows.retain(|row| row.netdev != netdev || row.result != AttachedResult::Gone);
        let why =
            format!("waiting: {netdev} is down; run `ip link set {netdev} up`, then try again");
        let result = AttachedResult::Failed(why);
        rows.push(AttachedRow { netdev: netdev.to_owned(), setting: None, result });
    }
}

/// Writes a text where it differs. Returns `None` if there is nothing to report.
fn back(
    kernel: &dyn Kernel,
    netdev: &str,
    place: &KnobAddress,
    text: &str,
    kept: Option<&String>,
) -> Option<AttachedResult> {
    match (write(kernel, netdev, place, text), kept) {
        (Err(result), _) => Some(result),
        (Ok(_), Some(text)) => Some(AttachedResult::Kept(text.trim_end().to_owned())),
        (Ok(true), None) => Some(AttachedResult::Restored),
        (Ok(false), None) => None,
    }
}

/// How often a setting is read, a millisecond apart, before an unexpected text counts.
const LOOKS: u32 = 10;

/// Writes a text if it differs. Returns whether it differed.
fn write(
    kernel: &dyn Kernel,
    netdev: &str,
    place: &KnobAddress,
    text: &str,
) -> Result<bool, AttachedResult> {
    let failed = |e: &dyn fmt::Display| AttachedResult::Failed(e.to_string());
    let gone = |e: &std::io::Error| {
        matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::SRCH | Errno::NODEV))
    };
    match kernel.get(place) {
        Ok(now) if now == text => return Ok(false),
        Ok(_) => {}
        Err(e) if gone(&e) => return Err(AttachedResult::Gone),
        Err(e) => return Err(failed(&e)),
    }
    if matches!(place, KnobAddress::NapiThreaded(_)) {
        knob::napis_enabled(kernel, netdev).map_err(|e| failed(&e))?;
    }
    if let Err(e) = knob::put_back(kernel, place, text) {
        let is_irq = matches!(place, KnobAddress::File(path) if path.starts_with("/proc/irq/"));
        return Err(match Errno::from_io_error(&e) {
            Some(Errno::IO | Errno::PERM) if is_irq => AttachedResult::PlacedByKernel,
            _ if gone(&e) => AttachedResult::Gone,
            _ => failed(&e),
        });
    }
    for _ in 0..LOOKS {
        match kernel.get(place) {
            Ok(now) if now == text => return Ok(true),
            Ok(_) => kernel.pause(Duration::from_millis(1)),
            Err(e) => return Err(failed(&e)),
        }
    }
    Err(failed(&"the kernel accepted the old value but shows another one"))
}
