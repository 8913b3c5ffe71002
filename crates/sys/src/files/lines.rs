//! Reads a large file line by line, through a buffer that grows only to the longest line.

use std::fs::File;
use std::io::{self, Read, Write};

use netsilo_model::parse::ParseError;

/// In bytes. It holds several lines of `/proc/interrupts` at 8192 CPUs (90 kB each). Longer lines
/// are refused.
const LONGEST_LINE: usize = 1 << 20;
const START: usize = 1 << 17;

/// In bytes: the lines of 10,000 interrupts at 8192 CPUs.
const MOST: u64 = 1 << 30;

pub(crate) enum LinesError {
    Read(io::Error),
    Save(io::Error),
    Parse(ParseError),
}

/// Calls `line` with each line, without its newline. Writes everything it reads to `save`.
pub(crate) fn read_lines(
    file: &mut impl Read,
    mut save: Option<File>,
    mut line: impl FnMut(&[u8]) -> Result<(), ParseError>,
) -> Result<(), LinesError> {
    let mut buffer = vec![0; START];
    let (mut filled, mut all) = (0, 0);
    loop {
        if filled == buffer.len() {
            if filled >= LONGEST_LINE {
                return Err(LinesError::Read(io::Error::other(format!(
                    "a line is longer than {LONGEST_LINE} bytes"
                ))));
            }
            buffer.resize(filled * 2, 0);
        }
        let read = match file.read(&mut buffer[filled..]) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(LinesError::Read(e)),
        };
        if read == 0 {
            return if filled == 0 {
                Ok(())
            } else {
                line(&buffer[..filled]).map_err(LinesError::Parse)
            };
        }
        if let Some(save) = &mut save {
            save.write_all(&buffer[filled..filled + read]).map_err(LinesError::Save)?;
        }
        all += read as u64;
        if all > MOST {
            return Err(LinesError::Read(io::Error::other(format!(
                "it has more than {} MiB",
                MOST >> 20
            ))));
        }
        let searched = filled;
        filled += read;
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', &buffer[searched..filled]).map(|at| searched + at) {
            line(&buffer[start..end]).map_err(LinesError::Parse)?;
            start = end + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<usize> {
        let mut lengths = Vec::new();
        let taken = read_lines(&mut &text[..], None, |line| {
            lengths.push(line.len());
            Ok(())
        });
        assert!(taken.is_ok());
        lengths
    }

    #[test]
    fn lines_longer_than_the_first_buffer_are_complete() {
        let long = "x".repeat(3 * START);
        assert_eq!(lines(format!("ab\n{long}\n\nlast").as_bytes()), [2, 3 * START, 0, 4]);
        assert_eq!(lines(b""), [] as [usize; 0]);
    }

    /// Returns at most this many bytes per read. `/proc` does the same: it returns at most a page
    /// or a record.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let room = buffer.len().min(self.1);
            self.0.read(&mut buffer[..room])
        }
    }

    proptest::proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_lines(
            text in "[a-z0-9: \n]{0,200}",
            size in 1..70usize,
        ) {
            let mut lines = Vec::new();
            let taken = read_lines(&mut Pieces(text.as_bytes(), size), None, |line| {
                lines.push(String::from_utf8_lossy(line).into_owned());
                Ok(())
            });
            proptest::prop_assert!(taken.is_ok());
            proptest::prop_assert_eq!(lines, text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let text = "x".repeat(LONGEST_LINE + 1);
        assert!(matches!(
            read_lines(&mut text.as_bytes(), None, |_| Ok(())),
            Err(LinesError::Read(_))
        ));
    }
}
