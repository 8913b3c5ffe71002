//! Colours that can be distinguished with colour blindness and on light and dark backgrounds, after
//! the schemes of Paul Tol and of Okabe and Ito. Colour never carries meaning alone: bars and rows
//! have names, lines have symbols, stacked parts have patterns.

use serde_json::{Value, json};

/// Colours of settings; the first is the reference.
const SETTINGS: [&str; 8] =
    ["#8a8f98", "#3b78b5", "#d98200", "#2f9e63", "#b5478f", "#4aa9c9", "#c8502f", "#8c7a1f"];

/// Symbols of settings in lines.
const SYMBOLS: [&str; 6] = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect"];

/// Names and colours of CPU states; idle is last.
pub(super) const STATES: [(&str, &str); 6] = [
    ("usr", "#3b78b5"),
    ("sys", "#2f9e63"),
    ("irq", "#b5478f"),
    ("softirq", "#d98200"),
    ("steal", "#c8502f"),
    ("idle", "#b9bec6"),
];

/// Colours of the places on a packet's path, by stage.
pub(super) const STAGES: [&str; 6] =
    ["#3b78b5", "#8a8f98", "#d98200", "#b5478f", "#2f9e63", "#4aa9c9"];

/// Colours of the stages of receive work, in packet order.
pub(super) const RECEIVE_STAGES: [&str; 7] =
    ["#3b78b5", "#2f9e63", "#d98200", "#b5478f", "#c8502f", "#4aa9c9", "#b9bec6"];

/// Returns the colour of the setting at this index.
pub(super) fn setting(at: usize) -> &'static str {
    SETTINGS[at % SETTINGS.len()]
}

/// Returns the symbol of the setting at this index.
pub(super) fn symbol(at: usize) -> &'static str {
    SYMBOLS[at % SYMBOLS.len()]
}

/// Colours of text, axes and grid lines, for the light and the dark theme.
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
            "tooltip": {
                "backgroundColor": back, "borderColor": line, "textStyle": { "color": text },
            },
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
