//! Files that the user names: regular ones only, of limited size.
//!
//! A FIFO would make its reader wait for a writer, a device may never end, and opening some devices
//! changes them.

use std::fs::{File, FileType, OpenOptions, metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), OFlags::empty(), path)
}

/// Opens a regular file, or creates one if the options say so. Adds `flags` to theirs.
pub fn open_with(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    match metadata(path) {
        Ok(found) => refuse_others(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // it may have become a FIFO meanwhile: never wait for the other end
    let file = options.custom_flags((flags | OFlags::NONBLOCK).bits() as i32).open(path)?;
    refuse_others(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a file to which this user alone appends, or creates it. Follows no symbolic link.
pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    open_with(options.read(true).append(true).create(true).mode(0o600), OFlags::NOFOLLOW, path)
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_rest(open(path)?, most)
}

/// Reads the rest of an open file or stream, of at most `most` bytes.
pub fn read_rest(file: impl io::Read, most: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.take(most + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {} MiB", most >> 20)));
    }
    Ok(contents)
}

fn refuse_others(kind: FileType) -> io::Result<()> {
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {what}: name a regular file")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    #[test]
    fn a_regular_file_is_read_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let kind = read(&path, 1).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::NotFound);
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().to_string(), "it has more than 1 MiB");
    }

    #[test]
    fn pipes_sockets_devices_and_folders_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, socket) = (dir.path().join("fifo"), dir.path().join("socket"));
        mknodat(CWD, &fifo, Kind::Fifo, Mode::from(0o600), 0).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let refused = [
            (fifo.as_path(), "a pipe"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
            (dir.path(), "a folder"),
        ];
        for (path, what) in refused {
            let append = open_with(OpenOptions::new().append(true), OFlags::empty(), path);
            for error in [open(path).unwrap_err(), append.unwrap_err()] {
                assert_eq!(error.to_string(), format!("it is {what}: name a regular file"));
            }
        }
    }
}
