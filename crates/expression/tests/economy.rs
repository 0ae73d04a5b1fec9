//! The cost of expressions: no allocation for the common operators, and little memory for many.

#![allow(clippy::unwrap_used, unsafe_code)] // an allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;
use tulle_expression::{Expression, Input, NoValue, Type, Value, Variable, request};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        BYTES.set(BYTES.get().wrapping_add(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

struct Get;

impl Input for Get {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        match variable {
            request::METHOD => Value::text(b"GET"),
            request::PATH => Value::text(b"/ratings/7"),
            request::SIZE => Ok(Value::Int(0)),
            request::SOURCE_IDENTITY => Value::text(b"spiffe://tulle.local/svc/reviews"),
            _ => Err(NoValue::Absent),
        }
    }

    fn entry(&self, _: Variable, key: &str) -> Result<Option<Value<'_>>, NoValue> {
        (key == "x-team").then(|| Value::text(b"books")).transpose()
    }
}

/// Conditions as people write them.
const COMMON: [&str; 8] = [
    "request.path == '/ratings/7'",
    "request.path.startsWith('/ratings/') && request.method in ['GET', 'HEAD']",
    "request.headers['x-team'] == 'books'",
    "'x-team' in request.headers && !has(request.headers.cookie)",
    "source.identity.endsWith('/reviews') || source.identity == 'spiffe://tulle.local/svc/gateway'",
    "request.size < 1000 ? request.path.contains('rat') : false",
    "request.path.matches('^/ratings/[0-9]+$')",
    "request.path.substring(1, 8) == 'ratings' && size(request.path) == 10",
];

fn compiled(source: &str) -> Expression {
    Expression::compile(source, &request::scope(), &Type::Bool).unwrap()
}

#[test]
fn common_conditions_allocate_nothing() {
    for source in COMMON {
        let condition = compiled(source);
        // The first match of a pattern makes its cache.
        assert_eq!(condition.condition(&Get), Ok(true), "{source}");
        let before = CALLS.get();
        assert_eq!(condition.condition(&Get), Ok(true));
        assert_eq!(CALLS.get() - before, 0, "{source}");
    }
}

#[test]
fn a_hundred_conditions_take_little_memory() {
    let before = BYTES.get();
    let without_patterns = COMMON.iter().filter(|s| !s.contains("matches"));
    let all: Vec<Expression> = without_patterns
        .cycle()
        .take(100)
        .map(|s| compiled(s))
        .collect();
    let bytes = BYTES.get().wrapping_sub(before);
    println!("100 conditions: {bytes} bytes");
    assert!(bytes <= 256 * 1024, "{bytes}");
    drop(all);
}

/// `cargo test --release -p tulle-expression --test economy -- --ignored --nocapture` on a quiet machine. The request is a
/// stand-in, so what reading a head costs is not in it.
#[test]
#[ignore = "prints times, which depend on the machine"]
fn times() {
    for source in COMMON {
        let condition = compiled(source);
        let mut best = f64::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            for _ in 0..100_000 {
                let _ = black_box(black_box(&condition).condition(black_box(&Get)));
            }
            best = best.min(begun.elapsed().as_secs_f64() / 100_000.0 * 1e9);
        }
        println!("{best:6.1} ns  {source}");
    }
}
