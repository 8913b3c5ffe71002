//! QEMU's control channel (QMP).

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to QMP after its greeting.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        qmp.read().context("QEMU sent no greeting")?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let reply = self.read().with_context(|| format!("no answer to QMP {command}"))?;
            if let Some(value) = reply.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = reply.get("error") {
                bail!("QMP {command} failed: {error}");
            }
            // Any other message is an event.
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("QEMU closed its control channel");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
