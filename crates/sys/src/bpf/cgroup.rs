//! Finds the path of a cgroup by its id, which is cheap for the kernel to report.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use netsilo_model::parse::schedstat;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::files::root::Root;

/// The id of the root (the first inode of kernfs).
const ROOT: u64 = 1;

/// The cgroup v2 hierarchy.
pub(crate) struct Cgroups {
    mount: Option<(PathBuf, File)>,
}

impl Cgroups {
    pub(crate) fn new() -> Self {
        Self { mount: mount() }
    }

    /// The path of a process's cgroup from the root of the hierarchy (`/system.slice/x.service`).
    /// `id` is the id of that cgroup.
    ///
    /// The id cannot be looked up without CAP_DAC_READ_SEARCH, and on hosts with cgroup v1 it is
    /// the id of the root. Then the path comes from the process's `cgroup` file, which any user may
    /// read. Returns `None` if the cgroup or the process is gone.
    pub(crate) fn path(&self, id: u64, tgid: u32) -> Option<String> {
        self.path_by_id(id).or_else(|| path_of_process(tgid))
    }

    /// The path of the cgroup with this id, if it is not the root.
    pub(crate) fn path_by_id(&self, id: u64) -> Option<String> {
        let (path, mount) = self.mount.as_ref().filter(|_| id > ROOT)?;
        path_below(path, &open_by_id(mount.as_fd(), id)?).filter(|path| path != "/")
    }
}

/// Where the hierarchy is mounted, and its root there.
fn mount() -> Option<(PathBuf, File)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = mounts.lines().find_map(cgroup2_mount)?;
    Some((path.into(), File::open(path).ok()?))
}

/// The root of the hierarchy: by a mount that no namespace sees and that ends with the descriptor
/// (needs CAP_SYS_ADMIN), because `ip netns exec` hides the usual one; else by that.
pub(crate) fn root() -> Option<OwnedFd> {
    let private = || {
        let hierarchy = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&hierarchy)?;
        fsmount(&hierarchy, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    private().ok().or_else(|| mount().map(|(_, root)| root.into()))
}

fn path_of_process(tgid: u32) -> Option<String> {
    let text = Root::live().read(&format!("/proc/{tgid}/cgroup")).ok()?;
    schedstat::cgroup_path(&text).map(str::to_owned)
}

fn cgroup2_mount(line: &str) -> Option<&str> {
    let mut fields = line.split(' ');
    let (mount, kind) = (fields.nth(1)?, fields.next()?);
    (kind == "cgroup2").then_some(mount)
}

fn path_below(mount: &Path, cgroup: &OwnedFd) -> Option<String> {
    let path = fs::read_link(format!("/proc/self/fd/{}", cgroup.as_raw_fd())).ok()?;
    let below = path.strip_prefix(mount).ok()?;
    Some(format!("/{}", below.display()))
}

/// `struct file_handle` of `FILEID_KERNFS` (`include/linux/exportfs.h`); its content is the 64-bit
/// id.
#[repr(C)]
struct KernfsHandle {
    bytes: u32,
    kind: i32,
    id: u64,
}

const FILEID_KERNFS: i32 = 0xfe;

/// Opens a cgroup by its id; needs CAP_DAC_READ_SEARCH.
fn open_by_id(mount: BorrowedFd<'_>, id: u64) -> Option<OwnedFd> {
    let mut handle = KernfsHandle { bytes: 8, kind: FILEID_KERNFS, id };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the handle has the kernel's layout, its 8 content bytes match its length field, and
    // it outlives the call.
    #[allow(unsafe_code)]
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    // SAFETY: the descriptor was just opened and has no other owner.
    #[allow(unsafe_code)]
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_whose_id_is_unknown_is_that_of_the_process() {
        let own = path_of_process(std::process::id());
        let nobody = Cgroups { mount: None };
        assert!(own.is_some());
        assert_eq!(nobody.path(u64::MAX, std::process::id()), own);
        assert_eq!(nobody.path(u64::MAX, u32::MAX), None);
    }

    #[test]
    fn the_v2_mount_is_found_among_others() {
        assert_eq!(
            cgroup2_mount("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0"),
            Some("/sys/fs/cgroup/unified")
        );
        assert_eq!(cgroup2_mount("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0"), None);
    }
}
