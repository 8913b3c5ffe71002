//! The findings on a stage that takes a large part of the receive work of a CPU: packet filters,
//! and memory that devices may reach.

use std::collections::BTreeSet;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::stage_samples::ReceiveStage;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

/// From this share of a CPU's time on, a stage is worth a look.
const OF_THE_CPU: f64 = 0.05;

/// A stage that may be too heavy.
struct HeavyStage {
    id: FindingId,
    stage: ReceiveStage,
    name: &'static str,
    /// From this share of the receive work on.
    of_the_work: f64,
}

/// The stages that take a large part of a CPU's receive work, if the samples suffice to say so.
pub(super) fn find(analysis: &Analysis<'_>, load: &CpuWork<'_>) -> Vec<Finding> {
    let netfilter = HeavyStage {
        id: FindingId::NetfilterHeavy,
        stage: ReceiveStage::Netfilter,
        name: "netfilter",
        of_the_work: 0.25,
    };
    let mapping = HeavyStage {
        id: FindingId::DmaMappingHeavy,
        stage: ReceiveStage::DmaMapping,
        name: "DMA mapping",
        of_the_work: 0.15,
    };
    let shorter_way = || {
        let what = "shorten the way through the rules: sets and maps instead of a rule for each \
                    address, packets of known connections first (ct state established,related \
                    accept), a flowtable for what is forwarded, notrack for what needs no \
                    connection tracking (nft list ruleset)";
        (what.to_owned(), None)
    };
    let found = [
        netfilter.found(load, Vec::new(), shorter_way),
        mapping.found(load, domains(analysis, load), || cheaper_mapping(analysis, load)),
    ];
    found.into_iter().flatten().collect()
}

impl HeavyStage {
    /// `remedy`: what to do, and what it costs.
    fn found(
        &self,
        load: &CpuWork<'_>,
        settings: Vec<Evidence>,
        remedy: impl FnOnce() -> (String, Option<&'static str>),
    ) -> Option<Finding> {
        let share = load.stage(self.stage)?;
        let taken = |share: f64| load.receiving() * share;
        if share.least < self.of_the_work || taken(share.least) < OF_THE_CPU {
            return None;
        }
        let source = format!("{} stack samples", load.samples());
        let part = |what: &str, share| Evidence::new(what, Measure::Share(share), source.clone());
        let mut evidence = vec![
            part(&format!("{}, of the receive work", self.name), share.likely),
            part("at least", share.least),
            part("at most", share.most),
        ];
        evidence.extend(settings);
        evidence.extend(load.evidence());
        let gain = Gain::AtMost {
            measure: Measure::Share(taken(share.most)),
            of: format!("cpu{}'s time", load.cpu),
            basis: format!("all time in {}", self.name),
        };
        let (what, cost) = remedy();
        let remedy = Remedy::new(what, gain);
        Some(Finding {
            id: self.id,
            severity: if load.is_full() { Severity::Warning } else { Severity::Info },
            subject: load.subject(),
            title: format!(
                "{} takes {:.0}% to {:.0}% of its receive work, about {:.0}% of its time",
                self.name,
                share.least * 100.0,
                share.most * 100.0,
                taken(share.likely) * 100.0
            ),
            evidence,
            remedies: vec![match cost {
                Some(cost) => remedy.costs(cost),
                None => remedy,
            }],
        })
    }
}

/// The netdevs polled on this CPU whose IOMMU domain is known, with the type of the domain.
fn domains(analysis: &Analysis<'_>, load: &CpuWork<'_>) -> Vec<Evidence> {
    let of = |name: String| {
        let domain = analysis.after().netdevs.named(&name)?.iommu_domain.clone()?;
        let what = format!("IOMMU domain of {name}");
        Some(Evidence::new(what, Measure::Text(domain), "device/iommu_group/type"))
    };
    load.netdevs().into_iter().filter_map(of).collect()
}

/// What makes mapping cheaper in the domains of the netdevs polled on this CPU, and what it costs.
fn cheaper_mapping(analysis: &Analysis<'_>, load: &CpuWork<'_>) -> (String, Option<&'static str>) {
    let names = load.netdevs();
    let netdevs = names.iter().filter_map(|name| analysis.after().netdevs.named(name));
    let domains: BTreeSet<Option<&str>> =
        netdevs.map(|netdev| netdev.iommu_domain.as_deref()).collect();
    let risk = Some(
        "for some milliseconds, or always, the device can reach memory that it no longer owns: it \
         must be trusted",
    );
    let whole = "no translation (iommu.passthrough=1 on the kernel's command line)";
    if domains.contains(&Some("DMA")) {
        let what = format!(
            "removed entries stay valid for some milliseconds and are flushed together: write \
             DMA-FQ to iommu_group/type of the device, or boot with iommu.strict=0; or {whole}"
        );
        (what, risk)
    } else if domains.contains(&Some("DMA-FQ")) {
        (format!("{whole}: entries are already flushed together"), risk)
    } else if domains == BTreeSet::from([Some("identity")]) {
        (
            "find out why packets are copied: addresses that the device cannot reach (dmesg: \
          swiotlb), or a virtual machine whose memory is encrypted"
                .to_owned(),
            None,
        )
    } else {
        let what = format!(
            "behind an IOMMU: entries that are flushed together (iommu.strict=0), or {whole}. In a \
             virtual machine whose memory is encrypted, packets are copied, and nothing helps but \
             fewer bytes"
        );
        (what, risk)
    }
}
