//! Socket options that std lacks, and pinning of threads.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// How long clients wait for their server.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Parses a CPU list such as `1,2,5-6`.
pub(crate) fn cpu_list(text: &str) -> Result<CpuList, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number =
            |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is not a cpu"));
        cpus.extend(number(first)?..=number(last)?);
    }
    Ok(CpuList(cpus))
}

/// CPUs in the given order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Pins the calling thread, and those it starts, to `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        bail!("cpu {cpu}: this program supports {} cpus", CpuSet::MAX_CPU);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on cpu {cpu}"))
}

/// Names the calling thread; the first thread also names the process. The kernel keeps 15 bytes.
pub(crate) fn set_comm(name: &str) -> Result<()> {
    let name: String = name.chars().take(15).collect();
    rustix::thread::set_name(&std::ffi::CString::new(name)?)
        .context("cannot set the process's name")
}

/// Connects; waits up to `patience` for a server that is not there yet.
pub(crate) fn connect(to: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let deadline = Instant::now() + patience;
    loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(3)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("cannot connect to {to}"));
            }
            // Refused, or no route yet: the server is about to start.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Returns `SO_INCOMING_NAPI_ID`, the NAPI instance that delivered last; 0 if none did.
pub(crate) fn incoming_napi_id(socket: impl AsFd) -> Result<u32> {
    int_option(socket, libc::SO_INCOMING_NAPI_ID).map(|id| u32::try_from(id).unwrap_or(0))
}

/// Returns `SO_INCOMING_CPU`, the CPU that ran the protocol last; `None` before the first packet.
pub(crate) fn incoming_cpu(socket: impl AsFd) -> Result<Option<u32>> {
    int_option(socket, libc::SO_INCOMING_CPU).map(|cpu| u32::try_from(cpu).ok())
}

#[allow(unsafe_code)]
fn int_option(socket: impl AsFd, option: libc::c_int) -> Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of_val(&value))?;
    // SAFETY: both pointers are to live locals, and `length` is the size of `value`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot read socket option {option}"));
    }
    Ok(value)
}
