//! All cells of the scenarios, those that were not published, too.

use std::error::Error;
use std::fmt::Write;

use netsilo_predict::parameters::Values;
use netsilo_predict::predict;
use netsilo_predict::prediction::Prediction;

use crate::cells::{FORWARD, GUEST, RR, described};

/// The settings of the experiment with requests and responses apart from `none`.
pub(crate) const SETTINGS: [&str; 3] = ["rps_rfs", "irq_affinity", "irq_affinity+rps_rfs"];

/// What a cell is called, the text of its scenario, what is changed of it, and the setting.
pub(crate) type Place<'a> = (String, &'a str, Vec<(&'a str, String)>, &'a str);

/// A row of a table: its name, and what the model says.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) figures: Vec<f64>,
}

impl Row {
    fn new(name: String, figures: impl IntoIterator<Item = f64>) -> Self {
        Self { name, figures: figures.into_iter().collect() }
    }

    fn line(&self) -> String {
        let figure = |figure: &f64| format!(" {figure:.0} |");
        format!("| {} |{}", self.name, self.figures.iter().map(figure).collect::<String>())
    }
}

/// Each load of requests and responses.
pub(crate) fn requests() -> Vec<Place<'static>> {
    let mut places = Vec::new();
    for kind in ["tcp-rr", "udp-rr"] {
        for bytes in ["1", "256"] {
            for instances in ["100", "500", "1500"] {
                let changes = vec![
                    ("load.kind", kind.to_owned()),
                    ("load.bytes", bytes.to_owned()),
                    ("load.instances", instances.to_owned()),
                ];
                places.push((format!("{kind} {bytes} B x {instances}"), RR, changes, "none"));
            }
        }
    }
    places
}

/// The guest before and after RPS, and the forwarder's settings, with RPS as one more.
pub(crate) fn others() -> Vec<Place<'static>> {
    let (one, two) = ("A_all_irqs_cpu0", "B_eth1_cpu0_eth2_cpu1");
    let filter = |name: &str| vec![("load.filter", name.to_owned())];
    let rps = vec![("settings.A_all_irqs_cpu0.rps", "0-1".to_owned())];
    vec![
        ("guest, none".into(), GUEST, Vec::new(), "none"),
        ("guest, rps".into(), GUEST, Vec::new(), "rps"),
        (format!("forward, {one}"), FORWARD, Vec::new(), one),
        (format!("forward, {two}"), FORWARD, Vec::new(), two),
        (
            format!("forward, {two}, two ways"),
            FORWARD,
            vec![("load.two_way", "true".to_owned())],
            two,
        ),
        (format!("forward, {two}, no rules"), FORWARD, filter("none"), two),
        (format!("forward, {two}, all dropped"), FORWARD, filter("raw-drop"), two),
        (format!("forward, {one}, rps"), FORWARD, rps, one),
    ]
}

fn predicted(
    place: &Place<'_>,
    setting: &str,
    values: &Values,
) -> Result<Prediction, Box<dyn Error>> {
    let described = described(place.1, &place.2)?;
    let setting = described.settings.get(setting).ok_or_else(|| format!("no setting {setting}"))?;
    Ok(predict(&described.scenario, setting, values))
}

/// Rate of `none` (1000/s), and the gain of each other setting (%).
pub(crate) fn request_rows(values: &Values) -> Result<Vec<Row>, Box<dyn Error>> {
    let row = |place: &Place<'_>| {
        let none = predicted(place, "none", values)?.rate;
        let mut figures = vec![none / 1e3];
        for setting in SETTINGS {
            figures.push(100.0 * (predicted(place, setting, values)?.rate / none - 1.0));
        }
        Ok(Row::new(place.0.clone(), figures))
    };
    requests().iter().map(row).collect()
}

/// Rate (1000/s), IPIs (1000/s), and softirq time of CPUs 0 and 1 (%).
pub(crate) fn other_rows(values: &Values) -> Result<Vec<Row>, Box<dyn Error>> {
    let row = |place: &Place<'_>| {
        let out = predicted(place, place.3, values)?;
        let softirqs = [0, 1].map(|cpu| 100.0 * out.cpus[cpu].softirq);
        let rates = [out.rate / 1e3, out.ipis.unwrap_or(0.0) / 1e3];
        Ok(Row::new(place.0.clone(), rates.into_iter().chain(softirqs)))
    };
    others().iter().map(row).collect()
}

/// Both tables as evidence/predictions.md has them.
pub(crate) fn text(values: &Values) -> Result<String, Box<dyn Error>> {
    let mut text = format!("| load | none (1000/s) | {} |\n", SETTINGS.join(" (%) | ") + " (%)");
    text += "|---|---|---|---|---|\n";
    for row in request_rows(values)? {
        writeln!(text, "{}", row.line())?;
    }
    text += "\n| setting | rate (1000/s) | IPIs (1000/s) | softirq of cpu 0 (%) | of cpu 1 (%) |\n";
    text += "|---|---|---|---|---|\n";
    for row in other_rows(values)? {
        writeln!(text, "{}", row.line())?;
    }
    Ok(text)
}
