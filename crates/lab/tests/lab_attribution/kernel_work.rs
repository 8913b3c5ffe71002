//! A disk over NVMe/TCP within the guest: code of the kernel reads the data at both ends.

use netsilo_lab::Lab;
use netsilo_model::snapshot::attribution::{Consumption, Protocol, ReaderKind};

use crate::{sum, traced};

/// Exports a RAM disk on loopback, and connects to it: `/dev/nvme0n1`.
const SETUP: &str = "\
modprobe brd rd_nr=1 rd_size=32768 && modprobe nvmet-tcp && modprobe nvme-tcp || exit 1
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet && mkdir subsystems/disk ports/1 && cd subsystems/disk || exit 1
echo 1 > attr_allow_any_host && mkdir namespaces/1 && echo /dev/ram0 > namespaces/1/device_path
echo 1 > namespaces/1/enable && cd ../../ports/1 || exit 1
echo tcp > addr_trtype && echo ipv4 > addr_adrfam && echo 127.0.0.1 > addr_traddr
echo 4420 > addr_trsvcid && ln -s ../../subsystems/disk subsystems/disk || exit 1
echo transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=disk,nr_io_queues=1 > /dev/nvme-fabrics
for _ in $(seq 100); do test -b /dev/nvme0n1 && exit 0; sleep 0.1; done; exit 1";

/// The bytes of each direction. Commands, headers and the search for partitions come on top.
const BYTES: u64 = 128 * 65536;

pub(crate) fn is_named_by_its_function(lab: &Lab) {
    let attribution = traced(lab, || {
        lab.sh(SETUP).unwrap();
        let copy = "bs=64k count=128 2>&1";
        lab.sh(&format!("dd if=/dev/zero of=/dev/nvme0n1 oflag=direct {copy}")).unwrap();
        lab.sh(&format!("dd if=/dev/nvme0n1 of=/dev/null iflag=direct {copy}")).unwrap();
    });
    for function in ["nvmet_tcp_io_work [nvmet_tcp]", "nvme_tcp_io_work [nvme_tcp]"] {
        let is_its =
            |it: &&Consumption| it.consumer.comm == function && it.protocol == Protocol::Tcp;
        let reads: Vec<_> = attribution.consumption.iter().filter(is_its).collect();
        let kinds = reads.iter().all(|it| it.consumer.kind() == ReaderKind::Kernel);
        let read = sum(&reads);
        assert!(kinds && (BYTES..BYTES + BYTES / 20).contains(&read), "{function}: {read}");
    }
    let by_thread: Vec<_> = attribution.consumption.iter().map(|it| &it.consumer.comm).collect();
    assert!(!by_thread.iter().any(|comm| comm.starts_with("kworker")), "{by_thread:?}");
}
