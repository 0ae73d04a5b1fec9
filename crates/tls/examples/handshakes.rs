//! What a handshake costs the server: `handshakes full|resumed COUNT`, in memory, the client plain
//! rustls with its defaults. Instructions, which repeat where times do not:
//!
//! ```text
//! cargo build --profile profiling -p tulle-tls --example handshakes
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*server_turn*' \
//!     target/profiling/examples/handshakes full 200
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use rustls::ClientConnection;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tulle_tls::testing::{TestCa, client_config};
use tulle_tls::{Context, Handshake, Progress, Session};

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
    let context = Context::new(&ca.identity(SERVER), &ca.bundle()).unwrap();
    let mut config = client_config(Some(&ca.issue(CLIENT)), &TLS13, &[b"http/1.1"]);
    if !resumed {
        config.resumption = Resumption::disabled();
    }
    let config = Arc::new(config);
    // The first has no ticket yet.
    one(&context, &config, &mut |_| {});
    let mut time = Duration::ZERO;
    for _ in 0..count {
        let session = one(&context, &config, &mut |spent| time += spent);
        assert_eq!(session.resumed(), resumed);
    }
    println!("{:?} of the server for each of {count}", time / count);
}

fn one(
    context: &Context,
    config: &Arc<rustls::ClientConfig>,
    spent: &mut dyn FnMut(Duration),
) -> Box<Session> {
    let name = ServerName::try_from("ratings.test").unwrap();
    let mut client = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut server = None;
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    let mut session = None;
    while session.is_none() {
        while client.wants_write() {
            client.write_tls(&mut incoming).unwrap();
        }
        let begin = Instant::now();
        session = server_turn(context, &mut server, &mut incoming, &mut outgoing);
        spent(begin.elapsed());
        let mut rest = outgoing.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
        outgoing.clear();
    }
    session.unwrap()
}

/// All that is the server's, under a name of its own.
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
