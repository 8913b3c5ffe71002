//! Cpuset partitions: cgroups (v2) that have CPUs which no cgroup outside them uses. Isolated ones
//! take the CPUs out of the scheduler's domains, too. cgroup v1 has no partitions.
//!
//! `/sys/devices/system/cpu/isolated` never shows them. It shows only the CPUs isolated at boot,
//! even since the kernel keeps both in one set (`HK_TYPE_DOMAIN_BOOT`, 7.0).

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::container;
use netsilo_model::parse::cpu_lists;
use netsilo_model::parse::cpuset_partition::{is_isolated, is_root};

use crate::read::gaps::Notes;

const ROOT: &str = "/sys/fs/cgroup";

/// The file of the root cgroup that lists the CPUs of all valid isolated partitions, since 6.8.
const ISOLATED: &str = "/sys/fs/cgroup/cpuset.cpus.isolated";

/// The CPUs that no partition has.
const REMAINING: &str = "/sys/fs/cgroup/cpuset.cpus.effective";

/// Maximum number of cgroups that are searched for partitions.
const MOST: usize = 20_000;

/// The partitions of a machine.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// The CPUs of isolated partitions.
    pub(crate) isolated: CpuSet,
    /// The paths and CPUs of the other partitions that are one container or service. A slice is
    /// not: it has several.
    pub(crate) owned: Vec<(String, CpuSet)>,
}

/// Reads them. Without any, reads two files.
pub(crate) fn partitions(notes: &Notes<'_>, online: &CpuSet) -> Partitions {
    let listed = notes.root.optional(ISOLATED, cpu_lists::list).ok().flatten();
    let remaining = notes.root.optional(REMAINING, cpu_lists::list).ok().flatten();
    let none = remaining.is_some_and(|cpus| online.minus(&cpus).is_empty());
    let found = if none { Partitions::default() } else { search(notes) };
    Partitions { isolated: listed.unwrap_or(found.isolated), ..found }
}

/// Searches all cgroups. A capture contains only the files of partitions.
fn search(notes: &Notes<'_>) -> Partitions {
    let searched = notes.root.unrecorded();
    let mut found = Partitions::default();
    let mut cgroups = vec![ROOT.to_owned()];
    let mut seen = 0;
    while let Some(cgroup) = cgroups.pop() {
        seen += 1;
        if seen > MOST {
            notes.gap(ROOT, format!("partitions: only {MOST} cgroups were searched"));
            break;
        }
        let partition = format!("{cgroup}/cpuset.cpus.partition");
        match searched.parse(&partition, |text| Ok((is_isolated(text), is_root(text)))) {
            Ok((false, false)) => {}
            Ok((isolated, _)) => {
                keep_path(notes, &cgroup);
                let effective = format!("{cgroup}/cpuset.cpus.effective");
                let cpus = notes.get(&effective, cpu_lists::list).unwrap_or_default();
                if isolated {
                    found.isolated = found.isolated.or(&cpus);
                } else if is_container_or_service(&cgroup) {
                    found.owned.push((cgroup.clone(), cpus));
                }
            }
            // If a cgroup lacks the cpuset controller, all cgroups below it lack it too.
            Err(_) if cgroup != ROOT => continue,
            Err(_) => {}
        }
        let below = searched.folders(&cgroup).unwrap_or_default();
        cgroups.extend(below.into_iter().map(|name| format!("{cgroup}/{name}")));
    }
    found.owned.sort();
    found
}

fn is_container_or_service(cgroup: &str) -> bool {
    let is_unit = [".service", ".scope"].iter().any(|it| cgroup.ends_with(it));
    is_unit || cgroup.rsplit('/').next().and_then(container::id).is_some()
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
        let read = |root: &Root| {
            let found = partitions(&Notes::new(root), &CpuSet::first(8));
            let owned = found.owned.into_iter().map(|(name, cpus)| format!(" {name} {cpus}"));
            found.isolated.to_string() + &owned.collect::<String>()
        };
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
            ("cpuset.cpus.effective", "0-7\n"),
            ("rt.slice/cpuset.cpus.partition", "isolated\n"),
            ("rt.slice/cpuset.cpus.effective", "2-3\n"),
        ];
        assert_eq!(isolated(&tree), ("2-3,6".to_owned(), 2));
        assert_eq!(isolated(&[("cpuset.cpus.isolated", "\n")]).0, "");
    }

    #[test]
    fn each_valid_partition_adds_its_effective_cpus_before_6_8_to_the_isolated_ones_too() {
        let tree = [
            ("a.slice/cpuset.cpus.partition", "root\n"),
            ("a.slice/cpuset.cpus.effective", "0-1\n"),
            ("a.slice/rt.service/cpuset.cpus.partition", "isolated\n"),
            ("a.slice/rt.service/cpuset.cpus.effective", "4-5\n"),
            ("a.slice/db.service/cpuset.cpus.partition", "root\n"),
            ("a.slice/db.service/cpuset.cpus.effective", "6\n"),
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
        assert_eq!(isolated(&tree), ("4-5,7 /sys/fs/cgroup/a.slice/db.service 6".to_owned(), 8));
    }

    #[test]
    fn cgroups_of_v1_and_those_without_cpusets_have_no_partitions() {
        assert_eq!(isolated(&[]), (String::new(), 0));
        let tree = [("cpuset/cpuset.cpus", "0-7\n"), ("user.slice/cgroup.controllers", "memory\n")];
        assert_eq!(isolated(&tree), (String::new(), 0));
    }
}
