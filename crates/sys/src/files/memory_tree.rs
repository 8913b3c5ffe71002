//! A tree of files in memory: a sample of a bundle.
//!
//! Paths are resolved as if this tree were the whole file system, so no `..` and no link leads out
//! of it. Errors are the same as the kernel's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

/// Maximum number of links on one path, the same as the kernel's.
const MOST_LINKS: usize = 40;

/// A file, a symbolic link with its target, or a folder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MemoryTree {
    File(Arc<[u8]>),
    Link(OsString),
    Folder(BTreeMap<OsString, Self>),
}

impl Default for MemoryTree {
    fn default() -> Self {
        Self::Folder(BTreeMap::new())
    }
}

impl MemoryTree {
    /// The contents of a file.
    pub(crate) fn file(&self, path: &str) -> io::Result<&[u8]> {
        match self.find(path, true)? {
            Self::File(contents) => Ok(contents),
            _ => Err(Errno::ISDIR.into()),
        }
    }

    /// The contents of a folder, by name.
    pub(crate) fn folder(&self, path: &str) -> io::Result<&BTreeMap<OsString, Self>> {
        match self.find(path, true)? {
            Self::Folder(names) => Ok(names),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The target of a link.
    pub(crate) fn link(&self, path: &str) -> io::Result<&OsStr> {
        match self.find(path, false)? {
            Self::Link(target) => Ok(target),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// The permission bits that a bundle uses for all files, or for all folders.
    pub(crate) fn mode(&self, path: &str) -> io::Result<u32> {
        Ok(if self.find(path, true)?.is_folder() { 0o755 } else { 0o644 })
    }

    pub(crate) fn is_folder(&self) -> bool {
        matches!(self, Self::Folder(_))
    }

    /// Puts a file, link or folder into an existing folder.
    pub(crate) fn insert(&mut self, path: &Path, new: Self) {
        if let Some((names, name)) = self.place(path) {
            names.insert(name.to_owned(), new);
        }
    }

    /// Removes what is at a path, unless a folder above it is a link or missing.
    pub(crate) fn remove(&mut self, path: &Path) -> Option<Self> {
        let (names, name) = self.place(path)?;
        names.remove(name)
    }

    /// The folder that has, or would have, this path, and the name in it. Follows no link.
    fn place<'a>(&mut self, path: &'a Path) -> Option<(&mut BTreeMap<OsString, Self>, &'a OsStr)> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let mut names = self.names()?;
        for folder in parent {
            names = names.get_mut(folder)?.names()?;
        }
        Some((names, name))
    }

    fn names(&mut self) -> Option<&mut BTreeMap<OsString, Self>> {
        match self {
            Self::Folder(names) => Some(names),
            _ => None,
        }
    }

    /// Follows a path to its end. Follows a link at the end only if `follow`.
    fn find(&self, path: &str, follow: bool) -> Result<&Self, Errno> {
        let (mut at, mut links) = (vec![self], 0);
        let mut left: Vec<&[u8]> = steps(path.as_bytes()).collect();
        while let Some(step) = left.pop() {
            let Some(Self::Folder(names)) = at.last() else { return Err(Errno::NOTDIR) };
            match step {
                b"" | b"." => {}
                b".." => at.truncate((at.len() - 1).max(1)),
                name => match names.get(OsStr::from_bytes(name)).ok_or(Errno::NOENT)? {
                    Self::Link(target) if follow || !left.is_empty() => {
                        links += 1;
                        if links > MOST_LINKS {
                            return Err(Errno::LOOP);
                        }
                        if target.as_bytes().starts_with(b"/") {
                            at.truncate(1);
                        }
                        left.extend(steps(target.as_bytes()));
                    }
                    found => at.push(found),
                },
            }
        }
        at.pop().ok_or(Errno::NOENT)
    }
}

/// The names in a path, the last one first. A name is empty only where the path must lead to a
/// folder.
fn steps(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').rev()
}

#[cfg(test)]
impl MemoryTree {
    /// The tree in a folder.
    pub(crate) fn read(dir: &Path) -> Self {
        let read = |path: &Path| match path.symlink_metadata().unwrap().file_type() {
            kind if kind.is_dir() => Self::read(path),
            kind if kind.is_symlink() => Self::Link(std::fs::read_link(path).unwrap().into()),
            _ => Self::File(std::fs::read(path).unwrap().into()),
        };
        let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        Self::Folder(entries.map(|entry| (entry.file_name(), read(&entry.path()))).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, Permissions};
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

    use super::*;
    use crate::files::root::Root;

    fn write(tree: &MemoryTree, path: &Path) {
        match tree {
            MemoryTree::Link(target) => return symlink(target, path).unwrap(),
            MemoryTree::File(contents) => fs::write(path, contents).unwrap(),
            MemoryTree::Folder(names) => {
                fs::create_dir(path).unwrap();
                names.iter().for_each(|(name, below)| write(below, &path.join(name)));
            }
        }
        let mode = if tree.is_folder() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Looks up a path that cannot leave the folder.
    fn open(
        dir: &fs::File,
        path: &str,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        loop {
            match openat2(dir, path, OFlags::PATH | flags, Mode::empty(), resolve) {
                // something was renamed or mounted while the kernel resolved a `..`
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
        }
    }

    /// What the kernel finds when this folder is the root of all paths.
    fn found(dir: &fs::File, path: &str, flags: OFlags) -> Result<MemoryTree, Errno> {
        let fd = open(dir, path, flags, ResolveFlags::IN_ROOT)?;
        let place = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(match rustix::fs::readlinkat(&fd, "", []) {
            Ok(target) => MemoryTree::Link(OsStr::from_bytes(target.as_bytes()).to_owned()),
            Err(_) if Path::new(&place).is_dir() => MemoryTree::read(Path::new(&place)),
            Err(_) => MemoryTree::File(fs::read(place).unwrap().into()),
        })
    }

    /// What the methods of a root return.
    fn answers(root: &Root, path: &str) -> [String; 9] {
        let mut lines = Vec::new();
        let read = root.lines(path, |line| {
            lines.push(line.to_owned());
            Ok(())
        });
        let names = |inodes: Vec<(String, u64)>| inodes.into_iter().map(|(name, _)| name);
        let sorted = |folders: Vec<String>| folders.into_iter().collect::<BTreeSet<_>>();
        [
            format!("{read:?} {lines:?}"),
            format!("{:?}", root.read(path)),
            format!("{:?}", root.list(path)),
            format!("{:?}", root.link(path)),
            format!("{:?}", root.resolve(path)),
            format!("{:?}", root.mode(path)),
            format!("{:?}", root.exists(path)),
            format!("{:?}", root.inodes(path).map(|inodes| names(inodes).collect::<Vec<_>>())),
            format!("{:?}", root.folders(path).map(sorted)),
        ]
    }

    /// Compares the tree with the same tree on a disk.
    fn is_like_a_disk(tree: &MemoryTree, paths: &[String]) {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("tree");
        write(tree, &place);
        assert_eq!(&MemoryTree::read(&place), tree);
        let (on_disk, in_memory) =
            (Root::at(&place).unwrap(), Root::in_memory(Arc::new(tree.clone())).unwrap());
        let dir = fs::File::open(&place).unwrap();
        for path in paths {
            let path = &format!("./{path}");
            for (follow, flags) in [(true, OFlags::empty()), (false, OFlags::NOFOLLOW)] {
                let wanted = found(&dir, path, flags);
                assert_eq!(tree.find(path, follow).cloned(), wanted, "{path}");
            }
            let inside = open(&dir, path, OFlags::empty(), ResolveFlags::BENEATH);
            if inside.err() != Some(Errno::XDEV) {
                assert_eq!(answers(&in_memory, path), answers(&on_disk, path), "{path}");
            }
        }
    }

    fn folder(below: impl Strategy<Value = MemoryTree>) -> impl Strategy<Value = MemoryTree> {
        btree_map("[abc]".prop_map(OsString::from), below, 0..4).prop_map(MemoryTree::Folder)
    }

    fn any_tree() -> impl Strategy<Value = MemoryTree> {
        let file = "[xy\n]{0,9}".prop_map(|text| MemoryTree::File(text.into_bytes().into()));
        let link = "/?(\\.\\./|\\./|[abc]/){0,3}([abc]|\\.\\.)/?"
            .prop_map(|target| MemoryTree::Link(target.into()));
        folder(prop_oneof![file, link].prop_recursive(3, 30, 3, folder))
    }

    proptest! {
        #[test]
        fn paths_lead_where_the_kernel_finds_them(
            tree in any_tree(),
            paths in vec("(\\.\\./|\\./|/|[abc]/){0,5}([abc]|\\.\\.)?", 40),
        ) {
            is_like_a_disk(&tree, &paths);
        }
    }

    #[test]
    fn a_path_has_at_most_40_links() {
        let link = |n: usize| (format!("{}", n + 1).into(), MemoryTree::Link(n.to_string().into()));
        let mut names: BTreeMap<OsString, MemoryTree> = (0..41).map(link).collect();
        names.insert("0".into(), MemoryTree::File(b"x"[..].into()));
        let tree = MemoryTree::Folder(names);
        assert_eq!(tree.file("40").unwrap(), b"x");
        assert_eq!(tree.file("41").unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        is_like_a_disk(&tree, &["40".into(), "41".into(), "0/x".into()]);
    }
}
