//! Where results are shown: a terminal with its width and colours, or a pipe.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};

use ratatui::crossterm::terminal;
use ratatui::style::{Color, Modifier, Style};

use crate::tell::palette::{Depth, Palette};
use crate::tell::printable::printable;
use crate::tell::styled::Styled;

/// Where results are shown. The default is a pipe.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Presentation {
    /// The number of columns. `None`: lines are not limited.
    pub(crate) width: Option<usize>,
    /// How meanings are shown. `None`: as plain text, without bars.
    pub(crate) palette: Option<Palette>,
}

impl Presentation {
    /// The screen of standard output.
    pub(crate) fn of_stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::default();
        }
        let palette = Palette::from_environment(|name| std::env::var(name).ok());
        let columns = terminal::size().map_or(0, |(columns, _)| usize::from(columns));
        Self {
            width: (columns > 0).then_some(columns),
            palette: (palette.depth != Depth::None).then_some(palette),
        }
    }

    /// The text as this screen shows it. Long lines are broken between words, and control
    /// characters in names are escaped.
    pub(crate) fn show(self, text: &Styled) -> String {
        let wrapped = self.width.map(|width| text.wrapped(width));
        let text = wrapped.as_ref().unwrap_or(text);
        let Some(palette) = self.palette else { return printable(text.as_str()).into_owned() };
        let mut shown = String::new();
        for (part, meaning) in text.parts() {
            let codes = codes(palette.style(meaning));
            let _ = if codes.is_empty() {
                write!(shown, "{}", printable(part))
            } else {
                write!(shown, "\x1b[{codes}m{}\x1b[0m", printable(part))
            };
        }
        shown
    }
}

/// The parameters of the escape sequence SGR (ECMA-48, 8.3.117) for a style of the palette.
fn codes(style: Style) -> String {
    let modifiers = [(Modifier::BOLD, "1"), (Modifier::DIM, "2"), (Modifier::REVERSED, "7")];
    let set = modifiers.into_iter().filter(|(modifier, _)| style.add_modifier.contains(*modifier));
    let mut codes: Vec<String> = set.map(|(_, code)| code.to_owned()).collect();
    codes.extend(match style.fg {
        Some(Color::Rgb(r, g, b)) => Some(format!("38;2;{r};{g};{b}")),
        Some(Color::Indexed(index)) => Some(format!("38;5;{index}")),
        Some(Color::Red) => Some("31".to_owned()),
        Some(Color::Green) => Some("32".to_owned()),
        Some(Color::Yellow) => Some("33".to_owned()),
        Some(Color::Cyan) => Some("36".to_owned()),
        _ => None,
    });
    codes.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tell::palette::Meaning;

    fn shown(depth: Option<Depth>, text: &Styled) -> String {
        let palette = depth.map(|depth| Palette { depth, unicode: true });
        Presentation { width: None, palette }.show(text)
    }

    #[test]
    fn a_terminal_gets_colours_and_a_pipe_gets_none() {
        let mut text = Styled::from("B is ".to_owned());
        text.push(Meaning::Bad, "worse");
        let shown = |depth| shown(depth, &text);
        assert_eq!(shown(Some(Depth::Ansi)), "B is \x1b[1;31mworse\x1b[0m");
        assert_eq!(shown(Some(Depth::Indexed)), "B is \x1b[1;38;5;196mworse\x1b[0m");
        assert_eq!(shown(Some(Depth::Rgb)), "B is \x1b[1;38;2;233;27;12mworse\x1b[0m");
        assert_eq!(shown(None), "B is worse");
    }

    #[test]
    fn each_meaning_that_has_a_style_has_its_codes() {
        for depth in [Depth::Ansi, Depth::Indexed, Depth::Rgb] {
            let palette = Palette { depth, unicode: true };
            for meaning in [Meaning::Quiet, Meaning::Title, Meaning::Good, Meaning::Fair]
                .into_iter()
                .chain([Meaning::Bad, Meaning::Work, Meaning::Changed])
            {
                assert_ne!(codes(palette.style(meaning)), "", "{depth:?} {meaning:?}");
            }
        }
    }

    #[test]
    fn names_cannot_send_escape_sequences() {
        let text = Styled::new(Meaning::Good, "a\x1b[31mb");
        assert_eq!(shown(Some(Depth::Ansi), &text), "\x1b[32ma\\u001b[31mb\x1b[0m");
        assert_eq!(shown(None, &text), "a\\u001b[31mb");
    }
}
