//! Prints as JSON, without sampling, which CPU polled each NAPI and which process read its data.
//! Runs until standard input ends or for a number of seconds.
//!
//!     attribution            until end of input; prints "attached" on stderr when attached
//!     attribution 2.5        for 2.5 seconds
//!     attribution window 0.2 the same, as a window
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "an example speaks to its user")]

use std::error::Error;
use std::io::Read as _;
use std::time::Duration;

use netsilo_sys::bpf::tracer::{Options, Tracer, observe_window};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = |text: &str| text.parse().map(Duration::from_secs_f64);
    let attribution = match *arguments {
        ["window", length] => observe_window(seconds(length)?, Options::exact())?,
        [length] => continuously(Some(seconds(length)?))?,
        _ => continuously(None)?,
    };
    println!("{}", serde_json::to_string_pretty(&attribution)?);
    Ok(())
}

fn continuously(
    length: Option<Duration>,
) -> Result<netsilo_model::snapshot::attribution::Attribution, Box<dyn Error>> {
    let mut tracer = Tracer::attach(Options::exact());
    eprintln!("attached");
    match length {
        Some(length) => std::thread::sleep(length),
        None => _ = std::io::stdin().read_to_end(&mut Vec::new())?,
    }
    Ok(tracer.read()?)
}
