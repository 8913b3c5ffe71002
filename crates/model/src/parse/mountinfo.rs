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
}
