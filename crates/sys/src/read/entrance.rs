//! Works in another network namespace: finds it by a name, and enters it with a `/sys` that shows it.
//!
//! `/sys/class/net` shows the namespace of the thread that mounted sysfs.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use netsilo_model::derive::namespaces::names as namespace_names;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::mountinfo::mounts_below;
use netsilo_model::snapshot::namespaces::{Namespace, Namespaces};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::files::root::Root;
use crate::read::namespaces::{self, Found};
use crate::read::netns::{NetnsId, NotEntered, cookie, enter};

/// Numbers below are pids (`PID_MAX_LIMIT`), others are inode numbers of namespaces.
const MOST_PIDS: u32 = 1 << 22;

/// How many namespaces an error names.
const NAMED: usize = 12;

/// A network namespace, and the files by which it is entered.
#[derive(Debug)]
pub struct Entrance {
    inode: u32,
    files: Vec<PathBuf>,
}

impl Entrance {
    /// The network namespace with this name: that of a file (`blue` of `ip netns`), a path, a pod
    /// (`default/web-0`), a cgroup, a pid, an inode number, or as `check` prints it. `None`: it is
    /// the one that this process is in.
    pub fn named(root: &Root, given: &str) -> Result<Option<Self>, String> {
        if given.starts_with('/') && Path::new(given).exists() {
            return of_file(root, given).map_err(|e| format!("{given}: {e}"));
        }
        let number = given.parse::<u32>().ok();
        if let Some(pid) = number.filter(|number| *number < MOST_PIDS) {
            let path = format!("/proc/{pid}/ns/net");
            return of_file(root, &path).map_err(|e| format!("pid {pid}: {e}"));
        }
        let (found, _) = namespaces::find(root).map_err(|e| e.to_string())?;
        let names = names_of(&found);
        let is_it = |it: &Namespace| {
            let file = it.mount.as_deref();
            let words = [
                file,
                file.and_then(|path| path.rsplit('/').next()),
                it.pod.as_deref(),
                it.cgroup.as_deref(),
                names.get(&it.inode).map(String::as_str),
            ];
            number == Some(it.inode) || words.contains(&Some(given))
        };
        let mut same: Vec<Found> = found.into_values().filter(|it| is_it(&it.namespace)).collect();
        match (same.pop(), same.len()) {
            (Some(only), 0) => Ok(Some(Self { inode: only.namespace.inode, files: only.files })),
            (Some(last), _) => {
                same.push(last);
                let inodes: Vec<_> = same.iter().map(|it| it.namespace.inode.to_string()).collect();
                Err(format!(
                    "several have this name; give one of their numbers: {}",
                    inodes.join(", ")
                ))
            }
            (None, _) if names.is_empty() => Err("there is no other network namespace".into()),
            (None, _) => {
                let known: Vec<&str> = names.values().take(NAMED).map(String::as_str).collect();
                let more = names.len() - known.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Err(format!(
                    "no network namespace has this name; known: {}{more}",
                    known.join(", ")
                ))
            }
        }
    }

    /// Moves this thread into the namespace, with a `/sys` of its own that shows it.
    ///
    /// What is mounted below `/sys` (cgroups, debugfs) stays there. The other threads of the
    /// process stay where they are; threads and processes that this one makes later do not.
    pub fn enter(&self, root: &Root) -> Result<(), NotEntered> {
        let failed = |doing: &'static str| {
            move |errno: Errno| {
                NotEntered::Why(format!("cannot {doing}: {}", io::Error::from(errno)))
            }
        };
        let sys = root.path("/sys").map_err(|e| NotEntered::Why(e.to_string()))?;
        let mounts = root.read("/proc/thread-self/mountinfo")?;
        let below = mounts_below(&mounts, &sys.to_string_lossy());
        // SAFETY: a mount namespace and a current directory of its own change no memory, and the
        // file descriptors of the process stay shared.
        #[allow(unsafe_code)]
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed("make a mount namespace"))?;
        // mounts that the machine makes later still appear; none of ours appears there
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(failed("separate its mounts"))?;
        let tree = |path: &String| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE;
            open_tree(CWD, path, flags)
        };
        let trees: Result<Vec<_>, Errno> = below.iter().map(tree).collect();
        let trees = trees.map_err(failed("keep what is mounted below /sys"))?;
        enter(self.inode, &self.files)?;
        mount("sysfs", &sys, "sysfs", MountFlags::empty(), None).map_err(failed("mount sysfs"))?;
        for (tree, path) in trees.iter().zip(&below) {
            move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .map_err(failed("keep what is mounted below /sys"))?;
        }
        Ok(())
    }

    /// Moves this thread into the namespace with this cookie, with a `/sys` of its own.
    pub(crate) fn enter_cookie(root: &Root, id: NetnsId) -> Result<(), NotEntered> {
        let (found, hidden) = namespaces::find(root)?;
        let mut refused = None;
        // the one whose number is known first
        let (same, others): (Vec<_>, Vec<_>) =
            found.into_values().partition(|it| it.namespace.inode == id.inode);
        for it in same.into_iter().chain(others) {
            match enter(it.namespace.inode, &it.files) {
                Ok(()) if cookie() == Some(id.cookie) => {
                    return Self { inode: it.namespace.inode, files: it.files }.enter(root);
                }
                Ok(()) | Err(NotEntered::Gone) => {}
                Err(NotEntered::Why(why)) => refused = Some(why),
            }
        }
        let hidden = (hidden > 0).then(|| "the kernel hides processes: run as root".to_owned());
        Err(refused.or(hidden).map_or(NotEntered::Gone, NotEntered::Why))
    }
}

/// The names of the other network namespaces.
pub fn names(root: &Root) -> Vec<String> {
    let found = namespaces::find(root).map(|(found, _)| found).unwrap_or_default();
    names_of(&found).into_values().collect()
}

/// The names of the other network namespaces, by `SO_NETNS_COOKIE`. Those that cannot be entered
/// are left out.
pub fn names_by_cookie(root: &Root) -> BTreeMap<u64, String> {
    let Reading::Value(found) = namespaces::read(root, None) else { return BTreeMap::new() };
    let mut names = namespace_names(Some(&found));
    let cookie = |it: &Namespace| it.counters.value()?.cookie;
    let named = |it: &Namespace| Some((cookie(it)?, names.remove(&it.inode)?));
    found.all.iter().filter_map(named).collect()
}

fn names_of(found: &BTreeMap<u32, Found>) -> BTreeMap<u32, String> {
    let all = found.values().map(|it| it.namespace.clone()).collect();
    namespace_names(Some(&Namespaces { all, hidden: 0 }))
}

/// The namespace of a file; `None` if it is the one that this process is in.
fn of_file(root: &Root, path: &str) -> io::Result<Option<Entrance>> {
    let inode = |path: PathBuf| Ok::<_, io::Error>(path.metadata()?.ino());
    let file = root.path(path)?;
    let number = inode(file.clone())?;
    if inode(root.path("/proc/self/ns/net")?)? == number {
        return Ok(None);
    }
    let inode = u32::try_from(number).map_err(|_| io::Error::other("this is no namespace"))?;
    Ok(Some(Entrance { inode, files: vec![file] }))
}
