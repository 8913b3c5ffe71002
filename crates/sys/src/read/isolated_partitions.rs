//! CPUs of isolated cpuset partitions. These cgroups (v2) take the CPUs out of the scheduler's
//! domains at run time. cgroup v1 has no partitions.
//!
//! `/sys/devices/system/cpu/isolated` never shows them. It shows only the CPUs isolated at boot,
//! even since the kernel keeps both in one set (`HK_TYPE_DOMAIN_BOOT`, 7.0).

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::cpu_lists;
use netsilo_model::parse::cpuset_partition::is_isolated;

use crate::read::gaps::Notes;

const ROOT: &str = "/sys/fs/cgroup";

/// The file of the root cgroup that lists the CPUs of all valid isolated partitions, since 6.8.
const ISOLATED: &str = "/sys/fs/cgroup/cpuset.cpus.isolated";

/// Maximum number of cgroups that are searched for partitions.
const MOST: usize = 20_000;

/// The CPUs of isolated partitions.
pub(crate) fn isolated_partitions(notes: &Notes<'_>) -> CpuSet {
    if let Ok(Some(cpus)) = notes.root.optional(ISOLATED, cpu_lists::list) {
        return cpus;
    }
    of_each_cgroup(notes)
}

/// The same before 6.8, cgroup by cgroup. A capture contains only the files of isolated partitions.
fn of_each_cgroup(notes: &Notes<'_>) -> CpuSet {
    let searched = notes.root.unrecorded();
    let mut cpus = CpuSet::new();
    let mut cgroups = vec![ROOT.to_owned()];
    let mut seen = 0;
    while let Some(cgroup) = cgroups.pop() {
        seen += 1;
        if seen > MOST {
            notes.gap(ROOT, format!("isolated partitions: only {MOST} cgroups were searched"));
            break;
        }
        let partition = format!("{cgroup}/cpuset.cpus.partition");
        match searched.parse(&partition, |text| Ok(is_isolated(text))) {
            Ok(true) => {
                keep_path(notes, &cgroup);
                let effective = format!("{cgroup}/cpuset.cpus.effective");
                cpus = cpus.or(&notes.get(&effective, cpu_lists::list).unwrap_or_default());
            }
            Ok(false) => {}
            // If a cgroup lacks the cpuset controller, all cgroups below it lack it too.
            Err(_) if cgroup != ROOT => continue,
            Err(_) => {}
        }
        let below = searched.folders(&cgroup).unwrap_or_default();
        cgroups.extend(below.into_iter().map(|name| format!("{cgroup}/{name}")));
    }
    cpus
}

/// Saves the files by which the search finds a cgroup in the capture.
fn keep_path(notes: &Notes<'_>, cgroup: &str) {
    for (end, _) in format!("{cgroup}/").match_indices('/').filter(|(end, _)| *end > ROOT.len()) {
        notes.get(&format!("{}/cpuset.cpus.partition", &cgroup[..end]), |_| Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::root::Root;

    /// Reads the partitions of a tree with these files below `/sys/fs/cgroup`. Also returns how
    /// many of the files a capture contains.
    fn isolated(files: &[(&str, &str)]) -> (String, usize) {
        let (dir, capture) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = dir.path().join("sys/fs/cgroup").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        let read = |root: &Root| isolated_partitions(&Notes::new(root)).to_string();
        let (recording, recorder) = root.recording(capture.path()).unwrap();
        let cpus = read(&recording);
        recorder.finish().unwrap();
        assert_eq!(read(&Root::at(capture.path()).unwrap()), cpus, "the capture says the same");
        let captured =
            |(path, _): &&(&str, &str)| capture.path().join("sys/fs/cgroup").join(path).is_file();
        (cpus, files.iter().filter(captured).count())
    }

    #[test]
    fn the_root_cgroup_lists_all_isolated_cpus() {
        let tree = [
            ("cpuset.cpus.isolated", "2-3,6\n"),
            ("rt.slice/cpuset.cpus.partition", "isolated\n"),
            ("rt.slice/cpuset.cpus.effective", "2-3\n"),
        ];
        assert_eq!(isolated(&tree), ("2-3,6".to_owned(), 1));
        assert_eq!(isolated(&[("cpuset.cpus.isolated", "\n")]).0, "");
    }

    #[test]
    fn before_6_8_each_valid_isolated_partition_adds_its_effective_cpus() {
        let tree = [
            ("a.slice/cpuset.cpus.partition", "root\n"),
            ("a.slice/cpuset.cpus.effective", "0-1\n"),
            ("a.slice/rt.service/cpuset.cpus.partition", "isolated\n"),
            ("a.slice/rt.service/cpuset.cpus.effective", "4-5\n"),
            ("b.slice/cpuset.cpus.partition", "isolated\n"),
            ("b.slice/cpuset.cpus.effective", "7\n"),
            (
                "c.slice/cpuset.cpus.partition",
                "isolated invalid (Parent is not a partition root)\n",
            ),
            ("c.slice/cpuset.cpus.effective", "0-3\n"),
            ("d.slice/cpuset.cpus.partition", "member\n"),
            ("d.slice/cpuset.cpus.effective", "0-3\n"),
        ];
        assert_eq!(isolated(&tree), ("4-5,7".to_owned(), 5));
    }

    #[test]
    fn cgroups_of_v1_and_those_without_cpusets_have_no_partitions() {
        assert_eq!(isolated(&[]), (String::new(), 0));
        let tree = [("cpuset/cpuset.cpus", "0-7\n"), ("user.slice/cgroup.controllers", "memory\n")];
        assert_eq!(isolated(&tree), (String::new(), 0));
    }
}
