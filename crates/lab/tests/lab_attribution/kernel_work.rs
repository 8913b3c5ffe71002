//! A disk over NVMe/TCP and files over NFS within the guest: code of the kernel reads the data at
//! both ends. TLS of the kernel.

use netsilo_lab::Lab;
use netsilo_lab::exact::{self, Received};
use netsilo_model::snapshot::attribution::{Consumption, Protocol, ReaderKind};

use crate::{PATIENCE, accounted, of, sum, traced};

/// Exports a folder on loopback without nfs-utils, by answering what the kernel would ask mountd,
/// and mounts it.
const NFS: &str = "\
modprobe nfsd && modprobe nfsv4 && mount -t nfsd nfsd /proc/fs/nfsd || exit 1
mkdir -p /tmp/exported /tmp/mounted && mount -t tmpfs none /tmp/exported && cd /proc/fs/nfsd
echo '-3 +4.1' > versions && echo 10 > nfsv4leasetime && echo 10 > nfsv4gracetime || exit 1
echo 'tcp 2049' > portlist && echo 2 > threads || exit 1
echo Y > v4_end_grace; until=$(($(date +%s) + 10000)); cd /proc/net/rpc
echo \"nfsd 127.0.0.1 $until guest\" > auth.unix.ip/channel
echo \"guest /tmp/exported $until 9234 65534 65534 0\" > nfsd.export/channel
echo \"guest 1 \\\\x00000000 $until /tmp/exported\" > nfsd.fh/channel
echo \"0 $until 1 0\" > auth.unix.gid/channel
mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.1,rsize=65536,wsize=65536 \
127.0.0.1:/ /tmp/mounted";

/// Exports a RAM disk on loopback, and connects to it: `/dev/nvme0n1`.
const DISK: &str = "\
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
    let disk = ["nvmet_tcp_io_work [nvmet_tcp]", "nvme_tcp_io_work [nvme_tcp]"];
    is_named(lab, DISK, "/dev/nvme0n1", disk);
}

pub(crate) fn has_the_names_of_its_threads(lab: &Lab) {
    let files = ["nfsd", "xs_stream_data_receive_workfn [sunrpc]"];
    is_named(lab, NFS, "/tmp/mounted/file", files);
    lab.sh("umount /tmp/mounted; echo 0 > /proc/fs/nfsd/threads").unwrap();
}

/// Both ends: who reads what is written, and who what is read.
fn is_named(lab: &Lab, setup: &str, file: &str, readers: [&str; 2]) {
    let attribution = traced(lab, || {
        lab.sh(setup).unwrap();
        let copy = "bs=64k count=128 2>&1";
        lab.sh(&format!("dd if=/dev/zero of={file} oflag=direct {copy}")).unwrap();
        lab.sh(&format!("dd if={file} of=/dev/null iflag=direct {copy}")).unwrap();
    });
    for function in readers {
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

/// The kernel decrypts in the thread that reads. Within the guest: the host's kernel may not have
/// TLS.
pub(crate) fn of_tls_is_its_readers(lab: &Lab) {
    lab.sh("modprobe tls").unwrap();
    let program = exact::program().unwrap();
    let all = "--port 7000 --flows 4 --bytes 204800";
    let (mut received, program) = (None, program.display());
    let attribution = traced(lab, || {
        let receive = format!("'{program}' exact receive --mode tls {all} --cpus 5");
        let receiver = lab.spawn(&receive).unwrap();
        lab.sh(&format!("'{program}' exact send --tls --dest 127.0.0.1 {all}")).unwrap();
        let text = receiver.wait(PATIENCE).unwrap().ok().unwrap().text().into_owned();
        received = Some(serde_json::from_str::<Received>(&text).unwrap());
    });
    let mut received = received.unwrap();
    assert_eq!(received.bytes, 4 * 204_800);
    received.bytes += 4 * 200 * TLS_RECORD_BYTES;
    let mut reads = of(&attribution, received.pid);
    // A record that is not whole, or that does not fit into the socket's buffer, is copied early:
    // by work, or in the softirq that received it, which has no name.
    let is_copied = |it: &&Consumption| {
        it.consumer.tgid == 0 && ["", "tls_strp_work [tls]"].contains(&it.consumer.comm.as_str())
    };
    reads.extend(attribution.consumption.iter().filter(is_copied));
    accounted(lab, &attribution, sum(&reads), &received);
}

/// Header, content type and tag (TLS 1.3, AES-GCM), for each 1024 bytes.
const TLS_RECORD_BYTES: u64 = 5 + 1 + 16;
