//! Sets of logical CPUs of any width, in the kernel's two formats.
//!
//! The *mask* is hexadecimal in 32-bit groups separated by commas, CPU 0 the lowest bit
//! (`lib/bitmap.c:bitmap_parse`, printed by `%*pb`); the *list* is ranges (`0-3,8`, also
//! `0-31:2/8`, `lib/bitmap-str.c:bitmap_parselist`, printed by `%*pbl`).

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Maximum number of CPUs for which Linux can be configured (`CONFIG_NR_CPUS` on x86-64).
pub const MAX_CPUS: u32 = 8192;

/// A logical CPU, by its kernel number.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "u32")]
pub struct CpuId(pub u32);

impl TryFrom<u32> for CpuId {
    type Error = CpuSetError;

    /// Refuses numbers of [`MAX_CPUS`] and above: tables by CPU would take all memory.
    fn try_from(cpu: u32) -> Result<Self, CpuSetError> {
        if cpu < MAX_CPUS {
            return Ok(Self(cpu));
        }
        let kind = CpuSetErrorKind::OutOfRange { cpu: cpu.into(), highest: MAX_CPUS - 1 };
        Err(CpuSetError { text: cpu.to_string(), at: 0, kind })
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of logical CPUs. It is serialized as a kernel list (`"0-3,8"`).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct CpuSet {
    /// Bit `c % 64` of word `c / 64` is CPU `c`. There is no trailing zero word, so that equality
    /// is set equality.
    words: Words,
}

/// Without an allocation up to 128 CPUs: a snapshot has several sets of each CPU.
type Words = SmallVec<[u64; 2]>;

/// Parse error of a CPU set, with its byte position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at column {} of {text:?}", .at + 1)]
pub struct CpuSetError {
    /// The text as given, without surrounding white space.
    pub text: String,
    /// Byte offset of the first offending character.
    pub at: usize,
    /// The error at that position.
    pub kind: CpuSetErrorKind,
}

/// Kinds of parse errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetErrorKind {
    /// The text, a group or a range is empty.
    #[error("empty cpu set")]
    Empty,
    /// A character outside the syntax.
    #[error("unexpected {0:?}")]
    Unexpected(char),
    /// A mask group of more than 32 bits.
    #[error("mask group longer than 8 hexadecimal digits")]
    LongGroup,
    /// A CPU number beyond the limit.
    #[error("cpu {cpu} is out of range (the highest is {highest})")]
    OutOfRange {
        /// The given CPU.
        cpu: u64,
        /// The highest CPU number allowed.
        highest: u32,
    },
    /// A range whose end is before its start.
    #[error("range runs backwards")]
    Backwards,
    /// A stride `:used/group` that the kernel also rejects (`used` above `group`, or zero).
    #[error("stride must be USED/GROUP with 0 < USED <= GROUP")]
    Stride,
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Words::new_const() }
    }

    /// The CPUs `0..n`.
    pub fn first(n: u32) -> Self {
        (0..n).map(CpuId).collect()
    }

    /// A set of one CPU.
    pub fn from_cpu(cpu: CpuId) -> Self {
        std::iter::once(cpu).collect()
    }

    /// Adds a CPU. Numbers of [`MAX_CPUS`] and above are ignored.
    pub fn insert(&mut self, cpu: CpuId) {
        if cpu.0 >= MAX_CPUS {
            return;
        }
        let word = (cpu.0 / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    /// Adds all CPUs from `first` to `last`, which are below [`MAX_CPUS`], word by word.
    fn insert_all(&mut self, first: u32, last: u32) {
        self.insert(CpuId(last));
        for word in first / 64..=last / 64 {
            let (from, to) = (first.max(word * 64) % 64, last.min(word * 64 + 63) % 64);
            self.words[word as usize] |= (u64::MAX >> (63 - (to - from))) << from;
        }
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut((cpu.0 / 64) as usize) {
            *word &= !(1 << (cpu.0 % 64));
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get((cpu.0 / 64) as usize).is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    pub fn lowest(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The highest CPU.
    pub fn highest(&self) -> Option<CpuId> {
        let last = self.words.last()?;
        Some(CpuId(self.words.len() as u32 * 64 - 1 - last.leading_zeros()))
    }

    /// The only CPU, if there is exactly one.
    pub fn single(&self) -> Option<CpuId> {
        if self.len() == 1 { self.lowest() } else { None }
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| {
                Some(w & (w - 1)).filter(|w| *w != 0)
            })
            .map(move |w| CpuId(i as u32 * 64 + w.trailing_zeros()))
        })
    }

    /// CPUs in both.
    pub fn and(&self, other: &Self) -> Self {
        Self::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// CPUs in either.
    pub fn or(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (w, s) in words.iter_mut().zip(&short.words) {
            *w |= s;
        }
        Self::from_words(words)
    }

    /// CPUs in this set only.
    pub fn minus(&self, other: &Self) -> Self {
        let mut words = self.words.clone();
        for (w, o) in words.iter_mut().zip(&other.words) {
            *w &= !o;
        }
        Self::from_words(words)
    }

    /// Whether every CPU of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.minus(other).is_empty()
    }

    /// Whether the two sets share a CPU.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.and(other).is_empty()
    }

    /// Formats the mask as a kernel with `nr_cpu_ids` CPUs prints it (`%*pb`): 32-bit groups, with
    /// leading zeros.
    ///
    /// If the set has a CPU of `nr_cpu_ids` or above, the mask is as wide as needed.
    pub fn to_mask(&self, nr_cpu_ids: u32) -> String {
        let bits = self.highest().map_or(1, |c| c.0 + 1).max(nr_cpu_ids).max(1);
        let groups = bits.div_ceil(32);
        let mut mask = String::with_capacity(groups as usize * 9);
        for group in (0..groups).rev() {
            let word = self.words.get((group / 2) as usize).copied().unwrap_or(0);
            let value = (word >> (group % 2 * 32)) as u32;
            if group == groups - 1 {
                let digits = (bits - group * 32).div_ceil(4) as usize;
                mask.push_str(&format!("{value:0digits$x}"));
            } else {
                mask.push_str(&format!(",{value:08x}"));
            }
        }
        mask
    }

    /// Parses a kernel mask (`ff`, `0000000f,ffffffff`, with or without `0x`). The only limit is
    /// [`MAX_CPUS`].
    ///
    /// The set may be empty: the kernel prints empty masks, and each knob decides whether it
    /// accepts one.
    pub fn parse_mask(text: &str) -> Result<Self, CpuSetError> {
        let text = text.trim();
        let error = |at, kind| CpuSetError { text: text.to_owned(), at, kind };
        let start = if text.starts_with("0x") || text.starts_with("0X") { 2 } else { 0 };
        let mut groups = Vec::new();
        let mut at = start;
        for group in text[start..].split(',') {
            if group.is_empty() {
                return Err(error(at, CpuSetErrorKind::Empty));
            }
            if let Some((i, c)) = group.char_indices().find(|(_, c)| !c.is_ascii_hexdigit()) {
                return Err(error(at + i, CpuSetErrorKind::Unexpected(c)));
            }
            if group.len() > 8 {
                return Err(error(at + 8, CpuSetErrorKind::LongGroup));
            }
            let value = u32::from_str_radix(group, 16)
                .map_err(|_| error(at, CpuSetErrorKind::LongGroup))?;
            groups.push((at, value));
            at += group.len() + 1;
        }
        let mut set = Self::new();
        for (group, &(at, value)) in groups.iter().rev().enumerate() {
            for bit in (0..32).filter(|bit| value >> bit & 1 == 1) {
                let cpu = group as u64 * 32 + bit;
                if cpu >= u64::from(MAX_CPUS) {
                    let kind = CpuSetErrorKind::OutOfRange { cpu, highest: MAX_CPUS - 1 };
                    return Err(error(at, kind));
                }
                set.insert(CpuId(cpu as u32));
            }
        }
        Ok(set)
    }

    /// Parses a kernel list (`0-3,8`, `0-31:2/8`). An empty text is the empty set, as the kernel
    /// prints it.
    pub fn parse_list(text: &str) -> Result<Self, CpuSetError> {
        let text = text.trim();
        let mut set = Self::new();
        if text.is_empty() {
            return Ok(set);
        }
        let (mut at, mut rest) = (0, Some(text));
        while let Some(some) = rest {
            let (range, others) = match split_once(some, b',') {
                Some((range, others)) => (range, Some(others)),
                None => (some, None),
            };
            rest = others;
            insert_range(&mut set, range).map_err(|(offset, kind)| CpuSetError {
                text: text.to_owned(),
                at: at + offset,
                kind,
            })?;
            at += range.len() + 1;
        }
        Ok(set)
    }

    /// Parses user input: as a mask if it can only be one (`0x`, a letter, or a group of 8 digits),
    /// else as a list.
    ///
    /// The empty set and CPUs at or above `limit` are errors with a position.
    pub fn parse_user(text: &str, limit: u32) -> Result<Self, CpuSetError> {
        let text = text.trim();
        let spelling = Spelling::detect(text);
        let set = match spelling {
            Spelling::Mask => Self::parse_mask(text)?,
            Spelling::List => Self::parse_list(text)?,
        };
        let error = |at, kind| Err(CpuSetError { text: text.to_owned(), at, kind });
        let Some(highest) = set.highest() else {
            return error(0, CpuSetErrorKind::Empty);
        };
        if highest.0 >= limit {
            let kind = CpuSetErrorKind::OutOfRange {
                cpu: highest.0.into(),
                highest: limit.saturating_sub(1),
            };
            return error(spelling.place_of(text, highest), kind);
        }
        Ok(set)
    }

    fn from_words(words: Words) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// The format in which a set was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Hexadecimal mask.
    Mask,
    /// List of ranges.
    List,
}

impl Spelling {
    fn detect(text: &str) -> Self {
        let prefixed = text.starts_with("0x") || text.starts_with("0X");
        let letters = text.chars().any(|c| matches!(c, 'a'..='f' | 'A'..='F'));
        let eight =
            text.split(',').any(|g| g.len() == 8 && g.chars().all(|c| c.is_ascii_hexdigit()));
        if (prefixed || letters || eight) && !text.contains('-') { Self::Mask } else { Self::List }
    }

    /// Byte offset of the range or mask group that contains the CPU.
    fn place_of(self, text: &str, cpu: CpuId) -> usize {
        let mut at = 0;
        match self {
            Self::List => {
                for range in text.split(',') {
                    let mut set = CpuSet::new();
                    if insert_range(&mut set, range).is_ok() && set.contains(cpu) {
                        return at;
                    }
                    at += range.len() + 1;
                }
                0
            }
            Self::Mask => {
                let groups = text.split(',').count() as u32;
                for (i, group) in text.split(',').enumerate() {
                    if groups - 1 - i as u32 == cpu.0 / 32 {
                        return at;
                    }
                    at += group.len() + 1;
                }
                0
            }
        }
    }
}

/// The parts of a text before and after the first of this ASCII character. Lists are short: the
/// search of the standard library, which looks at many bytes at a time, takes longer.
fn split_once(text: &str, by: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == by)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Adds `a`, `a-b` or `a-b:used/group`. An error has the byte offset within the range.
fn insert_range(set: &mut CpuSet, range: &str) -> Result<(), (usize, CpuSetErrorKind)> {
    let number = |offset: usize, digits: &str| -> Result<u32, (usize, CpuSetErrorKind)> {
        if digits.is_empty() {
            return Err((offset, CpuSetErrorKind::Empty));
        }
        if let Some((i, c)) = digits.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
            return Err((offset + i, CpuSetErrorKind::Unexpected(c)));
        }
        let cpu = digits.parse::<u64>().unwrap_or(u64::MAX);
        match u32::try_from(cpu) {
            Ok(small) if small < MAX_CPUS => Ok(small),
            _ => Err((offset, CpuSetErrorKind::OutOfRange { cpu, highest: MAX_CPUS - 1 })),
        }
    };
    let (bounds, stride) = match split_once(range, b':') {
        Some((bounds, stride)) => (bounds, Some((bounds.len() + 1, stride))),
        None => (range, None),
    };
    let (first, last) = match split_once(bounds, b'-') {
        Some((a, b)) => (number(0, a)?, number(a.len() + 1, b)?),
        None => {
            let only = number(0, bounds)?;
            (only, only)
        }
    };
    if last < first {
        return Err((0, CpuSetErrorKind::Backwards));
    }
    let (used, group) = match stride {
        None => (1, 1),
        Some((offset, stride)) => {
            let (used, group) = stride.split_once('/').ok_or((offset, CpuSetErrorKind::Stride))?;
            let pair = (number(offset, used)?, number(offset + used.len() + 1, group)?);
            if pair.0 == 0 || pair.0 > pair.1 {
                return Err((offset, CpuSetErrorKind::Stride));
            }
            pair
        }
    };
    if used == group {
        set.insert_all(first, last);
    } else {
        set.extend((first..=last).filter(|cpu| (cpu - first) % group < used).map(CpuId));
    }
    Ok(())
}

/// Prints the kernel's list format (`0-3,8`); empty for the empty set.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|c| c.0).peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ListVisitor)
    }
}

/// Parses a list where the deserializer has it.
struct ListVisitor;

impl Visitor<'_> for ListVisitor {
    type Value = CpuSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CpuSet, E> {
        CpuSet::parse_list(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    #[test]
    fn mask_is_printed_as_wide_as_the_kernel_prints_it() {
        assert_eq!(cpus("0").to_mask(1), "1");
        assert_eq!(cpus("0").to_mask(8), "01");
        assert_eq!(cpus("0-3,40").to_mask(48), "0100,0000000f");
        assert_eq!(cpus("").to_mask(32), "00000000");
        assert_eq!(cpus("63").to_mask(64), "80000000,00000000");
        assert_eq!(cpus("64").to_mask(2), "1,00000000,00000000");
    }

    /// Tables by CPU have an entry for each number up to the highest.
    #[test]
    fn a_number_that_no_cpu_has_is_not_read() {
        let read = |json: &str| serde_json::from_str::<CpuId>(json).map_err(|e| e.to_string());
        assert_eq!(read("8191"), Ok(CpuId(8191)));
        for number in ["8192", "50000000", "4294967295"] {
            assert!(read(number).unwrap_err().contains("8191"), "{:?}", read(number));
            let key = format!("{{\"{number}\": 1}}");
            let table = serde_json::from_str::<std::collections::BTreeMap<CpuId, u32>>(&key);
            assert!(table.unwrap_err().to_string().contains("8191"));
        }
    }

    #[test]
    fn errors_name_the_position() {
        let message = |text: &str| CpuSet::parse_user(text, 64).unwrap_err().to_string();
        assert_eq!(message(""), r#"empty cpu set at column 1 of """#);
        assert_eq!(message("0-3,x"), r#"unexpected 'x' at column 5 of "0-3,x""#);
        assert_eq!(message("1,,2"), r#"empty cpu set at column 3 of "1,,2""#);
        assert_eq!(message("3-1"), r#"range runs backwards at column 1 of "3-1""#);
        assert_eq!(
            message("1,64"),
            r#"cpu 64 is out of range (the highest is 63) at column 3 of "1,64""#
        );
        assert_eq!(
            message("1,00000000,00000000"),
            r#"cpu 64 is out of range (the highest is 63) at column 1 of "1,00000000,00000000""#
        );
        assert_eq!(message("0x0"), r#"empty cpu set at column 1 of "0x0""#);
        assert_eq!(
            message("123456789f"),
            r#"mask group longer than 8 hexadecimal digits at column 9 of "123456789f""#
        );
    }

    #[test]
    fn user_input_may_be_mask_or_list() {
        let read = |text: &str| CpuSet::parse_user(text, 64).unwrap().to_string();
        assert_eq!(read("10"), "10");
        assert_eq!(read("0x10"), "4");
        assert_eq!(read("ff"), "0-7");
        assert_eq!(read("00000001,00000000"), "32");
        assert_eq!(read("0-31:2/8"), "0-1,8-9,16-17,24-25");
    }

    proptest! {
        #[test]
        fn both_formats_round_trip(
            cpus in proptest::collection::vec(0..MAX_CPUS, 0..200),
            width in 1..=MAX_CPUS,
        ) {
            let set: CpuSet = cpus.iter().copied().map(CpuId).collect();
            prop_assert_eq!(&CpuSet::parse_list(&set.to_string()).unwrap(), &set);
            prop_assert_eq!(&CpuSet::parse_mask(&set.to_mask(width)).unwrap(), &set);
            let distinct: std::collections::BTreeSet<_> = cpus.iter().collect();
            prop_assert_eq!(set.len(), distinct.len());
            prop_assert_eq!(set.highest().map(|c| c.0), cpus.iter().max().copied());
        }

        #[test]
        fn set_algebra_holds(
            a in proptest::collection::vec(0..300u32, 0..40),
            b in proptest::collection::vec(0..300u32, 0..40),
        ) {
            let set = |v: &[u32]| v.iter().copied().map(CpuId).collect::<CpuSet>();
            let (a, b) = (set(&a), set(&b));
            prop_assert_eq!(a.minus(&b).or(&a.and(&b)), a.clone());
            prop_assert_eq!(a.or(&b).len() + a.and(&b).len(), a.len() + b.len());
            prop_assert!(a.and(&b).is_subset(&a) && a.is_subset(&a.or(&b)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = CpuSet::parse_user(&text, 64);
        }
    }
}
