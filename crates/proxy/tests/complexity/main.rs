//! No parser of network input takes more than linear time, whatever shape its input has. Four times
//! the bytes take about four times the work, where a quadratic parser takes sixteen times. The fuzz
//! target `complexity` looks for new shapes; these are known from attacks.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod cost;
mod parsers;

/// As in the proxy. The C library's gives some sizes back to the kernel in every run, and their page faults are no
/// work of a parser.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The parsers of the proxy.
mod modules {
    pub use tulle_proxy::codec::detect;
    pub use tulle_proxy::codec::dns_message as message;
    pub use tulle_proxy::codec::exposition;
    pub use tulle_proxy::codec::plain_path;
    pub use tulle_proxy::codec::proxy_protocol;
    pub use tulle_proxy::codec::sni;
    pub use tulle_proxy::filter::jwt::{keys, token};
    pub use tulle_proxy::telemetry::trace_context;
    pub mod hello {
        pub use tulle_tls::is_client_hello;
    }
}

use cost::repeated;
use parsers::PARSERS;
use std::hint::black_box;
use std::sync::LazyLock;
use tulle_proxy::config::route::ValuePattern;

/// How much the input grows.
const TIMES: usize = 4;
/// Most growth of the work per growth of the input; a quadratic parser has `TIMES`.
const MOST: f64 = 2.0;

/// `prefix`, repeated `unit`, `suffix`; the smaller input has this many units.
struct Shape {
    parser: &'static str,
    prefix: &'static [u8],
    unit: &'static [u8],
    suffix: &'static [u8],
    units: usize,
}

const fn shape(
    parser: &'static str,
    prefix: &'static [u8],
    unit: &'static [u8],
    suffix: &'static [u8],
    units: usize,
) -> Shape {
    Shape {
        parser,
        prefix,
        unit,
        suffix,
        units,
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
const TRAILERS: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n";
const CONNECTION: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: ";
const NAMED: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: x-a\r\n";
const CODINGS: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: ";
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: ";
const TE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nte: ";
const COOKIE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\ncookie: ";
const BAGGAGE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nbaggage: ";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\n";
/// A request on stream 1 that does not end with its head, and one whose head does not end.
const HEADERS: &[u8] = b"\0\0\x03\x01\x04\0\0\0\x01\x83\x86\x84";
const BEGUN: &[u8] = b"\0\0\x03\x01\0\0\0\0\x01\x82\x86\x84";
/// `:method: GET`, `:scheme: http`, `:path: /`; then the same with sixteen entries in the table.
const BLOCK: &[u8] = b"\x82\x86\x84";
const TABLE: &[u8] =
    b"\x82\x86\x84@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0\
    @\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0@\x01a\0";
/// A stream of `tulle/1` that is open.
const OPEN: &[u8] = b"\0\x01\0\x02\0\0\0\x01x";
/// The header of an answer with more records than fit, and its question.
const ANSWER: &[u8] = b"\0\x01\x81\x80\0\x01\xff\xff\0\0\0\0\x01a\0\0\x01\0\x01";
/// A record without its name.
const RECORD: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\x01\0\0\x04\x01\x02\x03\x04";
const LONG_NAME: &[u8] = b"\x01a\x01b\x01c\x01d\x01e\x01f\x01g\xc0\x0c\0\x01\0\x01\0\0\x01\0\0\0";
const TRACEPARENT: &[u8] = b"traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n";

/// Units of the smaller input come last.
#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    shape("http1-request", GET, b"x-\xfe\xfd: y\r\n", b"\r\n", 30),
    shape("http1-request", GET, b"x_tulle_\xfe: y\r\na: b\r\n", b"\r\n", 15),
    shape("http1-request", GET, b"connection: x-\xfe\xfd\r\nx-\xfe\xfd: y\r\n", b"\r\n", 8),
    shape("http1-request", NAMED, b"connection: te,te,te,te,te,te,te,te\r\nx: y\r\n", b"\r\n", 15),
    shape("http1-request", CONNECTION, b"x-\xfe\xfd,", b"\r\n\r\n", 2000),
    shape("http1-request", CONNECTION, b",", b"\r\n\r\n", 8000),
    shape("http1-request", CODINGS, b"a,", b"chunked\r\n\r\n", 4000),
    shape("http1-request", UPGRADE, b"a/\xfe,", b"\r\n\r\n", 4000),
    shape("http1-request", TE, b"a;q=0,", b"\r\n\r\n", 2500),
    shape("http1-request", COOKIE, b"\xfe\xfd=b; ", b"\r\n\r\n", 2500),
    shape("http1-request", BAGGAGE, b"\xfe\xfd=b,", b"\r\n\r\n", 2500),
    shape("http1-request", b"GET /", b"%2e%2e/", b" HTTP/1.1\r\nhost: a\r\n\r\n", 2000),
    shape("http1-request", b"GET http://", b"a.", b"/ HTTP/1.1\r\n\r\n", 4000),
    shape("http1-request", GET, b"x: y ", b"", 3000),
    shape("http1-request", GET, b"x: \t", b"\r\n \0\r\n\r\n", 3000),
    shape("http1-response", OK, b"set-cookie: \xfe=\xfd\r\n", b"\r\n", 30),
    shape("http1-response", OK, b"connection: x-\xfe\xfd\r\nx-\xfe\xfd: y\r\n", b"\r\n", 8),
    shape("http1-response", b"HTTP/1.1 200 OK\r\nconnection: ", b"x-\xfe\xfd,", b"\r\n\r\n", 2000),
    shape("http1-response", b"HTTP/1.1 200 ", b"a ", b"\r\n\r\n", 4000),
    shape("http1-edit", GET, b"x_claim: \xfe\r\n", b"\r\n", 1000),
    shape("http1-edit", b"", b" ", b"", 8000),
    shape("http1-chunks", b"", b"1\r\nx\r\n", b"0\r\n\r\n", 2000),
    shape("http1-chunks", b"", b"1;a=b\r\nx\r\n", b"0\r\n\r\n", 800),
    shape("http1-chunks", b"0\r\n", b"x-\xfe\xfd: y\r\n", b"\r\n", 200),
    shape("http1-chunks", b"ffff\r\n", b"x", b"", 15_000),
    // PING, SETTINGS of another window, WINDOW_UPDATE, an unknown frame, DATA of one byte.
    shape("http2-frames", b"", b"\0\0\x08\x06\0\0\0\0\0\xfe\xfd345678", b"", 500),
    shape("http2-frames", b"", b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xfe\xfd", b"", 500),
    shape("http2-frames", b"", b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01", b"", 500),
    shape("http2-frames", b"", b"\0\0\0\x7f\0\0\0\0\0", b"", 500),
    shape("http2-frames", HEADERS, b"\0\0\x01\0\0\0\0\0\x01x", b"", 1500),
    // CONTINUATION of one byte, and of none.
    shape("http2-frames", BEGUN, b"\0\0\x01\x09\0\0\0\0\x01\x84", b"", 1000),
    shape("http2-frames", BEGUN, b"\0\0\0\x09\0\0\0\0\x01", b"", 1000),
    // Literals; literals that make entries; the newest entry, an old one, a static one; a cookie in
    // pieces.
    shape("http2-block", BLOCK, b"\0\x04x-\xfe\xfd\x01y", b"", 1800),
    shape("http2-block", BLOCK, b"@\x04x-\xfe\xfd\x01y", b"", 1800),
    shape("http2-block", BLOCK, b"@\x01\xfe\x01\xfd\xbe", b"", 2000),
    shape("http2-block", TABLE, b"\xcd", b"", 8000),
    shape("http2-block", BLOCK, b"\x90", b"", 8000),
    shape("http2-block", BLOCK, b"\0\x06cookie\x01\xfe", b"", 60),
    shape("http2-huffman", b"", b"\xff\xff\xff\xea", b"", 2000),
    shape("http2-huffman", b"", b"\x18\xc6", b"\x3f", 7000),
    shape("http2-out", POST, b"1\r\nx\r\n", b"0\r\n\r\n", 2000),
    shape("http2-out", TRAILERS, b"\xfe: b\r\n", b"\r\n", 500),
    shape("http2-out", GET, b"X-\xfe\xfd: y\r\n", b"\r\n", 30),
    // DATA of one byte, CREDIT, PING, an unknown frame.
    shape("transport", OPEN, b"\0\x01\0\0\0\0\0\x01x", b"", 1500),
    shape("transport", OPEN, b"\0\x04\x02\0\0\0\0\x01\0\0\0\x01", b"", 1000),
    shape("transport", b"", b"\0\x08\x05\0\0\0\0\0\xfe\xfd345678", b"", 900),
    shape("transport", b"", b"\0\0\x7f\x80\0\0\0\0", b"", 1000),
    shape("dns", ANSWER, RECORD, b"", 800),
    shape("dns", ANSWER, LONG_NAME, b"", 500),
    shape("dns", b"\0\x01\x01\0\0\x01\0\0\0\0\0\0", b"\x01\xfe", b"\0\0\x01\0\x01", 30),
    shape("dns", b"", b"1.", b"ip6.arpa", 7000),
    shape("jwt", b"", b".", b"", 4000),
    shape("jwt", b"eyJhbGciOiJFUzI1NiJ9.", b"e30A", b".AAAA", 900),
    shape("jwt-claims", b"{\"iss\":\"a\"", b",\"\xfe\xfd\":1", b"}", 250),
    shape("jwt-claims", b"{\"aud\":[", b"\"\xfe\xfd\",", b"1]}", 350),
    shape("jwt-claims", b"{\"a\":\"", b"\\u00e9", b"\"}", 300),
    shape("jwt-claims", b"{\"a\":", b"9", b"}", 1900),
    shape("jwt-claims", b"{\"a\":0.", b"0", b"1e-9}", 1900),
    shape("jwt-claims", b"{\"a\":", b"[", b"", 1900),
    shape("jwks", b"{\"keys\":[", b"{\"kty\":\"x\"},", b"{}]}", 1000),
    shape("jwks", b"{\"keys\":[{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"", b"AAAA", b"\"}]}", 3000),
    shape("trace-context", b"", TRACEPARENT, b"", 200),
    shape("trace-context", b"tracestate:", b"\xfe\xfd=b,", b"\n", 2500),
    shape("trace-context", b"b3:", b"0-", b"\n", 4000),
    shape("trace-context", b"", b"x-b3-traceid:\xfe\n", b"", 900),
    shape("plain-path", b"/", b"%20a/", b"", 3000),
    shape("plain-path", b"/", b"%25", b"", 4000),
    shape("plain-path", b"/", b"a.b/", b"%", 3500),
    shape("path-readings", b"/", b"%2F", b"", 2000),
    shape("path-readings", b"/", b"%20", b"", 2000),
    shape("path-readings", b"/a;", b";b\\ ", b"", 2000),
    shape("cookie", COOKIE, b"\xfe=b; ", b"\r\n\r\n", 2500),
    shape("cookie", GET, b"cookie: \xfe=b\r\n", b"\r\n", 1000),
    // Other names, escaped names, one value of many escapes; then a value that an expression reads.
    shape("query", b"", b"\xfe=\xfd&", b"a=1", 2500),
    shape("query", b"", b"%61%62=+&", b"a=1", 1500),
    shape("query", b"", b"&", b"a=1", 8000),
    shape("query", b"", b"a", b"=1", 8000),
    shape("query", b"a=", b"%", b"", 8000),
    shape("query", b"expression=", b"%61+", b"", 2500),
    shape("query", b"expression=", b"a1", b"", 6000),
    shape("unchunk", b"", b"1\r\nx\r\n", b"0\r\n\r\n", 2000),
    shape("unchunk", b"f", b"f", b"", 5000),
    shape("proxy-protocol", b"PROXY TCP4 ", b"1 ", b"\r\n", 500),
    shape("proxy-protocol-tlvs", b"", b"\x04\0\0", b"", 250),
    // Records of one byte; extensions of an unknown kind.
    shape("sni", b"\x16\x03\x01\0\x04\x01\0\x3f\xf0", b"\x16\x03\x01\0\x01\x03", b"", 600),
    shape("sni-extensions", b"", b"\x0a\x0a\0\0", b"", 900),
    shape("detect", b"", b"\x7f", b"", 8000),
    shape("detect", b"", b"PROXY\n", b"", 2500),
    shape("detect", b"a ", b"/1.1 http:/", b"", 1300),
    shape("exposition", b"", b"up{a=\"b\"} 1\n", b"", 1000),
    shape("exposition", b"up{", b"a=\"\\\\\",", b"} 1", 1500),
    shape("exposition", b"up{a=\"", b"\\\"", b"\"} 1", 5000),
    shape("exposition", b"# HELP up ", b" x", b"", 5000),
    shape("exposition", b"", b"#\n", b"", 5000),
];

/// Files of `codec`, and a parser that measures each.
const CODECS: [(&str, &str); 9] = [
    ("answered", "unchunk"),
    ("detect", "detect"),
    ("dns_message", "dns"),
    ("exposition", "exposition"),
    ("host", "sni"),
    ("plain_path", "plain-path"),
    ("proxy_protocol", "proxy-protocol"),
    // It walks over the fields of a head.
    ("request_values", "http1-edit"),
    ("sni", "sni"),
];

#[test]
fn every_codec_is_measured() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codec");
    let files = std::fs::read_dir(directory).unwrap().flatten();
    let names = files.map(|file| file.path().file_stem().unwrap().to_owned());
    let mut names: Vec<_> = names.filter(|name| name != "mod").collect();
    names.sort();
    assert_eq!(names, CODECS.map(|(file, _)| file));
    for (file, parser) in CODECS {
        assert!(SHAPES.iter().any(|s| s.parser == parser), "{file}");
    }
}

/// Tries to match at each place, and has to read on to the end from many of them.
static EXPRESSION: LazyLock<ValuePattern> = LazyLock::new(|| {
    let pattern = "(a|a1|1a)*[a-z0-9 ]*(a ?)+x";
    ValuePattern::Regex(tulle_model::pattern::compile(pattern).unwrap())
});

/// Finds a parser. Some are not in the fuzz target, which takes single files of the proxy.
fn run_of(parser: &str) -> fn(&[u8]) {
    match parser {
        "unchunk" => |framed| {
            black_box(tulle_proxy::codec::answered::unchunk(framed));
        },
        "path-readings" => |path| {
            let _ = black_box(tulle_proxy::config::path_readings::agreed(path, |path| {
                path.len() % 7
            }));
        },
        "query" => |query| {
            let exact = ValuePattern::Exact("1".into());
            black_box(exact.matches_query(query, "a"));
            black_box(EXPRESSION.matches_query(query, "expression"));
        },
        "cookie" => |head| {
            black_box(tulle_proxy::balance::affinity::cookie(head, b"nobody"));
        },
        name => {
            let known = PARSERS.iter().find(|p| p.name == name);
            known.unwrap_or_else(|| panic!("no parser {name}")).run
        }
    }
}

/// Returns how much more the work grows than the input: the least of several attempts, since
/// disturbances only add.
fn growth(run: fn(&[u8]), shape: &Shape, enough: f64) -> f64 {
    let input = |units| repeated(shape.prefix, shape.unit, shape.suffix, units);
    let (small, large) = (input(shape.units), input(shape.units * TIMES));
    let bytes = large.len() as f64 / small.len() as f64;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        least = least.min(cost::measure(run, &large) / cost::measure(run, &small) / bytes);
        if least <= enough {
            break;
        }
    }
    least
}

#[test]
fn work_grows_as_the_input_does() {
    let mut bad = Vec::new();
    for shape in SHAPES {
        let growth = growth(run_of(shape.parser), shape, MOST);
        let unit = shape.unit.escape_ascii();
        println!("{:16} {growth:5.2} {unit}", shape.parser);
        if growth > MOST {
            bad.push(format!("{} with many {unit}: {growth:.1}", shape.parser));
        }
    }
    assert!(bad.is_empty(), "more than linear work: {bad:#?}");
}

#[test]
fn every_parser_has_shapes() {
    for parser in &PARSERS {
        let has = |shape: &Shape| {
            shape.parser == parser.name && {
                let large = repeated(shape.prefix, shape.unit, shape.suffix, TIMES * shape.units);
                large.len() <= parser.longest
            }
        };
        assert!(SHAPES.iter().any(has), "{}", parser.name);
    }
}

/// A former way to read a `Connection` list: each member is compared with all before it.
fn quadratic(head: &[u8]) {
    let mut seen: Vec<&[u8]> = Vec::new();
    for member in head.split(|&byte| byte == b',') {
        if !seen.iter().any(|known| known.eq_ignore_ascii_case(member)) {
            seen.push(member);
        }
    }
    black_box(seen);
}

#[test]
fn a_quadratic_parser_is_seen() {
    let shape = shape("", b"connection: ", b"\xfe\xfd,", b"", 150);
    let growth = growth(quadratic, &shape, MOST);
    println!("{growth}");
    assert!(growth > MOST, "{growth}");
}
