//! Measures a handshake's cost for the server: `handshakes full|resumed COUNT`, in memory, between
//! sidecars. In a full one the server knows the client's chain. It counts instructions, which
//! repeat where times do not (valgrind lacks SHA and ADX instructions, so hashes and curves weigh
//! more here):
//!
//! ```text
//! cargo build --profile profiling -p tulle-tls --example handshakes
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*server_turn*' \
//!     target/profiling/examples/handshakes full 200
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};
use tulle_model::identity::SpiffeId;
use tulle_tls::testing::TestCa;
use tulle_tls::{Alpn, Context, Handshake, Opened, Progress, Session};

const CLIENT: &str = "spiffe://tulle.local/svc/reviews";
const SERVER: &str = "spiffe://tulle.local/svc/ratings";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let resumed = match arguments.next().as_deref() {
        Some("full") | None => false,
        Some("resumed") => true,
        Some(other) => panic!("{other}: neither full nor resumed"),
    };
    let count = arguments.next().map_or(1000, |n| n.parse().unwrap());
    let ca = TestCa::new("mesh");
    let server = Context::new(&ca.identity(SERVER), &ca.bundle()).unwrap();
    let identity = ca.identity(CLIENT);
    let client = || Context::new(&identity, &ca.bundle()).unwrap();
    let kept = client();
    // The first has no ticket yet, and its chain is unknown.
    one(&server, &kept, &mut |_| {});
    let mut time = Duration::ZERO;
    for _ in 0..count {
        // A new context has no tickets.
        let client = if resumed { kept.clone() } else { client() };
        let session = one(&server, &client, &mut |spent| time += spent);
        assert_eq!(session.resumed(), resumed);
    }
    println!("{:?} of the server for each of {count}", time / count);
}

fn one(server: &Context, client: &Context, spent: &mut dyn FnMut(Duration)) -> Box<Session> {
    let expected: Arc<[SpiffeId]> = [SpiffeId::parse(SERVER).unwrap()].into();
    let mut client = Handshake::client(client, expected, &[Alpn::Http11]).unwrap();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let (mut far, mut near, mut session) = (None, None, None);
    while session.is_none() {
        if far.is_none()
            && let Progress::Done(done) = client.advance(&mut down, &mut up).unwrap()
        {
            far = Some(done);
        }
        let begin = Instant::now();
        session = server_turn(server, &mut near, &mut up, &mut down);
        spent(begin.elapsed());
    }
    // The ticket.
    let opened = far.unwrap().open(&mut down).unwrap();
    assert!(matches!(opened, Opened::Nothing { .. }));
    session.unwrap()
}

/// The server's work, under a name of its own.
#[inline(never)]
fn server_turn(
    context: &Context,
    server: &mut Option<Handshake>,
    incoming: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
) -> Option<Box<Session>> {
    let server = server.get_or_insert_with(|| Handshake::server(context).unwrap());
    match server.advance(incoming, outgoing).unwrap() {
        Progress::NeedsRead => None,
        Progress::Done(session) => Some(session),
    }
}
