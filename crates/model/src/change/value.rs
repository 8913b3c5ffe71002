//! A knob's [`Value`]: numbers, switches, sets, and the structures of ethtool, written as people
//! write them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::as_text::as_text;
use crate::machine::cpuset::CpuSet;
use crate::snapshot::ethtool::HashFields;

/// A type of value that a knob accepts. Each variant of [`Value`] holds one.
pub trait Kind: Clone + PartialEq + Into<Value> {
    /// Its key in the JSON of a plan (`cpus`).
    const NAME: &'static str;

    /// The typed value, if `value` is of this type.
    fn of(value: &Value) -> Option<&Self>;

    /// The value that a kernel's text means.
    fn parse(text: &str) -> Result<Self, String>;

    /// The text that the kernel accepts.
    fn text(&self) -> String {
        self.clone().into().to_string()
    }
}

/// Defines [`Value`] and implements [`Kind`] for the type in each variant.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $variant:ident($type:ty) = $name:literal, $parse:expr $(, $text:expr)?;
    )*) => {
        /// The value of any knob.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Value {
            $($(#[$doc])* $variant($type),)*
        }

        impl Value {
            /// The key of its type in the JSON of a plan (`cpus`).
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }
        }

        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Self {
                    Self::$variant(value)
                }
            }

            impl Kind for $type {
                const NAME: &'static str = $name;

                fn of(value: &Value) -> Option<&Self> {
                    match value {
                        Value::$variant(value) => Some(value),
                        _ => None,
                    }
                }

                fn parse(text: &str) -> Result<Self, String> {
                    ($parse)(text).map_err(|e| e.to_string())
                }

                $(fn text(&self) -> String {
                    ($text)(self)
                })?
            }
        )*
    };
}

kinds! {
    /// A set of CPUs. The empty set switches RPS or XPS off. Its text is a mask: every file except
    /// `cpuset.cpus` accepts masks, and only some files accept lists.
    Cpus(CpuSet) = "cpus", CpuSet::parse_mask, |cpus: &CpuSet| cpus.to_mask(1);
    /// A number: of flow table entries, of nanoseconds. 0 usually means off.
    Count(u32) = "count", |text: &str| text.trim().parse::<u32>();
    /// On or off. For an offload, whether it is in effect.
    Switch(bool) = "switch", parse_switch;
    /// Numbers with names (`rx=4096 tx=512`): channels, rings, coalescing.
    Settings(Settings) = "settings", Settings::from_str;
    /// The fields of a packet that RSS hashes (`sdfn`).
    Fields(HashFields) = "fields", |text: &str| {
        HashFields::from_str(if text.trim() == "none" { "" } else { text.trim() })
    };
    /// An RSS indirection table; its text is entry by entry.
    Table(Table) = "table", Table::from_str, |table: &Table| {
        table.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    /// An RSS hash key.
    Key(Key) = "key", Key::from_str;
    /// Words with one space between them: a sysctl (`4096 131072 6291456`), a hash function.
    Words(Words) = "words", |text: &str| Ok::<_, ValueError>(Words::new(text));
}

/// Parses the first word. What was requested, or where a rule is, may follow.
fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text.split_whitespace().next() {
        Some("on" | "1") => Ok(true),
        Some("off" | "0") => Ok(false),
        _ => Err("neither on nor off"),
    }
}

impl Value {
    /// Words; see [`Words::new`].
    pub fn words(text: &str) -> Self {
        Self::Words(Words::new(text))
    }

    /// Whether the value switches its knob off. A change that does so may need another place in the
    /// order.
    pub fn is_off(&self) -> bool {
        matches!(self, Self::Count(0) | Self::Switch(false))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) if cpus.is_empty() => f.write_str("none"),
            Self::Cpus(cpus) => cpus.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Settings(settings) => settings.fmt(f),
            Self::Fields(fields) if fields.is_empty() => f.write_str("none"),
            Self::Fields(fields) => fields.fmt(f),
            Self::Table(table) => table.fmt(f),
            Self::Key(key) => key.fmt(f),
            Self::Words(words) => words.fmt(f),
        }
    }
}

/// Words with one space between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Words(String);

impl Words {
    /// The words of a text, whatever blanks the kernel puts between them.
    pub fn new(text: &str) -> Self {
        Self(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The words as one text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Numbers with the names of ethtool's command line. A missing name means 0.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct Settings(BTreeMap<String, u32>);

/// A missing name equals 0, because the ioctls cannot distinguish "the driver has none" from "0".
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        self.names().chain(other.names()).all(|name| self.get(name) == other.get(name))
    }
}

impl Eq for Settings {}

impl Settings {
    /// The number with this name; 0 if there is none.
    pub fn get(&self, name: &str) -> u32 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The same with another number.
    #[must_use]
    pub fn with(mut self, name: &str, number: u32) -> Self {
        self.0.insert(name.to_owned(), number);
        self
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Only the settings that have another number in `other`.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Self {
        let differing =
            self.names().chain(other.names()).filter(|name| self.get(name) != other.get(name));
        differing.map(|name| (name.to_owned(), self.get(name))).collect()
    }
}

impl FromIterator<(String, u32)> for Settings {
    fn from_iter<I: IntoIterator<Item = (String, u32)>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

/// Whether ethtool writes a setting as `on` or `off`.
fn is_switch(name: &str) -> bool {
    name.starts_with("adaptive-")
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, (name, number)) in self.0.iter().enumerate() {
            let blank = if at == 0 { "" } else { " " };
            match number {
                0 if is_switch(name) => write!(f, "{blank}{name}=off")?,
                1 if is_switch(name) => write!(f, "{blank}{name}=on")?,
                number => write!(f, "{blank}{name}={number}")?,
            }
        }
        Ok(())
    }
}

/// A text that is not a value of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ValueError {
    text: String,
    wanted: &'static str,
}

impl ValueError {
    pub(super) fn new(text: &str, wanted: &'static str) -> Self {
        Self { text: text.to_owned(), wanted }
    }
}

impl FromStr for Settings {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::new(text, "a list of settings like `rx=4096 tx=512`");
        let setting = |word: &str| {
            let (name, number) =
                word.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(refuse)?;
            let number = match number {
                "on" if is_switch(name) => 1,
                "off" if is_switch(name) => 0,
                number => number.parse().map_err(|_| refuse())?,
            };
            Ok((name.to_owned(), number))
        };
        if text.trim() == "none" {
            return Ok(Self::default());
        }
        text.split_whitespace().map(setting).collect()
    }
}

as_text!(Settings, Key);

/// An RSS indirection table: the rx queue of each bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Table(pub Vec<u32>);

impl Table {
    /// The table that `ethtool -X equal` makes. Most drivers have it by default
    /// (`ethtool_rxfh_indir_default`).
    pub fn equal(buckets: usize, queues: u32) -> Self {
        Self((0..buckets as u64).map(|bucket| (bucket % u64::from(queues.max(1))) as u32).collect())
    }

    /// The table that `ethtool -X weight` makes: each queue gets consecutive buckets, according to
    /// its weight.
    pub fn weighted(buckets: usize, weights: &[u32]) -> Self {
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut table = Vec::with_capacity(buckets);
        let mut upto = 0;
        for (queue, weight) in weights.iter().enumerate() {
            upto += u64::from(*weight);
            let end = (buckets as u64 * upto / sum.max(1)) as usize;
            table.resize(end.min(buckets).max(table.len()), queue as u32);
        }
        Self(table)
    }

    /// How many buckets each queue has, from queue 0 to the highest. Queues beyond 65535 do not
    /// count.
    pub fn shares(&self) -> Vec<u32> {
        let known = || self.0.iter().filter(|queue| **queue <= u32::from(u16::MAX));
        let mut shares = vec![0; known().max().map_or(0, |queue| *queue as usize + 1)];
        for queue in known() {
            shares[*queue as usize] += 1;
        }
        shares
    }

    /// Whether it looks like a driver's default: every queue has an equal share, either in turn or
    /// in one block.
    pub fn looks_like_default(&self) -> bool {
        let queues = self.shares();
        let equal = Self::equal(self.0.len(), queues.len() as u32);
        *self == equal
            || *self == Self::weighted(self.0.len(), &vec![1; queues.len()])
            || *self == self.in_blocks()
    }

    /// The equal blocks of igb and related drivers: `bucket * queues / buckets`.
    fn in_blocks(&self) -> Self {
        let (buckets, queues) = (self.0.len(), self.shares().len());
        Self((0..buckets).map(|bucket| (bucket * queues / buckets.max(1)) as u32).collect())
    }

    /// The arguments of `ethtool -X` that make this table; `None` if no arguments make it.
    pub fn as_ethtool(&self) -> Option<String> {
        let shares = self.shares();
        if *self == Self::equal(self.0.len(), shares.len() as u32) {
            return Some(format!("equal {}", shares.len()));
        }
        let divisor = shares.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<u32> = shares.iter().map(|share| share / divisor).collect();
        let words = || weights.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        (*self == Self::weighted(self.0.len(), &weights)).then(|| format!("weight {}", words()))
    }

    /// How many buckets lead to a different queue than in `other`.
    pub fn moved_from(&self, other: &Self) -> usize {
        let longer = self.0.len().max(other.0.len());
        (0..longer).filter(|bucket| self.0.get(*bucket) != other.0.get(*bucket)).count()
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The arguments of `ethtool -X`; if there are none, how many buckets each queue has.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        match self.as_ethtool() {
            Some(words) => f.write_str(&words),
            None => {
                f.write_str("buckets")?;
                self.shares().iter().try_for_each(|share| write!(f, " {share}"))
            }
        }
    }
}

/// Entry by entry, as the journal stores it.
impl FromStr for Table {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = |_| ValueError::new(text, "a list of rx queues");
        text.split_whitespace()
            .map(|queue| queue.parse().map_err(refuse))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// An RSS hash key, in ethtool's form: hexadecimal bytes separated by colons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct Key(pub Vec<u8>);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for Key {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::new(text, "a key like `6d:5a:56:da`");
        let byte = |digits: &str| match digits.len() {
            1 | 2 if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                u8::from_str_radix(digits, 16).ok()
            }
            _ => None,
        };
        text.trim()
            .split(':')
            .map(|digits| byte(digits).ok_or_else(refuse))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_are_written_as_on_the_command_line_of_ethtool() {
        let settings: Settings = "tx=512 rx=4096".parse().unwrap();
        assert_eq!(settings.to_string(), "rx=4096 tx=512");
        assert_eq!(settings, "rx=4096 tx=512 rx-mini=0".parse().unwrap(), "0 of it is none of it");
        assert_eq!(settings.clone().with("tx", 256).unlike(&settings).to_string(), "tx=256");
        let adaptive: Settings = "adaptive-rx=on rx-usecs=3".parse().unwrap();
        assert_eq!(
            (adaptive.get("adaptive-rx"), adaptive.to_string().as_str()),
            (1, "adaptive-rx=on rx-usecs=3")
        );
        for bad in ["rx", "rx=", "=4", "rx=-1", "rx=on", "rx=4096,"] {
            assert!(bad.parse::<Settings>().is_err(), "{bad}");
        }
        assert_eq!("none".parse::<Settings>().unwrap().to_string(), "none");
    }

    #[test]
    fn a_table_is_said_in_the_words_that_would_make_it() {
        let table = |queues: &[u32]| Table(queues.to_vec());
        assert_eq!(table(&[0, 1, 2, 0, 1, 2, 0, 1]).to_string(), "equal 3");
        assert_eq!(table(&[0, 0, 0, 0, 1, 1, 1, 1]).to_string(), "weight 1 1");
        assert_eq!(table(&[0, 2, 2, 2, 2, 2, 2, 2]).to_string(), "weight 1 0 7");
        assert_eq!(table(&[1, 1, 0, 1]).to_string(), "buckets 1 3");
        assert_eq!(table(&[0; 4]).to_string(), "equal 1");
        assert_eq!(table(&[0, 1, 1, 1]).moved_from(&table(&[0, 1, 0, 1])), 1);
    }

    #[test]
    fn what_drivers_make_by_default_is_told_from_what_people_make() {
        let blocks = Table((0..128).map(|bucket| bucket * 6 / 128).collect());
        assert!(blocks.looks_like_default() && Table::equal(128, 8).looks_like_default());
        assert!(!Table::weighted(128, &[1, 0, 7]).looks_like_default());
        assert!(!Table(vec![1, 0, 1, 0]).looks_like_default());
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = Key(vec![0x6d, 0x5a, 0x00]);
        assert_eq!(key.to_string(), "6d:5a:00");
        assert_eq!("6d:5a:0".parse(), Ok(key));
        for bad in ["", "6d5a", "6d:", "6d:+5", "zz"] {
            assert!(bad.parse::<Key>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_ethtool_is_told_makes_the_table(
            buckets in 1..512usize,
            weights in proptest::collection::vec(0..9u32, 1..16),
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            // The kernel's command: next queue while bucket >= buckets * partial / sum.
            let sum: u32 = weights.iter().sum();
            let (mut queue, mut partial, mut wanted) = (None, 0, Vec::new());
            for bucket in 0..buckets {
                while bucket >= buckets * partial as usize / sum as usize {
                    queue = Some(queue.map_or(0, |queue| queue + 1));
                    partial += weights[queue.unwrap()];
                }
                wanted.push(queue.unwrap() as u32);
            }
            prop_assert_eq!(Table::weighted(buckets, &weights), Table(wanted));
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = (text.parse::<Settings>(), text.parse::<Table>(), text.parse::<Key>());
        }
    }
}
