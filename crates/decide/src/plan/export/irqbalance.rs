//! Policy scripts for `irqbalance --policyscript`: keys as in irqbalance(1) 1.9.2 (`ban`,
//! `balance_level`, `numa_node`).

use netsilo_model::change::quoted;

use crate::plan::contents::Plan;
use crate::plan::export::file::{ExportedFile, add_line};
use crate::plan::export::interrupts::interrupts;

const NAME: &str = "netsilo-irqbalance-policy";

/// Script that makes irqbalance ignore the interrupts that the plan places, moved or not; it
/// balances all others.
pub fn irqbalance_policy(plan: &Plan) -> ExportedFile {
    let mut text = "#!/bin/sh\n\
        # Written by `netsilo export irqbalance-policy`: irqbalance leaves these interrupts\n\
        # alone, netsilo places them. Arguments from irqbalance: the device's path below /sys\n\
        # and the interrupt's number. The number may change, so this script uses the name.\n\
        case $(cat \"/sys/kernel/irq/$2/actions\" 2>/dev/null) in\n"
        .to_owned();
    let mut actions: Vec<_> = interrupts(plan).iter().map(|it| it.action.to_owned()).collect();
    actions.sort_unstable();
    actions.dedup();
    for action in &actions {
        add_line(&mut text, &format!("{}) echo ban=true ;;", quoted(action)));
    }
    text.push_str(LAST);
    ExportedFile { name: NAME.into(), text, executable: true }
}

/// Script that lets irqbalance balance, on the NUMA node of each of netsilo's hints.
pub fn irqbalance_suggest() -> ExportedFile {
    ExportedFile {
        name: NAME.into(),
        text: include_str!("irqbalance_suggest.sh").into(),
        executable: true,
    }
}

const LAST: &str = "esac\n\
    # In a folder of several policy scripts: exit 1 if this one printed nothing, so that\n\
    # irqbalance runs the next one.\n\
    exit 0\n";
