//! Requests made at random of all that clients and lenient servers disagree about: by whichever entrance
//! they come, no application finds a field of a proxy that a client wrote.
//!
//! `TULLE_CASES=N` tries N requests by each entrance, `TULLE_SEED=N` those of an earlier run.

use crate::identity_headers::{Entrances, FORGED};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use tests_local::{CLIENT, Client, TLS13, TlsClient, id};

/// Requests by each entrance, unless somebody wants more.
const CASES: u64 = 150;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn choose_from<'a>(&mut self, all: &[&'a str]) -> &'a str {
        let at = self.next() % all.len() as u64;
        all[usize::try_from(at).unwrap()]
    }

    /// A name that a lenient server may take for a proxy's.
    fn name(&mut self, odd: bool) -> String {
        let name = self.choose_from(&[
            "x-forwarded-client-cert",
            "x-tulle-identity",
            "x-tulle-reason",
            "x-tulle-anything",
        ]);
        let mut name: String = name
            .chars()
            .map(|c| match (c, self.next() % 4) {
                ('-', 0) => '_',
                (c, 1) => c.to_ascii_uppercase(),
                (c, _) => c,
            })
            .collect();
        if odd {
            let at = usize::try_from(self.next() % (name.len() as u64 + 1)).unwrap();
            name.insert_str(
                at,
                self.choose_from(&[" ", "\t", "\0", "\u{b}", "\r", "\n ", "."]),
            );
        }
        name
    }

    /// One field; `odd` says what is strange about it.
    fn forged_field(&mut self, odd: u64) -> String {
        let colon = match odd {
            1 => self.choose_from(&[" :", "\t: ", ":\r\n ", ":\t"]),
            _ => ": ",
        };
        let before = match odd {
            2 => self.choose_from(&[" ", "\t", "X: y\u{b}", "X: y\r"]),
            _ => "",
        };
        let end = match odd {
            3 => self.choose_from(&["\n", "\r", "\r\r\n", "\r\n \r\n"]),
            _ => "\r\n",
        };
        format!("{before}{}{colon}{FORGED}{end}", self.name(odd == 4))
    }

    /// A request with forged fields and at most one strange thing, so that many are taken.
    fn request(&mut self, number: u64) -> Vec<u8> {
        let odd = self.next() % 20;
        let before = match odd {
            5 => self.choose_from(&["\r\n", "\n", "\r\n\r\n", " ", "\0"]),
            _ => "",
        };
        let method = match odd {
            6 => self.choose_from(&["get", "M-SEARCH", "CONNECT", "PRI"]),
            _ => self.choose_from(&["GET", "POST", "PUT", "OPTIONS"]),
        };
        let version = match odd {
            7 => self.choose_from(&["HTTP/1.2", "http/1.1", "HTTP/0.9", "HTTP/1.1 ", ""]),
            _ => self.choose_from(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]),
        };
        let blank = match odd {
            8 => self.choose_from(&["  ", "\t"]),
            _ => " ",
        };
        let host = match odd {
            9 => self.choose_from(&["Host: a\r\nHost: a", "Host : a", "X: y"]),
            _ => "Host: a",
        };
        let mut text = format!("{before}{method}{blank}/{number} {version}\r\n{host}\r\n");
        for _ in 0..=self.next() % 3 {
            text.push_str(&self.forged_field(odd));
        }
        match odd {
            10 => {
                let named = self.name(false);
                text.push_str(&format!("Connection: {named}, close\r\n"));
            }
            11 => text.push_str("Connection: upgrade\r\nUpgrade: x\r\n"),
            _ => {}
        }
        match self.next() % 5 {
            0 => {
                let trailer = self.forged_field(odd);
                text.push_str(&format!(
                    "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{trailer}\r\n"
                ));
            }
            1 if odd == 12 => {
                let coding = self.choose_from(&[
                    "Chunked",
                    "x, chunked",
                    "identity",
                    "chunked\r\nContent-Length: 1",
                ]);
                text.push_str(&format!(
                    "Transfer-Encoding: {coding}\r\n\r\n1\r\nx\r\n0\r\n\r\n"
                ));
            }
            1 => text.push_str("Content-Length: 1\r\n\r\nx"),
            _ => text.push_str("\r\n"),
        }
        text.into_bytes()
    }
}

/// A line that somebody may read as a field of a proxy, though a client wrote it. What no server takes for
/// a request has no fields.
fn forged(heard: &[u8]) -> Option<String> {
    let heard = String::from_utf8_lossy(heard);
    let mut lines = heard.trim_start_matches(|c: char| c <= ' ').lines();
    let request = lines.next().unwrap_or_default().to_ascii_lowercase();
    if !request.contains("http/") {
        return None;
    }
    let mut lines = heard.split(['\r', '\n']);
    let found = lines.find(|line| {
        let (name, value) = line.split_once(':').unwrap_or_default();
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        value.contains(FORGED)
            && (name == "x-forwarded-client-cert" || name.starts_with("x-tulle-"))
    });
    found.map(str::to_owned)
}

/// Whatever comes back, or nothing: what counts is what the application hears.
fn try_plain(address: SocketAddr, request: &[u8]) {
    let mut client = Client::connect(address);
    if client.try_send(request).is_ok() {
        client.half_close();
        let _ = client.read_to_end();
    }
}

#[test]
fn no_entrance_lets_a_forged_field_pass() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|n: String| n.parse().ok())
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed: u64 = number("TULLE_SEED").unwrap_or(now.as_secs());
    let cases: u64 = number("TULLE_CASES").unwrap_or(CASES);
    println!("TULLE_SEED={seed}");
    let mut random = Random(seed);
    for protocol in ["http", "detect"] {
        let entrances = Entrances::new(protocol, &json!([]));
        let direct = entrances.inbound.address;
        let sidecars = ["http", "detect", "tcp"].map(|view| entrances.sidecar(view));
        let gateways = ["http", "tcp"].map(|kind| entrances.gateway(kind));
        let ways = sidecars.iter().chain(&gateways);
        let ways: Vec<SocketAddr> = ways.map(|(_, address)| *address).chain([direct]).collect();
        let certificate = entrances.mesh.ca.issue(&id(CLIENT));
        for number in 0..cases {
            let request = random.request(number);
            for address in &ways {
                try_plain(*address, &request);
            }
            if number % 5 == 0 {
                let tls = TlsClient::connect(direct, Some(&certificate), TLS13, &["http/1.1"]);
                let mut tls = tls.unwrap();
                let _ = tls.send(&request).and_then(|()| tls.response("GET"));
            }
            // All that was heard is read again each time.
            if number % 16 != 0 && number + 1 != cases {
                continue;
            }
            let heard = entrances.app.received();
            let found = heard.iter().find_map(|bytes| forged(bytes));
            assert!(
                found.is_none(),
                "TULLE_SEED={seed}, {protocol}, among the 16 requests up to {number}: {found:?}"
            );
        }
        let arrived = entrances.app.received_text().matches("HTTP/1.").count();
        println!(
            "{protocol}: {arrived} of {} requests arrived",
            cases * ways.len() as u64
        );
        // Else it would show nothing.
        assert!(arrived as u64 > cases * ways.len() as u64 / 5, "{arrived}");
    }
}
