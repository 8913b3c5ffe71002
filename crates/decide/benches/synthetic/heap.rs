//! Measures the heap while a measurement runs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

// SAFETY: forwards to the system allocator under the caller's own contract, and only counts.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(place, layout) }
    }
}

fn count(bytes: isize) {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(usize::from(bytes > 0), Ordering::Relaxed);
        let now = BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
        MOST.fetch_max(now, Ordering::Relaxed);
    }
}

/// The use of the heap while `done` runs: its peak in bytes, beyond the use before, and how often a
/// part of it was allocated or became larger.
pub(crate) fn used<T>(done: impl FnOnce() -> T) -> (isize, usize) {
    BYTES.store(0, Ordering::Relaxed);
    MOST.store(0, Ordering::Relaxed);
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    done();
    COUNTS.store(false, Ordering::Relaxed);
    (MOST.load(Ordering::Relaxed), ALLOCATIONS.load(Ordering::Relaxed))
}
