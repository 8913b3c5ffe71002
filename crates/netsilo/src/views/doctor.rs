//! What limits netsilo on a machine, as one screen of text.

use std::fmt::Write as _;

use netsilo_decide::judge::doctor::{Diagnosis, Problem};
use netsilo_decide::judge::findings::Severity;

use crate::tell::words::plural;

/// Number of problems shown for one area. The JSON has all of them.
const SHOWN: usize = 4;

/// Renders each area with its problems.
pub(crate) fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for area in &diagnosis.areas {
        let _ = writeln!(text, "{:8} {:14} {}", area.severity.as_str(), area.name, area.found);
        area.problems.iter().take(SHOWN).for_each(|it| problem(&mut text, it));
        if area.problems.len() > SHOWN {
            let _ = writeln!(text, "{:9}{} more: --json", "", area.problems.len() - SHOWN);
        }
    }
    let limits: usize = diagnosis.areas.iter().map(|area| area.problems.len()).sum();
    let _ = match diagnosis.severity() {
        Severity::Ok => writeln!(text, "nothing limits netsilo here"),
        _ => writeln!(text, "{}", plural(limits, "problem")),
    };
    text
}

fn problem(text: &mut String, problem: &Problem) {
    let Problem { what, degraded, fix, .. } = problem;
    let _ = writeln!(text, "{0:9}- {what}\n{0:11}{degraded}\n{0:11}do: {fix}", "");
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::doctor::Area;

    use super::*;

    fn area(name: &'static str, problems: usize) -> Area {
        let one = |at: usize| Problem {
            severity: Severity::Warning,
            what: format!("fact {at}"),
            degraded: "less is seen".into(),
            fix: "run netsilo as root".into(),
        };
        let severity = if problems > 0 { Severity::Warning } else { Severity::Ok };
        Area { name, severity, found: "6.12.1".into(), problems: (0..problems).map(one).collect() }
    }

    #[test]
    fn each_problem_has_its_remedy_and_few_are_shown_of_each_area() {
        let areas = vec![area("kernel", 0), area("privileges", 1), area("readings", 6)];
        let diagnosis = Diagnosis { schema: 1, areas };
        insta::assert_snapshot!(render(&diagnosis), @r#"
        ok       kernel         6.12.1
        warning  privileges     6.12.1
                 - fact 0
                   less is seen
                   do: run netsilo as root
        warning  readings       6.12.1
                 - fact 0
                   less is seen
                   do: run netsilo as root
                 - fact 1
                   less is seen
                   do: run netsilo as root
                 - fact 2
                   less is seen
                   do: run netsilo as root
                 - fact 3
                   less is seen
                   do: run netsilo as root
                 2 more: --json
        7 problems
        "#);
        let fine = Diagnosis { schema: 1, areas: vec![area("kernel", 0)] };
        assert!(render(&fine).ends_with("nothing limits netsilo here\n"));
    }
}
