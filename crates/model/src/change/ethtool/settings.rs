//! Channels, rings, coalescing and hash as [`Settings`] and words, with the names of ethtool's
//! command line.

use crate::change::value::{Settings, Words};
use crate::snapshot::ethtool::{Channels, Coalesce, HashFunction, Limit, Rings, Rss};

/// The fields of `struct ethtool_coalesce`, in struct order.
pub const COALESCE: [&str; 22] = [
    "rx-usecs",
    "rx-frames",
    "rx-usecs-irq",
    "rx-frames-irq",
    "tx-usecs",
    "tx-frames",
    "tx-usecs-irq",
    "tx-frames-irq",
    "stats-block-usecs",
    "adaptive-rx",
    "adaptive-tx",
    "pkt-rate-low",
    "rx-usecs-low",
    "rx-frames-low",
    "tx-usecs-low",
    "tx-frames-low",
    "pkt-rate-high",
    "rx-usecs-high",
    "rx-frames-high",
    "tx-usecs-high",
    "tx-frames-high",
    "sample-interval",
];

/// The counts of `struct ethtool_channels`, in struct order.
pub const CHANNELS: [&str; 4] = ["rx", "tx", "other", "combined"];

/// The counts of `struct ethtool_ringparam`, in struct order.
pub const RINGS: [&str; 4] = ["rx", "rx-mini", "rx-jumbo", "tx"];

impl Channels {
    fn limits(&self) -> [Option<Limit>; 4] {
        [self.rx, self.tx, self.other, self.combined]
    }

    /// The current count of each channel type that the netdev has.
    pub fn settings(&self) -> Settings {
        current(CHANNELS, self.limits())
    }

    /// The maximum of each channel type.
    pub fn most(&self) -> Settings {
        most(CHANNELS, self.limits())
    }

    /// Sets new counts. Ignores channel types that the netdev lacks.
    pub fn set(&mut self, settings: &Settings) {
        put(CHANNELS, [&mut self.rx, &mut self.tx, &mut self.other, &mut self.combined], settings);
    }
}

impl Rings {
    fn limits(&self) -> [Option<Limit>; 4] {
        [self.rx, self.rx_mini, self.rx_jumbo, self.tx]
    }

    /// The current number of descriptors of each ring that the netdev has.
    pub fn settings(&self) -> Settings {
        current(RINGS, self.limits())
    }

    /// The maximum of each ring.
    pub fn most(&self) -> Settings {
        most(RINGS, self.limits())
    }

    /// Sets new counts. Ignores rings that the netdev lacks.
    pub fn set(&mut self, settings: &Settings) {
        put(RINGS, [&mut self.rx, &mut self.rx_mini, &mut self.rx_jumbo, &mut self.tx], settings);
    }
}

fn current(names: [&str; 4], limits: [Option<Limit>; 4]) -> Settings {
    let known = names
        .into_iter()
        .zip(limits)
        .filter_map(|(name, limit)| Some((name.to_owned(), limit?.current)));
    known.collect()
}

fn most(names: [&str; 4], limits: [Option<Limit>; 4]) -> Settings {
    names
        .into_iter()
        .zip(limits)
        .filter_map(|(name, limit)| Some((name.to_owned(), limit?.max)))
        .collect()
}

fn put(names: [&str; 4], limits: [&mut Option<Limit>; 4], settings: &Settings) {
    for (name, limit) in names.into_iter().zip(limits) {
        if let Some(limit) = limit {
            limit.current = settings.get(name);
        }
    }
}

impl Coalesce {
    /// The fields in struct order.
    fn numbers(&self) -> [u32; 22] {
        [
            self.rx_coalesce_usecs,
            self.rx_max_coalesced_frames,
            self.rx_coalesce_usecs_irq,
            self.rx_max_coalesced_frames_irq,
            self.tx_coalesce_usecs,
            self.tx_max_coalesced_frames,
            self.tx_coalesce_usecs_irq,
            self.tx_max_coalesced_frames_irq,
            self.stats_block_coalesce_usecs,
            self.use_adaptive_rx_coalesce.into(),
            self.use_adaptive_tx_coalesce.into(),
            self.pkt_rate_low,
            self.rx_coalesce_usecs_low,
            self.rx_max_coalesced_frames_low,
            self.tx_coalesce_usecs_low,
            self.tx_max_coalesced_frames_low,
            self.pkt_rate_high,
            self.rx_coalesce_usecs_high,
            self.rx_max_coalesced_frames_high,
            self.tx_coalesce_usecs_high,
            self.tx_max_coalesced_frames_high,
            self.rate_sample_interval,
        ]
    }

    /// Makes the value from the fields in struct order.
    pub fn from_numbers(numbers: [u32; 22]) -> Self {
        let nth = |index: usize| numbers[index];
        Self {
            rx_coalesce_usecs: nth(0),
            rx_max_coalesced_frames: nth(1),
            rx_coalesce_usecs_irq: nth(2),
            rx_max_coalesced_frames_irq: nth(3),
            tx_coalesce_usecs: nth(4),
            tx_max_coalesced_frames: nth(5),
            tx_coalesce_usecs_irq: nth(6),
            tx_max_coalesced_frames_irq: nth(7),
            stats_block_coalesce_usecs: nth(8),
            use_adaptive_rx_coalesce: nth(9) != 0,
            use_adaptive_tx_coalesce: nth(10) != 0,
            pkt_rate_low: nth(11),
            rx_coalesce_usecs_low: nth(12),
            rx_max_coalesced_frames_low: nth(13),
            tx_coalesce_usecs_low: nth(14),
            tx_max_coalesced_frames_low: nth(15),
            pkt_rate_high: nth(16),
            rx_coalesce_usecs_high: nth(17),
            rx_max_coalesced_frames_high: nth(18),
            tx_coalesce_usecs_high: nth(19),
            tx_max_coalesced_frames_high: nth(20),
            rate_sample_interval: nth(21),
        }
    }

    /// All fields except those that are 0. 0 means off, or that the driver lacks the setting.
    pub fn settings(&self) -> Settings {
        let named = COALESCE.into_iter().zip(self.numbers()).filter(|(_, number)| *number != 0);
        named.map(|(name, number)| (name.to_owned(), number)).collect()
    }

    /// Makes the value from names. Missing names are 0.
    pub fn of(settings: &Settings) -> Self {
        Self::from_numbers(COALESCE.map(|name| settings.get(name)))
    }
}

impl Rss {
    /// The hash function, and how its input is transformed (`toeplitz symmetric-xor`); `None` if
    /// the driver does not report them.
    pub fn hash_words(&self) -> Option<Words> {
        let mut words = self.function?.as_word();
        if self.input_xfrm & SYMMETRIC_XOR != 0 {
            words += " symmetric-xor";
        }
        if self.input_xfrm & SYMMETRIC_OR_XOR != 0 {
            words += " symmetric-or-xor";
        }
        Some(Words::new(&words))
    }

    /// Parses words of this form into the function and the bits of `input_xfrm`.
    pub fn hash_of_words(words: &str) -> Option<(HashFunction, u8)> {
        let mut words = words.split_whitespace();
        let function = HashFunction::of_word(words.next()?)?;
        let mut bits = 0;
        for word in words {
            bits |= match word {
                "symmetric-xor" => SYMMETRIC_XOR,
                "symmetric-or-xor" => SYMMETRIC_OR_XOR,
                _ => return None,
            };
        }
        Some((function, bits))
    }
}

/// `RXH_XFRM_SYM_XOR`.
const SYMMETRIC_XOR: u8 = 1;
/// `RXH_XFRM_SYM_OR_XOR`.
const SYMMETRIC_OR_XOR: u8 = 2;

impl HashFunction {
    /// ethtool's name of the function (`hfunc toeplitz`).
    pub fn as_word(self) -> String {
        match self {
            Self::Toeplitz => "toeplitz".into(),
            Self::Xor => "xor".into(),
            Self::Crc32 => "crc32".into(),
            Self::Other(bit) => format!("{bit:#04x}"),
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        match word {
            "toeplitz" => Some(Self::Toeplitz),
            "xor" => Some(Self::Xor),
            "crc32" => Some(Self::Crc32),
            word => u8::from_str_radix(word.strip_prefix("0x")?, 16).ok().map(Self::Other),
        }
    }

    /// The kernel's bit (`ETH_RSS_HASH_*`).
    pub fn bit(self) -> u8 {
        match self {
            Self::Toeplitz => 1,
            Self::Xor => 2,
            Self::Crc32 => 4,
            Self::Other(bit) => bit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coalesce_field_keeps_its_name() {
        let numbers =
            std::array::from_fn(|at| if (9..=10).contains(&at) { 1 } else { at as u32 + 1 });
        let coalesce = Coalesce::from_numbers(numbers);
        assert_eq!(Coalesce::of(&coalesce.settings()), coalesce);
        assert_eq!((coalesce.rx_coalesce_usecs, coalesce.settings().get("rx-usecs")), (1, 1));
        assert_eq!(
            (coalesce.rate_sample_interval, coalesce.settings().get("sample-interval")),
            (22, 22)
        );
        assert_eq!((coalesce.tx_coalesce_usecs, coalesce.settings().get("tx-usecs")), (5, 5));
    }

    #[test]
    fn set_ignores_a_missing_ring() {
        let ring = |current| Some(Limit { current, max: 4096 });
        let mut rings = Rings { rx: ring(256), rx_mini: None, rx_jumbo: None, tx: ring(256) };
        rings.set(&"rx=1024 tx=256 rx-jumbo=8".parse().unwrap());
        assert_eq!(rings.settings().to_string(), "rx=1024 tx=256");
        assert_eq!(rings.most().to_string(), "rx=4096 tx=4096");
    }

    #[test]
    fn a_hash_round_trips_in_ethtools_words() {
        let rss =
            |function, input_xfrm| Rss { function, key: None, indirection: Vec::new(), input_xfrm };
        let words = rss(Some(HashFunction::Toeplitz), 1).hash_words().unwrap().to_string();
        assert_eq!(
            (words.as_str(), Rss::hash_of_words(&words)),
            ("toeplitz symmetric-xor", Some((HashFunction::Toeplitz, 1)))
        );
        assert_eq!(Rss::hash_of_words("0x08"), Some((HashFunction::Other(8), 0)));
        assert_eq!(Rss::hash_of_words("toeplitz twice"), None);
        assert_eq!(rss(None, 0).hash_words(), None);
    }
}
