//! `netsilo predict`: the effect of settings on this machine, on a bundle's machine, or on one that
//! a file describes.

mod arguments;
mod described;
mod device_keys;
pub(crate) mod observed;
mod range;

use anyhow::Result;

pub(crate) use crate::verbs::predict::arguments::Args;

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

[How netsilo judges](judging.md#prices) says which of these a forecast of an observed machine takes;
a machine that a file describes needs all. *Before* is what is known without the published
experiments, *fitted* what they make of it: a value, and the factor that is one standard deviation
to either side. Cycles are those of a 2.6.38 kernel and the CPUs of its time; `recent` turns them
into those of later ones.

| parameter | what it is | before | fitted | source |
|---|---|---|---|---|
";
}
