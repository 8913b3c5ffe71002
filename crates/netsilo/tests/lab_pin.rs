//! `netsilo pin` on cgroups, kthreads and a process that ends, in a guest.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use netsilo_lab::{Kernel, Lab, NicModel, Spec};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

#[test]
fn a_cgroup_is_restricted_and_restored() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_12, NicModel::VirtioNet)).unwrap();
    let make = "cd /sys/fs/cgroup; echo +cpuset >cgroup.subtree_control; mkdir -p web/inner
        sleep 600 </dev/null >/dev/null 2>&1 & echo $! | tee web/cgroup.procs";
    let pid = lab.sh(make).unwrap().trim().to_owned();
    let state = || {
        let text = lab
            .sh(&format!(
                "cat /sys/fs/cgroup/web/cpuset.cpus; grep Cpus_allowed_list /proc/{pid}/status"
            ))
            .unwrap();
        text.replace('\t', " ")
    };
    assert_eq!(state(), "\nCpus_allowed_list: 0-7\n");
    let pinned = lab.sh(&format!("{NETSILO} pin --cgroup /web --cpus 2-5 --yes 2>&1")).unwrap();
    assert!(pinned.contains("cgroup /web cpuset.cpus: none -> 2-5"), "{pinned}");
    assert_eq!(state(), "2-5\nCpus_allowed_list: 2-5\n");
    let undone = lab.sh(&format!("{NETSILO} undo")).unwrap();
    // Linux does not let a cgroup with processes return to the empty set. All CPUs of its parent
    // have the same effect.
    assert_eq!(state(), "0-7\nCpus_allowed_list: 0-7\n", "{undone}");
    let refused = |arguments: &str| {
        let output = lab.run(&format!("{NETSILO} pin --yes --cpus 2-5 {arguments} 2>&1")).unwrap();
        assert_eq!(output.status, 1, "{}", output.text());
        output.text().into_owned()
    };
    let inner = refused("--cgroup /sys/fs/cgroup/web/inner");
    assert!(inner.contains("echo +cpuset >/sys/fs/cgroup/web/cgroup.subtree_control"), "{inner}");
    assert!(refused("--cgroup /nowhere").contains("no cgroup /nowhere below /sys/fs/cgroup"));
    // A kthread that the kernel binds to its CPU.
    let bound = refused("--comm migration/0");
    assert!(bound.contains("PF_NO_SETAFFINITY"), "{bound}");
    // After its process has ended nothing is left to restore. That is not a failure.
    lab.sh(&format!(
        "{NETSILO} pin --pid {pid} --cpus 2 --yes 2>&1; kill {pid}; \
         while [ -d /proc/{pid} ]; do :; done"
    ))
    .unwrap();
    let undone = lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert!(undone.contains("this thread has ended"), "{undone}");
}
