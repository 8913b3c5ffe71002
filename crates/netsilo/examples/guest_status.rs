//! Prints what a Unix socket sends: the daemon's status. In an emulated guest this takes a quarter
//! of the time that `netsilo status` needs to start.

#![allow(clippy::print_stderr, reason = "a part of tests")]

use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let path = std::env::args().nth(1).unwrap_or_default();
    let answer = UnixStream::connect(path).and_then(|mut socket| {
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        io::copy(&mut socket, &mut io::stdout())
    });
    match answer {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
