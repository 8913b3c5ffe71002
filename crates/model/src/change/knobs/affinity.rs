//! The CPUs of consumers. They are written only on request, and a snapshot does not contain them.

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Errno, Knob, KnobFacts};
use crate::change::location::Location;
use crate::change::step::{Step, Traffic};
use crate::machine::cpuset::CpuSet;

/// The CPUs of a consumer's thread (`sched_setaffinity`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadAffinity {
    /// Its process id.
    pub pid: u32,
    /// The id of the thread.
    pub tid: u32,
    /// Its name. The thread may change it.
    pub comm: String,
    /// When it started, in clock ticks after boot. Together with the id this identifies the thread.
    pub start_time: u64,
}

impl Knob for ThreadAffinity {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "thread_affinity",
        fields: "`pid`, `tid`, `comm`, `start_time` (clock ticks after boot)",
        place: "`sched_setaffinity`",
        step: Step::Consumers,
        needs: Capability::SysNice,
        refusals: &[(
            Errno::Inval,
            "the kernel binds this thread, or its cgroup has none of these cpus; choose others",
        )],
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn name(&self) -> String {
        let Self { pid, tid, comm, .. } = self;
        if pid == tid {
            format!("{comm} (pid {pid})")
        } else {
            format!("{comm} (thread {tid} of pid {pid})")
        }
    }

    fn location(&self) -> Location<'_> {
        Location::Thread { id: self.tid, comm: None, start_time: self.start_time }
    }
}

/// `cpuset.cpus` of a cgroup (v2). The empty set means the CPUs of its parent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CgroupCpuset {
    /// Its path below `/sys/fs/cgroup` (`/system.slice/nginx.service`).
    pub path: String,
}

impl Knob for CgroupCpuset {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "cgroup_cpuset",
        fields: "`path` below `/sys/fs/cgroup`",
        value: "the empty set means the CPUs of the parent",
        place: "`cpuset.cpus`",
        undo: "writes back; a cgroup with processes that had no set of its own gets all CPUs of \
               its parent",
        step: Step::Cgroups,
        needs: Capability::None,
        absent: Some("no such cgroup, or its parent does not enable the cpuset controller"),
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn name(&self) -> String {
        format!("cgroup {} cpuset.cpus", self.path)
    }

    fn location(&self) -> Location<'_> {
        if !self.path.starts_with('/') || self.path.split('/').any(|part| part == "..") {
            return Location::Refused("no cgroup can have this name");
        }
        Location::Cgroup(&self.path)
    }

    /// The kernel prints and accepts a list here. The empty text means the CPUs of the parent.
    fn parse(text: &str) -> Result<CpuSet, String> {
        CpuSet::parse_list(text.trim()).map_err(|e| e.to_string())
    }

    fn text(cpus: &CpuSet) -> String {
        format!("{cpus}\n")
    }
}
