//! The agent in a lab's guest. It runs shell commands that arrive on a virtio-serial port.
//!
//! `build.rs` builds it as a static binary for the initrd, with only the standard library. It runs
//! inside a chroot of the host's root, so commands see the host's tools.

#[path = "../src/frame.rs"]
mod frame;

use frame::Message;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Process groups of the running commands, by command id.
type Running = Arc<Mutex<HashMap<u32, u32>>>;

fn main() -> io::Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: agent PORT"))?;
    let port = Arc::new(File::options().read(true).write(true).open(path)?);
    // The port can be opened only once. A lock serializes the replies of several commands.
    let replies = Arc::new(Mutex::new(()));
    let running = Running::default();
    frame::write(&*port, 0, &Message::Hello)?;
    loop {
        // An error here means that the lab closed the port. Returning powers the guest off.
        match frame::read(&*port)? {
            (id, Message::Run(command)) => {
                let (port, replies, running) = (port.clone(), replies.clone(), running.clone());
                thread::spawn(move || {
                    let reply = |message: &Message| {
                        let _turn = replies.lock().unwrap_or_else(PoisonError::into_inner);
                        frame::write(&*port, id, message)
                    };
                    let done = run(id, &command, &running, &reply).unwrap_or_else(|error| {
                        let stderr = format!("lab agent: {error}\n").into_bytes();
                        Message::Done { status: 127, stdout: Vec::new(), stderr }
                    });
                    if let Err(error) = reply(&done) {
                        let stderr = format!("lab agent: {error}\n").into_bytes();
                        let _ = reply(&Message::Done { status: 127, stdout: Vec::new(), stderr });
                    }
                });
            }
            (id, Message::Signal(signal)) => {
                let running = running.lock().unwrap_or_else(PoisonError::into_inner);
                let group = running.get(&id).copied();
                drop(running);
                if let Some(group) = group {
                    let kill = format!("kill -{signal} -{group}");
                    let _ = Command::new("sh").arg("-c").arg(kill).status();
                }
            }
            _ => {}
        }
    }
}

fn run(
    id: u32,
    command: &str,
    running: &Running,
    reply: &dyn Fn(&Message) -> io::Result<()>,
) -> io::Result<Message> {
    let (stdout, stderr) = (unnamed_file(id, "out")?, unnamed_file(id, "err")?);
    let mut child: Child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0)
        .spawn()?;
    running.lock().unwrap_or_else(PoisonError::into_inner).insert(id, child.id());
    reply(&Message::Started(child.id()))?;
    let status = child.wait();
    running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    let (stdout, stderr) = (content(&stdout)?, content(&stderr)?);
    Ok(Message::Done { status: code(status?), stdout, stderr })
}

/// Opens an unnamed file for output. A pipe would never end if a background server kept it open.
fn unnamed_file(id: u32, end: &str) -> io::Result<File> {
    let path = format!("/run/lab/{id}.{end}");
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// Reads a file by position, because its offset is shared with processes that may still write.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
