//! `/proc/kallsyms`: kernel functions by address.

use std::collections::{BTreeMap, BTreeSet};

/// A kernel function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// The name without the compiler's suffix after a dot (`.cold`, `.constprop.0`).
    pub name: String,
    /// The module; `None` for the kernel image.
    pub module: Option<String>,
}

impl Symbol {
    /// As stack traces print it: `nvme_tcp_io_work [nvme_tcp]`.
    pub fn label(&self) -> String {
        self.module.as_ref().map_or(self.name.clone(), |module| format!("{} [{module}]", self.name))
    }
}

/// The function that contains each address; addresses below the first function are left out.
///
/// Returns `None` if the kernel hides addresses: unprivileged readers see only 0
/// (`kernel.kptr_restrict`).
pub fn functions(text: &str, addresses: &BTreeSet<u64>) -> Option<BTreeMap<u64, Symbol>> {
    let mut symbols: Vec<(u64, &str, Option<&str>)> = text.lines().filter_map(symbol).collect();
    // a stable sort keeps the first of several names of one address, because the function comes
    // before its aliases
    symbols.sort_by_key(|(address, ..)| *address);
    symbols.dedup_by_key(|(address, ..)| *address);
    if symbols.is_empty() {
        return None;
    }
    let function = |address: &u64| {
        let after = symbols.partition_point(|(start, ..)| start <= address);
        let (_, name, module) = symbols.get(after.checked_sub(1)?)?;
        Some((*address, Symbol { name: (*name).to_owned(), module: module.map(str::to_owned) }))
    };
    Some(addresses.iter().filter_map(function).collect())
}

/// Parses `ffffffffc0401000 t igb_poll\t[igb]`: address, name, module. Returns `None` unless it is
/// code.
fn symbol(line: &str) -> Option<(u64, &str, Option<&str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
    words.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
    let name = words.next()?;
    let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
    Some((address, name.split('.').next().filter(|name| !name.is_empty()).unwrap_or(name), module))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000200 t ip_forward.cold
ffffffff81000100 t ip_rcv.part.0
ffffffff82000000 D jiffies
ffffffffc0401000 t igb_poll\t[igb]
";

    fn at(address: u64) -> Option<Symbol> {
        functions(TEXT, &BTreeSet::from([address])).unwrap().remove(&address)
    }

    #[test]
    fn an_address_lies_in_the_function_that_begins_before_it() {
        let named = |name: &str, module: Option<&str>| {
            Some(Symbol { name: name.into(), module: module.map(str::to_owned) })
        };
        assert_eq!(at(0xffffffff810001ff), named("ip_rcv", None));
        assert_eq!(at(0xffffffff81000200), named("ip_forward", None));
        assert_eq!(at(0xffffffff81000001), named("_text", None));
        assert_eq!(at(0xffffffffc0401010), named("igb_poll", Some("igb")));
        assert_eq!(at(7), None);
    }

    #[test]
    fn hidden_addresses_are_none() {
        assert_eq!(functions("0000000000000000 T _text\n", &BTreeSet::from([1])), None);
    }
}
