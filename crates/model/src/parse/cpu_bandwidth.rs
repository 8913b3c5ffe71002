//! The CPU quota of a cgroup: `cpu.max` and `cpu.stat` (v2, `kernel/sched/core.c`), and the files
//! `cpu.cfs_quota_us`, `cpu.cfs_period_us` and `cpu.stat` of v1.

use crate::snapshot::socket_readers::CpuQuota;

/// Parses `cpu.max`: quota and period in microseconds; `None` if there is no quota (`max`).
pub fn cpu_max(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// Adds the counters of `cpu.stat` to a quota. v1 counts `throttled_time` in nanoseconds, v2
/// `throttled_usec`.
pub fn cpu_stat(text: &str, (quota_usec, period_usec): (u64, u64)) -> CpuQuota {
    let mut quota = CpuQuota { quota_usec, period_usec, ..CpuQuota::default() };
    for line in text.lines() {
        let Some((name, Ok(value))) = line.split_once(' ').map(|(a, b)| (a, b.trim().parse()))
        else {
            continue;
        };
        match name {
            "nr_periods" => quota.nr_periods = value,
            "nr_throttled" => quota.nr_throttled = value,
            "throttled_usec" => quota.throttled_usec = value,
            "throttled_time" => quota.throttled_usec = value / 1000,
            _ => {}
        }
    }
    quota
}

/// Parses `/proc/PID/cgroup`: the path in the hierarchy of the v1 controller `cpu`; `None` if that
/// controller belongs to v2.
pub fn v1_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|it| it == "cpu").then_some(path)
    })
}

/// Parses `/proc/PID/cgroup`: the path in the v2 hierarchy.
pub fn v2_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// A cgroup and those above it, without the root, which has no quota.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(path.rsplit_once('/')?.0))
        .filter(|path| path.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_give_the_same_quota() {
        let v2 = "usage_usec 9\nnr_periods 46\nnr_throttled 38\nthrottled_usec 2809\nnr_bursts 0\n";
        let v1 = "nr_periods 46\nnr_throttled 38\nthrottled_time 2809425\n";
        let quota = cpu_stat(v2, cpu_max("15000 100000\n").unwrap());
        assert_eq!(quota, cpu_stat(v1, (15_000, 100_000)));
        assert_eq!((quota.nr_throttled, quota.throttled_usec, quota.cpus()), (38, 2809, 0.15));
        assert_eq!(cpu_max("max 100000\n"), None);
    }

    #[test]
    fn the_hierarchy_of_the_cpu_controller_is_found_by_its_name() {
        let hybrid = "3:cpuset:/a\n2:cpuacct:/b\n1:cpu,cpuacct:/c:d\n0::/e\n";
        assert_eq!((v1_path(hybrid), v2_path(hybrid)), (Some("/c:d"), Some("/e")));
        assert_eq!(v1_path("2:cpuset:/a\n0::/e\n"), None);
    }

    #[test]
    fn a_cgroup_and_those_above_it_without_the_root() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b/c", "/a/b", "/a"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
