//! Which parts of a screen or of a line fit. A part is shown whole or not at all.

use crate::top::draw::pen::width;

/// The sizes of the parts that fit into `room`, and 0 for the others. Of each part its size and
/// rank are given: parts of the highest rank are left out first, and those of rank 0 never.
pub(super) fn kept<const N: usize>(room: usize, mut parts: [(usize, u8); N]) -> [usize; N] {
    while parts.iter().map(|(size, _)| size).sum::<usize>() > room {
        let worst = parts.iter_mut().filter(|part| part.0 > 0).max_by_key(|part| part.1);
        match worst {
            Some((size, 1..)) => *size = 0,
            _ => break,
        }
    }
    parts.map(|(size, _)| size)
}

/// Those of some texts that fit side by side into `room`, with 2 spaces between them.
pub(super) fn beside<const N: usize>(room: usize, texts: [(&str, u8); N]) -> String {
    let size = |text: &str| if text.is_empty() { 0 } else { width(text) + 2 };
    let kept = kept(room + 2, texts.map(|(text, rank)| (size(text), rank)));
    let texts = texts.iter().zip(kept).filter(|(_, size)| *size > 0);
    texts.map(|((text, _), _)| *text).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_highest_rank_are_left_out_first_and_those_of_rank_0_never() {
        let kept = |room| kept(room, [(1, 0), (3, 2), (2, 1)]);
        assert_eq!([kept(6), kept(5), kept(2)], [[1, 3, 2], [1, 0, 2], [1, 0, 0]]);
        assert_eq!(kept(0), [1, 0, 0]);
        let beside = |room| beside(room, [("a", 1), ("", 0), ("bcd", 2), ("e", 0)]);
        assert_eq!([beside(9), beside(8), beside(1)], ["a  bcd  e", "a  e", "e"]);
    }
}
