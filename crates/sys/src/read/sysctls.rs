//! Reads all sysctls of the network stack.

use std::collections::BTreeMap;

use crate::files::root::Root;

/// All sysctls below `net` as printed, by their dotted names. Leaves out those that cannot be read.
pub fn network_sysctls(root: &Root) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    below(root, "/proc/sys/net", "net", &mut all);
    all
}

fn below(root: &Root, folder: &str, prefix: &str, all: &mut BTreeMap<String, String>) {
    for name in root.list(folder).unwrap_or_default() {
        let (path, sysctl) = (format!("{folder}/{name}"), format!("{prefix}.{name}"));
        match root.read(&path) {
            Ok(text) => {
                all.insert(sysctl, text.trim().to_owned());
            }
            Err(_) => below(root, &path, &sysctl, all),
        }
    }
}
