//! The difference between two trees. In a bundle of many samples, the later ones are stored as
//! differences.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use crate::files::memory_tree::MemoryTree;

/// Hard-links into `difference` what is new or different in `new`, compared with `old`. Returns the
/// paths of `old` that `new` lacks. All paths are relative to the trees.
pub(crate) fn difference(old: &Path, new: &Path, difference: &Path) -> io::Result<Vec<String>> {
    let mut gone = Vec::new();
    fs::create_dir(difference)?;
    compare(old, new, difference, Path::new(""), &mut gone)?;
    Ok(gone)
}

fn compare(
    old: &Path,
    new: &Path,
    difference: &Path,
    inner: &Path,
    gone: &mut Vec<String>,
) -> io::Result<()> {
    let (before, after) = (names(&old.join(inner))?, names(&new.join(inner))?);
    for name in before.difference(&after) {
        gone.push(inner.join(name).to_string_lossy().into_owned());
    }
    for name in after {
        let inner = inner.join(&name);
        let (from, to) = (new.join(&inner), difference.join(&inner));
        if is_folder(&from) {
            if !is_folder(&old.join(&inner)) {
                fs::create_dir_all(&to)?;
            }
            compare(old, new, difference, &inner, gone)?;
        } else if !is_same(&old.join(&inner), &from)? {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::hard_link(&from, &to)?;
        }
    }
    Ok(())
}

/// Changes the tree to that of the next sample.
pub(crate) fn apply(tree: &mut MemoryTree, difference: MemoryTree, gone: &[String]) {
    for path in gone {
        tree.remove(Path::new(path));
    }
    merge(tree, difference);
}

fn merge(old: &mut MemoryTree, new: MemoryTree) {
    match (old, new) {
        (MemoryTree::Folder(names), MemoryTree::Folder(new)) => {
            for (name, new) in new {
                match names.entry(name) {
                    Entry::Occupied(mut old) => merge(old.get_mut(), new),
                    Entry::Vacant(place) => {
                        place.insert(new);
                    }
                }
            }
        }
        (old, new) => *old = new,
    }
}

/// The names in a folder; none if the path is not a folder.
fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    if !is_folder(folder) {
        return Ok(BTreeSet::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Whether the path is a folder, and not a link to one.
fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

/// Whether two files or links are the same.
fn is_same(old: &Path, new: &Path) -> io::Result<bool> {
    let Ok(before) = old.symlink_metadata() else { return Ok(false) };
    let after = new.symlink_metadata()?;
    if before.file_type() != after.file_type() {
        return Ok(false);
    }
    if after.is_symlink() {
        return Ok(fs::read_link(old)? == fs::read_link(new)?);
    }
    Ok(before.len() == after.len() && fs::read(old)? == fs::read(new)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree of files; a value `-> target` is a link.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        }
        dir
    }

    #[test]
    fn a_difference_makes_the_old_tree_the_new_one() {
        let old = tree(&[
            ("proc/stat", "1"),
            ("proc/same", "x"),
            ("sys/gone/speed", "9"),
            ("sys/eth0", "-> ../a"),
            ("sys/becomes/folder", "1"),
            ("sys/file", "1"),
        ]);
        let new = tree(&[
            ("proc/stat", "2"),
            ("proc/same", "x"),
            ("sys/eth0", "-> ../b"),
            ("sys/becomes", "a file"),
            ("sys/file/below", "1"),
            ("sys/new/speed", "10"),
        ]);
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("2");
        let gone = difference(old.path(), new.path(), &out).unwrap();
        assert_eq!(gone, ["sys/gone"]);
        assert!(!out.join("proc/same").exists());
        let mut tree = MemoryTree::read(old.path());
        apply(&mut tree, MemoryTree::read(&out), &gone);
        assert_eq!(tree, MemoryTree::read(new.path()));
    }

    #[test]
    fn a_hostile_difference_follows_no_link() {
        let mut old = MemoryTree::read(
            tree(&[("kept/file", "kept"), ("link", "-> kept"), ("other", "-> kept")]).path(),
        );
        let gone = ["other/file", "../kept", "/kept", "link/../kept", "", ".."].map(str::to_owned);
        apply(&mut old, MemoryTree::read(tree(&[("link/file", "changed")]).path()), &gone);
        let wanted = tree(&[("kept/file", "kept"), ("link/file", "changed"), ("other", "-> kept")]);
        assert_eq!(old, MemoryTree::read(wanted.path()));
    }
}
