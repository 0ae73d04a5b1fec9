//! The budget of the hot path: reading and writing a head allocates nothing.

#![allow(missing_docs, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tulle_http1::{
    Body, BodyLength, Limits, Method, Parsed, RequestEdit, RequestHead, ResponseEdit, ResponseHead,
    parse_request, parse_response,
};

struct Counting;

thread_local! {
    // Per thread: the test harness allocates on its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

const REQUEST: &[u8] = b"GET http://reviews.default/reviews/7?full=1 HTTP/1.1\r\n\
    Host: reviews.default:9080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\
    Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: websocket\r\n\
    X-Forwarded-Client-Cert: forged\r\nContent-Length: 5\r\n\r\nhello";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n\
    5\r\nhello\r\n0\r\n\r\n";

#[test]
fn reading_and_writing_allocate_nothing() {
    let limits = Limits::default();
    let mut out = Vec::with_capacity(4096);
    let count = allocations(|| {
        let Ok(Parsed::Complete(head)) = parse_request(REQUEST, &limits) else {
            panic!("request refused");
        };
        let edit = RequestEdit {
            add: &[
                ("x-request-id", b"0123456789abcdef"),
                ("x-forwarded-client-cert", b"x"),
            ],
            keep_forwarded_client_cert: false,
            ..Default::default()
        };
        head.write(REQUEST, &edit, &mut out);
        let mut body = Body::new(head.body);
        assert_eq!(body.advance(&REQUEST[head.len..]), Ok(5));

        out.clear();
        let Ok(Parsed::Complete(head)) = parse_response(RESPONSE, &limits, Method::Get) else {
            panic!("response refused");
        };
        head.write(RESPONSE, &ResponseEdit::default(), &mut out);
        let mut body = Body::new(head.body);
        assert_eq!(body.advance(&RESPONSE[head.len..]), Ok(15));
        assert!(body.is_done());
    });
    assert_eq!(count, 0);
    assert_ne!(allocations(|| drop(vec![0u8; 10])), 0, "the counter works");
}

/// Heads live across awaits, so their size is memory per connection.
#[test]
fn heads_are_small() {
    assert!(
        size_of::<RequestHead>() <= 160,
        "{}",
        size_of::<RequestHead>()
    );
    assert!(
        size_of::<ResponseHead>() <= 112,
        "{}",
        size_of::<ResponseHead>()
    );
    assert!(size_of::<Body>() <= 48, "{}", size_of::<Body>());
    assert!(size_of::<BodyLength>() <= 16);
}
