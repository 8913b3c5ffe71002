//! Error rates of a comparison that stops by looking at its data.

use netsilo_trial::stats::sequential::{Look, Rules, Stop};
use netsilo_trial::stats::simulate::{Noise, share};

/// Measures pairs in random order until a stop, with a drift and correlated neighbours.
fn run(rules: Rules, noise: Noise, truth: f64, rng: &mut fastrand::Rng) -> Look {
    let (mut differences, mut weather) = (Vec::new(), 0.0);
    loop {
        weather = 0.8 * weather + noise.sample(rng) * 0.5;
        let (first, second) = (noise.sample(rng), noise.sample(rng) + 0.1 + weather);
        differences.push(if rng.bool() { second + truth - first } else { first + truth - second });
        if let Some(look @ Look { stop: Some(_), .. }) = rules.look(&differences) {
            return look;
        }
    }
}

#[test]
fn coverage_holds_whenever_it_stops() {
    for noise in Noise::ALL {
        for truth in [0.0, 1.5] {
            let covered = share(300, |rng| {
                run(Rules::default(), noise, truth, rng).estimate.unwrap().contains(truth)
            });
            assert!(covered >= 0.945, "{noise:?} {truth}: {covered}");
        }
    }
}

#[test]
fn false_differences_are_as_rare_as_promised() {
    let rules = Rules { smallest_relevant: 0.0, ..Rules::default() };
    let shown = share(400, |rng| run(rules, Noise::Heavy, 0.0, rng).stop == Some(Stop::Clear));
    assert!(shown <= 0.05, "{shown}");
}

#[test]
fn a_large_difference_stops_at_the_first_look_and_no_difference_stops_early() {
    let mut rng = fastrand::Rng::with_seed(5);
    let look = run(Rules::default(), Noise::Normal, 20.0, &mut rng);
    assert_eq!((look.pairs, look.stop), (8, Some(Stop::Clear)));
    let early = share(200, |rng| {
        let look = run(Rules::default(), Noise::Normal, 0.0, rng);
        look.stop == Some(Stop::Hopeless) && look.pairs < 60
    });
    assert!(early > 0.5, "{early}");
}

#[test]
fn a_hopeless_stop_rarely_hides_a_difference() {
    // About two deviations of a pair's difference over the square root of 60: most runs show
    // it.
    let shown =
        share(200, |rng| run(Rules::default(), Noise::Normal, 1.2, rng).stop == Some(Stop::Clear));
    assert!(shown > 0.75, "{shown}");
}
