//! Tests of guests: what runs in them, what they look like, and that nothing of them remains.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use anyhow::{Context, Result, ensure};
use netsilo_lab::exact::{self, Asked, Received};
use netsilo_lab::{Kernel, Lab, Nic, NicModel, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lock that lets tests boot one guest at a time, because guests are heavy.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Boots each kernel and each NIC model. Other tests boot the remaining pairs.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn each_kernel_boots_with_its_nic_where_it_was_plugged_in() -> Result<()> {
    if netsilo_lab::skip()? {
        return Ok(());
    }
    let _turn = turn();
    for (kernel, model) in [
        (Kernel::V6_1, NicModel::VirtioNet),
        (Kernel::V6_12, NicModel::Igb),
        (Kernel::Newest, NicModel::VirtioNet),
    ] {
        let nic = Nic::from(model).on_node(1);
        let lab = Lab::boot(&Spec { nics: vec![nic], ..Spec::new(kernel, model) })?;
        runs_the_requested_kernel(&lab, kernel)?;
        two_sockets_smt_caches_and_nodes_are_visible(&lab)?;
        the_nic_has_its_vectors_on_its_node(&lab, model)?;
        a_pulled_cable_is_a_lost_carrier(&lab)?;
        modules_load_by_name_and_by_need(&lab)?;
        both_ends_of_the_traffic_agree(&lab)?;
        // the agent behaves the same on every kernel
        if kernel == Kernel::V6_1 {
            status_and_output_are_exact(&lab)?;
            a_command_that_times_out_is_killed_and_the_next_one_runs(&lab)?;
            commands_run_concurrently_and_in_the_background(&lab)?;
        }
    }
    Ok(())
}

fn runs_the_requested_kernel(lab: &Lab, kernel: Kernel) -> Result<()> {
    let release = lab.sh("uname -r")?;
    let expected = match kernel {
        Kernel::V6_1 => release.starts_with("6.1."),
        Kernel::V6_12 => release.starts_with("6.12."),
        Kernel::Newest => !release.starts_with("6."),
    };
    ensure!(expected, "{kernel} is {release}");
    Ok(())
}

fn status_and_output_are_exact(lab: &Lab) -> Result<()> {
    let out = lab.run("printf 'a\\0b\\377'; printf err >&2; exit 7")?;
    assert_eq!((out.status, &out.stdout[..], &out.stderr[..]), (7, &b"a\0b\xff"[..], &b"err"[..]));
    assert_eq!(lab.run("kill -9 $$")?.status, 128 + 9);
    assert_eq!(lab.run("no-such-program")?.status, 127);
    // Several MB of arbitrary bytes, at the same path in the guest as here.
    let program = exact::program()?;
    let mut same = Vec::new();
    fs::File::open(&program)?.take(4_000_000).read_to_end(&mut same)?;
    let out = lab.run(&format!("head -c 4000000 {}", program.display()))?;
    let (came, sent) = (out.stdout.len(), same.len());
    ensure!(out.stdout == same, "{came} of {sent} bytes arrived, or they differ");
    Ok(())
}

fn a_command_that_times_out_is_killed_and_the_next_one_runs(lab: &Lab) -> Result<()> {
    let error = lab.run_for("sleep 1000 & sleep 1000", Duration::from_secs(1)).unwrap_err();
    ensure!(format!("{error:#}").contains("still running"), "{error:#}");
    // It is killed with all processes that it started. The signal may take a moment.
    lab.sh("while pgrep -x sleep >/dev/null; do :; done")?;
    let error = lab.peer(0)?.run_for("sleep 1000", Duration::from_millis(100)).unwrap_err();
    ensure!(format!("{error:#}").contains("still running"), "{error:#}");
    Ok(())
}

fn commands_run_concurrently_and_in_the_background(lab: &Lab) -> Result<()> {
    let waiting = lab.spawn("until [ -e /tmp/go ]; do sleep 0.1; done; echo went")?;
    let server = lab.sh("sleep 1000 >/tmp/log 2>&1 & echo $!")?;
    lab.sh(&format!("kill -0 {} && touch /tmp/go", server.trim()))?;
    assert_eq!(waiting.wait(netsilo_lab::RUN_TIMEOUT)?.text(), "went\n");
    let job = lab.spawn("exec sleep 1000")?;
    assert_eq!(lab.sh(&format!("cat /proc/{}/comm", job.pid()?))?, "sleep\n");
    assert_eq!(job.stop()?.status, 128 + 15);
    // The guest's first process adopts and reaps it: no zombie remains.
    lab.sh(&format!("kill {0}; while [ -e /proc/{0} ]; do :; done", server.trim()))?;
    Ok(())
}

fn two_sockets_smt_caches_and_nodes_are_visible(lab: &Lab) -> Result<()> {
    let text = lab.sh("cd /sys/devices/system/cpu/cpu1; \
         cat topology/physical_package_id topology/thread_siblings_list \
         cache/index2/shared_cpu_list cache/index3/shared_cpu_list \
         ../cpu6/topology/physical_package_id; \
         cd /sys/devices/system/node; cat node0/cpulist node1/cpulist node0/distance")?;
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["0", "0-1", "0-1", "0-3", "1", "0-3", "4-7", "10 21"]
    );
    Ok(())
}

fn the_nic_has_its_vectors_on_its_node(lab: &Lab, model: NicModel) -> Result<()> {
    let interrupts = lab.sh("cat /proc/interrupts")?;
    let wanted = if model == NicModel::Igb { "eth0-TxRx-" } else { "-input." };
    let lines: Vec<&str> = interrupts.lines().filter(|line| line.contains(wanted)).collect();
    assert_eq!(lines.len(), if model == NicModel::Igb { 8 } else { 4 }, "{interrupts}");
    let irqs = lines.iter().filter_map(|line| line.trim().split(':').next());
    let files: Vec<String> = irqs.map(|irq| format!("/proc/irq/{irq}/node")).collect();
    let nodes = lab.sh(&format!("cat {}", files.join(" ")))?;
    ensure!(nodes.lines().all(|node| node == "1"), "nodes {nodes:?}");
    if model == NicModel::Igb {
        let table = lab.sh("ethtool -x eth0 && ethtool -N eth0 rx-flow-hash udp4 sdfn && \
             ethtool -n eth0 rx-flow-hash udp4")?;
        ensure!(table.contains("with 8 RX ring(s)") && table.contains("L4 bytes 2 & 3"), "{table}");
    }
    Ok(())
}

fn a_pulled_cable_is_a_lost_carrier(lab: &Lab) -> Result<()> {
    let wait = |carrier| {
        format!("until [ \"$(cat /sys/class/net/eth0/carrier)\" = {carrier} ]; do :; done")
    };
    lab.set_link(0, false)?;
    lab.sh(&wait(0))?;
    lab.set_link(0, true)?;
    lab.sh(&wait(1))?;
    ensure!(lab.set_link(7, true).is_err(), "there is no eth7");
    Ok(())
}

fn modules_load_by_name_and_by_need(lab: &Lab) -> Result<()> {
    lab.sh("modprobe bridge && ip link add br0 type bridge && ip link del br0")?;
    lab.sh("ip netns add box && ip link add veth0 type veth peer name veth1 netns box && \
         ip netns del box")?;
    lab.sh("grep -q tracefs /proc/mounts && test -d /sys/kernel/tracing/events/napi && \
         test -d /sys/fs/bpf")?;
    Ok(())
}

fn both_ends_of_the_traffic_agree(lab: &Lab) -> Result<()> {
    let (peer, guest) = (lab.peer(0)?, Lab::guest_address(0));
    let server = lab.exact("echo --udp --port 7000 --cpu 5")?;
    let client =
        peer.exact(&format!("ask --udp --dest {guest} --port 7000 --connections 8 --duration 1"))?;
    let client = client.wait(netsilo_lab::RUN_TIMEOUT)?.ok()?;
    let asked: Asked = serde_json::from_slice(&client.stdout)?;
    ensure!(asked.transactions >= 8, "{asked:?}");
    server.stop()?;

    let receiver = lab.exact("receive --mode splice --port 7100 --flows 4")?;
    let sender =
        peer.exact(&format!("send --dest {guest} --port 7100 --flows 4 --bytes 500001"))?;
    sender.wait(netsilo_lab::RUN_TIMEOUT)?.ok()?;
    let got = receiver.wait(netsilo_lab::RUN_TIMEOUT)?.ok()?;
    let got: Received = serde_json::from_slice(&got.stdout)?;
    assert_eq!(got.bytes, 2_000_004);
    ensure!(got.sockets.iter().all(|socket| socket.incoming_napi_id > 0), "{got:?}");
    Ok(())
}

#[test]
fn cpus_nics_and_kernel_arguments_are_as_requested() -> Result<()> {
    if netsilo_lab::skip()? {
        return Ok(());
    }
    let _turn = turn();
    let virtio = Nic { queues: 2, ..Nic::from(NicModel::VirtioNet) }.on_node(0);
    let igb = Nic::from(NicModel::Igb).on_node(1);
    let lab = Lab::boot(&Spec {
        cpus: 6,
        nics: vec![igb, virtio, Nic::from(NicModel::Vmxnet3), Nic::from(NicModel::E1000e)],
        kernel_args: vec!["isolcpus=1,2".to_owned()],
        ..Spec::default()
    })?;
    let text = lab.sh("cat /sys/devices/system/cpu/online /sys/devices/system/cpu/isolated \
         /sys/devices/system/node/node1/cpulist; for nic in 0 1 2 3; do \
         readlink /sys/class/net/eth$nic/device/driver || \
         readlink /sys/class/net/eth$nic/device/../driver; done")?;
    let last = |line: &str| line.rsplit('/').next().unwrap_or_default().to_owned();
    let names: Vec<String> = text.lines().map(last).collect();
    assert_eq!(names, ["0-5", "1-2", "3-5", "igb", "virtio_net", "vmxnet3", "e1000e"]);
    for nic in 0..4 {
        // If the guest answers, its peer learns its hardware address.
        let guest = Lab::guest_address(nic);
        let neighbour = format!(
            "echo >/dev/udp/{guest}/9; until ip neigh show {guest} | grep -q lladdr; do :; done"
        );
        let found = lab.peer(nic.into())?.run(&format!("bash -c '{neighbour}'"))?;
        ensure!(found.status == 0, "no answer on eth{nic}: {found:?}");
    }
    Ok(())
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn thirty_two_cpus_boot() -> Result<()> {
    if netsilo_lab::skip()? {
        return Ok(());
    }
    let _turn = turn();
    let lab = Lab::boot(&Spec { cpus: 32, ..Spec::default() })?;
    let cpu = "/sys/devices/system/cpu";
    assert_eq!(
        lab.sh(&format!("cat {cpu}/online {cpu}/cpu30/topology/core_cpus_list"))?,
        "0-31\n30-31\n"
    );
    Ok(())
}

#[test]
fn an_impossible_spec_is_refused_with_the_possible_values() {
    let cpus = |cpus| Lab::boot(&Spec { cpus, ..Spec::default() }).unwrap_err().to_string();
    assert_eq!(cpus(7), "7 cpus: the lab has two sockets; choose an even number from 2 to 32");
    assert_eq!(cpus(64), "64 cpus: the lab has two sockets; choose an even number from 2 to 32");
}

#[test]
fn nothing_remains_after_the_end_after_kill_9_and_after_ctrl_c_while_booting() -> Result<()> {
    if netsilo_lab::skip()? {
        return Ok(());
    }
    let _turn = turn();
    // kill -9 while a command runs in the guest.
    let (mut lab, stderr) = program("run 'echo up >&2; sleep 1000'")?;
    let booted = BufReader::new(stderr)
        .lines()
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("booted in")));
    booted.context("it did not boot")??;
    ends_all_of(&mut lab, Signal::KILL)?;
    let (mut lab, _stderr) = program("run 'sleep 1000'")?;
    ends_all_of(&mut lab, Signal::INT)?;
    let (mut lab, _stderr) = program("run true")?;
    let family = family_with_guest(lab.id())?;
    ensure!(lab.wait()?.success(), "the command failed");
    all_end(&family)
}

fn program(arguments: &str) -> Result<(Child, ChildStderr)> {
    // a shell's background processes inherit that Ctrl-C is ignored
    let command =
        format!("exec env --default-signal=INT {} {arguments}", env!("CARGO_BIN_EXE_netsilo-lab"));
    let mut child = Command::new("sh").args(["-c", &command]).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().context("no stderr")?;
    Ok((child, stderr))
}

fn ends_all_of(lab: &mut Child, signal: Signal) -> Result<()> {
    let family = family_with_guest(lab.id())?;
    kill_process(Pid::from_raw(i32::try_from(lab.id())?).context("pid 0")?, signal)?;
    lab.wait()?;
    all_end(&family)
}

/// Returns the descendants of `root`, once they include unshare, cat, nsenter and QEMU.
fn family_with_guest(root: u32) -> Result<Vec<u32>> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        let family = descendants(root);
        let is_guest = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.starts_with("qemu-system"))
        };
        if family.len() >= 4 && family.iter().any(is_guest) {
            return Ok(family);
        }
    }
    anyhow::bail!("no QEMU below {root}")
}

fn descendants(root: u32) -> Vec<u32> {
    let stats = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let pid: u32 = stat.split(' ').next()?.parse().ok()?;
        let parent: u32 = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    });
    let parents: Vec<(u32, u32)> = stats.collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(one) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    family.split_off(1)
}

/// Waits until each process has ended, because the kernel's killing takes a moment.
fn all_end(family: &[u32]) -> Result<()> {
    ensure!(family.len() >= 4, "unshare, cat, nsenter and QEMU are {family:?}?");
    for pid in family {
        let Ok(pidfd) =
            pidfd_open(Pid::from_raw(i32::try_from(*pid)?).context("pid 0")?, PidfdFlags::empty())
        else {
            continue;
        };
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience))?;
        ensure!(
            ended > 0,
            "process {pid} outlives its lab: {:?}",
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
        );
    }
    Ok(())
}
