//! Parsers for files of one thread or process: `/proc/<pid>/task/<tid>/{stat,schedstat}` and
//! `/proc/<pid>/cgroup`.

use crate::machine::cpuset::CpuId;
use crate::snapshot::thread_time::ThreadTime;

/// Parses `schedstat`: run time, wait time, number of runs.
pub fn thread_time(schedstat: &str) -> Option<ThreadTime> {
    let mut words = schedstat.split_ascii_whitespace().map(|word| word.parse().ok());
    Some(ThreadTime { run_ns: words.next()??, wait_ns: words.next()??, runs: words.next()?? })
}

/// Parses `stat`: the CPU on which the thread last ran (field 39, `processor`).
///
/// The name in parentheses may contain spaces and parentheses, so fields are counted from the last
/// parenthesis.
pub fn processor(stat: &str) -> Option<CpuId> {
    let (_, after) = stat.rsplit_once(')')?;
    // the first field after the name is field 3
    after.split_ascii_whitespace().nth(39 - 3)?.parse().ok().map(CpuId)
}

/// Parses `schedstat`: run time in nanoseconds (`sum_exec_runtime`).
pub fn run_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// Parses `cgroup`: the path in the v2 hierarchy (the line of hierarchy 0 without controllers).
///
/// If the process is in the root of that hierarchy, or the hierarchy does not exist, services and
/// containers are in the v1 hierarchies. Then this is the path in the hierarchy named systemd.
pub fn cgroup_path(cgroup: &str) -> Option<&str> {
    let v2 = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let v1 = || cgroup.lines().find_map(|line| Some(line.split_once(":name=systemd:")?.1));
    v2.filter(|path| *path != "/").or_else(v1).or(v2)
}

/// The inode in a link target such as `socket:[1234]` or `net:[4026531840]`.
pub fn link_inode(link: &str, kind: &str) -> Option<u32> {
    link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_counts_from_the_last_parenthesis() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("77 (a) S (b c)) R {}", fields.join(" "));
        assert_eq!(processor(&stat), Some(CpuId(39)));
        assert_eq!(processor("77 (cut) R 1 2 3"), None);
    }

    #[test]
    fn the_cgroup_is_that_of_the_unified_hierarchy_or_else_systemds() {
        let path = "/system.slice/a.service";
        assert_eq!(cgroup_path("12:cpu:/old\n0::/system.slice/a.service\n"), Some(path));
        assert_eq!(cgroup_path("5:cpu,cpuacct:/old\n1:name=systemd:/a:b\n0::/\n"), Some("/a:b"));
        assert_eq!(cgroup_path("5:cpu:/\n1:name=systemd:/a\n"), Some("/a"));
        assert_eq!(cgroup_path("0::/\n"), Some("/"));
        assert_eq!(cgroup_path("5:cpu:/\n"), None);
    }

    #[test]
    fn a_link_of_another_kind_has_no_inode() {
        assert_eq!(link_inode("socket:[81]", "socket"), Some(81));
        assert_eq!(link_inode("pipe:[81]", "socket"), None);
        assert_eq!(link_inode("socket:[]", "socket"), None);
        assert_eq!(run_ns("1234 5 6\n"), Some(1234));
        assert_eq!(
            thread_time("1234 5 6\n"),
            Some(ThreadTime { run_ns: 1234, wait_ns: 5, runs: 6 })
        );
        assert_eq!(thread_time("1234 5\n"), None);
    }
}
