//! The page in headless Chromium: its console is empty, the drawn figures match the records, and
//! the page is not blank.

use netsilo_trial::experiment::results::Results;

use crate::chromium::{average_brightness, browse, chromium};
use crate::folder;
use crate::forward_folder;
use crate::report;
use crate::synthetic;

/// Returns the texts drawn in charts, in order.
fn drawn(dom: &str) -> Vec<String> {
    let texts =
        dom.split("<text").skip(1).filter_map(|it| it.split_once('>')?.1.split_once("</text>"));
    texts
        .map(|(text, _)| text.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
        .collect()
}

/// Parses `118k/s  +3.1% ▲` as 118000.
fn rate(text: &str) -> Option<f64> {
    let (number, _) = text.split_once("B/s").or_else(|| text.split_once("/s"))?;
    let number = number.trim();
    let scale = match number.chars().last()? {
        'k' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => 1.0,
    };
    Some(number.trim_end_matches(['k', 'M', 'G', ' ']).parse::<f64>().ok()? * scale)
}

fn is_near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

#[test]
fn a_browser_shows_the_recorded_figures() {
    let Some(chromium) = chromium() else { return };
    let folder = folder(None);
    let page = folder.path().join("report.html");
    assert!(report(folder.path(), &["-o", page.to_str().unwrap()]).status.success());
    // counts the charts drawn at first; then opens all folds, so that all are drawn
    let text = std::fs::read_to_string(&page).unwrap();
    let open = "<script>document.body.dataset.first = document.querySelectorAll('svg').length;
        document.querySelectorAll('details').forEach((it) => { it.open = true; });</script></body>";
    let all = folder.path().join("all.html");
    // As any script of another's: it does not run without the page's nonce.
    let (_, nonce) = text.split_once("script-src 'nonce-").unwrap();
    let (nonce, _) = nonce.split_once('\'').unwrap();
    let open = open.replace("<script>", &format!("<script nonce='{nonce}'>"));
    std::fs::write(&all, text.replace("</body>", &open)).unwrap();
    let dom = browse(&chromium, &all, &["--dump-dom"]);

    let places = text.matches(" data-chart=").count();
    let first = dom.split_once("data-first=\"").unwrap().1;
    let at_first: usize = first.split('"').next().unwrap().parse().unwrap();
    assert!(
        at_first > 15 && at_first < places,
        "{at_first} of {places} charts are drawn before any fold is opened"
    );
    assert_eq!(dom.matches("<svg").count(), places, "each chart is drawn, and nothing else");

    let labels: Vec<f64> = drawn(&dom).iter().filter_map(|it| rate(it)).collect();
    let failed = |load: usize, setting: usize, round: u32| (load, setting, round) == (5, 1, 4);
    let raw = |load: usize, setting: usize| {
        let rounds = (0..synthetic::ROUNDS).filter(|round| !failed(load, setting, *round));
        median(rounds.map(|round| synthetic::per_s(load, setting, round)).collect())
    };
    let raw: Vec<f64> = (0..synthetic::loads().len())
        .flat_map(|load| (0..4).map(move |it| (load, it)))
        .map(|(load, it)| raw(load, it))
        .collect();
    assert_eq!(labels.len(), raw.len(), "{labels:?}");
    assert!(
        labels.iter().zip(&raw).all(|(label, raw)| is_near(*label, *raw, 0.005)),
        "{labels:?}\n{raw:?}"
    );

    let results: Results = serde_json::from_slice(&report(folder.path(), &["-j"]).stdout).unwrap();
    let values: Vec<f64> = dom
        .split("data-value=\"")
        .skip(1)
        .map(|it| it.split('"').next().unwrap().parse().unwrap())
        .collect();
    for measured in
        results.loads.iter().flat_map(|load| &load.settings).flat_map(|cell| &cell.measures)
    {
        assert!(
            values.iter().any(|value| is_near(*value, measured.median, 1e-12)),
            "{}: {}",
            measured.name,
            measured.median
        );
    }
    let texts = drawn(&dom).join("\n");
    assert!(texts.contains("</script><script>"), "charts show a setting's name unchanged: {texts}");
    assert!(texts.contains("redis<b>'b'"), "the packets' path shows a reader's name: {texts}");
}

#[test]
fn a_stages_cost_is_in_its_chart_and_in_its_table() {
    let Some(chromium) = chromium() else { return };
    let folder = forward_folder();
    let page = folder.path().join("report.html");
    assert!(report(folder.path(), &["-o", page.to_str().unwrap()]).status.success());
    let dom = browse(&chromium, &page, &["--dump-dom"]);
    let (_, section) = dom.split_once("<h2 id=\"stages\">").unwrap();
    let section = section.split_once("</section>").unwrap().0;
    // two loads, each with the legend of its bars
    assert_eq!(section.matches("<svg").count(), 2, "{section}");
    let texts = drawn(section);
    for (stage, times) in
        [("driver + GRO", 2), ("bridge / IP", 2), ("netfilter", 2), ("qdisc + xmit", 1)]
    {
        assert_eq!(texts.iter().filter(|text| *text == stage).count(), times, "{stage}: {texts:?}");
    }
    // 500 samples at 499 per second, 7 million packets
    assert!(section.contains("143 ns ±12.5 ns (42%)"), "{section}");
    for way in ["CPU time of the machine, by round", "samples in receive work"] {
        assert_eq!(section.matches(way).count(), 2, "{way}: {section}");
    }
}

#[test]
fn the_page_is_not_blank_in_light_and_dark_and_prints_completely() {
    let Some(chromium) = chromium() else { return };
    let folder = folder(Some("CPUs are emulated"));
    let page = folder.path().join("report.html");
    assert!(report(folder.path(), &["-o", page.to_str().unwrap()]).status.success());
    let brightness = |scheme: &str| {
        let picture = folder.path().join("picture.png");
        let shot = format!("--screenshot={}", picture.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        browse(&chromium, &page, &[&shot, &scheme, "--window-size=1200,1000"]);
        average_brightness(&picture)
    };
    let (by_day, by_night) = (brightness("1"), brightness("0"));
    assert!(by_day > 0.8 && by_night < 0.3, "{by_day} {by_night}");
    let paper = folder.path().join("report.pdf");
    browse(&chromium, &page, &[&format!("--print-to-pdf={}", paper.display())]);
    let pdf = std::fs::read(&paper).unwrap();
    let pages = pdf
        .windows(11)
        .filter(|it| it.starts_with(b"/Type /Page"))
        .filter(|it| !it.ends_with(b"s"))
        .count();
    assert!(pages >= 5, "{pages} pages");
}
