//! The data of ethtool, netdev netlink and sock_diag for NICs with several queues, in the lab.
//!
//! The server in the guest and the client at its peer are roles of `test_helper`, which also checks
//! the data (`examples/test_helper/nic.rs`).

#![allow(clippy::unwrap_used, clippy::panic)] // clippy.toml's leave covers test functions only

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use netsilo_lab::{Kernel, Lab, NicModel, Spec};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn igb_reports_its_rss_and_toeplitz_predicts_the_napi_of_a_socket() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    for kernel in [Kernel::V6_1, Kernel::Newest] {
        serve(kernel, NicModel::Igb, "nic-igb");
    }
}

/// What the kernels before and after this one also show.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn igb_reports_its_rss_on_the_kernel_between_them() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    serve(Kernel::V6_12, NicModel::Igb, "nic-igb");
}

#[test]
fn virtio_has_no_rss_and_its_sockets_report_one_napi_per_queue() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    serve(Kernel::V6_12, NicModel::VirtioNet, "nic-virtio");
}

/// Boots a guest, runs one of the servers in it and the client at its peer. Both must succeed.
fn serve(kernel: Kernel, model: NicModel, server: &str) {
    // one guest at a time, whatever the number of test threads
    static GUEST: Mutex<()> = Mutex::new(());
    let _guest = GUEST.lock();
    let lab = Lab::boot(&Spec::new(kernel, model)).unwrap();
    let address = SocketAddr::new(Lab::guest_address(0).into(), 5201);
    let server = lab.spawn(&role(server, address)).unwrap();
    lab.peer(0).unwrap().run_for(&role("nic-client", address), PATIENCE).unwrap().ok().unwrap();
    server.wait(PATIENCE).unwrap().ok().unwrap();
}

/// The command that runs a role of the helper.
fn role(role: &str, address: SocketAddr) -> String {
    let program = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "test_helper").unwrap();
    format!("exec '{}' {role} {address}", program.display())
}
