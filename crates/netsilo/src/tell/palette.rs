//! What a text means, and how the terminal shows it: with colours and glyphs.
//!
//! One set of colours serves dark and light backgrounds: each colour has a contrast of at least 3.8
//! with black and with white. With 16 colours the terminal's own theme decides. Colour is never the
//! only sign of a meaning: glyphs and words differ too.

use netsilo_model::machine::topology::Distance;
use ratatui::style::{Color, Modifier, Style};

/// What a text means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// No special meaning.
    #[default]
    Plain,
    /// Less important than the rest.
    Quiet,
    /// A heading.
    Title,
    /// In order.
    Good,
    /// Not optimal.
    Fair,
    /// Expensive.
    Bad,
    /// Receive work, the subject of this program.
    Work,
    /// Differs from the previous output.
    Changed,
}

impl Meaning {
    /// How bad it is that a CPU is in use for this share of its time.
    pub(crate) fn of_load(share: f64) -> Self {
        match share {
            share if share >= 0.9 => Self::Bad,
            share if share >= 0.6 => Self::Fair,
            _ => Self::Work,
        }
    }

    /// How bad it is that data is read at this distance from its protocol work.
    pub(crate) fn of_distance(distance: Distance) -> Self {
        match distance {
            Distance::SameCpu | Distance::Smt | Distance::L2 | Distance::Llc => Self::Good,
            Distance::Node => Self::Fair,
            Distance::Remote => Self::Bad,
        }
    }
}

/// How many colours the terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    None,
    Ansi,
    Indexed,
    Rgb,
}

/// How the terminal shows texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Palette {
    pub(crate) depth: Depth,
    /// Whether the terminal shows UTF-8.
    pub(crate) unicode: bool,
}

impl Palette {
    /// Reads the abilities of the terminal from the environment.
    pub(crate) fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let term = set("TERM").unwrap_or_default();
        let depth = if set("NO_COLOR").is_some() || term == "dumb" || term.contains("-mono") {
            Depth::None
        } else if matches!(set("COLORTERM").as_deref(), Some("truecolor" | "24bit")) {
            Depth::Rgb
        } else if term.contains("256color") {
            Depth::Indexed
        } else {
            Depth::Ansi
        };
        // as in setlocale(3), the first variable that is set decides
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_lowercase();
        Self { depth, unicode: locale.contains("utf-8") || locale.contains("utf8") }
    }

    /// The style of a meaning.
    pub(crate) fn style(self, meaning: Meaning) -> Style {
        let style = match meaning {
            Meaning::Title | Meaning::Bad => Style::new().add_modifier(Modifier::BOLD),
            Meaning::Quiet if matches!(self.depth, Depth::None | Depth::Ansi) => {
                Style::new().add_modifier(Modifier::DIM)
            }
            Meaning::Changed => Style::new().add_modifier(Modifier::REVERSED),
            _ => Style::new(),
        };
        self.colour(meaning).map_or(style, |colour| style.fg(colour))
    }

    fn colour(self, meaning: Meaning) -> Option<Color> {
        let (ansi, index, (r, g, b)) = match meaning {
            Meaning::Plain | Meaning::Title | Meaning::Changed => return None,
            Meaning::Quiet => (None, 243, (118, 118, 118)),
            Meaning::Good => (Some(Color::Green), 30, (7, 129, 141)),
            Meaning::Fair => (Some(Color::Yellow), 130, (147, 110, 37)),
            Meaning::Bad => (Some(Color::Red), 196, (233, 27, 12)),
            Meaning::Work => (Some(Color::Cyan), 27, (42, 109, 244)),
        };
        match self.depth {
            Depth::None => None,
            Depth::Ansi => ansi,
            Depth::Indexed => Some(Color::Indexed(index)),
            Depth::Rgb => Some(Color::Rgb(r, g, b)),
        }
    }

    /// One of two texts: the first for a terminal with UTF-8, the second for any other.
    pub(crate) fn glyph<T>(self, unicode: T, ascii: T) -> T {
        if self.unicode { unicode } else { ascii }
    }

    /// A share from 0 to 1 as a bar of at most this many characters, without trailing blanks.
    pub(crate) fn bar(self, share: f64, width: usize) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
        let whole = self.glyph("█", "#").repeat(eighths / 8);
        whole + self.glyph(EIGHTHS[eighths % 8], "")
    }

    /// A share from 0 to 1 as a bar of one character. It is blank below 1 %.
    pub(crate) fn level(self, share: f64) -> char {
        const UNICODE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['1', '2', '3', '4', '5', '6', '7', '8'];
        if share < 0.01 {
            return ' ';
        }
        let step = (share * 8.0).ceil().clamp(1.0, 8.0) as usize - 1;
        self.glyph(UNICODE, ASCII)[step]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEANINGS: [Meaning; 5] =
        [Meaning::Quiet, Meaning::Good, Meaning::Fair, Meaning::Bad, Meaning::Work];

    fn palette(variables: &[(&str, &str)]) -> Palette {
        Palette::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_what_the_terminal_can_do() {
        let xterm = ("TERM", "xterm-256color");
        let depth = |variables: &[(&str, &str)]| palette(variables).depth;
        assert_eq!(depth(&[xterm]), Depth::Indexed);
        assert_eq!(depth(&[xterm, ("COLORTERM", "truecolor")]), Depth::Rgb);
        assert_eq!(depth(&[("TERM", "linux")]), Depth::Ansi);
        assert_eq!(depth(&[xterm, ("COLORTERM", "24bit"), ("NO_COLOR", "1")]), Depth::None);
        assert_eq!(depth(&[xterm, ("NO_COLOR", "")]), Depth::Indexed);
        assert!(palette(&[("LANG", "de_DE.UTF-8")]).unicode);
        assert!(!palette(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]).unicode);
    }

    /// Relative luminance by WCAG 2.
    fn luminance([r, g, b]: [u8; 3]) -> f64 {
        let linear = |channel: u8| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.03928 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    /// The colour of an index from 16: a cube of 6 steps, then greys.
    fn rgb(colour: Color) -> [u8; 3] {
        let step = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
        match colour {
            Color::Rgb(r, g, b) => [r, g, b],
            Color::Indexed(grey @ 232..) => [8 + 10 * (grey - 232); 3],
            Color::Indexed(n @ 16..) => [(n - 16) / 36, (n - 16) / 6 % 6, (n - 16) % 6].map(step),
            other => panic!("{other} depends on the theme"),
        }
    }

    #[test]
    fn each_colour_can_be_read_on_black_and_on_white() {
        for depth in [Depth::Indexed, Depth::Rgb] {
            for meaning in MEANINGS {
                let palette = Palette { depth, unicode: true };
                let light = luminance(rgb(palette.colour(meaning).unwrap()));
                let contrast = (1.05 / (light + 0.05)).min((light + 0.05) / 0.05);
                assert!(contrast >= 3.8, "{depth:?} {meaning:?}: {contrast}");
            }
        }
    }

    #[test]
    fn without_colour_nothing_has_one() {
        let palette = palette(&[("NO_COLOR", "1")]);
        assert!(MEANINGS.iter().all(|meaning| palette.style(*meaning).fg.is_none()));
    }

    #[test]
    fn a_bar_is_as_long_as_the_share() {
        let bars = |unicode| {
            let palette = Palette { depth: Depth::None, unicode };
            [0.0, 0.5, 0.56, 1.0, 7.0].map(|share| palette.bar(share, 4))
        };
        assert_eq!(bars(true), ["", "██", "██▎", "████", "████"]);
        assert_eq!(bars(false), ["", "##", "##", "####", "####"]);
    }

    #[test]
    fn a_bar_of_one_character_grows_with_the_share() {
        let bars = |unicode| {
            let palette = Palette { depth: Depth::None, unicode };
            [0.0, 0.02, 0.5, 1.0].map(|share| palette.level(share))
        };
        assert_eq!((bars(true), bars(false)), ([' ', '▁', '▄', '█'], [' ', '1', '4', '8']));
    }
}
