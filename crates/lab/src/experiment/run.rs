//! The loop of all experiments. Whatever a folder already has is not measured again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use netsilo_trial::experiment::order;

use crate::experiment::record::{LoadRecord, Recorded, SettingRecord};
use crate::experiment::study::{Options, Study, Usual};
use crate::say::{bar, progress};

/// Maximum number of machines for one load, because each may hang.
const MACHINES: usize = 4;

/// The beginning of the lab's message that a guest has hung.
const HUNG: &str = "the guest has hung";

/// A run of one study.
struct Run<'a> {
    options: &'a Options,
    rounds: u32,
    seconds: f64,
    folder: PathBuf,
    begun: Instant,
}

/// Measures these studies, or reads earlier measurements. Returns each record with its folder.
///
/// A temporary folder lives as long as `temporary`.
pub(crate) fn records(
    options: &Options,
    usual: Usual,
    studies: Vec<Box<dyn Study + '_>>,
    temporary: &tempfile::TempDir,
) -> Result<Vec<(PathBuf, Recorded)>> {
    let mut folders = options.from.clone();
    if folders.is_empty() {
        let keep = options.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
        folders = run(options, usual, studies, &keep)?;
    }
    let read = |folder: PathBuf| {
        let recorded = Recorded::read(&folder)?;
        Ok((folder.clone(), recorded.with_context(|| format!("{folder:?} has no record"))?))
    };
    folders.into_iter().map(read).collect()
}

/// Measures what the folders of these studies lack. Returns those that have a record.
fn run(
    options: &Options,
    usual: Usual,
    studies: Vec<Box<dyn Study + '_>>,
    keep: &Path,
) -> Result<Vec<PathBuf>> {
    let begun = Instant::now();
    let mut folders = Vec::new();
    for mut study in studies {
        let folder = keep.join(study.folder());
        std::fs::create_dir_all(&folder).with_context(|| format!("{folder:?}"))?;
        let (rounds, seconds) =
            (options.rounds.unwrap_or(usual.rounds), options.seconds.unwrap_or(usual.seconds));
        let run = Run { options, rounds, seconds, folder, begun };
        run.study(&mut *study)?;
        if Recorded::read(&run.folder)?.is_some() {
            folders.push(run.folder);
        }
    }
    progress(&format!("done after {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0));
    Ok(folders)
}

impl Run<'_> {
    fn study(&self, study: &mut dyn Study) -> Result<()> {
        let loads: Vec<String> =
            study.loads().into_iter().filter(|name| self.options.wants(name)).collect();
        for (number, name) in loads.iter().enumerate() {
            let most = self.options.at_most.map(Duration::from_secs);
            if most.is_some_and(|most| self.begun.elapsed() >= most) {
                progress("the time is over: run the same command again to continue");
                return Ok(());
            }
            let recorded = Recorded::read(&self.folder)?;
            let known = recorded.iter().flat_map(|it| &it.loads).find(|load| load.name == *name);
            if known.is_some_and(|load| load.complete_rounds() >= self.rounds as usize) {
                continue;
            }
            progress(&format!("{} of {}: {name}", number + 1, loads.len()));
            self.load(study, name)?;
        }
        Ok(())
    }

    /// Measures a load. If the machine fails, a fresh one continues with what is missing. At the
    /// end, the record has the reason for what is still missing.
    fn load(&self, study: &mut dyn Study, name: &str) -> Result<()> {
        let mut recorded = match Recorded::read(&self.folder)? {
            Some(recorded) => recorded,
            None => Recorded {
                about: format!(
                    "netsilo-lab experiment, {} rounds of {} s; {}",
                    self.rounds,
                    self.seconds,
                    study.machine()?
                ),
                seed: self.options.seed.unwrap_or_else(|| fastrand::u64(..)),
                loads: Vec::new(),
            },
        };
        for left in (0..MACHINES).rev() {
            let Err(error) = self.measure(study, name, &mut recorded) else { return Ok(()) };
            progress(&format!("{name}: {error:#}"));
            let why = reason(&error);
            if !study.restart(&why) {
                return Err(error.context(name.to_owned()));
            }
            if left > 0 {
                progress("continuing on a fresh machine");
            } else {
                let at = position(&mut recorded, name).unwrap_or_else(|| {
                    recorded
                        .loads
                        .push(LoadRecord { name: name.to_owned(), ..LoadRecord::default() });
                    recorded.loads.len() - 1
                });
                let done = recorded.loads[at].complete_rounds();
                recorded.loads[at].failed =
                    Some(format!("{done} of {} rounds: {why}", self.rounds));
                recorded.write(&self.folder)?;
            }
        }
        Ok(())
    }

    /// Measures what the record lacks for a load, and writes it.
    fn measure(&self, study: &mut dyn Study, name: &str, recorded: &mut Recorded) -> Result<()> {
        let mut scene = study.start(name)?;
        let at =
            match position(recorded, name).filter(|at| !recorded.loads[*at].settings.is_empty()) {
                Some(at) => at,
                None => {
                    let mut load = scene.plan(&self.folder)?;
                    load.again = load.settings.first().map(|it| SettingRecord { ..it.clone() });
                    recorded.loads.retain(|known| known.name != name);
                    recorded.loads.push(load);
                    // The predictions are on the disk before anything is measured.
                    recorded.write(&self.folder)?;
                    recorded.loads.len() - 1
                }
            };
        let load = &mut recorded.loads[at];
        load.failed = None;
        let settings = load.settings.len() + usize::from(load.again.is_some());
        let seed = recorded.seed.wrapping_add(at as u64);
        let mut steps = order(seed, self.rounds, 1, settings);
        steps.retain(|(round, _, setting)| {
            nth(&mut recorded.loads[at], *setting).rates.len() <= *round as usize
        });
        let bar = bar(steps.len() as u64);
        for (_, _, setting) in steps {
            let setting = nth(&mut recorded.loads[at], setting);
            bar.set_message(format!("{name}: {}", setting.label()));
            scene.apply(setting).with_context(|| setting.label())?;
            setting.push(&scene.measure(self.seconds).with_context(|| setting.label())?);
            recorded.write(&self.folder)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        if let Err(error) = scene.finish() {
            // If something disturbed a measurement, the next run repeats it.
            recorded.loads.remove(at);
            recorded.write(&self.folder)?;
            return Err(error);
        }
        Ok(())
    }
}

fn position(recorded: &mut Recorded, name: &str) -> Option<usize> {
    recorded.loads.iter().position(|load| load.name == name)
}

/// A setting by its number. The number after the last means the first setting again.
fn nth(load: &mut LoadRecord, setting: usize) -> &mut SettingRecord {
    match &mut load.again {
        Some(again) if setting == load.settings.len() => again,
        _ => &mut load.settings[setting],
    }
}

/// Why a machine failed, in one line: it has hung, or else the first cause.
fn reason(error: &Error) -> String {
    let causes = || error.chain().map(ToString::to_string);
    let hung = causes().any(|cause| cause.starts_with(HUNG));
    let cause = if hung { HUNG.to_owned() } else { causes().last().unwrap_or_default() };
    cause.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::experiment::record::RoundResult;
    use crate::experiment::study::Scene;

    /// Two settings under two loads. Each machine lasts for a number of measurements.
    struct Fake {
        lives: Vec<usize>,
        plans: usize,
    }

    impl Study for Fake {
        fn folder(&self) -> &'static str {
            "fake"
        }

        fn loads(&self) -> Vec<String> {
            ["one", "two"].map(str::to_owned).to_vec()
        }

        fn machine(&mut self) -> Result<String> {
            Ok("a machine".to_owned())
        }

        fn start(&mut self, _load: &str) -> Result<Box<dyn Scene + '_>> {
            Ok(Box::new(FakeScene(self)))
        }

        fn restart(&mut self, _why: &str) -> bool {
            self.lives.remove(0);
            !self.lives.is_empty()
        }
    }

    struct FakeScene<'a>(&'a mut Fake);

    impl Scene for FakeScene<'_> {
        fn plan(&mut self, _folder: &Path) -> Result<LoadRecord> {
            self.0.plans += 1;
            let settings = ["a", "b"].map(|name| SettingRecord::new(name, &[])).to_vec();
            let name = if self.0.plans == 1 { "one" } else { "two" };
            Ok(LoadRecord { name: name.to_owned(), settings, ..LoadRecord::default() })
        }

        fn apply(&mut self, _setting: &SettingRecord) -> Result<()> {
            Ok(())
        }

        fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
            let life = &mut self.0.lives[0];
            if *life == 0 {
                bail!("no end after 3 minutes\nits output: ...");
            }
            *life -= 1;
            Ok(RoundResult { rate: seconds, figures: Vec::new() })
        }
    }

    fn options(rounds: u32, keep: &Path) -> Options {
        Options {
            rounds: Some(rounds),
            seconds: None,
            seed: Some(1),
            loads: Vec::new(),
            keep: Some(keep.to_owned()),
            from: Vec::new(),
            at_most: None,
        }
    }

    fn measure(lives: &[usize], rounds: u32, keep: &Path) -> Result<Recorded> {
        let usual = Usual { rounds: 6, seconds: 2.0 };
        let study = Fake { lives: lives.to_vec(), plans: 0 };
        let folders = run(&options(rounds, keep), usual, vec![Box::new(study)], keep)?;
        Ok(Recorded::read(&folders[0])?.unwrap())
    }

    fn rounds(recorded: &Recorded) -> Vec<usize> {
        recorded.loads.iter().map(LoadRecord::complete_rounds).collect()
    }

    #[test]
    fn each_round_has_every_setting_and_the_first_one_twice() {
        let folder = tempfile::tempdir().unwrap();
        let recorded = measure(&[100], 3, folder.path()).unwrap();
        assert_eq!((recorded.about.contains("a machine"), recorded.seed), (true, 1));
        for load in &recorded.loads {
            let again = load.again.as_ref().unwrap();
            assert_eq!((again.name.as_str(), again.rates.as_slice()), ("a", &[2.0; 3][..]));
            assert!(load.settings.iter().all(|it| it.rates == [2.0; 3]), "{load:?}");
        }
        // 2 loads x 3 rounds x 3 are measured, so another run has nothing to do.
        assert_eq!(rounds(&measure(&[0], 3, folder.path()).unwrap()), [3, 3]);
    }

    #[test]
    fn a_run_goes_on_with_what_the_folder_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let error = measure(&[4], 2, folder.path()).unwrap_err();
        assert!(format!("{error:#}").starts_with("one: "), "{error:#}");
        assert_eq!(rounds(&measure(&[2 + 6], 2, folder.path()).unwrap()), [2, 2]);
    }

    #[test]
    fn a_fresh_machine_goes_on_and_what_is_lost_in_the_end_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let recorded = measure(&[4, 1, 100], 2, folder.path()).unwrap();
        assert_eq!((rounds(&recorded), &recorded.loads[0].failed), (vec![2, 2], &None));
        let folder = tempfile::tempdir().unwrap();
        let recorded = measure(&[4, 0, 0, 0, 100], 2, folder.path()).unwrap();
        assert_eq!(rounds(&recorded), [1, 2]);
        let why = recorded.loads[0].failed.as_deref();
        assert_eq!(why, Some("1 of 2 rounds: no end after 3 minutes"));
        assert_eq!(rounds(&measure(&[100], 2, folder.path()).unwrap()), [2, 2]);
    }

    #[test]
    fn a_hang_is_named_and_any_other_failure_by_its_cause() {
        let timeout = || anyhow::anyhow!("no end after 3 minutes\nits output: ...");
        let hung =
            timeout().context("the guest has hung; its console: ...").context("in the guest");
        assert_eq!(reason(&hung), "the guest has hung");
        assert_eq!(reason(&timeout().context("in the guest")), "no end after 3 minutes");
    }
}
