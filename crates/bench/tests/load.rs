//! The load generator against servers that behave, lose, garble, stall and close.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, too"
)]

#[path = "../../../tests/local/src/ports.rs"]
#[allow(dead_code, unreachable_pub)]
mod ports;
#[path = "../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;

use ports::free_port;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tulle_bench::load::{Beside, Errors, Load, Pattern, Report, Serve, decode, run, serve};
use tulle_bench::payload::text;
use waits::{holds_within, pause};

const BYTES: usize = 200;

fn load(to: SocketAddr, pattern: Pattern, connections: usize, millis: u64) -> Load {
    Load {
        to,
        connections,
        pattern,
        bytes: BYTES,
        upload: 0,
        beside: None,
        warmup: Duration::ZERO,
        measure: Duration::from_millis(millis),
        certificates: None,
    }
}

fn generate(load: &Load) -> Report {
    run(load, &|_| {}, &|| {}).unwrap()
}

/// Measures again, and longer, while so much as `is_enough` wants was not done or the last answers
/// came too late: a busy machine may stand still for the whole of a short measurement. What is lost
/// in any other way is lost.
fn enough(measure: impl Fn(u32) -> Report, is_enough: impl Fn(&Report) -> bool) -> Report {
    let mut longer = 1;
    loop {
        let report = measure(longer);
        let lost = report.errors.total() - report.errors.unanswered;
        let is_good = report.errors.unanswered == 0 && is_enough(&report);
        if lost > 0 || is_good || longer == 16 {
            return report;
        }
        longer *= 2;
    }
}

/// As above, with the load measured so many times longer.
fn generate_enough(load: &Load, is_enough: impl Fn(&Report) -> bool) -> Report {
    let longer = |longer: u32| Load {
        measure: load.measure * longer,
        ..load.clone()
    };
    enough(|times| generate(&longer(times)), is_enough)
}

/// Answers each connection in a thread of its own; which one it is counts from 0.
fn server(answer: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer(number, stream.unwrap()));
        }
    });
    address
}

/// Reads a request; false: there is none.
fn request(stream: &mut TcpStream) -> bool {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => all.push(byte[0]),
            _ => return false,
        }
    }
    true
}

fn good(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Answers every request on every connection with these bytes.
fn always(answer: Vec<u8>) -> SocketAddr {
    server(move |_, mut stream| while request(&mut stream) && stream.write_all(&answer).is_ok() {})
}

/// Our own server on a port of its choice.
fn own_server() -> SocketAddr {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    std::thread::spawn(move || serve(&Serve { listen }).unwrap());
    let listens = holds_within(Duration::from_secs(30), "the server listens", || {
        TcpStream::connect(listen).is_ok()
    });
    assert!(listens, "the server does not listen");
    listen
}

#[test]
fn nothing_is_lost_with_our_own_server_in_any_pattern() {
    let address = own_server();
    for bytes in [0, 200, 100 << 10, 1 << 20] {
        let load = Load {
            bytes,
            ..load(address, Pattern::Saturate, 8, 300)
        };
        let report = generate_enough(&load, |report| report.answered > 8);
        assert_eq!(report.errors, Errors::default(), "{:?}", report.first_error);
        assert!(report.answered > 8, "{bytes}: {}", report.answered);
        // The generator waits for answers in flight at the end, and their latency counts.
        let latencies = decode(&report.histogram).unwrap().len();
        assert_eq!(latencies, report.answered_ever);
        assert!(report.answered_ever >= report.answered);
        assert!(report.seconds >= 0.3);
    }
    let afresh = load(address, Pattern::NewConnections, 8, 300);
    let report = generate_enough(&afresh, |report| report.answered > 8);
    assert_eq!(report.errors, Errors::default(), "{:?}", report.first_error);
    assert!(report.answered > 8);
    for upload in [1, 100 << 10, 1 << 20] {
        let load = Load {
            upload,
            ..load(address, Pattern::Saturate, 8, 300)
        };
        let report = generate_enough(&load, |report| report.answered > 8);
        assert_eq!(report.errors, Errors::default(), "{:?}", report.first_error);
        assert!(report.answered > 8, "{upload}: {}", report.answered);
    }
}

#[test]
fn another_body_than_the_one_sent_is_no_request() {
    let address = own_server();
    let post = |body: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        let head =
            format!("POST /bytes/1 HTTP/1.1\r\nHost: echo\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        stream.read(&mut [0; 9]).unwrap_or(0)
    };
    let mut body = text(300);
    assert_eq!(post(&body), 9);
    body[299] ^= 1;
    assert_eq!(post(&body), 0);
}

#[test]
fn those_beside_are_counted_apart() {
    let address = own_server();
    let beside = |per_second, least: u64| {
        let measure = || {
            generate(&Load {
                beside: Some(Beside {
                    connections: 2,
                    bytes: 8 << 20,
                    per_second,
                }),
                ..load(address, Pattern::Saturate, 4, 1000)
            })
        };
        // Not longer: what comes in a second is bounded.
        let report = enough(
            |_| measure(),
            |report| report.answered > 4 && report.beside_bytes > least,
        );
        assert_eq!(report.errors, Errors::default(), "{:?}", report.first_error);
        assert!(report.answered > 4, "{}", report.answered);
        let latencies = decode(&report.histogram).unwrap().len();
        assert!(latencies <= report.answered_ever);
        report.beside_bytes
    };
    let all = beside(None, 8 << 20);
    assert!(all > 8 << 20, "{all}");
    // At most the five turns that a second and its grace may hold, of a quarter of the rate each.
    let few = beside(Some(64 << 10), 0);
    assert!(few > 0 && few <= 2 * 5 * (16 << 10), "{few}");
}

#[test]
fn the_rate_is_kept_and_the_warm_up_is_not_counted() {
    let address = own_server();
    let mut load = load(address, Pattern::Rate(400.0), 16, 1000);
    load.warmup = Duration::from_millis(500);
    let words = Mutex::new(Vec::new());
    let say = |word: &str| words.lock().unwrap().push(word.to_owned());
    let time = Cell::new(0.0);
    let measure = |_: u32| {
        words.lock().unwrap().clear();
        let begin = Instant::now();
        let report = run(&load, &say, &|| {}).unwrap();
        time.set(begin.elapsed().as_secs_f64());
        report
    };
    let report = enough(measure, |report| report.answered_ever >= 300);
    let time = time.get();
    assert_eq!(*words.lock().unwrap(), ["begin", "end"]);
    assert_eq!(report.errors, Errors::default(), "{:?}", report.first_error);
    // Never are more sent than are due; a busy machine may leave some of the last unsent.
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let answered = report.answered_ever as f64;
    assert!(
        (300.0..=400.0 * time + 16.0).contains(&answered),
        "{answered} in {time} s"
    );
    assert!(report.answered < report.answered_ever);
}

#[test]
fn every_request_has_a_connection_of_its_own() {
    let accepted = AtomicUsize::new(0);
    let measure = |longer: u32| {
        let each = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&each);
        let answer = good(&text(BYTES));
        let address = server(move |_, mut stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            while request(&mut stream) && stream.write_all(&answer).is_ok() {}
        });
        let millis = 200 * u64::from(longer);
        let report = generate(&load(address, Pattern::NewConnections, 4, millis));
        accepted.store(each.load(Ordering::SeqCst), Ordering::SeqCst);
        report
    };
    let report = enough(measure, |report| report.answered_ever > 4);
    assert_eq!(report.errors.total(), 0, "{:?}", report.first_error);
    let accepted = u64::try_from(accepted.load(Ordering::SeqCst)).unwrap();
    assert!(report.answered_ever > 4);
    // A connection may have been opened that the end came before.
    let expected = report.answered_ever..=report.answered_ever + 4;
    assert!(expected.contains(&accepted), "{accepted}: {report:?}");
}

#[test]
fn other_framing_is_right() {
    let body = text(BYTES);
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    let chunks = [
        head,
        b"64\r\n",
        &body[..100],
        b"\r\n64\r\n",
        &body[100..],
        b"\r\n0\r\n\r\n",
    ];
    let chunked = load(always(chunks.concat()), Pattern::Saturate, 2, 200);
    let report = generate_enough(&chunked, |report| report.answered > 2);
    assert_eq!(report.errors.total(), 0, "{:?}", report.first_error);
    assert!(report.answered > 2);
    // A server that says that it closes is asked again on a new connection: nothing is lost.
    let last = [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 200\r\n\r\n",
        &body[..],
    ];
    let last = last.concat();
    let closing = server(move |_, mut stream| {
        let _ = request(&mut stream) && stream.write_all(&last).is_ok();
    });
    let closing = load(closing, Pattern::Saturate, 2, 200);
    let report = generate_enough(&closing, |report| report.answered > 2);
    assert_eq!(report.errors.total(), 0, "{:?}", report.first_error);
    assert!(report.answered > 2);
}

#[test]
fn each_loss_is_counted_as_what_it_is() {
    let body = text(BYTES);
    let garbled = [&body[..50], b"#", &body[51..]].concat();
    let closes_midway = |bytes: usize| {
        let answer = good(&text(BYTES));
        server(move |_, mut stream| {
            let _ = request(&mut stream) && stream.write_all(&answer[..bytes]).is_ok();
        })
    };
    // Not a port of the kernel's choice: it could give that one to somebody else meanwhile.
    let gone = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let refusal = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec();
    type Kind = fn(&Errors) -> u64;
    let cases: [(&str, SocketAddr, Kind); 8] = [
        ("closed without an answer", closes_midway(0), |e| e.reset),
        ("closed in the head", closes_midway(10), |e| e.reset),
        ("closed in the body", closes_midway(120), |e| e.reset),
        ("another status", always(refusal), |e| e.status),
        ("one byte is another", always(good(&garbled)), |e| e.body),
        ("shorter", always(good(&body[..199])), |e| e.body),
        ("no HTTP", always(b"what?\r\n\r\n".to_vec()), |e| e.body),
        ("nobody there", gone, |e| e.connect),
    ];
    for (name, address, kind) in cases {
        let report = generate(&load(address, Pattern::Saturate, 2, 150));
        assert_eq!(report.answered_ever, 0, "{name}");
        // A busy machine may leave the last ones unanswered.
        let (counted, total) = (kind(&report.errors), report.errors.total());
        let explained = counted + report.errors.unanswered;
        assert!(counted > 0 && explained == total, "{name}: {report:?}");
        assert!(report.first_error.is_some());
    }
}

#[test]
fn one_lost_request_among_many_good_ones_is_seen() {
    let answer = good(&text(BYTES));
    let address = server(move |number, mut stream| {
        let mut answered = 0;
        while request(&mut stream) && !(number == 0 && answered == 10) {
            answered += 1;
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    });
    // Long enough for a dozen requests on a busy machine, too.
    let report = generate(&load(address, Pattern::Saturate, 1, 4000));
    // A busy machine may leave the last one unanswered.
    let lost = report.errors.total() - report.errors.unanswered;
    assert_eq!((report.errors.reset, lost), (1, 1));
    assert!(report.answered > 10, "it goes on: {report:?}");
}

#[test]
fn what_is_not_answered_at_the_end_is_lost() {
    let silent = server(|_, mut stream| while request(&mut stream) {});
    let report = generate(&load(silent, Pattern::Saturate, 3, 100));
    assert_eq!((report.errors.unanswered, report.errors.total()), (3, 3));
    // Within a second after the end is in time.
    let slow = server(|_, mut stream| {
        while request(&mut stream) {
            pause("a slow answer", Duration::from_millis(200));
            let _ = stream.write_all(&good(&text(BYTES)));
        }
    });
    let slow = load(slow, Pattern::Saturate, 3, 100);
    let report = generate_enough(&slow, |report| report.answered_ever >= 3);
    assert_eq!(report.errors.total(), 0);
    assert!(report.answered_ever >= 3, "{report:?}");
}

#[test]
fn ten_seconds_without_an_answer_are_a_loss() {
    let silent = server(|_, mut stream| while request(&mut stream) {});
    // They are asked again then, and that is not yet lost.
    let report = generate(&load(silent, Pattern::Saturate, 2, 12_000));
    assert_eq!(report.errors.timeout, 2, "{report:?}");
}

#[test]
fn a_stall_is_seen_by_every_request_that_was_due_in_it() {
    // One stall of 400 ms in 1.5 s; in it 80 of 300 requests are due, on 4 connections.
    let begin = OnceLock::new();
    let answer = good(&text(BYTES));
    let address = server(move |_, mut stream| {
        while request(&mut stream) {
            let (from, to) = (Duration::from_millis(500), Duration::from_millis(900));
            let now = begin.get_or_init(Instant::now).elapsed();
            if now > from && now < to {
                pause("the stall", to - now);
            }
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let report = generate(&load(address, Pattern::Rate(200.0), 4, 1500));
    // A busy machine may leave the last ones unanswered.
    let lost = report.errors.total() - report.errors.unanswered;
    assert_eq!(lost, 0, "{:?}", report.first_error);
    let latencies = decode(&report.histogram).unwrap();
    let slow = latencies.len() - latencies.count_between(0, 50_000);
    // From when they were sent it would be the 4 that were under way.
    assert!(slow >= 40, "{slow} of {}", latencies.len());
    let [p99] = report.latencies_ms([0.99]).unwrap();
    assert!(p99 > 200.0, "{p99}");
}

#[test]
fn idle_connections_are_held_and_hung_up_ones_counted() {
    let address = own_server();
    let holding = Mutex::new(0);
    let say = |word: &str| {
        assert_eq!(word, "holding");
        *holding.lock().unwrap() += 1;
    };
    let mut load = load(address, Pattern::Hold, 300, 30_000);
    let report = run(&load, &say, &|| {}).unwrap();
    assert_eq!(*holding.lock().unwrap(), 1);
    assert_eq!((report.answered_ever, report.errors.total()), (300, 0));

    // This one ends every third connection when it is idle.
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ended);
    let answer = good(&text(BYTES));
    load.to = server(move |number, mut stream| {
        let answered = request(&mut stream) && stream.write_all(&answer).is_ok();
        if answered && number % 3 != 0 {
            request(&mut stream);
        } else {
            drop(stream);
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    load.connections = 30;
    let wait = || {
        let all = || ended.load(Ordering::SeqCst) >= 10;
        let ended = holds_within(Duration::from_secs(60), "connections have ended", all);
        assert!(ended, "ten of thirty connections end");
    };
    let report = run(&load, &|_| {}, &wait).unwrap();
    assert_eq!((report.errors.reset, report.errors.total()), (10, 10));
}

#[test]
fn the_server_answers_other_requests_too() {
    let address = own_server();
    let ask = |text: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let head = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let caller = ask(&format!(
        "GET /caller {head}X-Forwarded-Client-Cert: a\r\nx-forwarded-client-cert: b\r\n\r\n"
    ));
    assert!(caller.ends_with("\r\n\r\na\nb"), "{caller}");
    assert!(ask(&format!("GET /bytes/5 {head}\r\n")).ends_with("\r\n\r\n{\"id\""));
    assert!(ask(&format!("GET /bytes/8388609 {head}\r\n")).starts_with("HTTP/1.1 404 "));
    assert!(ask(&format!("GET /elsewhere {head}\r\n")).starts_with("HTTP/1.1 404 "));
    // More lengths than it keeps heads of.
    for length in 0..100 {
        let answer = ask(&format!("GET /bytes/{length} {head}\r\n"));
        assert!(
            answer.contains(&format!("Content-Length: {length}\r\n")),
            "{answer}"
        );
    }
    // Garbage and endless heads end the connection, nothing else.
    assert_eq!(ask("what?\r\n\r\n"), "");
    let mut endless = TcpStream::connect(address).unwrap();
    endless.write_all(b"GET /bytes/1 HTTP/1.1\r\nA: ").unwrap();
    let more = [b'a'; 16 << 10];
    while endless.write_all(&more).is_ok() {}
    assert!(ask(&format!("GET /bytes/1 {head}\r\n")).ends_with('{'));
}
