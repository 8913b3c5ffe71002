//! `cpuset.cpus.partition` of a cgroup: whether its CPUs are separate from those of other cgroups.

/// Whether the cgroup is a valid isolated partition. The scheduler does not balance its CPUs.
///
/// The kernel prints `member`, `root` or `isolated`. If it cannot form a requested partition, it
/// prints `root invalid (reason)` or `isolated invalid (reason)`
/// (`kernel/cgroup/cpuset.c:cpuset_partition_show`).
pub fn is_isolated(text: &str) -> bool {
    text.trim() == "isolated"
}

/// Whether the cgroup is a valid partition of the kind `root`. No cgroup outside it uses its CPUs.
pub fn is_root(text: &str) -> bool {
    text.trim() == "root"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_the_kernel_could_not_form_isolates_nothing() {
        assert!(is_isolated("isolated\n"));
        let others = [
            "member\n",
            "root\n",
            "",
            "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n",
        ];
        assert!(!others.into_iter().any(is_isolated));
        assert!(
            is_root("root\n") && !is_root("root invalid (Parent is an invalid partition root)")
        );
    }
}
