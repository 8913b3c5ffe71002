//! A range of values of one key, over which predictions are made.

use std::str::FromStr;

/// Values of one key.
#[derive(Debug, Clone)]
pub(super) struct Range {
    pub(super) key: String,
    pub(super) values: Vec<f64>,
}

/// Maximum number of points of a sweep. They are computed within a second, and a terminal can show
/// them.
const MOST_POINTS: usize = 2000;
const POINTS: usize = 24;

/// If the ends of a range differ by at least this factor, its points are at equal factors.
const WIDE: f64 = 20.0;

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write KEY=FROM..TO, or KEY=FROM..TO/POINTS".to_owned();
        let (key, range) = text.split_once('=').ok_or_else(form)?;
        let (range, points) = match range.split_once('/') {
            Some((range, points)) => (range, points.parse().map_err(|_| form())?),
            None => (range, POINTS),
        };
        let (from, to) = range.split_once("..").ok_or_else(form)?;
        let number = |text: &str| text.parse::<f64>().map_err(|_| form());
        let (from, to) = (number(from)?, number(to)?);
        if !(2..=MOST_POINTS).contains(&points) {
            return Err(format!("choose 2 to {MOST_POINTS} points"));
        }
        if !(from < to && to.is_finite() && from.is_finite()) {
            return Err("the range must ascend".to_owned());
        }
        Ok(Self { key: key.to_owned(), values: spread(from, to, points) })
    }
}

/// Values between `from` and `to`. They are at equal factors if the ends are far apart, and whole
/// numbers if the ends are.
fn spread(from: f64, to: f64, points: usize) -> Vec<f64> {
    let share = |index: usize| index as f64 / (points - 1) as f64;
    let is_wide = from > 0.0 && to / from > WIDE;
    let is_whole = from.fract() == 0.0 && to.fract() == 0.0;
    let mut values: Vec<f64> = (0..points)
        .map(|index| {
            if is_wide {
                from * (to / from).powf(share(index))
            } else {
                from + (to - from) * share(index)
            }
        })
        .map(|value| if is_whole { value.round() } else { value })
        .collect();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_spread_evenly_or_by_factors() {
        let values = |text: &str| text.parse::<Range>().map(|range| range.values);
        assert_eq!(values("load.work_us=0..10/3"), Ok(vec![0.0, 5.0, 10.0]));
        assert_eq!(values("load.instances=1..100/3"), Ok(vec![1.0, 10.0, 100.0]));
        assert_eq!(values("machine.ghz=2.5..3/3"), Ok(vec![2.5, 2.75, 3.0]));
        // whole ends: whole values, each once
        assert_eq!(values("load.instances=1..3/24"), Ok(vec![1.0, 2.0, 3.0]));
        for wrong in ["load.instances", "load.instances=5", "load.instances=1..2/x"] {
            assert!(values(wrong).unwrap_err().starts_with("write KEY=FROM..TO"), "{wrong}");
        }
        assert_eq!(values("load.instances=5..1"), Err("the range must ascend".to_owned()));
        assert_eq!(values("load.instances=1..5/1"), Err("choose 2 to 2000 points".to_owned()));
    }
}
