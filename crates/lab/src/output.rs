//! The result of a finished command.

use anyhow::{Result, bail};
use std::borrow::Cow;

/// Exit status and output of a finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code, or 128 + signal, like a shell.
    pub status: i32,
    /// Everything on its standard output.
    pub stdout: Vec<u8>,
    /// Everything on its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Returns itself if the status is 0. Otherwise returns an error with the command's output.
    pub fn ok(self) -> Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        let stderr = String::from_utf8_lossy(&self.stderr);
        let output = if stderr.trim().is_empty() { self.text() } else { stderr };
        bail!("exit status {}: {}", self.status, output.trim())
    }
}
