//! Sizes of what a connection owns for as long as it lives: its task's future. What an await keeps
//! alive is memory for every idle connection, and one careless local can double it.

use tulle_proxy::serve::gateway;
use tulle_proxy::serve::inbound;
use tulle_proxy::serve::outbound;

fn size2<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
    size_of::<F>()
}

fn size3<A, B, C, F: Future>(_: fn(A, B, C) -> F) -> usize {
    size_of::<F>()
}

fn size4<A, B, C, D, F: Future>(_: fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_futures_of_connections_stay_small() {
    for (what, size, most) in [
        ("declared upstream", size4(outbound::serve), 1250),
        (
            "redirected outbound",
            size2(outbound::serve_redirected),
            1550,
        ),
        ("inbound", size4(inbound::serve), 500),
        ("redirected inbound", size3(inbound::serve_redirected), 700),
        ("gateway", size4(gateway::serve), 1250),
    ] {
        println!("size, future of a connection, {what}: {size} bytes");
        assert!(size <= most, "{what}: {size} bytes, at most {most} allowed");
    }
}
