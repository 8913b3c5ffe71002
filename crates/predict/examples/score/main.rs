//! Holds the model to published experiments: fits its parameters, and compares what the model says
//! with what was published, as fitted to all cells and as fitted without the cell's group.
//!
//! `make predict-score` runs it. `-v` lists every cell, each way; `--write` keeps the fit in
//! `fitted.csv`; `--grid` prints all cells of the scenarios, published or not, by the parameters
//! that are built in (with `--refit`: by those of a new fit).

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program of its own: it has arguments and writes a file"
)]

mod cells;
mod fit;
mod grid;
mod summary;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use netsilo_predict::parameters::Table;

use fit::fit;
use summary::{Summary, judge};

/// Draws of the parameters for each interval.
const DRAWS: usize = 400;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: BTreeSet<String> = std::env::args().skip(1).collect();
    let table = Table::built_in()?;
    let cells = cells::all()?;
    let fitted = fit(&table, cells.iter()).ok_or("the fit has no solution")?;
    if arguments.contains("--write") {
        return write(&fitted);
    }
    if arguments.contains("--grid") {
        let table = if arguments.contains("--refit") { &fitted } else { &table };
        println!("{}", grid::text(&table.values())?);
        return Ok(());
    }
    let mut groups: Vec<&str> = cells.iter().map(|cell| cell.group).collect();
    groups.dedup();
    let (mut all_fitted, mut all_left_out) = (Summary::default(), Summary::default());
    println!("{}", Summary::heading());
    for group in groups {
        let without = fit(&table, cells.iter().filter(|cell| cell.group != group))
            .ok_or("the fit has no solution")?;
        for (how, table, all) in
            [("as fitted", &fitted, &mut all_fitted), ("left out", &without, &mut all_left_out)]
        {
            let mut own = Summary::default();
            let of_group = cells.iter().filter(|cell| cell.group == group);
            for (cell, judged) in judge(of_group, table, DRAWS) {
                if arguments.contains("-v") {
                    println!("{}", judged.line(cell, how));
                }
                own.add(cell.kind, &judged);
                all.add(cell.kind, &judged);
            }
            println!("{}", own.row(group, how));
        }
    }
    println!("{}", all_fitted.row("all", "as fitted"));
    println!("{}", all_left_out.row("all", "left out"));
    Ok(())
}

/// Writes the fitted values.
fn write(table: &Table) -> Result<(), Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fitted.csv");
    std::fs::write(&file, table.fitted_csv())?;
    println!("wrote {}", file.display());
    Ok(())
}
