//! `netsilo predict`: the effect of settings on this machine, on a bundle's machine, or on one that
//! a file describes.

mod arguments;
mod described;
mod device_keys;
pub(crate) mod observed;
mod range;

use anyhow::Result;

pub(crate) use crate::verbs::predict::arguments::Args;
pub(crate) use crate::verbs::predict::observed::completions;

use crate::tell::exit::Exit;

/// Predicts and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match &args.scenario {
        Some(file) => described::run(args, file),
        None => observed::run(args),
    }
}

#[cfg(test)]
mod tests {
    use netsilo_predict::parameters::{Table, Values};

    use crate::current::assert_current;
    use crate::views::units;

    #[test]
    fn the_page_of_parameters_is_current() {
        let table = Table::built_in().unwrap();
        let mut page = PAGE.to_owned();
        let rows = table.rows.iter().zip(&table.fitted).zip(Values::MEANINGS);
        for ((row, fitted), meaning) in rows {
            let spread = fitted.spread.iter().map(|it| it * it).sum::<f64>().sqrt();
            let (unit, meaning) = (&row.unit, meaning.trim());
            let (prior, value) = (units::small(row.prior), units::small(fitted.value));
            page += &format!(
                "| `{}` | {meaning} | {prior} {unit} x/ {:.2} | {value} x/ {:.2} | {} |\n",
                row.name,
                row.uncertainty.exp(),
                spread.exp(),
                row.source
            );
        }
        assert_current("docs/parameters.md", &page);
    }

    const PAGE: &str = "\
# Parameters of the model

A machine that a file describes needs all of these; [how netsilo judges](judging.md#prices) shows
which ones an observed machine needs. *Before* is the estimate without published experiments,
*fitted* the estimate with them. Each is a value, and the factor of one standard deviation. Cycles
are those of a 2.6.38 kernel and a CPU of 2011; `recent` converts them to later ones.

| parameter | what it is | before | fitted | source |
|---|---|---|---|---|
";
}
