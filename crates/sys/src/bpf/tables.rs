//! The tables and other maps that the programs share with user space.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netsilo_model::machine::cpuset::CpuSet;
use rustix::time::{ClockId, clock_getres};

use crate::bpf::arrived::Arrived;
use crate::bpf::decode::TIME_OPEN;
use crate::bpf::layout::{self, DEMAND_WORDS, FEWER_SLOTS, TIME_WORDS};
use crate::bpf::load::LoadContext;
use crate::bpf::options::Options;
use crate::bpf::runqueue::Waits;
use crate::bpf::table::{Mapped, Table, Turn, create_options, mappable_array};

/// How long flows are recorded after a consumer last needed its flow. It is long so that rare
/// connections are matched too.
const DEMAND_LASTS: Duration = Duration::from_secs(60);

/// How many dropped packets a CPU examines per second before it samples: 2 % of a CPU. Packets are
/// often dropped in bursts, hence their longer tick.
const DROPS_EXAMINED_PER_S: u64 = 100_000;

/// The tick of dropped packets (`bpf/drops.bpf.c`).
const JIFFIES_OF_DROPS: u64 = 256;

/// The tables that the programs count in.
pub(crate) struct Tables {
    pub(crate) polls: Table,
    pub(crate) reads: Table,
    pub(crate) wakeups: Table,
    pub(crate) forwards: Table,
    pub(crate) drops: Table,
    /// `None` unless [`Options::ip_packets`] is set.
    pub(crate) ip_packets: Option<Table>,
    /// Which half of each table is in use.
    pub(crate) turn: Turn,
    pub(crate) arrived: Arrived,
    /// `None` unless [`Options::runqueue`] is set.
    pub(crate) waits: Option<Waits>,
    pub(crate) times: Mapped,
    /// `struct demand` of `bpf/flow.h`.
    demand: Mapped,
    /// Until when flows are recorded, computed at the last check. `None` before the first check,
    /// because no consumer could request its flow yet.
    record_until: Option<Instant>,
    /// `bpf/window.h`.
    window: Mapped,
    lost: MapHandle,
}

impl Tables {
    pub(crate) fn new(options: Options) -> libbpf_rs::Result<(Self, LoadContext)> {
        let cpus = cpus_possible();
        let slots = slots(cpus);
        let polls = Table::new(cpus, slots)?;
        let reads = Table::new(cpus, slots)?;
        let fewer = slots / FEWER_SLOTS as u32;
        let wakeups = Table::new(cpus, fewer)?;
        let forwards = Table::new(cpus, fewer)?;
        let drops = Table::new(cpus, fewer)?;
        let times = mappable_array("netsilo_times", (TIME_WORDS * 8) as u32, cpus)?;
        let demand = mappable_array("netsilo_demand", (DEMAND_WORDS * 8) as u32, 1)?;
        let window = mappable_array("netsilo_window", 8, 1)?;
        let quota = options.examined_per_s.map_or(u32::MAX, per_tick);
        let drops_per_s = options.examined_per_s.map(|_| DROPS_EXAMINED_PER_S);
        let quota_of_drops =
            drops_per_s.map_or(u32::MAX, |per_s| per_tick(per_s * JIFFIES_OF_DROPS));
        let tables = Self {
            window: Mapped::new(window.as_fd(), 8)?,
            record_until: None,
            demand: Mapped::new(demand.as_fd(), DEMAND_WORDS * 8)?,
            times: Mapped::new(times.as_fd(), cpus as usize * TIME_WORDS * 8)?,
            lost: mappable_array("netsilo_lost", 8, 1)?,
            polls,
            reads,
            wakeups,
            forwards,
            drops,
            ip_packets: options.ip_packets.then(|| Table::new(cpus, slots)).transpose()?,
            turn: Turn::new()?,
            arrived: Arrived::new(options.arrivals)?,
            waits: options.runqueue.then(|| Waits::new(cpus)).transpose()?,
        };
        let mut maps = BTreeMap::from([
            ("polls", tables.polls.map()?),
            ("reads", tables.reads.map()?),
            ("wakeups", tables.wakeups.map()?),
            ("forwards", tables.forwards.map()?),
            ("drops", tables.drops.map()?),
            ("arrivals", array("netsilo_arrivals", layout::SIZEOF_ARRIVALS, cpus)?),
            ("cpu_times", times),
            ("lost", MapHandle::try_from(&tables.lost)?),
            ("virtual_napis", lru("netsilo_virtual", 4, 1, layout::VIRTUAL_NAPIS)?),
            (
                "flows_by_hash",
                lru("netsilo_hashes", 4, layout::SIZEOF_ORIGIN, layout::FLOWS_RECORDED)?,
            ),
            (
                "flows_by_tuple",
                lru(
                    "netsilo_tuples",
                    layout::SIZEOF_TUPLE,
                    layout::SIZEOF_ORIGIN,
                    layout::FLOWS_RECORDED,
                )?,
            ),
            ("flow_demand", demand),
            ("window", window),
        ]);
        if let Some(ip_packets) = &tables.ip_packets {
            maps.insert("ip_packets", ip_packets.map()?);
        }
        maps.extend([tables.turn.map()?]);
        maps.extend(tables.arrived.maps()?);
        maps.extend(tables.waits.as_ref().map(Waits::map).transpose()?);
        tables.begin_window();
        tables.demand.words()[layout::DEMAND_NOTING].store(1, Ordering::Relaxed);
        Ok((tables, LoadContext { maps, cpus, slots, quota, quota_of_drops }))
    }

    /// Drops intervals that began in an earlier window. Call it while nothing is attached.
    pub(crate) fn begin_window(&self) {
        self.window.words()[0].fetch_add(1, Ordering::Relaxed);
        for time in self.times.words().chunks_exact(TIME_WORDS) {
            time[TIME_OPEN].iter().for_each(|since| since.store(0, Ordering::Relaxed));
        }
    }

    /// Extends the recording of flows if a consumer requested its flow since the last call.
    /// Recording ends [`DEMAND_LASTS`] after the last request.
    pub(crate) fn renew_demand(&mut self) -> bool {
        let demand = self.demand.words();
        let (asked, noting) = (&demand[layout::DEMAND_ASKED], &demand[layout::DEMAND_NOTING]);
        let (asked, now) = (asked.swap(0, Ordering::Relaxed) != 0, Instant::now());
        let until = if asked { now + DEMAND_LASTS } else { self.record_until.unwrap_or(now) };
        self.record_until = Some(until);
        noting.store(u64::from(now < until), Ordering::Relaxed);
        asked
    }

    pub(crate) fn records_flows(&self) -> bool {
        self.demand.words()[layout::DEMAND_NOTING].load(Ordering::Relaxed) != 0
    }

    pub(crate) fn lost(&self) -> libbpf_rs::Result<u64> {
        let value = self.lost.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        Ok(value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes))
    }
}

fn array(name: &str, value: usize, entries: u32) -> libbpf_rs::Result<MapHandle> {
    MapHandle::create(MapType::Array, Some(name), 4, value as u32, entries, &create_options())
}

fn lru(name: &str, key: usize, value: usize, entries: usize) -> libbpf_rs::Result<MapHandle> {
    let [key, value, entries] = [key, value, entries].map(|number| number as u32);
    MapHandle::create(MapType::LruHash, Some(name), key, value, entries, &create_options())
}

/// The highest CPU that can ever be online, plus one.
fn cpus_possible() -> u32 {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let highest = CpuSet::parse_list(&list).ok().and_then(|cpus| cpus.highest());
    highest.map_or(1, |cpu| cpu.0 + 1)
}

/// Number of events per tick of the kernel (the resolution of its coarse clock), at least one.
fn per_tick(per_s: u64) -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let ns = tick.tv_sec.unsigned_abs() * 1_000_000_000 + tick.tv_nsec.unsigned_abs();
    (per_s * ns / 1_000_000_000).clamp(1, u32::MAX.into()) as u32
}

/// Slots per CPU of a full table, 88 bytes each.
///
/// Two full tables and three of half the slots, each doubled: 616 KB per CPU up to 64 CPUs, 39 MB
/// in total up to 256. [`Options::ip_packets`] adds a full one: 176 KB and 11 MB.
fn slots(cpus: u32) -> u32 {
    (65536 / cpus.next_power_of_two()).clamp(256, 1024)
}
