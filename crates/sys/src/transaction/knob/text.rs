//! A knob's text and its value, both ways, and what the kernel makes of a value.

use netsilo_model::change::{Settings, Target, Value, ValueError};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::ethtool::HashFieldsError;

use crate::transaction::kernel::Kernel;
use crate::transaction::knob::KnobError;

/// What the text of a knob means.
pub fn parse(target: &Target, raw: &str) -> Result<Value, KnobError> {
    let unreadable = |why: String| KnobError::Unreadable {
        target: Box::new(target.clone()),
        raw: raw.to_owned(),
        why,
    };
    match target {
        Target::RpsFlowCnt { .. }
        | Target::RpsSockFlowEntries
        | Target::Mtu { .. }
        | Target::NapiDeferHardIrqs { .. }
        | Target::GroFlushTimeout { .. }
        | Target::Threaded { .. } => {
            raw.trim().parse().map(Value::Count).map_err(|e| unreadable(e.to_string()))
        }
        Target::Offload { .. } | Target::RssContext { .. } | Target::NtupleRule { .. } => {
            // What follows the first word: what was requested, or where it is.
            match raw.split_whitespace().next() {
                Some("on" | "1") => Ok(Value::Switch(true)),
                Some("off" | "0") => Ok(Value::Switch(false)),
                _ => Err(unreadable("neither on nor off".into())),
            }
        }
        Target::Channels { .. } | Target::Rings { .. } | Target::Coalesce { .. } => {
            raw.parse().map(Value::Settings).map_err(|e: ValueError| unreadable(e.to_string()))
        }
        Target::FlowHash { .. } => {
            let letters = if raw.trim() == "none" { "" } else { raw.trim() };
            letters
                .parse()
                .map(Value::Fields)
                .map_err(|e: HashFieldsError| unreadable(e.to_string()))
        }
        Target::RssTable { .. } => {
            raw.parse().map(Value::Table).map_err(|e: ValueError| unreadable(e.to_string()))
        }
        Target::RssKey { .. } => {
            raw.parse().map(Value::Key).map_err(|e: ValueError| unreadable(e.to_string()))
        }
        Target::Sysctl { .. } | Target::RssHash { .. } => Ok(Value::words(raw)),
        // Empty where the cgroup has the CPUs of its parent.
        Target::CgroupCpuset { .. } => {
            CpuSet::parse_list(raw.trim()).map(Value::Cpus).map_err(|e| unreadable(e.to_string()))
        }
        _ => CpuSet::parse_mask(raw).map(Value::Cpus).map_err(|e| unreadable(e.to_string())),
    }
}

/// A value as the kernel takes it: masks, which every knob takes but a cpuset, and not lists, which
/// only some do.
pub fn render(target: &Target, value: &Value) -> String {
    match (target, value) {
        (Target::CgroupCpuset { .. }, Value::Cpus(cpus)) => format!("{cpus}\n"),
        (_, Value::Cpus(cpus)) => cpus.to_mask(1),
        (_, Value::Table(table)) => {
            table.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
        (_, value) => value.to_string(),
    }
}

/// What the kernel will make of a value: flow counts are rounded up, RPS sets lose the CPUs set
/// apart at boot.
///
/// Needed when netsilo dies between a write and its record: undo then tells by this whether the
/// value is its own.
pub fn settles_as(kernel: &dyn Kernel, target: &Target, value: &Value) -> Value {
    match (target, value) {
        // `store_rps_dev_flow_table_cnt`, `rps_sock_flow_sysctl`: up to the next power of two; 0
        // stays 0.
        (Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries, Value::Count(count)) => {
            Value::Count(if *count == 0 {
                0
            } else {
                count.checked_next_power_of_two().unwrap_or(*count)
            })
        }
        // `netdev_rx_queue_set_rps_mask` ANDs with HK_TYPE_DOMAIN (isolcpus) and HK_TYPE_WQ
        // (nohz_full).
        (Target::RpsCpus { .. } | Target::RpsDefaultMask, Value::Cpus(cpus)) => {
            let list = |name: &str| {
                let text =
                    kernel.read(&format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
                CpuSet::parse_list(&text).unwrap_or_default()
            };
            Value::Cpus(cpus.minus(&list("isolated")).minus(&list("nohz_full")))
        }
        (_, value) => value.clone(),
    }
}

/// Whether a value may be what a driver has made of the one that was asked for: rings are rounded
/// up, to a multiple or to a power of two, as the driver likes it.
///
/// Needed when netsilo dies between a write and its record; otherwise what was read back counts.
pub fn may_round_to(target: &Target, asked: &Value, now: &Value) -> bool {
    let (Target::Rings { .. }, Value::Settings(asked), Value::Settings(now)) = (target, asked, now)
    else {
        return false;
    };
    let up = |asked: &Settings, name: &str| {
        let asked = asked.get(name);
        (asked..=asked.saturating_mul(2).max(1) - 1).contains(&now.get(name))
            || asked == now.get(name)
    };
    asked.names().chain(now.names()).all(|name| up(asked, name))
}
