//! Mutation of JSON as a tree: random byte changes rarely stay JSON, and never give another valid
//! CPU set.

use libfuzzer_sys::fuzzer_mutate;
use serde_json::Value;

/// Numbers at the limits of counters, identifiers and sizes.
const NUMBERS: [u64; 12] =
    [0, 1, 2, 63, 64, 8191, 8192, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 53, u64::MAX];
/// Numbers of CPUs, interrupts and queues, used as keys; some exceed any machine.
const KEYS: [u32; 8] = [0, 1, 5, 64, 511, 8191, 8192, u32::MAX];
/// Words that many fields accept.
const WORDS: [&str; 10] =
    ["", "0", "0-8191", "1,3,5", "eth0", "eth1", "NET_RX", "CAL", "napi/eth0-8193", "\u{1F4A5}"];

/// For `fuzz_mutator!`: changes one to three values of a JSON text; changes bytes of other texts.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut dice = Dice::of(seed);
    let Ok(mut value) = serde_json::from_slice::<Value>(&data[..size]) else {
        return fuzzer_mutate(data, size, max_size);
    };
    // sometimes produces a text that is not JSON
    if dice.roll(50) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    for _ in 0..=dice.roll(3) {
        if dice.roll(4) == 0 {
            let place = dice.roll(count(&value));
            change(&mut value, &mut { place }, &mut dice);
        } else {
            change_below(&mut value, &mut dice);
        }
    }
    match serde_json::to_vec(&value) {
        Ok(text) if text.len() <= max_size => {
            data[..text.len()].copy_from_slice(&text);
            text.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
}

/// Like [`mutate`], for a file with one JSON text per line.
pub fn mutate_lines(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut dice = Dice::of(!seed);
    let mut lines: Vec<Vec<u8>> =
        data[..size].split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() || dice.roll(20) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let (at, to) = (dice.roll(lines.len()), dice.roll(lines.len()));
    match dice.roll(6) {
        0 => lines.swap(at, to),
        1 => _ = lines.remove(at),
        2 => lines.insert(to, lines[at].clone()),
        _ => {
            let line = &mut lines[at];
            let whole = line.ends_with(b"\n");
            let length = line.len() - usize::from(whole);
            line.resize(length + 256, 0);
            let length = mutate(line, length, length + 256, seed);
            line.truncate(length);
            line.extend(whole.then_some(b'\n'));
        }
    }
    let text = lines.concat();
    let length = text.len().min(max_size);
    data[..length].copy_from_slice(&text[..length]);
    length
}

/// A xorshift generator; the fuzzer gives the seed, so its findings are reproducible.
struct Dice(u64);

impl Dice {
    /// Makes a generator; similar seeds give different sequences (the last step of splitmix64).
    fn of(seed: u32) -> Self {
        let mixed = (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self((mixed ^ mixed >> 27) | 1)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }
}

/// Number of values: this one and all inside it.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value number `place` in the order of `count`; returns whether it was in this value.
fn change(value: &mut Value, place: &mut usize, dice: &mut Dice) -> bool {
    if *place == 0 {
        change_this(value, dice);
        return true;
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, place, dice)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, place, dice)),
        _ => false,
    }
}

/// Changes a random part: containers as often as their contents. Field names of a struct rarely
/// change, or nothing would parse.
fn change_below(value: &mut Value, dice: &mut Dice) {
    let sides = if is_struct(value) { 32 } else { 4 };
    let inner = match value {
        Value::Array(items) if !items.is_empty() => {
            let at = dice.roll(items.len());
            items.get_mut(at)
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = dice.roll(fields.len());
            fields.values_mut().nth(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) if dice.roll(sides) > 0 => change_below(inner, dice),
        _ => change_this(value, dice),
    }
}

/// Whether the keys of an object are names, not numbers.
fn is_struct(value: &Value) -> bool {
    let Value::Object(fields) = value else { return false };
    !fields.keys().next().is_some_and(|key| is_number(key))
}

fn is_number(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_digit())
}

fn change_this(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Number(number) => {
            let old = number.as_u64().unwrap_or_default();
            *value = match dice.roll(4) {
                0 => old.wrapping_add(1).into(),
                1 => old.wrapping_sub(1).into(),
                2 => (old.rotate_left(dice.roll(64) as u32)).into(),
                _ => NUMBERS[dice.roll(NUMBERS.len())].into(),
            }
        }
        Value::String(text) => {
            let bits = dice.roll(1 << 16);
            *text = match dice.roll(3) {
                0 => WORDS[dice.roll(WORDS.len())].to_owned(),
                1 => cpu_list(bits),
                _ => text.chars().rev().collect(),
            }
        }
        Value::Bool(flag) => *flag = !*flag,
        Value::Null => {
            *value = [Value::from(1), Value::from("0-3"), Value::from(0.5)][dice.roll(3)].clone()
        }
        Value::Array(items) if !items.is_empty() => {
            let at = dice.roll(items.len());
            match dice.roll(3) {
                0 => _ = items.remove(at),
                1 => items.push(items[at].clone()),
                _ => items.reverse(),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let (from, to) = (&keys[dice.roll(keys.len())], &keys[dice.roll(keys.len())]);
            match dice.roll(if is_number(from) { 8 } else { 3 }) {
                0 => _ = fields.remove(from),
                1 => fields[to] = fields[from].clone(),
                2 => fields[from] = Value::Null,
                copy => {
                    let value =
                        if copy < 6 { fields.remove(from) } else { fields.get(from).cloned() };
                    fields
                        .insert(KEYS[dice.roll(KEYS.len())].to_string(), value.unwrap_or_default());
                }
            }
        }
        _ => {}
    }
}

fn cpu_list(bits: usize) -> String {
    let cpus = (0..16).filter(|bit| bits >> bit & 1 == 1);
    cpus.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",")
}
