//! An allocator that counts per thread, for whole programs run inside the test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

const THREADS: usize = 512;

struct Counting;

thread_local! {
    /// This thread's place in the tables; 0 before its first allocation.
    static PLACE: Cell<usize> = const { Cell::new(0) };
    /// Noting down an allocation allocates.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

static NEXT: AtomicUsize = AtomicUsize::new(1);
static THREAD_IDS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];
static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
/// Threads whose allocations are to be explained.
static WATCHED: [AtomicBool; THREADS] = [const { AtomicBool::new(false) }; THREADS];
/// Backtraces taken since they are watched.
static EXPLAINED: AtomicUsize = AtomicUsize::new(0);
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn count() {
    // During thread exit there is nothing left to count.
    let _ = PLACE.try_with(|place| {
        if place.get() == 0 {
            place.set(NEXT.fetch_add(1, Ordering::Relaxed).min(THREADS - 1));
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            THREAD_IDS[place.get()].store(id, Ordering::Relaxed);
        }
        if NOTING.get() {
            return;
        }
        COUNTS[place.get()].fetch_add(1, Ordering::Relaxed);
        // A backtrace takes far longer than what it explains.
        let explained = || EXPLAINED.fetch_add(1, Ordering::Relaxed) >= 200;
        if WATCHED[place.get()].load(Ordering::Relaxed) && !explained() {
            NOTING.set(true);
            let trace = ours(&Backtrace::force_capture().to_string());
            let mut found = FOUND.lock().unwrap();
            if found.len() < 8 && !found.contains(&trace) {
                found.push(trace);
            }
            drop(found);
            NOTING.set(false);
        }
    });
}

/// The lines of a backtrace that name the product's files.
fn ours(trace: &str) -> String {
    let lines = trace.lines().filter(|line| line.contains("/crates/"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator unchanged; counting a thread that is not
// watched does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The threads of this process with this name that have allocated.
pub(crate) fn threads(name: &str) -> Vec<usize> {
    let places = 1..NEXT.load(Ordering::Relaxed).min(THREADS - 1);
    let named = places.filter(|place| {
        let id = THREAD_IDS[*place].load(Ordering::Relaxed);
        let path = format!("/proc/self/task/{id}/comm");
        std::fs::read_to_string(path).is_ok_and(|comm| comm.trim() == name)
    });
    named.collect()
}

/// Allocations of a thread so far.
pub(crate) fn allocations(thread: usize) -> u64 {
    COUNTS[thread].load(Ordering::Relaxed)
}

/// Starts or stops remembering where a thread allocates.
pub(crate) fn watch(thread: usize, on: bool) {
    if on {
        FOUND.lock().unwrap().clear();
        EXPLAINED.store(0, Ordering::Relaxed);
    }
    WATCHED[thread].store(on, Ordering::Relaxed);
}

/// Where the first watched allocations came from.
pub(crate) fn found() -> String {
    FOUND.lock().unwrap().join("\n---\n")
}
