//! Words that several messages need.

use netsilo_decide::plan::selection::nearest;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

/// A number with its noun: `1 change`, `3 changes`.
pub use netsilo_model::machine::words::plural;

/// Names with the queues of a netdev as one name: `eth0 rx-0, eth0 rx-1` as `eth0 rx-0-1`.
pub(crate) fn grouped(labels: &[impl AsRef<str>]) -> Vec<String> {
    let mut groups: Vec<(&str, Option<CpuSet>)> = Vec::new();
    for label in labels {
        let label = label.as_ref();
        let queue = label.rsplit_once('-').filter(|(stem, _)| stem.ends_with("x"));
        match queue.and_then(|(stem, number)| Some((stem, number.parse().ok()?))) {
            Some((stem, number)) => match groups.iter_mut().find(|it| it.0 == stem) {
                Some((_, Some(numbers))) => numbers.insert(CpuId(number)),
                _ => groups.push((stem, Some(CpuSet::from_cpu(CpuId(number))))),
            },
            None => groups.push((label, None)),
        }
    }
    let name = |(stem, numbers): (&str, Option<CpuSet>)| match numbers {
        Some(numbers) => format!("{stem}-{numbers}"),
        None => stem.to_owned(),
    };
    groups.into_iter().map(name).collect()
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
}
