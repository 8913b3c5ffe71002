//! [`Look`]: one observation with its judge, for all verdicts on it.

use netsilo_model::derive::analysis::Analysis;
use netsilo_predict::live::forecast::Expected;
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::work::Work;

/// An observation, and the judge of what changes would do there.
#[derive(Debug)]
pub struct Look<'a> {
    pub(super) analysis: &'a Analysis<'a>,
    /// The judge, and the machine as it is. The error says why nothing can be judged.
    pub(super) judge: Result<(Judge<'a>, Expected), String>,
}

impl<'a> Look<'a> {
    /// Makes the judge. Shares of CPU time are judged even where times of packets are not the
    /// CPU's.
    pub fn new(analysis: &'a Analysis<'a>) -> Self {
        let work = Work::without_costs(analysis).map_err(|why| why.to_string());
        let judge = work.map(|work| {
            let judge = Judge::new(work, 1.0);
            let now = judge.as_it_is();
            (judge, now)
        });
        Self { analysis, judge }
    }
}
