//! Policy scripts for `irqbalance --policyscript`: keys as in irqbalance(1) 1.9.2 (`ban`,
//! `balance_level`, `numa_node`).

use std::fmt::Write as _;

use super::{File, interrupts};
use crate::change::quoted;
use crate::plan::Plan;

const NAME: &str = "netsilo-irqbalance-policy";

/// irqbalance leaves alone the interrupts that the plan has a place for, moved or not, and balances
/// all others.
pub fn irqbalance_policy(plan: &Plan) -> File {
    let mut text = "#!/bin/sh\n\
        # Written by `netsilo export irqbalance-policy`: irqbalance leaves these interrupts alone, netsilo places them.\n\
        # Arguments from irqbalance: the device's path below /sys and the interrupt's number, which may change; so go by name.\n\
        case $(cat \"/sys/kernel/irq/$2/actions\" 2>/dev/null) in\n"
        .to_owned();
    let mut actions: Vec<_> = interrupts(plan).iter().map(|it| it.action.to_owned()).collect();
    actions.sort();
    actions.dedup();
    for action in &actions {
        let _ = writeln!(text, "{}) echo ban=true ;;", quoted(action));
    }
    text.push_str(LAST);
    File { name: NAME.into(), text, executable: true }
}

/// irqbalance goes on balancing and is led to the node of each hint.
pub fn irqbalance_suggest() -> File {
    File { name: NAME.into(), text: include_str!("irqbalance_suggest.sh").into(), executable: true }
}

const LAST: &str = "esac\n\
    # In a folder of policy scripts: exit 1 where nothing was said, so that the next one is asked.\n\
    exit 0\n";
