//! `/proc/<pid>/mountinfo` (`fs/proc_namespace.c:show_mountinfo`): the files that hold network
//! namespaces.

use crate::parse::schedstat::link_inode;

/// The inode number of each network namespace that a file holds, and the file's path.
pub fn network_namespaces(text: &str) -> Vec<(u32, String)> {
    let held = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, path) = (fields.next()?, fields.next()?);
        let inode = link_inode(root, "net").filter(|_| filesystem.starts_with("nsfs "))?;
        Some((inode, unescaped(path)))
    };
    text.lines().filter_map(held).collect()
}

/// What is mounted below a folder, topmost mounts only, each once.
pub fn mounts_below(text: &str, folder: &str) -> Vec<String> {
    let paths = text.lines().filter_map(|line| Some(unescaped(line.split(' ').nth(4)?)));
    let is_below = |path: &str, folder: &str| {
        path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    };
    let mut below: Vec<String> = paths.filter(|path| is_below(path, folder)).collect();
    below.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    let mut top: Vec<String> = Vec::new();
    for path in below {
        if !top.iter().any(|over| *over == path || is_below(&path, over)) {
            top.push(path);
        }
    }
    top
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(path: &str) -> String {
    const ESCAPES: [(&str, &str); 4] =
        [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    ESCAPES.iter().fold(path.to_owned(), |path, (code, text)| path.replace(code, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_hold_a_network_namespace_count() {
        let text = "24 1 8:1 / / rw - ext4 /dev/vda rw\n\
                    31 24 0:4 net:[4026532301] /run/netns/blue rw shared:9 - nsfs nsfs rw\n\
                    32 24 0:4 mnt:[4026532302] /run/snapd/ns/x.mnt rw - nsfs nsfs rw\n\
                    33 24 0:4 net:[4026532303] /run/netns/a\\040b rw - nsfs nsfs rw\nshort\n";
        let held = [(4026532301, "/run/netns/blue".into()), (4026532303, "/run/netns/a b".into())];
        assert_eq!(network_namespaces(text), held);
    }

    #[test]
    fn below_a_folder_the_topmost_mounts_count_once() {
        let text = "22 1 0:20 / /sys rw - sysfs sysfs rw\n\
                    25 23 0:7 / /sys/kernel/debug/tracing rw - tracefs tracefs rw\n\
                    23 22 0:6 / /sys/kernel/debug rw - debugfs debugfs rw\n\
                    24 22 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                    26 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                    27 1 0:9 / /system rw - tmpfs tmpfs rw\nshort\n";
        assert_eq!(mounts_below(text, "/sys"), ["/sys/fs/cgroup", "/sys/kernel/debug"]);
    }
}
