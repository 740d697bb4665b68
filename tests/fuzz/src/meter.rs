//! How much memory something needs at its peak.
//!
//! The allocator of this crate counts and passes on to the system's. The only unsafe code there is; it is not part
//! of the product. Counts all threads, so only one measurement may run at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};

struct Counting;

/// Counting costs, above all where threads share the counters, so it is off unless something is measured.
static ON: AtomicBool = AtomicBool::new(false);
/// Below zero where more is given back than was taken since the measurement began.
static NOW: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn more(bytes: usize) {
    if ON.load(Relaxed) {
        let bytes = bytes.cast_signed();
        PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }
}

fn less(bytes: usize) {
    if ON.load(Relaxed) {
        NOW.fetch_sub(bytes.cast_signed(), Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        less(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if both blocks were there at once, which they may be.
        more(size);
        less(layout.size());
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that were in use at the peak of `act` beyond those before it.
pub fn peak(act: impl FnOnce()) -> usize {
    NOW.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ON.store(true, Relaxed);
    act();
    ON.store(false, Relaxed);
    PEAK.load(Relaxed).unsigned_abs()
}
