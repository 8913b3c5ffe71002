//! Mutation of JSON as a tree: random byte changes rarely stay JSON, and never give another valid
//! CPU set.

use fastrand::Rng;
use serde_json::Value;

/// Numbers at the limits of counters, identifiers and sizes.
pub(crate) const NUMBERS: [u64; 12] =
    [0, 1, 2, 63, 64, 8191, 8192, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 53, u64::MAX];
/// Numbers of CPUs, interrupts and queues, used as keys; some exceed any machine.
const KEYS: [u32; 8] = [0, 1, 5, 64, 511, 8191, 8192, u32::MAX];
/// Words that many fields accept.
const WORDS: [&str; 10] =
    ["", "0", "0-8191", "1,3,5", "eth0", "eth1", "NET_RX", "CAL", "napi/eth0-8193", "\u{1F4A5}"];

/// Changes one to three values of a JSON text. `None`: change bytes instead, because the text is no
/// JSON, or so that sometimes a text is none.
pub(crate) fn mutate(input: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut value = serde_json::from_slice::<Value>(input).ok()?;
    if rng.usize(..50) == 0 {
        return None;
    }
    for _ in 0..=rng.usize(..3) {
        if rng.usize(..4) == 0 {
            let place = rng.usize(..count(&value));
            change(&mut value, &mut { place }, rng);
        } else {
            change_below(&mut value, rng);
        }
    }
    serde_json::to_vec(&value).ok()
}

/// Like [`mutate`], for a file with one JSON text per line.
pub(crate) fn mutate_lines(input: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> =
        input.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() || rng.usize(..20) == 0 {
        return None;
    }
    let (at, to) = (rng.usize(..lines.len()), rng.usize(..lines.len()));
    match rng.usize(..6) {
        0 => lines.swap(at, to),
        1 => _ = lines.remove(at),
        2 => lines.insert(to, lines[at].clone()),
        _ => {
            let line = &mut lines[at];
            let end = line.ends_with(b"\n").then_some(b'\n');
            *line = mutate(line, rng)?;
            line.extend(end);
        }
    }
    Some(lines.concat())
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
fn change(value: &mut Value, place: &mut usize, rng: &mut Rng) -> bool {
    if *place == 0 {
        change_this(value, rng);
        return true;
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, place, rng)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, place, rng)),
        _ => false,
    }
}

/// Changes a random part: containers as often as their contents. Field names of a struct rarely
/// change, or nothing would parse.
fn change_below(value: &mut Value, rng: &mut Rng) {
    let sides = if is_struct(value) { 32 } else { 4 };
    let inner = match value {
        Value::Array(items) if !items.is_empty() => {
            let at = rng.usize(..items.len());
            items.get_mut(at)
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = rng.usize(..fields.len());
            fields.values_mut().nth(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) if rng.usize(..sides) > 0 => change_below(inner, rng),
        _ => change_this(value, rng),
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

fn change_this(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Number(number) => {
            let old = number.as_u64().unwrap_or_default();
            *value = match rng.usize(..4) {
                0 => old.wrapping_add(1).into(),
                1 => old.wrapping_sub(1).into(),
                2 => (old.rotate_left(rng.usize(..64) as u32)).into(),
                _ => NUMBERS[rng.usize(..NUMBERS.len())].into(),
            }
        }
        Value::String(text) => {
            let bits = rng.usize(..1 << 16);
            *text = match rng.usize(..3) {
                0 => WORDS[rng.usize(..WORDS.len())].to_owned(),
                1 => cpu_list(bits),
                _ => text.chars().rev().collect(),
            }
        }
        Value::Bool(flag) => *flag = !*flag,
        Value::Null => {
            *value = [Value::from(1), Value::from("0-3"), Value::from(0.5)][rng.usize(..3)].clone()
        }
        Value::Array(items) if !items.is_empty() => {
            let at = rng.usize(..items.len());
            match rng.usize(..3) {
                0 => _ = items.remove(at),
                1 => items.push(items[at].clone()),
                _ => items.reverse(),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let (from, to) = (&keys[rng.usize(..keys.len())], &keys[rng.usize(..keys.len())]);
            let sides = if is_number(from) { 8 } else { 3 };
            match rng.usize(..sides) {
                0 => _ = fields.remove(from),
                1 => fields[to] = fields[from].clone(),
                2 => fields[from] = Value::Null,
                copy => {
                    let value =
                        if copy < 6 { fields.remove(from) } else { fields.get(from).cloned() };
                    fields.insert(
                        KEYS[rng.usize(..KEYS.len())].to_string(),
                        value.unwrap_or_default(),
                    );
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
