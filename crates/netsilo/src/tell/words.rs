//! Words that several messages need.

use netsilo_decide::plan::selection::nearest;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

/// A number with its noun: `1 change`, `3 changes`.
pub use netsilo_model::machine::words::plural;

/// Names with the queues of a netdev as one name: `eth0 rx-0, eth0 rx-1` as `eth0 rx-0-1`.
pub(crate) fn grouped(labels: &[impl AsRef<str>]) -> Vec<String> {
    let labels = labels.iter().map(|label| (label.as_ref(), ()));
    folded(labels).into_iter().map(|(name, ..)| name).collect()
}

/// Names with their values: the queues of a netdev that have the same value as one name, and the
/// number of its queues. What stands behind a queue's number is a part of the name.
pub(crate) fn folded<'a, V: PartialEq>(
    labels: impl Iterator<Item = (&'a str, V)>,
) -> Vec<(String, V, usize)> {
    let mut groups: Vec<(&str, Option<CpuSet>, &str, V)> = Vec::new();
    for (label, value) in labels {
        let Some((stem, number, rest)) = queue(label) else {
            groups.push((label, None, "", value));
            continue;
        };
        let same =
            |it: &&mut (&str, Option<CpuSet>, &str, V)| (it.0, it.2, &it.3) == (stem, rest, &value);
        match groups.iter_mut().find(same) {
            Some((_, Some(numbers), ..)) => numbers.insert(CpuId(number)),
            _ => groups.push((stem, Some(CpuSet::from_cpu(CpuId(number))), rest, value)),
        }
    }
    let name = |(stem, numbers, rest, value): (&str, Option<CpuSet>, &str, V)| match numbers {
        Some(numbers) => (format!("{stem}-{numbers}{rest}"), value, numbers.len()),
        None => (stem.to_owned(), value, 1),
    };
    groups.into_iter().map(name).collect()
}

/// What is before and behind a queue's number.
fn queue(label: &str) -> Option<(&str, u32, &str)> {
    let (before, behind) = label.rsplit_once("x-")?;
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = behind.split_at(digits);
    Some((&label[..=before.len()], number.parse().ok()?, rest))
}

/// serde's message about a wrong key or value of a file, shortened. For an unknown key, adds the
/// nearest known one.
pub(crate) fn wrong_key(message: &str) -> String {
    // unknown field `a`, expected one of `b`, `c`
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.collect();
    if message.starts_with("unknown field ") {
        match nearest(unknown, &known) {
            Some(nearest) => format!("unknown key {unknown}; did you mean {nearest}?"),
            None => format!("unknown key {unknown}; known are {}", known.join(", ")),
        }
    } else if message.starts_with("unknown variant ") {
        format!("{unknown:?}: known are {}", known.join(", "))
    } else {
        // invalid type: string "many", expected f64
        let line = message.lines().next().unwrap_or(message);
        let Some((found, expected)) = line.split_once(", expected ") else {
            return line.to_owned();
        };
        let expected = match expected {
            it if it.starts_with("struct ") => "a table of keys",
            "f32" | "f64" => "a number",
            "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
            it => it,
        };
        format!("{found}, expected {expected}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_a_netdev_are_one_name() {
        let labels = ["eth0 rx-0", "eth0 rx-1", "eth1 rx-3", "eth0 rx-4", "eth0 napi 8197"];
        assert_eq!(grouped(&labels), ["eth0 rx-0-1,4", "eth1 rx-3", "eth0 napi 8197"]);
    }

    #[test]
    fn queues_with_the_same_value_are_one_name() {
        let rows = [("rx-0 polled", 1), ("rx-1 polled", 2), ("rx-2 polled", 1), ("rx-3 read", 1)];
        let names = [("rx-0,2 polled", 1, 2), ("rx-1 polled", 2, 1), ("rx-3 read", 1, 1)];
        assert_eq!(folded(rows.into_iter()), names.map(|(name, v, n)| (name.to_owned(), v, n)));
    }
}
