//! Works in another network namespace: finds it by a name, and enters it with a `/sys` of its own.
//!
//! `/sys/class/net` shows the namespace of the thread that mounted sysfs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use netsilo_model::derive::namespaces::names as namespace_names;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::mountinfo::mounts_below;
use netsilo_model::parse::schedstat::link_inode;
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

/// The inode number of the first pid namespace (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: u32 = 0xefff_fffc;

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
    /// (`default/web-0`), a cgroup, an inode number, or as `check` prints it; else a pid. `None`:
    /// it is the one that this process is in.
    pub fn named(root: &Root, given: &str) -> Result<Option<Self>, String> {
        let (found, _) = namespaces::find(root).map_err(|e| e.to_string())?;
        let names = names_of(&found);
        let number = given.parse::<u32>().ok();
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
                let inodes = inodes.join(", ");
                Err(format!("several have this name; give one of their numbers: {inodes}"))
            }
            (None, _) if given.starts_with('/') => of_file(root, given),
            (None, _) if number.is_some() => of_file(root, &format!("/proc/{given}/ns/net")),
            (None, _) if names.is_empty() => Err("there is no other network namespace".into()),
            (None, _) => {
                let known: Vec<&str> = names.values().take(NAMED).map(String::as_str).collect();
                let more = names.len() - known.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let known = known.join(", ");
                Err(format!("no network namespace has this name; known: {known}{more}"))
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
        let unknown = |why: &str| NotEntered::Why(why.to_owned());
        if cookie().is_none() {
            return Err(unknown("the cookie of a network namespace cannot be read"));
        }
        let (found, hidden) = namespaces::find(root)?;
        let mut refused = None;
        // the one whose number is known first
        let (same, others): (Vec<_>, Vec<_>) =
            found.into_values().partition(|it| it.namespace.inode == id.inode);
        for it in same.into_iter().chain(others) {
            match enter(it.namespace.inode, &it.files) {
                Ok(()) if cookie() == Some(id.cookie) => {
                    let entrance = Self { inode: it.namespace.inode, files: it.files };
                    return entrance.enter(root).map_err(|error| unknown(&error.to_string()));
                }
                Ok(()) | Err(NotEntered::Gone) => {}
                Err(NotEntered::Why(why)) => refused = Some(why),
            }
        }
        let pids = root.link("/proc/self/ns/pid").unwrap_or_default();
        let sees_all = hidden == 0 && link_inode(&pids, "pid") == Some(FIRST_PID_NAMESPACE);
        let unseen = || "not found, but not all processes are visible: run as root on the host";
        Err(match refused {
            Some(why) => NotEntered::Why(why),
            None if !sees_all => unknown(unseen()),
            None => NotEntered::Gone,
        })
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

/// The namespace of a file of a process; `None` if it is the one that this process is in.
fn of_file(root: &Root, path: &str) -> Result<Option<Entrance>, String> {
    let inode = |path: &str| {
        let link = root.link(path).map_err(|error| error.to_string())?;
        link_inode(&link, "net").ok_or_else(|| format!("{path} is no network namespace"))
    };
    let file = root.path(path).map_err(|error| error.to_string())?;
    let number = inode(path)?;
    let is_own = inode("/proc/self/ns/net")? == number;
    Ok((!is_own).then_some(Entrance { inode: number, files: vec![file] }))
}
