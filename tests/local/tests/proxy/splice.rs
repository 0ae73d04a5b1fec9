//! Bulk between two plaintext connections is spliced: the same bytes, ends and counts as copying,
//! and pipes only while bytes are in them.

use rustix::net::SendFlags;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io::{ErrorKind, Write};
use std::sync::mpsc::channel;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Connection, Mesh, PATIENCE, Proxy, Server, eventually, full_sockets,
    outbound_config, pause,
};

const MIB: usize = 1024 * 1024;

/// Bytes that repeat nowhere, so that what is lost, doubled or moved shows (splitmix64).
fn random(seed: u64, count: usize) -> Vec<u8> {
    let (mut state, mut bytes) = (seed, Vec::with_capacity(count + 8));
    while bytes.len() < count {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// client ── sidecar ── application, plaintext on both sides.
struct Plain {
    proxy: Proxy,
    address: std::net::SocketAddr,
    _mesh: Mesh,
}

impl Plain {
    fn start(app: &Server) -> Self {
        let mesh = Mesh::new();
        let config = outbound_config(app.address())
            .set("/services/0/ports/0/protocol", "tcp")
            .set("/services/0/ports/0/endpoints/0/mutualTls", false);
        Self {
            proxy: Proxy::start(&mesh, CLIENT, config.file),
            address: config.address,
            _mesh: mesh,
        }
    }

    fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Lists the targets of the proxy's descriptors.
    fn descriptors(&self) -> Vec<String> {
        let place = format!("/proc/{}/fd", self.proxy.pid());
        let entries = std::fs::read_dir(place).unwrap().flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.map(|l| l.to_string_lossy().into_owned()).collect()
    }

    /// Ends of pipes.
    fn pipes(&self) -> usize {
        let all = self.descriptors();
        all.iter().filter(|link| link.starts_with("pipe:")).count()
    }

    fn assert_counted(&self, received: usize, sent: usize) {
        let is = |name| self.proxy.metric(name, &[]);
        eventually("the connections are closed", || {
            let opened = is("istio_tcp_connections_opened_total");
            opened > 0.0 && is("istio_tcp_connections_closed_total") == opened
        });
        assert_eq!(is("istio_tcp_received_bytes_total"), received as f64);
        assert_eq!(is("istio_tcp_sent_bytes_total"), sent as f64);
    }
}

fn read_all(connection: &mut Connection) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let bytes = connection.read_some()?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend(bytes);
    }
}

/// Sends so much of `random(1, …)` and ends.
fn source(count: usize) -> Server {
    let bytes = random(1, count);
    Server::start(move |mut connection| connection.send(&bytes))
}

#[test]
fn bulk_passes_unchanged_both_ways_at_once_and_is_counted() {
    const SIZE: usize = 64 * MIB;
    let (say, heard) = channel();
    let app = Server::start(move |mut connection| {
        let mut writer = connection.stream().try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&random(1, SIZE)));
        let all = read_all(&mut connection).unwrap();
        writing.join().unwrap().unwrap();
        say.send(all == random(2, SIZE)).unwrap();
    });
    let plain = Plain::start(&app);
    let mut client = plain.connect();
    let mut writer = client.stream().try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&random(2, SIZE)));
    assert!(client.read_exact(SIZE) == random(1, SIZE));
    writing.join().unwrap().unwrap();
    client.half_close();
    assert!(heard.recv_timeout(PATIENCE).unwrap());
    assert_eq!(client.read_to_end().unwrap(), b"");
    drop(client);
    plain.assert_counted(SIZE, SIZE);
    assert_eq!(plain.proxy.metric("tulle_tcp_failures_total", &[]), 0.0);
}

#[test]
fn a_slow_reader_holds_the_sender_back_with_one_pipe() {
    const SIZE: usize = 64 * MIB;
    let app = source(SIZE);
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut client = plain.connect();
    let first = client.read_exact(1);
    eventually("bytes wait in a pipe", || plain.pipes() == before + 2);
    pause("no more is taken", Duration::from_millis(300));
    let held = plain.proxy.metric("istio_tcp_sent_bytes_total", &[]);
    assert!(held < 24.0 * MIB as f64, "it was not held back: {held}");
    assert!(plain.proxy.memory() < 64 * MIB as u64);
    let rest = client.read_to_end().unwrap();
    assert!([first, rest].concat() == random(1, SIZE));
    eventually("the pipe is closed", || plain.pipes() == before);
    drop(client);
    plain.assert_counted(0, SIZE);
}

#[test]
fn small_messages_and_idle_connections_hold_no_pipe() {
    let app = Server::start(|mut connection| {
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() || connection.try_send(bytes).is_err() {
                return;
            }
        }
    });
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut clients: Vec<_> = (0..20).map(|_| plain.connect()).collect();
    for round in 0..50 {
        for client in &mut clients {
            let bytes = random(round, 4000);
            client.send(&bytes);
            assert!(client.read_exact(4000) == bytes);
        }
    }
    assert_eq!(plain.pipes(), before);
    // Also not where there was bulk.
    for client in &mut clients {
        let mut writer = client.stream().try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&random(3, 4 * MIB)));
        assert!(client.read_exact(4 * MIB) == random(3, 4 * MIB));
        writing.join().unwrap().unwrap();
    }
    eventually("the pipes are closed", || plain.pipes() == before);
    for client in &mut clients {
        client.send("and on");
        assert_eq!(client.read_exact(6), b"and on");
    }
}

#[test]
fn a_client_that_has_finished_still_hears_the_server() {
    let app = Server::start(|mut connection| {
        let Ok(all) = read_all(&mut connection) else {
            return;
        };
        assert!(all == random(2, 8 * MIB));
        connection.send(random(1, 8 * MIB));
    });
    let plain = Plain::start(&app);
    let mut client = plain.connect();
    client.send(random(2, 8 * MIB));
    client.half_close();
    assert!(client.read_to_end().unwrap() == random(1, 8 * MIB));
    drop(client);
    plain.assert_counted(8 * MIB, 8 * MIB);
}

#[test]
fn a_reset_of_the_server_in_the_middle_reaches_the_client() {
    let (say, stalled) = channel();
    let app = Server::start(move |mut connection| {
        // Longer than the proxy of a busy machine may stand still.
        let short = Some(Duration::from_secs(3));
        connection.stream().set_write_timeout(short).unwrap();
        let bytes = random(1, MIB);
        // Until the reader, which has stopped, takes no more.
        while connection.try_send(&bytes).is_ok() {}
        connection.reset();
        say.send(()).unwrap();
    });
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut client = plain.connect();
    client.read_exact(MIB);
    eventually("bytes wait in a pipe", || plain.pipes() == before + 2);
    stalled.recv_timeout(PATIENCE).unwrap();
    let error = client
        .read_to_end()
        .expect_err("a cut must not look like the end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    eventually("the pipe is closed", || plain.pipes() == before);
}

#[test]
fn a_reset_of_the_client_in_the_middle_reaches_the_server() {
    let (say, heard) = channel();
    let app = Server::start(move |mut connection| {
        let sent = connection.try_send(random(1, 64 * MIB));
        say.send(sent.map_err(|error| error.kind())).unwrap();
    });
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut client = plain.connect();
    client.read_exact(MIB);
    eventually("bytes wait in a pipe", || plain.pipes() == before + 2);
    rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    drop(client);
    let end = heard.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(end, Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)),
        "{end:?}"
    );
    let gone = ["reason=\"client_closed\""];
    let proxy = &plain.proxy;
    proxy.await_metric("tulle_tcp_failures_total", &gone, 1.0);
    eventually("the pipe is closed", || plain.pipes() == before);
}

#[test]
fn urgent_data_in_the_middle_stops_nothing() {
    let (say, heard) = channel();
    let app = Server::start(move |mut connection| {
        let _ = say.send(read_all(&mut connection).unwrap());
    });
    let plain = Plain::start(&app);
    let mut client = plain.connect();
    let bytes = random(2, 8 * MIB);
    for part in bytes.chunks(MIB) {
        client.send(part);
        rustix::net::send(client.stream(), b"!", SendFlags::OOB).unwrap();
    }
    // Behind the last mark, where splicing sees the end.
    client.send(random(3, MIB));
    client.half_close();
    // Urgent data is not part of the stream, as usual, and must not end the stream.
    let got = heard.recv_timeout(PATIENCE).unwrap();
    assert!(got.ends_with(&random(3, MIB)[MIB / 2..]));
    assert!(got.len() >= 9 * MIB, "{} bytes came", got.len());
}

#[test]
fn more_stalled_streams_than_pipes_are_copied() {
    const STREAMS: usize = 70;
    const SIZE: usize = 12 * MIB;
    let _alone = full_sockets();
    let app = source(SIZE);
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut clients: Vec<_> = (0..STREAMS).map(|_| plain.connect()).collect();
    for client in &mut clients {
        client.read_exact(1);
    }
    eventually("all pipes are in use", || plain.pipes() == before + 128);
    let expected = random(1, SIZE);
    for client in &mut clients {
        assert!(client.read_to_end().unwrap() == expected[1..]);
    }
    eventually("the pipes are closed", || plain.pipes() == before);
    drop(clients);
    plain.assert_counted(0, STREAMS * SIZE);
}

#[test]
fn without_descriptors_bulk_is_copied() {
    let app = Server::start(|mut connection| {
        if connection.read_exact(1).is_ok() {
            connection.send(random(1, 16 * MIB));
        }
    });
    let plain = Plain::start(&app);
    let before = plain.pipes();
    let mut client = plain.connect();
    eventually("it is connected", || app.connections() == 1);
    // Open descriptors stay open, whatever their numbers; the next one would have a number above these three.
    let limit = Rlimit {
        current: Some(3),
        maximum: Some(3),
    };
    let pid = Pid::from_raw(i32::try_from(plain.proxy.pid()).unwrap());
    prlimit(pid, Resource::Nofile, limit).unwrap();
    client.send("x");
    client.read_exact(MIB);
    pause("no pipe is made", Duration::from_millis(100));
    assert_eq!(plain.pipes(), before);
    assert!(client.read_exact(15 * MIB) == random(1, 16 * MIB)[MIB..]);
}
