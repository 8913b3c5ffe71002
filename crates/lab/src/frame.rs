//! The protocol between the lab and the agent in its guest: length-prefixed, binary-safe frames.
//!
//! Compiled into both, so it uses only the standard library. All integers are little-endian.

use std::io::{self, Read, Write};

/// Maximum size of a body that either side accepts, in bytes. It is more than one command should
/// print.
const MAX_BODY_BYTES: u32 = 1 << 30;

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// From the agent: ready for commands.
    Hello,
    /// From the lab: run this shell command.
    Run(String),
    /// From the agent: the command's process id, which is also its process group in the guest.
    Started(u32),
    /// From the lab: send this signal to the command's process group.
    Signal(u32),
    /// From the agent: the command has ended.
    Done {
        /// Exit code, or 128 + signal, like a shell.
        status: i32,
        /// Everything on its standard output.
        stdout: Vec<u8>,
        /// Everything on its standard error.
        stderr: Vec<u8>,
    },
}

impl Message {
    fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Hello => (0, Vec::new()),
            Self::Run(command) => (1, command.clone().into_bytes()),
            Self::Started(pid) => (2, pid.to_le_bytes().to_vec()),
            Self::Signal(signal) => (3, signal.to_le_bytes().to_vec()),
            Self::Done { status, stdout, stderr } => {
                let mut body = status.to_le_bytes().to_vec();
                body.extend((stdout.len() as u64).to_le_bytes());
                body.extend(stdout);
                body.extend(stderr);
                (4, body)
            }
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let number = || Some(u32::from_le_bytes(body.try_into().ok()?));
        Some(match kind {
            0 => Self::Hello,
            1 => Self::Run(String::from_utf8(body.to_vec()).ok()?),
            2 => Self::Started(number()?),
            3 => Self::Signal(number()?),
            4 => {
                let (status, rest) = body.split_at_checked(4)?;
                let (length, rest) = rest.split_at_checked(8)?;
                let length = u64::from_le_bytes(length.try_into().ok()?);
                let (stdout, stderr) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                Self::Done {
                    status: i32::from_le_bytes(status.try_into().ok()?),
                    stdout: stdout.to_vec(),
                    stderr: stderr.to_vec(),
                }
            }
            _ => return None,
        })
    }
}

/// Writes one frame about command `id` in a single write.
pub(crate) fn write(mut to: impl Write, id: u32, message: &Message) -> io::Result<()> {
    let (kind, body) = message.encode();
    let length = u32::try_from(body.len())
        .ok()
        .filter(|length| *length <= MAX_BODY_BYTES)
        .ok_or_else(|| io::Error::other("the output is longer than a frame may be; print less"))?;
    let mut frame = Vec::with_capacity(9 + body.len());
    frame.extend(length.to_le_bytes());
    frame.push(kind);
    frame.extend(id.to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)
}

/// Reads one frame. Returns the command's id and the message.
pub(crate) fn read(mut from: impl Read) -> io::Result<(u32, Message)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [a, b, c, d, kind, e, f, g, h] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    if length > MAX_BODY_BYTES {
        return Err(io::Error::other("the frame is longer than allowed"));
    }
    let mut body = Vec::new();
    from.take(length.into()).read_to_end(&mut body)?;
    let whole = u32::try_from(body.len()) == Ok(length);
    let message = if whole { Message::decode(kind, &body) } else { None };
    let message = message.ok_or_else(|| io::Error::other("the frame is incomplete or invalid"))?;
    Ok((u32::from_le_bytes([e, f, g, h]), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_wire_and_a_cut_one_is_an_error() {
        let output =
            Message::Done { status: -1, stdout: vec![0, 255, b'\n'], stderr: vec![b'x'; 70_000] };
        let messages = [
            Message::Hello,
            Message::Run("é\0".into()),
            Message::Started(7),
            Message::Signal(15),
            output,
        ];
        for (id, message) in (0..).zip(messages) {
            let mut wire = Vec::new();
            write(&mut wire, id, &message).unwrap();
            assert_eq!(read(&wire[..]).unwrap(), (id, message));
            assert!((0..wire.len()).step_by(13).all(|cut| read(&wire[..cut]).is_err()));
        }
    }

    #[test]
    fn an_excessive_length_is_refused_before_memory_is_allocated() {
        assert!(read(&[255; 9][..]).unwrap_err().to_string().contains("longer than allowed"));
    }
}
