//! What differs between two trees: a bundle of many samples holds the later ones as differences.
//!
//! Trees that come out of a bundle may be hostile: nothing here follows a symbolic link.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Hard-links what is new or different in `new` beside `old` into `difference`; returns the paths
/// of `old` that `new` lacks. All paths are relative to the trees.
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

/// Makes the tree what it was one sample later.
pub(crate) fn apply(tree: &Path, difference: &Path, gone: &[String]) -> io::Result<()> {
    for path in gone {
        if let Some(inner) = super::unpack::plain(Path::new(path)) {
            remove(tree, &inner)?;
        }
    }
    merge(tree, difference, Path::new(""))
}

fn merge(tree: &Path, difference: &Path, inner: &Path) -> io::Result<()> {
    for name in names(&difference.join(inner))? {
        let inner = inner.join(&name);
        let (from, to) = (difference.join(&inner), tree.join(&inner));
        if !is_folder(&from) {
            take_away(&to)?;
            fs::rename(&from, &to)?;
            continue;
        }
        if !is_folder(&to) {
            take_away(&to)?;
            fs::create_dir(&to)?;
        }
        merge(tree, difference, &inner)?;
    }
    Ok(())
}

/// Removes a path of the tree, unless a folder above it is a link or missing.
fn remove(tree: &Path, inner: &Path) -> io::Result<()> {
    let above: Vec<PathBuf> = inner.ancestors().skip(1).map(|it| tree.join(it)).collect();
    if above.iter().all(|folder| is_folder(folder)) { take_away(&tree.join(inner)) } else { Ok(()) }
}

fn take_away(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// The names in a folder; none if it is no folder.
fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    if !is_folder(folder) {
        return Ok(BTreeSet::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Whether it is a folder, and not a link to one.
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

    /// A tree of files; a value of `-> target` is a link.
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

    fn listed(folder: &Path) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for name in names(folder).unwrap() {
            let (path, name) = (folder.join(&name), name.to_string_lossy().into_owned());
            let meta = path.symlink_metadata().unwrap();
            if meta.is_dir() {
                all.push((name.clone(), "folder".into()));
                let below = listed(&path).into_iter();
                all.extend(below.map(|(inner, text)| (format!("{name}/{inner}"), text)));
            } else if meta.is_symlink() {
                all.push((name, format!("-> {}", fs::read_link(&path).unwrap().display())));
            } else {
                all.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
        all
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
        let wanted = listed(new.path());
        apply(old.path(), &out, &gone).unwrap();
        assert_eq!(listed(old.path()), wanted);
    }

    #[test]
    fn a_hostile_difference_changes_nothing_outside_the_tree() {
        let outside = tree(&[("file", "kept")]);
        let link = format!("-> {}", outside.path().display());
        let old = tree(&[("link", &link), ("other", &link)]);
        let hostile = tree(&[("link/file", "changed")]);
        let gone = ["other/file", "../file", "/etc/passwd", "link/../file"].map(str::to_owned);
        apply(old.path(), hostile.path(), &gone).unwrap();
        assert_eq!(listed(outside.path()), [("file".to_owned(), "kept".to_owned())]);
        assert_eq!(fs::read_to_string(old.path().join("link/file")).unwrap(), "changed");
    }
}
