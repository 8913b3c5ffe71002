//! A receive queue of vhost-net: the kernel copies a tap's packets into its buffers.
//!
//! As a driver of virtio 0.9 sees it (`include/uapi/linux/{vhost,virtio_ring}.h`): descriptors of
//! buffers, the ring of those that the kernel may fill, and the ring of those that it has filled.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_uint};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const QUEUE: u16 = 256;
const BUFFER: usize = 2048;
/// `struct virtio_net_hdr`, in front of each packet.
const HEADER: usize = 10;

// Where the parts begin in the memory.
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x3000;
const BUFFERS: usize = 0x10000;
const BYTES: usize = BUFFERS + QUEUE as usize * BUFFER;

#[repr(C)]
struct Region {
    guest: u64,
    size: u64,
    user: u64,
    padding: u64,
}

#[repr(C)]
pub(crate) struct Memory {
    regions: u32,
    padding: u32,
    region: Region,
}

#[repr(C)]
pub(crate) struct State {
    index: c_uint,
    value: c_uint,
}

#[repr(C)]
pub(crate) struct Addresses {
    index: c_uint,
    flags: c_uint,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

#[repr(C)]
pub(crate) struct Descriptor {
    index: c_uint,
    fd: c_int,
}

#[repr(C)]
pub(crate) struct Tap {
    name: [u8; 16],
    flags: c_short,
    rest: [u8; 22],
}

nix::ioctl_readwrite_bad!(set_iff, nix::request_code_write!(b'T', 202, size_of::<c_int>()), Tap);
nix::ioctl_write_ptr!(set_features, 0xaf, 0x00, u64);
nix::ioctl_none!(set_owner, 0xaf, 0x01);
nix::ioctl_write_ptr!(set_memory, 0xaf, 0x03, MemoryHead);
nix::ioctl_write_ptr!(set_size, 0xaf, 0x10, State);
nix::ioctl_write_ptr!(set_addresses, 0xaf, 0x11, Addresses);
nix::ioctl_write_ptr!(set_base, 0xaf, 0x12, State);
nix::ioctl_write_ptr!(set_kick, 0xaf, 0x20, Descriptor);
nix::ioctl_write_ptr!(set_call, 0xaf, 0x21, Descriptor);
nix::ioctl_write_ptr!(set_backend, 0xaf, 0x30, Descriptor);

/// The part of [`Memory`] whose size is in the request's number.
#[repr(C)]
pub(crate) struct MemoryHead {
    regions: u32,
    padding: u32,
}

/// Makes a descriptor that of this tap, or of one of its queues, or of the macvtap that it belongs
/// to.
pub(crate) fn take_tap(tap: &File, name: &str, has_header: bool, is_queue: bool) -> Result<()> {
    const TAP: c_short = 2;
    const QUEUE: c_short = 0x100;
    const NO_INFORMATION: c_short = 0x1000;
    const HAS_HEADER: c_short = 0x4000;
    let header = if has_header { HAS_HEADER } else { 0 };
    let queue = if is_queue { QUEUE } else { 0 };
    let flags = TAP | NO_INFORMATION | header | queue;
    let mut request = Tap { name: [0; 16], flags, rest: [0; 22] };
    ensure!(name.len() < 16, "the name is too long");
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq`, which `Tap` is.
    unsafe { set_iff(tap.as_raw_fd(), &mut request) }?;
    Ok(())
}

/// The queue. Dropping it has the kernel let go of its memory first.
pub(crate) struct Ring {
    vhost: Option<File>,
    kick: File,
    /// Readable when packets have arrived.
    pub(crate) call: File,
    memory: *mut u8,
    taken: u16,
}

impl Ring {
    pub(crate) fn new(tap: RawFd) -> Result<Self> {
        let vhost = File::options().read(true).write(true).open("/dev/vhost-net")?;
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(File::from);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping touches no other memory.
        let memory = unsafe { mmap_anonymous(null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        let (kick, call) = (event()?, event()?);
        let mut ring = Self { vhost: Some(vhost), kick, call, memory: memory.cast(), taken: 0 };
        for index in 0..QUEUE {
            let at = usize::from(index) * 16;
            ring.set(at, (BUFFERS + usize::from(index) * BUFFER) as u64);
            ring.set(at + 8, BUFFER as u32);
            ring.set(at + 12, 2_u16); // the kernel writes to it
            ring.set(AVAILABLE + 4 + 2 * usize::from(index), index);
        }
        ring.set(AVAILABLE + 2, QUEUE);
        ring.connect(tap)?;
        ring.kick.write_all(&1_u64.to_ne_bytes())?;
        Ok(ring)
    }

    fn connect(&self, tap: RawFd) -> nix::Result<()> {
        let fd = self.vhost.as_ref().map_or(-1, |it| it.as_raw_fd());
        let user = self.memory as u64;
        let region = Region { guest: 0, size: BYTES as u64, user, padding: 0 };
        let memory = Memory { regions: 1, padding: 0, region };
        let addresses = Addresses {
            index: 0,
            flags: 0,
            descriptors: user,
            used: user + USED as u64,
            available: user + AVAILABLE as u64,
            log: 0,
        };
        let descriptor = |file: &File| Descriptor { index: 0, fd: file.as_raw_fd() };
        // SAFETY: the kernel reads these values now, and until `drop` writes to the mapping only.
        unsafe {
            set_owner(fd)?;
            set_features(fd, &0)?; // the tap writes the header
            set_memory(fd, std::ptr::from_ref(&memory).cast())?;
            set_size(fd, &State { index: 0, value: QUEUE.into() })?;
            set_base(fd, &State { index: 0, value: 0 })?;
            set_addresses(fd, &addresses)?;
            set_kick(fd, &descriptor(&self.kick))?;
            set_call(fd, &descriptor(&self.call))?;
            set_backend(fd, &Descriptor { index: 0, fd: tap })?;
        }
        Ok(())
    }

    /// Takes what has arrived, and gives the buffers back. Returns false if nothing is there.
    pub(crate) fn take(&mut self, mut each: impl FnMut(&[u8])) -> Result<bool> {
        match self.call.read(&mut [0; 8]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
        let before = self.taken;
        while self.taken != self.get::<u16>(USED + 2) {
            fence(Ordering::Acquire);
            let at = USED + 4 + 8 * usize::from(self.taken % QUEUE);
            let (index, bytes) = (self.get::<u32>(at), self.get::<u32>(at + 4) as usize);
            let buffer = BUFFERS + (index as usize % usize::from(QUEUE)) * BUFFER;
            ensure!((HEADER..=BUFFER).contains(&bytes), "the kernel wrote {bytes} bytes");
            // SAFETY: within the mapping, and the kernel no longer writes there.
            let packet = unsafe {
                std::slice::from_raw_parts(self.memory.add(buffer + HEADER), bytes - HEADER)
            };
            each(packet);
            let slot = usize::from(self.taken.wrapping_add(QUEUE) % QUEUE);
            self.set(AVAILABLE + 4 + 2 * slot, index as u16);
            self.taken = self.taken.wrapping_add(1);
            fence(Ordering::Release);
            self.set(AVAILABLE + 2, self.taken.wrapping_add(QUEUE));
        }
        if before == self.taken {
            return Ok(false);
        }
        self.kick.write_all(&1_u64.to_ne_bytes())?;
        Ok(true)
    }

    fn set<T>(&mut self, at: usize, value: T) {
        // SAFETY: each caller's offset is aligned and within the mapping.
        unsafe { self.memory.add(at).cast::<T>().write_volatile(value) };
    }

    fn get<T>(&self, at: usize) -> T {
        // SAFETY: like `set`; all types are integers.
        unsafe { self.memory.add(at).cast::<T>().read_volatile() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.vhost.take());
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.memory.cast(), BYTES) };
    }
}
