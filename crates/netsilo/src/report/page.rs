//! An HTML page that needs no network and runs no script. Maud escapes every text.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// The page loads nothing and runs no script, whatever names a stranger's bundle contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// A section of a page: id, title, what it is about, content.
pub(super) type Section = (&'static str, &'static str, String, Markup);

/// A whole page.
pub(super) fn document(title: &str, subtitle: &str, version: &str, sections: &[Section]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "netsilo: " (title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                @if let Some((id, title, ..)) = sections.first() {
                    a.skip href={ "#" (id) } { "Skip to: " (title) }
                }
                header {
                    h1 { (title) }
                    p { (subtitle) }
                    nav aria-label="Sections" {
                        @for (id, title, ..) in sections { a href={ "#" (id) } { (title) } }
                    }
                }
                main {
                    @for (id, title, scenario, content) in sections {
                        section aria-labelledby=(id) {
                            h2 id=(id) { (title) }
                            p { (scenario) }
                            (content)
                        }
                    }
                }
                footer { p { "Made by netsilo " (version) "." } }
            }
        }
    };
    page.into_string()
}
