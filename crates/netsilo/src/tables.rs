//! Tables of the documentation that are generated from tables of the model.

use std::fs;
use std::path::Path;

use netsilo_model::change::knobs;
use netsilo_model::drivers::table::Drivers;

use crate::current::assert_current;

/// A page, split where its table begins.
fn at_table(page: &str, table: &str) -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(path).unwrap();
    let first_cell = table.split_inclusive('|').take(2).collect::<String>();
    let at = text.find(&first_cell).unwrap_or_else(|| panic!("{page} has no table {first_cell}"));
    (text[..at].to_owned(), text[at..].to_owned())
}

#[test]
fn the_table_of_knobs_is_current() {
    let table = knobs::as_markdown();
    let (before, after) = at_table("docs/knobs.md", &table);
    let (_, after) = after.split_once("\n\n").unwrap();
    assert_current("docs/knobs.md", &format!("{before}{table}\n{after}"));
}

#[test]
fn the_tables_of_drivers_are_current() {
    let tables = Drivers::shipped().tables();
    let (before, _) = at_table("docs/drivers.md", &tables);
    assert_current("docs/drivers.md", &format!("{before}{tables}"));
}
