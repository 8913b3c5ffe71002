//! Colours that people tell apart, whatever their eyes and whether it is night: after Paul Tol's
//! and Okabe and Ito's schemes. No meaning is in a colour alone: bars and rows carry their names,
//! lines their symbols, stacked parts their patterns.

use serde_json::{Value, json};

/// Of settings, the first being what the others are compared with.
const SETTINGS: [&str; 8] =
    ["#8a8f98", "#3b78b5", "#d98200", "#2f9e63", "#b5478f", "#4aa9c9", "#c8502f", "#8c7a1f"];

/// Symbols of settings in lines.
const SYMBOLS: [&str; 6] = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect"];

/// What a CPU did, by name, idle last.
pub(super) const STATES: [(&str, &str); 6] = [
    ("usr", "#3b78b5"),
    ("sys", "#2f9e63"),
    ("irq", "#b5478f"),
    ("softirq", "#d98200"),
    ("steal", "#c8502f"),
    ("idle", "#b9bec6"),
];

/// Places on a packet's way, by stage.
pub(super) const STAGES: [&str; 6] =
    ["#3b78b5", "#8a8f98", "#d98200", "#b5478f", "#2f9e63", "#4aa9c9"];

/// Stages of receive work, in the order of a packet's way.
pub(super) const RECEIVE_STAGES: [&str; 7] =
    ["#3b78b5", "#2f9e63", "#d98200", "#b5478f", "#c8502f", "#4aa9c9", "#b9bec6"];

/// A setting's colour, by its place.
pub(super) fn setting(at: usize) -> &'static str {
    SETTINGS[at % SETTINGS.len()]
}

/// A setting's symbol, by its place.
pub(super) fn symbol(at: usize) -> &'static str {
    SYMBOLS[at % SYMBOLS.len()]
}

/// What the library draws text, axes and grid lines with, by day and by night.
pub(super) fn themes() -> Value {
    let theme = |text: &str, line: &str, split: &str, back: &str| {
        let axis = json!({
            "axisLine": { "lineStyle": { "color": line } },
            "axisTick": { "lineStyle": { "color": line } },
            "axisLabel": { "color": text },
            "nameTextStyle": { "color": text },
            "splitLine": { "lineStyle": { "color": split } },
        });
        json!({
            "backgroundColor": "transparent",
            "textStyle": { "color": text, "fontFamily": "system-ui, sans-serif" },
            "title": { "textStyle": { "color": text } },
            "legend": { "textStyle": { "color": text } },
            "tooltip": { "backgroundColor": back, "borderColor": line, "textStyle": { "color": text } },
            "categoryAxis": axis, "valueAxis": axis, "logAxis": axis,
            "sankey": { "label": { "color": text, "textBorderColor": back, "textBorderWidth": 2 } },
            "whisker": text,
        })
    };
    json!({
        "light": theme("#24292f", "#8c959f", "#e4e7eb", "#ffffff"),
        "dark": theme("#dfe3e8", "#767f8a", "#343a42", "#1d2127"),
    })
}
