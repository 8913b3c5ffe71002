//! `netsilo pin` on cgroups, kthreads and a process that ends, CPUs that a service owns, and a NIC
//! in another network namespace, in a guest.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use netsilo_lab::{Kernel, Lab, NicModel, Spec};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

#[test]
fn cgroups_owned_cpus_and_a_namespace_of_a_guest() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let lab = Lab::boot(&Spec::new(Kernel::V6_12, NicModel::VirtioNet)).unwrap();
    restricts_and_restores_a_cgroup(&lab);
    keeps_off_cpus_that_a_service_owns(&lab);
    writes_and_undoes_in_another_network_namespace(&lab);
}

fn restricts_and_restores_a_cgroup(lab: &Lab) {
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

fn keeps_off_cpus_that_a_service_owns(lab: &Lab) {
    let make =
        "cd /sys/fs/cgroup; rmdir web/inner web; mkdir db.service; echo 6-7 >db.service/cpuset.cpus
        echo root >db.service/cpuset.cpus.partition; cat db.service/cpuset.cpus.partition";
    assert_eq!(lab.sh(make).unwrap(), "root\n");
    let plan = lab.sh(&format!("{NETSILO} plan -i 500ms --no-bpf 2>&1")).unwrap();
    let owned = "cpus 6-7 are exclusive to db.service (cpuset.cpus.partition)";
    assert!(plan.split_whitespace().collect::<Vec<_>>().join(" ").contains(owned), "{plan}");
    lab.sh("rmdir /sys/fs/cgroup/db.service").unwrap();
}

fn writes_and_undoes_in_another_network_namespace(lab: &Lab) {
    lab.sh("ip netns add blue; ip link set eth0 netns blue; ip -n blue link set eth0 up").unwrap();
    let rps = || lab.sh("ip netns exec blue cat /sys/class/net/eth0/queues/rx-0/rps_cpus").unwrap();
    let before = rps();
    let apply = "--netns blue apply --rps 2-3 -n eth0 -y -i 500ms --no-bpf 2>&1";
    let applied = lab.sh(&format!("{NETSILO} {apply}")).unwrap();
    assert_eq!(rps().trim(), "0c", "{applied}");
    let list = lab.sh(&format!("{NETSILO} undo --list")).unwrap();
    assert!(list.contains("by apply, in netns blue"), "{list}");
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(rps(), before);
    // the NIC comes back to the first namespace with its settings
    lab.sh(&format!("{NETSILO} {apply}; ip netns del blue; sleep 1")).unwrap();
    let here = || lab.sh("cat /sys/class/net/eth0/queues/rx-0/rps_cpus").unwrap();
    let undone = lab.sh(&format!("{NETSILO} undo 2>&1")).unwrap();
    assert_eq!(here(), before, "{undone}");
}
