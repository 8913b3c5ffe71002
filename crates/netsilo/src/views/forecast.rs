//! What settings would do to the observed load, as text.

use netsilo_predict::live::claim::{Claim, is_near_full};
use netsilo_predict::live::forecast::{Expected, Forecast};
use netsilo_predict::prediction::CpuTime;
use netsilo_trial::stats::Estimate;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::predict::{Cell, bar, change, table};
use crate::views::table::{narrowed, wrapped};
use crate::views::units::{count, or_dash, percent};

/// The forecast of one setting in one line.
pub(crate) fn line(forecast: &Forecast) -> Styled {
    let mut text = Styled::default();
    let [now, setting] = forecast.settings.as_slice() else { return text };
    if setting.gain.is_none() {
        let what = compact(&setting.not_modeled);
        text.push(Meaning::Quiet, format_args!("no forecast: the model does not have {what}\n"));
        return text;
    }
    text.push(
        Meaning::Plain,
        format_args!(
            "forecast: this load fits x{} now (limit: {}), then x{} ({}): ",
            count(now.fits.value),
            now.limit,
            count(setting.fits.value),
            setting.limit
        ),
    );
    text.append(&of(now, setting));
    if !setting.not_modeled.is_empty() {
        text.push(
            Meaning::Quiet,
            format_args!("; it does not include: {}", compact(&setting.not_modeled)),
        );
    }
    text.push(Meaning::Plain, "\n");
    text
}

/// The gain of a setting in words, if the model has one.
pub(crate) fn gain(forecast: &Forecast, name: &str) -> Option<Styled> {
    let (now, settings) = forecast.settings.split_first()?;
    let setting = settings.iter().find(|it| it.name == name)?;
    setting.gain.map(|_| of(now, setting))
}

/// The forecast of a remedy, in words.
pub(crate) fn forecast_in_words(gain: Estimate, limit: &str) -> String {
    format!("forecast: {} of the load that fits; then full first: {limit}", gain.in_percent())
}

/// The change by a setting. Where nothing is full, more room than there is has no effect.
fn of(now: &Expected, setting: &Expected) -> Styled {
    let is_clear = matches!(setting.claim, Some(Claim::Help | Claim::Hurt));
    let is_idle = !is_near_full(now.fits.value);
    match setting.gain.filter(|gain| !is_clear && is_idle && !gain.contains(0.0)) {
        Some(gain) => {
            let range = gain.percent_range();
            Styled::new(Meaning::Quiet, format_args!("nothing is full ({range})"))
        }
        None => change(setting.gain, is_clear),
    }
}

/// The first few knobs, and how many more there are.
fn compact(knobs: &[String]) -> String {
    match knobs {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
    }
}

/// Compares settings with the machine as it is. With `per_cpu`, lists the CPUs whose time changes.
pub(crate) fn render(forecast: &Forecast, per_cpu: bool, presentation: Presentation) -> Styled {
    let Some(now) = forecast.settings.first() else { return Styled::default() };
    let most = forecast.settings.iter().map(|it| it.fits.value).fold(0.0, f64::max);
    let sum = |it: &Expected, of: fn(&CpuTime) -> f64| it.cpus.values().map(of).sum::<f64>();
    let row = |it: &Expected| -> Vec<Cell> {
        vec![
            ("setting", it.name.clone().into()),
            ("fits", format!("x{}", count(it.fits.value)).into()),
            ("", bar(it.fits.value / most, presentation)),
            ("change", of(now, it)),
            ("softirq", format!("{:.2}", sum(it, |cpu| cpu.softirq)).into()),
            ("usr+sys", format!("{:.2}", sum(it, |cpu| cpu.usr + cpu.sys)).into()),
            ("interrupts/s", or_dash(it.interrupts_per_s, count).into()),
            ("IPIs/s", count(it.ipis_per_s).into()),
            ("limit", it.limit.to_string().into()),
        ]
    };
    let mut text = table(forecast.settings.iter().map(row).collect(), presentation);
    let load = match forecast.load {
        1.0 => "the observed load".to_owned(),
        load => format!("x{} the observed load", count(load)),
    };
    let note = format!(
        "{} packets/s, {load}. fits: how many times this load, until the limit is full; its change \
         with a 90% interval. softirq, usr+sys: in CPUs",
        count(forecast.packets_per_s)
    );
    text.push(Meaning::Quiet, format_args!("\n{}\n", wrapped(&note, presentation.width)));
    if !forecast.assumed.is_empty() {
        let note = format!("not measured here: {}", forecast.assumed.join("; "));
        text.push(Meaning::Quiet, format_args!("{}\n", wrapped(&note, presentation.width)));
    }
    for setting in forecast.settings.iter().filter(|it| !it.not_modeled.is_empty()) {
        let note = format!(
            "{}: the forecast does not include: {}",
            setting.name,
            compact(&setting.not_modeled)
        );
        text.push(Meaning::Quiet, format_args!("{}\n", wrapped(&note, presentation.width)));
    }
    if per_cpu {
        text.append(&cpus(forecast, presentation));
    }
    text
}

/// Each CPU's time in softirqs and tasks, by setting. CPUs that no setting changes are left out.
fn cpus(forecast: &Forecast, presentation: Presentation) -> Styled {
    let Some(present) = forecast.settings.first() else { return Styled::default() };
    let names = forecast.settings.iter().map(|it| it.name.as_str());
    let header: Vec<&str> = std::iter::once("cpu").chain(names).collect();
    let mut rows: Vec<Vec<Styled>> = Vec::new();
    for (cpu, now) in &present.cpus {
        let times: Vec<CpuTime> =
            forecast.settings.iter().map(|it| it.cpus.get(cpu).copied().unwrap_or(*now)).collect();
        if times.iter().all(|time| time == now) {
            continue;
        }
        let cell = |time: &CpuTime| -> Styled {
            let text = format!("{} / {}", percent(time.softirq), percent(time.usr + time.sys));
            match time.softirq {
                share if share >= 1.0 => Styled::new(Meaning::Bad, text),
                _ => text.into(),
            }
        };
        rows.push(std::iter::once(cpu.to_string().into()).chain(times.iter().map(cell)).collect());
    }
    let mut text = Styled::new(Meaning::Title, "\nsoftirq / usr+sys\n");
    text.append(&narrowed(&header, &rows, |_| true, &[], presentation.width));
    text.push(Meaning::Plain, "\n");
    text
}
