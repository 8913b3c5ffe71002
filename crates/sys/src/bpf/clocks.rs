//! perf's cpu-clock of each CPU, which runs the program of `bpf/stages.bpf.c`.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::{fs, io};

use libbpf_rs::{Link, ProgramMut};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::bpf::refusal::reason;

/// Not a divisor of the timer frequencies 100, 250 and 1000 Hz.
pub(crate) const SAMPLES_PER_S: u32 = 499;

/// Attaches a program to the clocks of all online CPUs.
pub(crate) fn attach(program: &ProgramMut<'_>) -> Result<Vec<Link>, String> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut links = Vec::new();
    for cpu in CpuSet::parse_list(&online).unwrap_or_default().iter() {
        let event = match clock(cpu) {
            Ok(event) => event,
            // It went offline.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
            Err(error) => {
                let hint = "(kernel.perf_event_paranoid?)";
                return Err(format!("no perf clock on cpu {cpu}: {error} {hint}"));
            }
        };
        let link = program.attach_perf_event(event.as_raw_fd());
        links.push(link.map_err(|error| reason(&error))?);
        let _ = event.into_raw_fd(); // the link closes it
    }
    Ok(links)
}

/// Opens perf's cpu-clock of one CPU for all tasks.
fn clock(cpu: CpuId) -> io::Result<OwnedFd> {
    let mut attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_freq = u64::from(SAMPLES_PER_S);
    attributes.set_freq(1);
    attributes.set_exclude_user(1);
    let cpu = i32::try_from(cpu.0).map_err(io::Error::other)?;
    let (pid, group, flags) = (-1, -1, libbpf_sys::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the kernel reads `size` bytes of the attributes, which outlive the call, and keeps no
    // reference.
    #[allow(unsafe_code)]
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, cpu, group, flags)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the descriptor was just opened and has no other owner.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
