//! The filter behind `--ndjson`. Each line of standard input is an observation or the path of a
//! bundle. It becomes one line of JSON on standard output, in the same order.
//!
//! Lines go to the workers in turn, and results are taken from the workers in turn. So the order is
//! kept, and memory holds only a few lines per worker. If a line cannot be used, its output is a
//! line with `error`, and the next line is read. Workers are processes, so this also works for a
//! line that ends its worker.

mod worker;

use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal as _, Read as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_decide::judge::findings::Check;
use netsilo_decide::plan::Plan;
use netsilo_model::machine::schema::Stamp;
use netsilo_model::snapshot::observation::{Observation, ObservationDocument, SCHEMA};
use netsilo_predict::live::forecast::Forecast;
use netsilo_sys::bundle;
use serde::Serialize;

use crate::ndjson::worker::Worker;
use crate::tell::exit::{Exit, in_words};
use crate::tell::out;
use crate::tell::words::plural;

/// Maximum length of a line of input in bytes: several times a machine of 512 CPUs and 4000
/// interrupts.
const MOST_LINE: u64 = 16 << 20;

/// Maximum length of a path in bytes, as in the kernel (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// Maximum length of a reason in characters: a parser's words may repeat a value of the line.
const LONGEST_REASON: usize = 400;

/// Per worker: number of lines that wait for it, and of results that wait to be printed.
const WAITING: usize = 4;

/// A verb's answer for one host.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// As `netsilo plan --json` prints it.
    Plan(Box<WithForecast<Plan>>),
    /// As `netsilo check --json` prints it.
    Check(Box<Check>),
    /// As `netsilo predict --json` prints it.
    Forecast(Box<Forecast>),
    /// Why the line could not be used.
    Error(String),
}

/// An answer, with what it would do to the observed load. The forecast is missing without
/// `--predict`, if too little was observed, or if nothing changes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WithForecast<T> {
    #[serde(flatten)]
    pub(crate) answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forecast: Option<Forecast>,
}

/// One line of output, as described in `docs/howto/fleet.md`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutputLine<'a> {
    /// The number of this schema.
    schema: u32,
    /// Number of the line of input, from 1.
    line: u64,
    /// The bundle that the line named.
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Host<'a>>,
    #[serde(flatten)]
    answer: Answer,
}

/// The values by which hosts are grouped.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Host<'a> {
    name: &'a str,
    /// Release of its kernel.
    kernel: &'a str,
    /// Number of online CPUs.
    cpus: usize,
    /// Drivers of its netdevs with interrupts.
    drivers: BTreeSet<&'a str>,
}

impl<'a> Host<'a> {
    fn of(observation: &'a Observation) -> Self {
        let after = &observation.after;
        let devices = after.netdevs.iter().filter(|netdev| !netdev.irqs.is_empty());
        Self {
            name: &after.machine.hostname,
            kernel: &after.machine.release,
            cpus: after.topology.online.len(),
            drivers: devices.filter_map(|netdev| netdev.driver.as_deref()).collect(),
        }
    }
}

/// A line of input with its number. `None`: it is too long.
struct InputLine {
    number: u64,
    text: Option<Vec<u8>>,
}

/// What a line holds.
enum Content<'a> {
    /// JSON.
    Observation(&'a str),
    /// The path of a bundle.
    Bundle(&'a str),
}

/// A line of output, and whether its input was usable.
struct Printed {
    text: String,
    usable: bool,
}

/// Answers each line of standard input on standard output.
pub(crate) fn filter(answer: impl Fn(&Observation) -> Answer) -> Result<Exit> {
    if worker::is_one() {
        worker::serve(|number, text| {
            let printed = InputLine { number, text: Some(text) }.answered(&answer)?;
            Ok((printed.usable, printed.text))
        })?;
        return Ok(Exit::Printed);
    }
    let bar = progress();
    let (mut lines, mut unusable) = (0, 0);
    each_line(io::BufReader::new(io::stdin()), by_a_process, |printed| {
        lines += 1;
        unusable += usize::from(!printed.usable);
        bar.inc(1);
        out::next(&printed.text)
    })?;
    bar.finish_and_clear();
    if unusable == 0 {
        return Ok(Exit::Printed);
    }
    let of = plural(lines, "line");
    out::note(&format!(
        "{unusable} of {of} could not be used: each has an \"error\" with the reason"
    ));
    Ok(Exit::UnusableLines)
}

/// Returns a function that answers lines in a separate process.
fn by_a_process() -> impl FnMut(&InputLine) -> Result<Printed> {
    let mut worker = Worker::default();
    move |line| {
        let Some(text) = &line.text else {
            return line.printed(None, Answer::Error(too_long()));
        };
        match worker.ask(line.number, text)? {
            Ok((usable, text)) => Ok(Printed { text, usable }),
            // If the data of one host triggers a defect, only that host's answer is lost.
            Err(why) => line.printed(None, Answer::Error(why)),
        }
    }
}

/// Gives the lines to workers in turn, and takes their results in turn, until `print` returns
/// false. `worker` makes the function that one worker calls for a line.
///
/// Then the threads are abandoned: the one that reads may wait for input that never comes.
fn each_line<W: FnMut(&InputLine) -> Result<Printed> + Send + 'static>(
    input: impl BufRead + Send + 'static,
    worker: impl Fn() -> W,
    mut print: impl FnMut(Printed) -> bool,
) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (mut givers, mut results, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..workers {
        let (give, work) = sync_channel(WAITING);
        let (done, result) = sync_channel(WAITING);
        let answer = worker();
        threads.push(thread::spawn(move || {
            work_on(&work, answer, &done);
            Ok(())
        }));
        givers.push(give);
        results.push(result);
    }
    threads.push(thread::spawn(move || read(input, &givers)));
    for result in results.iter().cycle() {
        let Ok(printed) = result.recv() else { break };
        if !print(printed?) {
            return Ok(());
        }
    }
    drop(results);
    threads.into_iter().try_for_each(|thread| {
        thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the filter failed")))
    })
}

/// Reads all lines that are not empty.
fn read(mut input: impl BufRead, workers: &[SyncSender<InputLine>]) -> Result<()> {
    let mut worker = workers.iter().cycle();
    let (mut number, mut length) = (0, 0);
    loop {
        // Lines are about as long as the one before.
        let mut text = Vec::with_capacity(length);
        let cannot = "cannot read standard input";
        length = input.by_ref().take(MOST_LINE + 1).read_until(b'\n', &mut text).context(cannot)?;
        if length == 0 {
            return Ok(());
        }
        number += 1;
        let too_long = text.len() as u64 > MOST_LINE;
        if too_long && !text.ends_with(b"\n") {
            input.skip_until(b'\n').context(cannot)?;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let line = InputLine { number, text: (!too_long).then_some(text) };
        let Some(Ok(())) = worker.next().map(|worker| worker.send(line)) else { return Ok(()) };
    }
}

fn work_on(
    work: &Receiver<InputLine>,
    mut answer: impl FnMut(&InputLine) -> Result<Printed>,
    done: &SyncSender<Result<Printed>>,
) {
    for line in work {
        if done.send(answer(&line)).is_err() {
            return;
        }
    }
}

impl InputLine {
    fn answered(&self, answer: &impl Fn(&Observation) -> Answer) -> Result<Printed> {
        match self.observation() {
            Ok(observation) => self.printed(Some(Host::of(&observation)), answer(&observation)),
            Err(error) => self.printed(None, Answer::Error(shortened(&in_words(&error)))),
        }
    }

    fn printed(&self, host: Option<Host<'_>>, answer: Answer) -> Result<Printed> {
        let bundle = match self.content() {
            Ok(Content::Bundle(path)) => Some(path.to_owned()),
            _ => None,
        };
        let usable = !matches!(answer, Answer::Error(_));
        let line = OutputLine { schema: 1, line: self.number, bundle, host, answer };
        Ok(Printed { text: out::line(&line)?, usable })
    }

    /// What the line is by its first character.
    fn content(&self) -> Result<Content<'_>> {
        let bytes = self.text.as_deref().with_context(too_long)?.trim_ascii();
        let text = std::str::from_utf8(bytes)
            .map_err(|error| anyhow!("not UTF-8 at byte {}", error.valid_up_to() + 1))?;
        match text.chars().next() {
            Some('{') => Ok(Content::Observation(text)),
            Some(first) if first.is_alphanumeric() || "/._-~".contains(first) => {
                let length = text.len();
                ensure!(
                    length <= LONGEST_PATH,
                    "the line is no observation, and too long for the path of a bundle: {length} \
                     bytes"
                );
                Ok(Content::Bundle(text))
            }
            first => bail!(
                "the line begins with {:?}: neither an observation nor the path of a bundle",
                first.unwrap_or_default()
            ),
        }
    }

    fn observation(&self) -> Result<Observation> {
        match self.content()? {
            Content::Bundle(path) => bundle::open(Path::new(path)).context("cannot use the bundle"),
            Content::Observation(text) => parse(text),
        }
    }
}

/// Leaves out the middle of a long reason.
fn shortened(words: &str) -> String {
    let rest = words.chars().count().saturating_sub(LONGEST_REASON);
    if rest == 0 {
        return words.into();
    }
    let half = LONGEST_REASON / 2;
    let (start, end) = (words.chars().take(half), words.chars().skip(half + rest));
    start.chain("...".chars()).chain(end).collect()
}

fn too_long() -> String {
    format!("the line is longer than {} MiB", MOST_LINE >> 20)
}

/// Reads an observation if this netsilo knows its schema.
fn parse(text: &str) -> Result<Observation> {
    let document = serde_json::from_str::<ObservationDocument>(text);
    let stamp = match &document {
        Ok(document) => Some(document.stamp()),
        // If the rest cannot be read, a newer schema is the likely reason.
        Err(_) => serde_json::from_str(text).ok(),
    };
    if let Some(Err(unknown)) = stamp.map(|it: Stamp| it.check(SCHEMA)) {
        bail!("the observation has {unknown}");
    }
    let document = document.map_err(|error| {
        if error.is_eof() {
            return anyhow!("not an observation: truncated at byte {}", text.len());
        }
        let words = error.to_string();
        // The line of input has no line 2.
        let what = words.rsplit_once(" at line ").map_or(&*words, |(what, _)| what);
        anyhow!("not an observation: at byte {}: {what}", error.column())
    })?;
    let mut observation = document.observation();
    let follows = observation.after.follows(&observation.before);
    ensure!(follows, "the observation's two snapshots are not of one boot");
    observation.attribution.escape_names();
    Ok(observation)
}

/// Counts lines on stderr, unless they are printed on the same terminal.
fn progress() -> ProgressBar {
    if io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{pos} lines, {per_sec}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::machine::schema::NETSILO;
    use serde_json::{Value, json};

    use super::*;

    /// Written by the netsilo version that introduced schema 1.
    const SCHEMA_1: &str = include_str!("../../../fixtures/observation-schema-1.ndjson");

    fn check(observation: &Observation) -> Answer {
        let check = netsilo_decide::judge::findings::check;
        let answer = check(&Analysis::new(observation, &Costs::default()));
        Answer::Check(Box::new(answer))
    }

    fn printed(
        input: impl Into<Vec<u8>>,
        answer: impl Fn(&Observation) -> Answer + Clone + Send + 'static,
    ) -> Vec<Value> {
        let mut lines = Vec::new();
        let worker = || {
            let answer = answer.clone();
            move |line: &InputLine| line.answered(&answer)
        };
        each_line(io::Cursor::new(input.into()), worker, |line| {
            lines.push(serde_json::from_str(&line.text).unwrap());
            true
        })
        .unwrap();
        lines
    }

    fn errors(input: impl Into<Vec<u8>>) -> Vec<(u64, String)> {
        let printed = printed(input, check);
        let with_error = printed.iter().filter(|line| line["error"].is_string());
        with_error
            .map(|it| (it["line"].as_u64().unwrap(), it["error"].as_str().unwrap().to_owned()))
            .collect()
    }

    #[test]
    fn an_observation_of_schema_1_is_read() {
        let lines = printed(SCHEMA_1, check);
        let host = json!({
            "name": "host-000000", "kernel": "6.1.0-28-amd64", "cpus": 8, "drivers": ["ice"],
        });
        assert_eq!((lines.len(), &lines[0]["host"]), (1, &host));
        assert_eq!(lines[0]["check"]["findings"][0]["id"], "readers-on-another-node");
    }

    #[test]
    fn answers_are_in_the_order_of_the_lines() {
        let mut document: Value = serde_json::from_str(SCHEMA_1).unwrap();
        let input: String = (0..500)
            .map(|number| {
                document["after"]["machine"]["hostname"] = format!("h{number}").into();
                format!("{document}\n")
            })
            .collect();
        // The first lines take the longest, as when a bundle comes among observations.
        let lines = printed(input, |observation| {
            let name = &observation.after.machine.hostname;
            if name.len() == 2 { check(observation) } else { Answer::Error(name.clone()) }
        });
        let names: Vec<_> = lines.iter().map(|line| line["host"]["name"].clone()).collect();
        assert_eq!(names, (0..500).map(|number| json!(format!("h{number}"))).collect::<Vec<_>>());
        assert!(lines.iter().zip(1..).all(|(line, number)| line["line"] == json!(number)));
    }

    #[test]
    fn a_bad_line_has_its_number_and_is_not_the_end() {
        let newer = "\"schema\":2,\"netsilo\":\"0.4.0\"";
        let newer = SCHEMA_1.replacen("\"schema\":1", newer, 1);
        let cut = &SCHEMA_1[..8192];
        // A megabyte where a number belongs: the reason does not repeat it.
        let text = format!("\"schema\":\"{}\"", "a".repeat(1 << 20));
        let long = SCHEMA_1.replacen("\"schema\":1", &text, 1);
        let path = "a".repeat(LONGEST_PATH + 1);
        let input = format!(
            "{{\n\n{SCHEMA_1}{{\"schema\":2}}\n{newer}no/such/bundle\n{SCHEMA_1}{cut}\n{long}{path}\n\
             [{SCHEMA_1}\u{feff}{SCHEMA_1}\0\n{{]\n\r\n"
        );
        let mut input = input.into_bytes();
        input.extend(SCHEMA_1.replacen("ice", "i\u{ff}e", 1).bytes().filter(|byte| *byte != 0xc3));
        let errors = errors(input.clone());
        let neither = ": neither an observation nor the path of a bundle";
        let expected = [
            (1, "not an observation: truncated at byte 1".to_owned()),
            (4, format!("the observation has schema 2; this is netsilo {NETSILO}, which reads up")),
            (5, "the observation has schema 2, written by netsilo 0.4.0; this is ".into()),
            (6, "cannot use the bundle: no/such/bundle: No such file".into()),
            (8, "not an observation: truncated at byte 8192".into()),
            (9, "not an observation: at byte 1048588: invalid type: string".into()),
            (10, "the line is no observation, and too long for the path of a bundle: 4097".into()),
            (11, format!("the line begins with '['{neither}")),
            (12, format!("the line begins with '\\u{{feff}}'{neither}")),
            (13, format!("the line begins with '\\0'{neither}")),
            (14, "not an observation: at byte 2: key must be a string".into()),
            (16, "not UTF-8 at byte ".into()),
        ];
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        for ((line, error), (number, begin)) in errors.iter().zip(&expected) {
            assert_eq!(line, number);
            assert!(error.starts_with(begin), "{line}: {error}");
            assert!(error.len() < 500, "{line}: {}", error.len());
        }
        assert_eq!(printed(input, check).len(), 14);
    }

    #[test]
    fn a_line_above_the_limit_is_not_kept() {
        let long = format!("{{{}\n{{}}\n", " ".repeat(MOST_LINE as usize));
        let errors = errors(long);
        assert_eq!(errors[0], (1, "the line is longer than 16 MiB".to_owned()));
        assert_eq!(errors[1].0, 2);
        // at the limit the line is read: it is JSON without the fields of an observation
        let longest = format!("{{{}}}", " ".repeat(MOST_LINE as usize - 2));
        assert!(self::errors(longest)[0].1.contains("missing field"));
    }
}
