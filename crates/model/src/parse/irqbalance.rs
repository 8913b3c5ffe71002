//! irqbalance's socket: the answer to `setup`, the list of banned interrupts that it takes, and
//! how long such a list may be (`irqbalance.c:sock_handle`, 1.9.2 to 1.9.5).

use std::collections::BTreeSet;

use crate::machine::ids::Irq;
use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// The request for irqbalance's settings. Nothing else is answered with them.
pub const SETUP: &str = "setup";

/// The longest message that every version reads whole, in bytes. Up to 1.9.4 irqbalance reads 500
/// bytes, and takes what it has read for the whole list.
pub const SAFE_BYTES: usize = 499;

/// The longest message from 1.9.5 on, in bytes. A longer one is refused.
const NEWER_BYTES: usize = 16_383;

/// The first version that reads long messages.
const NEWER: [u32; 3] = [1, 9, 5];

/// The interrupts that irqbalance leaves alone, of its answer to [`SETUP`]:
/// `SLEEP 10 IRQ 27 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000`. Those that a policy script or a banned
/// module excludes are not in the answer.
pub fn banned(text: &str) -> Result<BTreeSet<Irq>, ParseError> {
    let missing = |what: &str| ParseError::new(1, text.trim_end().len() + 1, format!("no {what}"));
    let mut all = words(text);
    if all.next().is_none_or(|(_, word)| word != "SLEEP") {
        return Err(ParseError::new(1, 1, "no SLEEP at the start"));
    }
    let mut irqs = BTreeSet::new();
    while let Some((_, word)) = all.next() {
        match word {
            // the last word: an answer without it was cut
            "BANNED" => return Ok(irqs),
            "IRQ" => {
                let number = all.next().ok_or_else(|| missing("number after IRQ"))?;
                irqs.insert(Irq(decimal(1, number)?));
            }
            _ => {}
        }
    }
    Err(missing("BANNED at the end"))
}

/// The message that makes these the only banned interrupts. Interrupt 0 cannot be in a list: it
/// ends the list.
pub fn ban_message(irqs: &BTreeSet<Irq>) -> String {
    let numbers: Vec<String> =
        irqs.iter().filter(|irq| irq.0 != 0).map(ToString::to_string).collect();
    let list = if numbers.is_empty() { "NONE".to_owned() } else { numbers.join(" ") };
    format!("settings ban irqs {list}")
}

/// The longest message that the program in this file reads whole, in bytes. The file of every
/// version has the words of `irqbalance --version`.
pub fn most_bytes(program: &[u8]) -> usize {
    const WORDS: &[u8] = b"irqbalance version ";
    let found = program.windows(WORDS.len()).position(|bytes| bytes == WORDS);
    let version = found.and_then(|at| version(&program[at + WORDS.len()..]));
    if version.is_some_and(|version| version >= NEWER) { NEWER_BYTES } else { SAFE_BYTES }
}

/// Three numbers with dots between them, at the start of a text that ends its line.
fn version(bytes: &[u8]) -> Option<[u32; 3]> {
    let end = bytes.iter().take(32).position(|byte| *byte == b'\n')?;
    let mut numbers = std::str::from_utf8(&bytes[..end]).ok()?.split('.').map(str::parse);
    let mut next = || numbers.next().unwrap_or(Ok(0)).ok();
    Some([next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irqs(numbers: &[u32]) -> BTreeSet<Irq> {
        numbers.iter().copied().map(Irq).collect()
    }

    #[test]
    fn the_banned_interrupts_are_those_between_the_interval_and_the_cpus() {
        let text = "SLEEP 10 IRQ 27 LOAD 0 DIFF 0 CLASS 0 IRQ 28 LOAD 9 DIFF 1 CLASS 3 BANNED 0f";
        assert_eq!(banned(text), Ok(irqs(&[27, 28])));
        assert_eq!(banned("SLEEP 10 BANNED 00000000,00000000"), Ok(irqs(&[])));
    }

    #[test]
    fn an_answer_that_was_cut_is_no_list() {
        let text = "SLEEP 10 IRQ 27 LOAD 0 DIFF 0 CLASS 0 BANNED 00";
        for cut in 0..text.len() - " 00".len() {
            assert!(banned(&text[..cut]).is_err(), "{}", &text[..cut]);
        }
        assert!(banned("SLEEP 10 IRQ x BANNED 0").is_err());
    }

    #[test]
    fn a_list_is_one_message_and_no_list_is_a_word() {
        assert_eq!(ban_message(&irqs(&[28, 27, 0])), "settings ban irqs 27 28");
        assert_eq!(ban_message(&irqs(&[])), "settings ban irqs NONE");
    }

    #[test]
    fn only_a_version_that_is_known_to_read_more_is_sent_more() {
        let of = |text: &str| most_bytes(text.as_bytes());
        for old in ["", "irqbalance version 1.9.4\n", "irqbalance version 1.9.5", "1.9.5\n"] {
            assert_eq!(of(old), 499, "{old}");
        }
        assert_eq!(of("irqbalance version x.9.5\n"), 499);
        for new in ["1.9.5\n", "1.10.0\n", "2.0\n"] {
            assert_eq!(of(&format!("\u{7f}ELF irqbalance version {new}\0")), 16_383, "{new}");
        }
    }
}
