//! CPU sets in the notations of users and the kernel: printing and parsing gives the same set.

use netsilo_model::change::{Target, Value, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet, CpuSetError, MAX_CPUS};

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { inputs: 10_000, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    for limit in [1, 64, MAX_CPUS] {
        match CpuSet::parse_user(text, limit) {
            Ok(set) => {
                assert!(set.highest().is_some_and(|highest| highest.0 < limit));
                assert_eq!(CpuSet::parse_user(&set.to_string(), limit).as_ref(), Ok(&set));
                let mask = format!("0x{}", set.to_mask(limit));
                assert_eq!(CpuSet::parse_user(&mask, limit).as_ref(), Ok(&set));
                let alone = [CpuSet::parse_list(text), CpuSet::parse_mask(text)];
                assert!(alone.contains(&Ok(set)));
            }
            Err(error) => points_into(&error),
        }
    }
    for set in [CpuSet::parse_mask(text), CpuSet::parse_list(text)] {
        set.map_or_else(|error| points_into(&error), |set| spellings(&set));
    }
    let (a, b) = text.split_once('\n').unwrap_or((text, ""));
    if let (Ok(a), Ok(b)) = (CpuSet::parse_list(a), CpuSet::parse_list(b)) {
        algebra(&a, &b);
    }
}

fn points_into(error: &CpuSetError) {
    assert!(error.at <= error.text.len() && error.text.is_char_boundary(error.at), "{error}");
    assert!(!error.to_string().is_empty());
}

fn spellings(set: &CpuSet) {
    assert_eq!(CpuSet::parse_list(&set.to_string()).as_ref(), Ok(set));
    for width in [1, 31, 33, MAX_CPUS] {
        let mask = set.to_mask(width);
        assert_eq!(CpuSet::parse_mask(&mask).as_ref(), Ok(set));
        let digits = mask.bytes().filter(|b| *b != b',').count();
        assert!(
            digits >= width.div_ceil(4) as usize
                && !mask.split(',').skip(1).any(|group| group.len() != 8)
        );
    }
    assert_eq!(
        Target::from(knobs::DefaultSmpAffinity).parse(&set.to_mask(1)).ok(),
        Some(Value::Cpus(set.clone()))
    );
    let json = serde_json::to_string(set).expect("a string");
    assert_eq!(serde_json::from_str::<CpuSet>(&json).ok().as_ref(), Some(set));
}

fn algebra(a: &CpuSet, b: &CpuSet) {
    let cpus: Vec<CpuId> = a.iter().collect();
    assert!(cpus.is_sorted() && cpus.len() == a.len() && cpus.iter().all(|cpu| a.contains(*cpu)));
    assert_eq!((cpus.first().copied(), cpus.last().copied()), (a.lowest(), a.highest()));
    assert_eq!(&cpus.iter().copied().collect::<CpuSet>(), a);
    assert_eq!(&a.minus(b).or(&a.and(b)), a);
    assert_eq!((a.or(b), a.and(b)), (b.or(a), b.and(a)));
    assert_eq!(a.or(b).len() + a.and(b).len(), a.len() + b.len());
    assert!(a.and(b).is_subset(a) && a.is_subset(&a.or(b)) && !a.minus(b).intersects(b));
    let mut emptied = a.clone();
    for cpu in cpus {
        emptied.remove(cpu);
        assert!(!emptied.contains(cpu));
    }
    assert!(emptied.is_empty() && emptied == CpuSet::new());
}
