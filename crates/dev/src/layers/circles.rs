//! The circles among references.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::layers::modules::Reference;

/// The files of a circle. Each refers to the next one, and the last one to the first.
pub type Circle<'a> = Vec<&'a str>;

/// Circles, shortest first, and the references without which there would be no circle.
///
/// After each circle its weakest link is cut: the pair of files with the fewest references. So each
/// cut is printed once, with one circle that shows why.
pub fn circles(references: &[Reference]) -> Vec<(Circle<'_>, Vec<&Reference>)> {
    let mut links: BTreeMap<&str, BTreeMap<&str, Vec<&Reference>>> = BTreeMap::new();
    for reference in references {
        let targets = links.entry(&reference.from).or_default();
        targets.entry(&reference.to).or_default().push(reference);
    }
    let mut found = Vec::new();
    while let Some(circle) = shortest(&links) {
        let nexts = circle.iter().cycle().skip(1);
        let weakest = circle
            .iter()
            .zip(nexts)
            .min_by_key(|(from, to)| links[*from].get(*to).map_or(0, Vec::len));
        let cut =
            weakest.and_then(|(from, to)| links.get_mut(from)?.remove(to)).unwrap_or_default();
        if cut.is_empty() {
            break;
        }
        found.push((circle, cut));
    }
    found
}

/// A circle with the fewest files.
fn shortest<'a>(
    links: &BTreeMap<&'a str, BTreeMap<&'a str, Vec<&Reference>>>,
) -> Option<Circle<'a>> {
    let mut best: Option<Circle<'a>> = None;
    for start in links.keys() {
        // Breadth first, so the first way back is the shortest one.
        let mut came_from: BTreeMap<&str, &'a str> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([*start]);
        while let Some(file) = queue.pop_front() {
            for next in links.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(*next) {
                    came_from.insert(next, file);
                    queue.push_back(next);
                }
            }
        }
        let mut circle = Vec::new();
        let mut at = *start;
        while let Some(before) = came_from.get(at) {
            circle.push(*before);
            at = before;
            if at == *start {
                circle.reverse();
                if best.as_ref().is_none_or(|best| circle.len() < best.len()) {
                    best = Some(circle);
                }
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Vec<(String, usize)> {
        let references: Vec<_> = (1..)
            .zip(pairs)
            .map(|(line, (from, to))| Reference {
                from: (*from).to_owned(),
                line,
                to: (*to).to_owned(),
                name: "x".to_owned(),
            })
            .collect();
        let circles = circles(&references);
        circles.iter().map(|(circle, cut)| (circle.join(" "), cut[0].line)).collect()
    }

    #[test]
    fn none_in_a_tree() {
        assert_eq!(found(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]), []);
    }

    #[test]
    fn the_weakest_link_is_cut() {
        assert_eq!(found(&[("a", "b"), ("a", "b"), ("b", "a")]), [("a b".to_owned(), 3)]);
        assert_eq!(
            found(&[("x", "a"), ("a", "b"), ("b", "c"), ("b", "c"), ("c", "a"), ("c", "a")]),
            [("a b c".to_owned(), 2)]
        );
    }

    #[test]
    fn circles_that_share_files_are_all_found_shortest_first() {
        let found =
            found(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "a"), ("b", "a"), ("b", "c")]);
        assert_eq!(found, [("a b".to_owned(), 1)], "without a -> b, no circle is left");
        let two = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c")];
        assert_eq!(self::found(&two).len(), 2);
    }
}
