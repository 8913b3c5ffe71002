//! The ban list of a running irqbalance: the interrupts that it leaves alone.
//!
//! irqbalance takes requests on a socket with its process id in the name (`init_socket`). It has
//! one thread: between two rounds it answers at once. Up to 1.9.3 it sleeps for a whole interval
//! after it was given a list, and answers nobody meanwhile.
//!
//! **A client that ends before its answer was sent kills irqbalance** by SIGPIPE. So a request is
//! sent only once irqbalance has accepted the connection: then the answer follows at once. Before,
//! a connection can be closed without harm.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words;
use netsilo_model::parse::irqbalance::{SETUP, ban_message, banned, most_bytes};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, UCred, connect, sendmsg, socket_with,
};

/// The folder with the socket (`SOCKET_TMPFS`).
pub const FOLDER: &str = "/run/irqbalance";

/// The largest program file that is searched for its version, and the longest answer.
const MOST_READ: u64 = 4 << 20;

/// The longest message that the program of this process reads whole, in bytes. The file is only
/// read: a process of this name may be anybody's.
pub(crate) fn longest_message(pid: u32) -> usize {
    let mut program = Vec::new();
    let file = File::open(format!("/proc/{pid}/exe"));
    let read = file.and_then(|file| file.take(MOST_READ).read_to_end(&mut program));
    most_bytes(if read.is_ok() { &program } else { &[] })
}

/// The socket of a running irqbalance.
#[derive(Debug, Clone)]
pub struct Irqbalance {
    path: PathBuf,
    pid: u32,
    patience: Duration,
}

impl Irqbalance {
    /// The irqbalance of this process id, with its socket in `folder`. Each request waits at most
    /// for `patience`.
    pub fn new(folder: impl AsRef<Path>, pid: u32, patience: Duration) -> Self {
        let path = folder.as_ref().join(format!("irqbalance{pid}.sock"));
        Self { path, pid, patience }
    }

    /// The interrupts that it leaves alone.
    pub fn banned(&self) -> io::Result<BTreeSet<Irq>> {
        banned(&self.ask(SETUP)?).map_err(io::Error::other)
    }

    /// Whether it leaves any of these interrupts alone, and which: `off`, `on`, or
    /// `on (only 27)`.
    pub fn get(&self, irqs: &BTreeSet<Irq>) -> io::Result<String> {
        let banned = self.banned()?;
        let left: BTreeSet<&Irq> = irqs.intersection(&banned).collect();
        Ok(match left.len() {
            0 => "off\n".to_owned(),
            all if all == irqs.len() => "on\n".to_owned(),
            _ => format!("on (only {})\n", words::irqs(left)),
        })
    }

    /// Adds these interrupts to those that it leaves alone, or takes them away. All others stay in
    /// its list, which is written whole: each write makes irqbalance place its other interrupts
    /// again.
    ///
    /// If another program gives it a list between the read and the write, that list is lost.
    pub fn set(&self, irqs: &BTreeSet<Irq>, on: bool) -> io::Result<()> {
        let before = self.banned()?;
        let wanted: BTreeSet<Irq> = if on {
            before.union(irqs).copied().collect()
        } else {
            before.difference(irqs).copied().collect()
        };
        if wanted == before {
            return Ok(());
        }
        let message = ban_message(&wanted);
        let most = longest_message(self.pid);
        if message.len() > most {
            let why = format!(
                "the list of {} interrupts has {} bytes, and this irqbalance reads {most}",
                wanted.len(),
                message.len()
            );
            return Err(io::Error::other(why));
        }
        self.ask(&message)?;
        let after = self.banned()?;
        let taken = if on { irqs.is_subset(&after) } else { irqs.is_disjoint(&after) };
        if taken {
            return Ok(());
        }
        let now = words::irqs(&after);
        Err(io::Error::other(format!("it did not take the list: it leaves alone now: {now}")))
    }

    /// Sends a request, and returns the answer. irqbalance closes the connection when it has
    /// carried out the request.
    fn ask(&self, request: &str) -> io::Result<String> {
        let end = Instant::now() + self.patience;
        let (socket, name) = self.connect()?;
        self.refuse_other(&socket)?;
        self.wait_until_accepted(&name, end)?;
        send(&socket, request)?;
        let mut answer = Vec::new();
        let mut stream = File::from(socket);
        let mut part = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || answer.len() > MOST_READ as usize {
                return Err(self.no_answer());
            }
            set_socket_timeout(&stream, Timeout::Recv, Some(left))?;
            match stream.read(&mut part) {
                Ok(0) => return String::from_utf8(answer).map_err(io::Error::other),
                Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.no_answer());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn no_answer(&self) -> io::Error {
        let text = format!("irqbalance did not answer within {} s", self.patience.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    /// Connects to the socket in the folder, or to the one that irqbalance makes without the
    /// folder: its name is all zeros. Returns the name as `/proc/net/unix` shows it.
    fn connect(&self) -> io::Result<(OwnedFd, String)> {
        let try_one = |address: &SocketAddrUnix| {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            // A full queue of connections makes `connect` wait (`unix_stream_connect`).
            set_socket_timeout(&socket, Timeout::Send, Some(self.patience))?;
            match connect(&socket, address) {
                Ok(()) => Ok(socket),
                Err(rustix::io::Errno::AGAIN) => Err(self.no_answer()),
                Err(error) => Err(error.into()),
            }
        };
        match try_one(&SocketAddrUnix::new(&self.path)?) {
            Ok(socket) => Ok((socket, self.path.to_string_lossy().into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let zeros = SocketAddrUnix::new_abstract_name(&[0; 107])?;
                try_one(&zeros).map(|socket| (socket, "@".repeat(108))).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses a socket of another process, and of another user: any program may have the name of
    /// zeros, and call itself irqbalance.
    fn refuse_other(&self, socket: &OwnedFd) -> io::Result<()> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes, which `peer` holds, and keeps no
        // reference. rustix's type cannot hold the pid 0 of a process in another pid namespace.
        #[allow(unsafe_code)]
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                std::ptr::from_mut(&mut peer).cast(),
                &raw mut size,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&peer.uid);
        if u32::try_from(peer.pid) == Ok(self.pid) && is_trusted {
            return Ok(());
        }
        let (pid, uid) = (peer.pid, peer.uid);
        Err(io::Error::other(format!("its socket belongs to pid {pid} of user {uid}")))
    }

    /// Waits until no connection to this name waits to be accepted.
    fn wait_until_accepted(&self, name: &str, end: Instant) -> io::Result<()> {
        let mut pause = Duration::from_millis(1);
        while awaits(&std::fs::read_to_string("/proc/thread-self/net/unix")?, name) {
            if Instant::now() + pause > end {
                return Err(self.no_answer());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Whether a connection to a socket of this name waits to be accepted: state 02, SS_CONNECTING
/// (`net/unix/af_unix.c:unix_seq_show`).
fn awaits(unix: &str, name: &str) -> bool {
    unix.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.nth(5) == Some("02") && words.nth(1) == Some(name)
    })
}

/// Sends a request with this process's credentials, which irqbalance wants.
fn send(socket: &OwnedFd, request: &str) -> io::Result<()> {
    let own = UCred {
        pid: rustix::process::getpid(),
        uid: rustix::process::geteuid(),
        gid: rustix::process::getegid(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmCredentials(own));
    let bytes = [IoSlice::new(request.as_bytes())];
    let sent = sendmsg(socket.as_fd(), &bytes, &mut control, SendFlags::NOSIGNAL)?;
    if sent == request.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_connection_waits_while_its_row_says_connecting() {
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31337 /run/irqbalance/i7.sock\n\
            0000000000000000: 00000002 00000000 00000000 0001 02     0 /run/irqbalance/i8.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 31339\n";
        assert!(!awaits(unix, "/run/irqbalance/i7.sock"));
        assert!(awaits(unix, "/run/irqbalance/i8.sock"));
    }

    #[test]
    fn who_does_not_accept_in_time_is_sent_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let listener =
            UnixListener::bind(dir.path().join(format!("irqbalance{pid}.sock"))).unwrap();
        let irqbalance = Irqbalance::new(dir.path(), pid, Duration::from_millis(30));
        let error = irqbalance.banned().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let mut late = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut late).unwrap();
        assert_eq!(late, b"");
    }

    #[test]
    fn an_answer_that_never_ends_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let listener =
            UnixListener::bind(dir.path().join(format!("irqbalance{pid}.sock"))).unwrap();
        let slow = std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            while client.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let irqbalance = Irqbalance::new(dir.path(), pid, Duration::from_millis(300));
        assert_eq!(irqbalance.banned().unwrap_err().kind(), io::ErrorKind::TimedOut);
        slow.join().unwrap();
    }

    #[test]
    fn the_socket_of_another_process_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("irqbalance1.sock");
        let _listener = UnixListener::bind(path).unwrap();
        let error = Irqbalance::new(dir.path(), 1, Duration::from_secs(9)).banned().unwrap_err();
        assert!(error.to_string().starts_with("its socket belongs to pid"), "{error}");
    }
}
