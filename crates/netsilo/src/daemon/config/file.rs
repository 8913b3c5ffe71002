//! One configuration file: its keys, which are all optional, and its errors with their line.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsilo_decide::plan::AlgorithmName;
use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::cpuset::CpuSet;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use toml::de::Error;

use crate::args::goal_keys::GoalKeys;
use crate::args::parse::{duration, some_cpus};
use crate::tell::words::wrong_key;

/// The keys of one file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    #[serde(deserialize_with = "cycle")]
    pub(crate) interval: Option<Duration>,
    #[serde(deserialize_with = "window")]
    pub(crate) window: Option<BpfWindow>,
    #[serde(deserialize_with = "budget")]
    pub(crate) budget: Option<Budget>,
    pub(crate) bpf: Option<bool>,
    pub(crate) hints: Option<bool>,
    pub(crate) hints_only: Option<bool>,
    pub(crate) restore_on_exit: Option<bool>,
    #[serde(deserialize_with = "address")]
    pub(crate) metrics: Option<Metrics>,
    pub(crate) costs: Option<Costs>,
    /// The goal for all netdevs.
    pub(crate) goal: GoalKeys,
    pub(crate) controller: Controller,
    pub netdev: Vec<Netdev>,
}

/// Section `[controller]`: how quickly and how cautiously the daemon acts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Controller {
    #[serde(deserialize_with = "share")]
    pub(crate) min_gain: Option<f64>,
    #[serde(deserialize_with = "span")]
    pub(crate) dwell: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(crate) calm: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(crate) hold_off: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(crate) hold_off_most: Option<Duration>,
    #[serde(deserialize_with = "some_number")]
    pub(crate) changes_per_minute: Option<u32>,
    #[serde(deserialize_with = "yielding")]
    pub(crate) yield_for: Option<Yield>,
    #[serde(deserialize_with = "some_number")]
    pub(crate) verify_windows: Option<u32>,
    #[serde(deserialize_with = "share")]
    pub(crate) worse_by: Option<f64>,
}

/// Section `[[netdev]]`: exceptions for the netdevs that meet all given conditions.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Netdev {
    #[serde(deserialize_with = "pattern")]
    pub(crate) name: Option<glob::Pattern>,
    #[serde(deserialize_with = "mac")]
    pub(crate) mac: Option<String>,
    #[serde(deserialize_with = "pattern")]
    pub(crate) driver: Option<glob::Pattern>,
    #[serde(deserialize_with = "pattern")]
    pub(crate) path: Option<glob::Pattern>,
    pub(crate) manage: Option<bool>,
    pub(crate) algorithm: Option<AlgorithmName>,
    #[serde(deserialize_with = "cpus")]
    pub(crate) cpus: Option<CpuSet>,
    pub queue: Vec<Queue>,
}

/// Section `[[netdev.queue]]`: exceptions for some rx queues of these netdevs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Queue {
    #[serde(deserialize_with = "queues")]
    pub(crate) queues: CpuSet,
    #[serde(default)]
    pub(crate) manage: Option<bool>,
    #[serde(default)]
    pub(crate) algorithm: Option<AlgorithmName>,
    #[serde(default, deserialize_with = "cpus")]
    pub(crate) cpus: Option<CpuSet>,
}

/// The part of each cycle in which eBPF is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BpfWindow {
    /// The whole cycle.
    Always,
    /// This long at the end of each cycle.
    Last(Duration),
}

/// Share of the machine's CPU time that the daemon and its eBPF programs may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// No limit.
    Off,
    /// This share.
    Share(f64),
}

impl Budget {
    pub(crate) fn limit(self) -> Option<f64> {
        match self {
            Self::Off => None,
            Self::Share(share) => Some(share),
        }
    }
}

/// How long a knob is left alone after another program wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yield {
    /// Until the configuration is read again.
    Forever,
    /// This long.
    For(Duration),
}

/// Where metrics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Metrics {
    /// Nowhere.
    Off,
    /// On this address.
    At(SocketAddr),
}

impl Metrics {
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

/// An error in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadConfig {
    /// The file.
    pub(crate) file: PathBuf,
    /// Line number from 1; `None` if the error has no line.
    pub line: Option<usize>,
    /// The error, and what to do about it.
    pub why: String,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.why)
    }
}

impl std::error::Error for BadConfig {}

/// Parses the text of one file.
pub fn parse(text: &str, file: &Path) -> Result<File, BadConfig> {
    let bad = |at: Option<usize>, why: String| {
        let line =
            at.map(|at| text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1);
        BadConfig { file: file.to_owned(), line, why }
    };
    let wrong = |error: Error| bad(error.span().map(|span| span.start), in_words(error.message()));
    let parsed: File = toml::from_str(text).map_err(wrong)?;
    if parsed
        .netdev
        .iter()
        .any(|it| it.name.is_none() && it.mac.is_none() && it.driver.is_none() && it.path.is_none())
    {
        let at = text.find("[[netdev]]");
        return Err(bad(at, "a [[netdev]] needs a condition: name, mac, driver or path".into()));
    }
    Ok(parsed)
}

/// Shortens serde's message. For an unknown key, adds the nearest known one.
fn in_words(message: &str) -> String {
    match message.split('`').nth(1) {
        Some("overrides") if message.starts_with("unknown field ") => {
            "unknown key overrides; write [[netdev]] rules instead".to_owned()
        }
        Some("costs") if message.starts_with("unknown field ") => {
            "unknown key `costs`; write it above [goal], or as a table, [costs]".to_owned()
        }
        _ => wrong_key(message),
    }
}

/// Deserializes a value that is written as text.
fn text<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> anyhow::Result<T>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|why| D::Error::custom(format!("{text:?}: {why:#}")))
}

fn some<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> anyhow::Result<T>,
) -> Result<Option<T>, D::Error> {
    text(from, parse).map(Some)
}

fn between(text: &str, least: Duration, most: Duration) -> anyhow::Result<Duration> {
    let time = duration(text).map_err(anyhow::Error::msg)?;
    let shown = humantime::format_duration;
    anyhow::ensure!(
        (least..=most).contains(&time),
        "choose between {} and {}",
        shown(least),
        shown(most)
    );
    Ok(time)
}

fn cycle<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    some(from, |text| between(text, Duration::from_secs(1), Duration::from_secs(3600)))
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    some(from, |text| between(text, Duration::from_secs(1), Duration::from_secs(30 * 24 * 3600)))
}

fn yielding<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Yield>, D::Error> {
    some(from, |text| match text {
        "forever" => Ok(Yield::Forever),
        _ => between(text, Duration::from_secs(1), Duration::from_secs(30 * 24 * 3600))
            .map(Yield::For),
    })
}

/// A number from 0 to 1.
fn share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let share = f64::deserialize(from)?;
    let fits = (0.0..=1.0).contains(&share);
    if fits {
        Ok(Some(share))
    } else {
        Err(D::Error::custom(format!("{share}: write a share from 0.0 to 1.0")))
    }
}

fn some_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    match u32::deserialize(from)? {
        0 => Err(D::Error::custom("0: write at least 1")),
        number => Ok(Some(number)),
    }
}

fn window<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BpfWindow>, D::Error> {
    some(from, |text| match text {
        "always" => Ok(BpfWindow::Always),
        _ => {
            between(text, Duration::from_millis(10), Duration::from_secs(3600)).map(BpfWindow::Last)
        }
    })
}

fn budget<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Budget>, D::Error> {
    some(from, |text| {
        if text == "off" {
            return Ok(Budget::Off);
        }
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        match percent {
            Some(percent) if (0.01..=100.0).contains(&percent) => {
                Ok(Budget::Share(percent / 100.0))
            }
            _ => anyhow::bail!(
                "write off, or a share of the machine's CPU time from 0.01% to 100%, like 0.3%"
            ),
        }
    })
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Metrics>, D::Error> {
    some(from, |text| match text {
        "off" => Ok(Metrics::Off),
        _ => Ok(Metrics::At(
            text.parse()
                .map_err(|_| anyhow::anyhow!("write off, or an address like 127.0.0.1:9798"))?,
        )),
    })
}

fn cpus<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
    some(from, |text| Ok(some_cpus(text)?))
}

fn pattern<'de, D: Deserializer<'de>>(from: D) -> Result<Option<glob::Pattern>, D::Error> {
    some(from, |text| Ok(glob::Pattern::new(text)?))
}

fn mac<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    some(from, |text| {
        let bytes: Vec<&str> = text.split(':').collect();
        let valid =
            |byte: &&str| byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
        anyhow::ensure!(
            bytes.len() >= 6 && bytes.iter().all(valid),
            "write a hardware address like 52:54:00:12:34:56"
        );
        Ok(text.to_ascii_lowercase())
    })
}

fn queues<'de, D: Deserializer<'de>>(from: D) -> Result<CpuSet, D::Error> {
    text(from, |text| Ok(CpuSet::parse_list(text)?))
}
