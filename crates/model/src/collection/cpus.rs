//! The outputs of `lscpu` and `numactl -H`, as files of `/sys/devices/system`.

use std::collections::BTreeMap;

use crate::machine::cpuset::{CpuId, CpuSet};

/// Kernel files by path.
type Files = Vec<(String, String)>;

fn cpu_file(name: &str, value: impl ToString) -> (String, String) {
    (format!("sys/devices/system/cpu/{name}"), format!("{}\n", value.to_string()))
}

fn node_file(node: &str, name: &str, value: &str) -> (String, String) {
    (format!("sys/devices/system/node/node{node}/{name}"), format!("{value}\n"))
}

/// The files of `lscpu`: of its summary, or of the table of `lscpu -e`.
pub fn lscpu(text: &str) -> Files {
    let mut files = Files::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match name.trim() {
            "On-line CPU(s) list" if CpuSet::parse_list(value).is_ok() => {
                files.push(cpu_file("online", value));
            }
            name => {
                let node = name.strip_prefix("NUMA node").and_then(|it| it.strip_suffix(" CPU(s)"));
                if let Some(node) = node.filter(|node| node.parse::<u32>().is_ok())
                    && CpuSet::parse_list(value).is_ok()
                {
                    files.push(node_file(node, "cpulist", value));
                }
            }
        }
    }
    files.extend(table(text));
    files
}

/// The files of the table of `lscpu -e`: which CPUs share a core, a package and caches.
fn table(text: &str) -> Files {
    let mut lines = text.lines();
    let Some(header) = lines.find(|line| line.trim_start().starts_with("CPU ")) else {
        return Files::new();
    };
    let columns: Vec<&str> = header.split_ascii_whitespace().collect();
    let column = |name: &str| columns.iter().position(|it| it.starts_with(name));
    let mut shared: BTreeMap<(&str, String), CpuSet> = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        let cell = |name| column(name).and_then(|at| cells.get(at).copied());
        let Some(cpu) = cell("CPU").and_then(|cpu| cpu.parse().ok()).map(CpuId) else { continue };
        let mut add = |kind, id: String| shared.entry((kind, id)).or_default().insert(cpu);
        // numbers of cores may repeat in each socket
        let socket = cell("SOCKET").filter(|it| *it != "-");
        if let Some((core, socket)) = cell("CORE").filter(|it| *it != "-").zip(socket) {
            add("topology/core_cpus_list", format!("{socket} {core}"));
        }
        if let Some(socket) = socket {
            add("topology/package_cpus_list", socket.to_owned());
        }
        let (names, ids) = (cell_names(&columns), cell("L1d").unwrap_or_default());
        for (name, id) in names.into_iter().zip(ids.split(':')) {
            let kind = match name {
                "L2" => "cache/index2/shared_cpu_list",
                "L3" => "cache/index3/shared_cpu_list",
                _ => continue,
            };
            add(kind, id.to_owned());
        }
    }
    let mut files = Files::new();
    for ((kind, _), cpus) in shared {
        for cpu in cpus.iter() {
            files.push(cpu_file(&format!("cpu{cpu}/{kind}"), &cpus));
            if let Some(index) = kind.strip_suffix("/shared_cpu_list") {
                files.push(cpu_file(&format!("cpu{cpu}/{index}/type"), "Unified"));
                let level = index.trim_start_matches("cache/index");
                files.push(cpu_file(&format!("cpu{cpu}/{index}/level"), level));
            }
        }
    }
    files
}

/// The caches in the column `L1d:L1i:L2:L3`.
fn cell_names<'a>(columns: &[&'a str]) -> Vec<&'a str> {
    columns.iter().find(|it| it.starts_with("L1d")).map_or(Vec::new(), |it| it.split(':').collect())
}

/// The files of `numactl -H`: the CPUs and distances of each node.
pub fn numactl(text: &str) -> Files {
    let mut files = Files::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["node", node, "cpus:", ref cpus @ ..] if node.parse::<u32>().is_ok() => {
                let cpus: Option<CpuSet> =
                    cpus.iter().map(|it| it.parse().ok().map(CpuId)).collect();
                files.extend(cpus.map(|cpus| node_file(node, "cpulist", &cpus.to_string())));
            }
            [node, ref distances @ ..] if !distances.is_empty() => {
                let node = node.strip_suffix(':').filter(|node| node.parse::<u32>().is_ok());
                if let Some(node) = node {
                    files.push(node_file(node, "distance", &distances.join(" ")));
                }
            }
            _ => {}
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(files: &'a Files, path: &str) -> Option<&'a str> {
        let found = files.iter().find(|(known, _)| known.ends_with(path))?;
        Some(found.1.trim_end())
    }

    #[test]
    fn the_summary_names_cpus_and_nodes_but_not_who_shares_what() {
        let files = lscpu("CPU(s):  4\nOn-line CPU(s) list:  0-3\nNUMA node1 CPU(s):  2,3\n");
        assert_eq!(value(&files, "cpu/online"), Some("0-3"));
        assert_eq!(value(&files, "node1/cpulist"), Some("2,3"));
        assert_eq!(files.len(), 2);
    }

    #[test]
    fn the_table_says_which_cpus_share_cores_and_caches() {
        let files = lscpu(
            "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n\
             0 0 0 0 0:0:0:0 yes\n1 0 0 1 1:1:1:0 yes\n2 0 0 0 0:0:0:0 yes\n3 - - - - no\n",
        );
        assert_eq!(value(&files, "cpu0/topology/core_cpus_list"), Some("0,2"));
        assert_eq!(value(&files, "cpu1/cache/index2/shared_cpu_list"), Some("1"));
        assert_eq!(value(&files, "cpu1/cache/index3/shared_cpu_list"), Some("0-2"));
        assert_eq!(value(&files, "cpu1/cache/index3/level"), Some("3"));
        assert_eq!(value(&files, "cpu3/topology/core_cpus_list"), None, "offline");
    }

    #[test]
    fn nodes_have_cpus_and_distances() {
        let files = numactl(
            "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 9 MB\nnode 1 cpus: 2 3\n\
             node distances:\nnode   0   1\n  0:  10  21\n  1:  21  10\n",
        );
        assert_eq!(value(&files, "node1/cpulist"), Some("2-3"));
        assert_eq!(value(&files, "node1/distance"), Some("21 10"));
        assert_eq!(files.len(), 4);
    }
}
