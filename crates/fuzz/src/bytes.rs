//! Changes of bytes, as libFuzzer makes them, but from a seed alone.

use fastrand::Rng;

use crate::json::NUMBERS;

/// Changes an input in one to four places; `other` is an input of the same target.
pub(crate) fn mutate(input: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=rng.usize(..4) {
        let from = rng.usize(..=bytes.len());
        let to = rng.usize(from..=bytes.len().min(from + 32));
        match rng.usize(..8) {
            0 => bytes.iter_mut().skip(from).take(1).for_each(|byte| *byte ^= 1 << rng.u8(..8)),
            1 => bytes[from..to].fill_with(|| rng.u8(..)),
            2 => _ = bytes.drain(from..to),
            3 => bytes.truncate(from),
            4 => {
                let repeated = bytes[from..to].repeat(1 << rng.usize(..8));
                _ = bytes.splice(to..to, repeated);
            }
            5 => change_number(&mut bytes, from, rng),
            6 => {
                let number = NUMBERS[rng.usize(..NUMBERS.len())].to_ne_bytes();
                let width = 1 << rng.usize(..4);
                let end = bytes.len().min(from + width);
                _ = bytes.splice(from..end, number.into_iter().take(width));
            }
            _ => {
                let there = rng.usize(..=other.len());
                let length = rng.usize(..=other.len() - there);
                _ = bytes.splice(from..to, other[there..there + length].iter().copied());
            }
        }
    }
    bytes
}

/// Replaces the first decimal number at or after this position.
fn change_number(bytes: &mut Vec<u8>, from: usize, rng: &mut Rng) {
    let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) else { return };
    let digits = bytes[from + start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = NUMBERS[rng.usize(..NUMBERS.len())].to_string();
    _ = bytes.splice(from + start..from + start + digits, number.bytes());
}
