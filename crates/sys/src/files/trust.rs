//! Checks whether anyone but root and this user can change what a path leads to.
//!
//! The path is followed name by name, and so are its links. Whoever can change a folder on the way
//! can replace what it contains.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

/// Maximum number of links on the way, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// The id that the kernel shows for users without a mapping in this namespace, if that id cannot be
/// read (`DEFAULT_OVERFLOWUID`).
const OVERFLOW_UID: u32 = 65534;

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// Another user can change what the path leads to.
    #[error(
        "{} can be written by others than root and this user: chown it, chmod go-w, or choose \
         another path", .0.display()
    )]
    Insecure(PathBuf),
    /// A file or folder on the way could not be examined or made.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PathError {
    /// Whether the error is a lack of permission.
    pub fn is_permission(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        source.kind() == ErrorKind::PermissionDenied
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

impl From<PathError> for io::Error {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Insecure(_) => Self::other(error.to_string()),
            PathError::Io { source, .. } => source,
        }
    }
}

/// Checks that only root and this user can change a file or folder, or anything on the way to it.
/// Returns its metadata; `None` if it does not exist, and then only root and this user can create
/// it.
pub fn check(path: &Path) -> Result<Option<Metadata>, PathError> {
    Owners::current()?.check(path)
}

/// Makes a folder with this mode, and the missing ones above it, where [`check`] permits it.
pub fn make_dir(dir: &Path, mode: u32) -> Result<Metadata, PathError> {
    make_if_missing(dir, mode)?;
    // in a shared folder another user may have made it meanwhile
    let missing = || PathError::io("make", dir)(ErrorKind::NotFound.into());
    check(dir)?.ok_or_else(missing)
}

fn make_if_missing(dir: &Path, mode: u32) -> Result<(), PathError> {
    if follow(dir)?.found.is_some() {
        return Ok(());
    }
    if let Some(above) = dir.parent().filter(|above| *above != Path::new("")) {
        make_if_missing(above, 0o755)?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(PathError::io("make", dir)(error))
        }
        _ => Ok(()),
    }
}

/// Follows a path to the last name. Fails if others than root and this user can change the way. The
/// owner and mode of the named file do not matter, unless its folder is shared.
pub(crate) fn follow(path: &Path) -> Result<Named, PathError> {
    Owners::current()?.follow(path)
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Named {
    /// Its path without links.
    path: PathBuf,
    /// `None` if it does not exist.
    pub(crate) found: Option<Metadata>,
    /// Whether the name is that of an open file of a process, as with `/dev/stdout`.
    pub(crate) is_descriptor: bool,
}

/// The users who may change what is trusted.
#[derive(Debug, Clone, Copy)]
struct Owners {
    own: u32,
    /// In a user namespace, the id that the kernel shows for owners outside of it.
    outside: Option<u32>,
}

impl Owners {
    fn current() -> Result<Self, PathError> {
        let read = |path: &str| {
            let text = std::fs::read_to_string(path);
            text.map_err(PathError::io("read", Path::new(path)))
        };
        let overflow = read("/proc/sys/kernel/overflowuid");
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
        // without user namespaces in the kernel there is no map
        let map = read("/proc/self/uid_map").ok();
        let stands_for_outside = |map: String| outside(&map, overflow.unwrap_or(OVERFLOW_UID));
        let own = rustix::process::geteuid().as_raw();
        Ok(Self { own, outside: map.and_then(stands_for_outside) })
    }

    fn trusts(self, of: &Metadata) -> bool {
        [Some(0), Some(self.own), self.outside].contains(&Some(of.uid()))
    }

    fn check(self, path: &Path) -> Result<Option<Metadata>, PathError> {
        let named = self.follow(path)?;
        match named.found {
            Some(found) if !self.trusts(&found) || found.mode() & OTHERS_WRITE != 0 => {
                Err(PathError::Insecure(named.path))
            }
            found => Ok(found),
        }
    }

    fn follow(self, path: &Path) -> Result<Named, PathError> {
        let whole = std::path::absolute(path).map_err(PathError::io("examine", path))?;
        let (mut at, mut names) = (PathBuf::from("/"), names_of(&whole));
        let mut links = 0;
        loop {
            let shared = self.folder(&at)?;
            let Some(name) = names.pop_front() else {
                return Ok(Named { found: Some(examine(&at)?), path: at, is_descriptor: false });
            };
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let found = match next.symlink_metadata() {
                Ok(found) => found,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Ok(Named { path: next, found: None, is_descriptor: false });
                }
                Err(error) => return Err(PathError::io("examine", &next)(error)),
            };
            // in a shared folder only the owner of a name can replace it
            if shared && !self.trusts(&found) {
                return Err(PathError::Insecure(next));
            }
            if found.is_symlink() {
                // an open file need not have a path
                if names.is_empty() && is_of_descriptors(&at) {
                    let found = next.metadata().map_err(PathError::io("examine", &next))?;
                    return Ok(Named { path: next, found: Some(found), is_descriptor: true });
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(PathError::io("examine", &next)(rustix::io::Errno::LOOP.into()));
                }
                let target = next.read_link().map_err(PathError::io("examine", &next))?;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                let mut all = names_of(&target);
                all.append(&mut names);
                names = all;
            } else if names.is_empty() {
                return Ok(Named { path: next, found: Some(found), is_descriptor: false });
            } else {
                at = next;
            }
        }
    }

    /// Refuses a folder on the way if others can change names in it. Returns whether it is shared,
    /// so that others can add names.
    fn folder(self, path: &Path) -> Result<bool, PathError> {
        let found = examine(path)?;
        let others_write = found.mode() & OTHERS_WRITE != 0;
        if !self.trusts(&found) || others_write && found.mode() & STICKY == 0 {
            return Err(PathError::Insecure(path.to_owned()));
        }
        Ok(others_write)
    }
}

fn examine(path: &Path) -> Result<Metadata, PathError> {
    path.symlink_metadata().map_err(PathError::io("examine", path))
}

/// The names of a path. A `..` stays, because it leads up from where a link leads.
fn names_of(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether a folder contains the open files of a process.
fn is_of_descriptors(folder: &Path) -> bool {
    folder.starts_with("/proc") && folder.file_name() == Some(OsStr::new("fd"))
}

/// The id that the kernel shows for owners outside of a user namespace. It is the overflow id,
/// unless the namespace maps that id to one of its own users. The lines of `uid_map` have the first
/// id inside, the first id outside, and the number of ids (`user_namespaces(7)`).
fn outside(uid_map: &str, overflow: u32) -> Option<u32> {
    let is_in = |line: &str| -> Option<bool> {
        let mut columns = line.split_whitespace().map(str::parse::<u32>);
        let (first, _, count) = (columns.next()?.ok()?, columns.next()?, columns.next()?.ok()?);
        Some(overflow.checked_sub(first).is_some_and(|at| at < count))
    };
    // if a line has another form, assume that it may map the id
    let maps = uid_map.lines().any(|line| is_in(line).unwrap_or(true));
    (!maps).then_some(overflow)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    /// Another user.
    const OTHER: u32 = 4242;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Whether a path is refused because of the folder or file with this name.
    fn insecure(path: &Path, name: &str) -> bool {
        match check(path) {
            Err(PathError::Insecure(at)) => at.file_name() == Some(OsStr::new(name)),
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    /// Whether the test must be skipped because it cannot give files to other users. Prints why.
    fn skip() -> bool {
        let skips = !rustix::process::geteuid().is_root();
        assert!(!skips || std::env::var_os("NETSILO_NO_SKIP").is_none(), "chown needs root");
        if skips {
            eprintln!("SKIPPED: chown needs root");
        }
        skips
    }

    #[test]
    fn each_folder_on_the_way_counts_also_where_nothing_is_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        assert!(check(&run.join("netsilo")).unwrap().is_none());
        for mode in [0o777, 0o775, 0o757] {
            set_mode(&run, mode);
            assert!(insecure(&run.join("netsilo"), "run"), "{mode:o}");
            assert!(insecure(&run.join("a/b/c"), "run"));
            assert!(make_dir(&run.join("a/b"), 0o700).is_err() && !run.join("a").exists());
        }
        set_mode(&run, 0o1777);
        make_dir(&run.join("a/b"), 0o700).unwrap();
        let mode = |path: &str| run.join(path).metadata().unwrap().mode() & 0o777;
        assert_eq!((mode("a"), mode("a/b")), (0o755, 0o700));
        // others may add files to it, so a journal must not be there
        assert!(insecure(&run, "run"));
        set_mode(&run.join("a/b"), 0o770);
        assert!(insecure(&run.join("a/b"), "b"));
    }

    #[test]
    fn a_folder_or_a_link_of_another_user_is_refused_also_in_a_shared_folder() {
        if skip() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (shared, own) = (dir.path().join("shared"), dir.path().join("own"));
        for folder in [&shared, &own] {
            std::fs::create_dir(folder).unwrap();
            std::fs::create_dir(folder.join("theirs")).unwrap();
            chown(folder.join("theirs"), Some(OTHER), None).unwrap();
            symlink(dir.path(), folder.join("link")).unwrap();
        }
        set_mode(&shared, 0o1777);
        for folder in [&shared, &own] {
            assert!(insecure(&folder.join("theirs/netsilo"), "theirs"));
            assert!(check(&folder.join("link")).unwrap().is_some());
            lchown(folder.join("link"), Some(OTHER), None).unwrap();
        }
        assert!(insecure(&shared.join("link"), "link"));
        // only root can make or change names there, no matter who owns the link
        assert!(check(&own.join("link")).unwrap().is_some());
    }

    #[test]
    fn links_are_followed_through_the_folders_that_hold_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "a/b", "open"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        symlink("a/b", path("relative")).unwrap();
        symlink(path("a/b"), path("open/absolute")).unwrap();
        symlink("open/absolute", path("through")).unwrap();
        symlink("loop", path("loop")).unwrap();
        assert!(check(&path("relative")).unwrap().unwrap().is_dir());
        // `..` leads up from a/b, not from the folder of the link
        assert!(check(&path("relative/../b")).unwrap().is_some());
        assert!(check(&path("relative/../../a")).unwrap().is_some());
        assert!(check(&path("through/new")).unwrap().is_none());
        set_mode(&path("open"), 0o777);
        assert!(insecure(&path("through/new"), "open"));
        assert!(matches!(check(&path("loop")), Err(PathError::Io { .. })));
    }

    #[test]
    fn the_overflow_id_stands_for_outside_only_where_the_namespace_does_not_map_it() {
        let host = "         0          0 4294967295\n";
        let one = "         0       1000          1\n";
        let range = "0 100000 65536\n";
        let two = "0 1000 1\n60000 160000 10000\n";
        assert_eq!(outside(host, 65534), None);
        assert_eq!(outside(one, 65534), Some(65534));
        assert_eq!(outside(range, 65534), None);
        assert_eq!(outside(range, 70000), Some(70000));
        assert_eq!(outside(two, 65534), None);
        assert_eq!(outside("", 65534), Some(65534));
        assert_eq!(outside("what\n", 65534), None);
    }

    #[test]
    fn nobody_of_this_machine_is_not_trusted() {
        if skip() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(OVERFLOW_UID), None).unwrap();
        let of = |outside| Owners { own: 0, outside }.check(&theirs.join("netsilo"));
        assert!(matches!(of(None), Err(PathError::Insecure(_))));
        assert!(of(Some(OVERFLOW_UID)).unwrap().is_none());
    }
}
