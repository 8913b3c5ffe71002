//! All cells of the experiment with requests and responses, those that were not published, too.

use std::error::Error;

use netsilo_predict::file;
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;

use crate::cells::RR;

/// Prints the rate of `none` and the gain of each other setting.
pub(crate) fn print(table: &Table) -> Result<(), Box<dyn Error>> {
    let values = table.values();
    let settings = ["rps_rfs", "irq_affinity", "irq_affinity+rps_rfs"];
    println!("| load | none | {} |\n|---|---|---|---|---|", settings.join(" | "));
    for kind in ["tcp-rr", "udp-rr"] {
        for bytes in ["1", "256"] {
            for instances in ["100", "500", "1500"] {
                let changes = [
                    ("load.kind".to_owned(), kind.to_owned()),
                    ("load.bytes".to_owned(), bytes.to_owned()),
                    ("load.instances".to_owned(), instances.to_owned()),
                ];
                let described = file::parse(RR, &changes, &[])?;
                let rate = |name: &str| {
                    predict(&described.scenario, &described.settings[name], &values).rate
                };
                let none = rate("none");
                let gains = settings.map(|name| 100.0 * (rate(name) / none - 1.0));
                let gains = gains.map(|gain| format!("{gain:+.1} %")).join(" | ");
                println!("| {kind} {bytes} B x {instances} | {none:.0} | {gains} |");
            }
        }
    }
    Ok(())
}
