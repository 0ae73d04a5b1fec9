//! DNS of an application under interception: names of the mesh from its sidecar, all others from the
//! resolvers, cached; over UDP and TCP, IPv4 and IPv6. `dig` asks.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tests_local::{
    CLIENT, Host, Mesh, PATIENCE, Proxy, SERVER, Yard, id, installed, is_root, outbound_config,
};
use tulle_net::socket::raise_descriptor_limit;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Somebody else's resolver. What it is asked for says what it answers:
///
/// * `slow.test` is not answered the first time,
/// * `forged.test` is answered first with another number, then rightly,
/// * `long.test` fits in no datagram,
/// * `none.test` does not exist, and that holds for 60 s,
/// * `broken.test` fails,
/// * anything else has the address 192.0.2.1, or 2001:db8::1, for 300 s.
struct Resolver {
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
    stopped: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Resolver {
    /// Starts it in this thread's namespace.
    fn start(address: SocketAddr) -> Self {
        let udp = UdpSocket::bind(address).unwrap();
        let tcp = TcpListener::bind(address).unwrap();
        udp.set_read_timeout(Some(std::time::Duration::from_millis(200)))
            .unwrap();
        let resolver = Self {
            asked: Arc::default(),
            stopped: Arc::default(),
            address,
        };
        let (asked, stopped) = (resolver.asked.clone(), resolver.stopped.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !stopped.load(Ordering::SeqCst) {
                let Ok((length, client)) = udp.recv_from(&mut bytes) else {
                    continue;
                };
                let query = bytes[..length].to_vec();
                let name = name(&query);
                let before = asked
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|q| *q == &query)
                    .count();
                let first = {
                    let mut asked = asked.lock().unwrap();
                    let first = !asked.iter().any(|q| q[2..] == query[2..]);
                    asked.push(query.clone());
                    first && before == 0
                };
                if name.eq_ignore_ascii_case("slow.test") && first {
                    continue;
                }
                let answer = answer(&query, false);
                if name == "forged.test" {
                    let mut forged = answer.clone();
                    forged[0] ^= 0xff;
                    let end = forged.len();
                    forged[end - 4..].copy_from_slice(&[203, 0, 113, 66]);
                    udp.send_to(&forged, client).unwrap();
                    let mut other = answer.clone();
                    other[13] ^= 1;
                    udp.send_to(&other, client).unwrap();
                }
                udp.send_to(&answer, client).unwrap();
            }
        });
        let (asked, stopped) = (resolver.asked.clone(), resolver.stopped.clone());
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let mut length = [0; 2];
                if stream.read_exact(&mut length).is_err() {
                    continue;
                }
                let mut query = vec![0; u16::from_be_bytes(length).into()];
                stream.read_exact(&mut query).unwrap();
                asked.lock().unwrap().push(query.clone());
                let answer = answer(&query, true);
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                stream.write_all(&[&length[..], &answer].concat()).unwrap();
            }
        });
        resolver
    }

    /// Queries for a name so far.
    fn asked(&self, wanted: &str) -> Vec<Vec<u8>> {
        let asked = self.asked.lock().unwrap();
        let named = asked
            .iter()
            .filter(|q| name(q).eq_ignore_ascii_case(wanted));
        named.cloned().collect()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// The name of the question, in the case it came in.
fn name(query: &[u8]) -> String {
    let mut out = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let length = usize::from(query[at]);
        out.push(String::from_utf8_lossy(&query[at + 1..=at + length]).into_owned());
        at += length + 1;
    }
    out.join(".")
}

fn answer(query: &[u8], tcp: bool) -> Vec<u8> {
    let name = name(query).to_ascii_lowercase();
    let end = 12 + name.len() + 2 + 4;
    let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
    let mut out = query[..end].to_vec();
    out[2..4].copy_from_slice(&[0x81, 0x80]);
    out[6..12].fill(0);
    let mut record = |kind: u16, ttl: u32, data: &[u8]| {
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        out.extend(data);
    };
    match (name.as_str(), kind) {
        ("long.test", _) if !tcp => out[2] |= 0x02,
        ("long.test", 16) => {
            for number in 0..100u8 {
                record(16, 300, &[&[99], &[number; 99][..]].concat());
            }
            out[7] = 100;
        }
        ("none.test", _) => {
            let mut soa = vec![0, 0];
            soa.extend([0; 16]);
            soa.extend(60u32.to_be_bytes());
            record(6, 900, &soa);
            out[3] |= 3;
            out[9] = 1;
        }
        ("broken.test", _) => out[3] |= 2,
        (_, 1) => {
            record(1, 300, &[192, 0, 2, 1]);
            out[7] = 1;
        }
        (_, 28) => {
            let address: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
            record(28, 300, &address.octets());
            out[7] = 1;
        }
        _ => {}
    }
    out
}

/// An application's namespace with its sidecar, which answers DNS, and a resolver outside it.
struct Scene {
    yard: Yard,
    proxy: Proxy,
    resolver: Resolver,
    _mesh: Mesh,
}

fn scene(change: impl FnOnce(&mut Value)) -> Option<Scene> {
    if !is_root() {
        return None;
    }
    installed("dig", "bind9-dnsutils")?;
    let yard = Yard::new(&[
        (ip("10.99.9.1"), ip("10.99.9.2")),
        (ip("fd74:3::a"), ip("fd74:3::b")),
    ]);
    yard.redirect(|mut rules| {
        rules.dns_port = Some(15053);
        // The resolver is no workload.
        rules.exclude_inbound_ports.push(5300);
        rules
    });
    let there = SocketAddr::new(ip("10.99.9.2"), 5300);
    let resolver = yard.sidecar(Host::Server, || Resolver::start(there));
    let mut config = outbound_config("10.99.9.2:9".parse().unwrap()).file;
    config["services"][0]["addresses"] = json!(["10.99.9.80", "fd74:3::80"]);
    config["services"][0]["hostnames"] = json!([SERVER, format!("{SERVER}.default")]);
    config["services"].as_array_mut().unwrap().push(json!({
        "name": "four", "addresses": ["10.99.9.81"], "hostnames": ["four"],
        "identities": [id("four")], "ports": [],
    }));
    config["listeners"] = json!([{ "address": "[::]:15001", "kind": "outbound" }]);
    config["mesh"] = json!({ "dns": true });
    config["dns"] = json!({
        "addresses": ["127.0.0.1:15053", "[::1]:15053"],
        "resolvers": [resolver.address.to_string()],
    });
    change(&mut config);
    let mesh = Mesh::new();
    let proxy = yard.sidecar(Host::Client, || Proxy::start(&mesh, CLIENT, config));
    Some(Scene {
        yard,
        proxy,
        resolver,
        _mesh: mesh,
    })
}

impl Scene {
    /// Runs `dig` against the resolver that the application knows.
    fn dig(&self, arguments: &[&str]) -> String {
        self.yard.application(Host::Client, || {
            let mut dig = Command::new("dig");
            dig.args(["+time=5", "+tries=1", "@10.99.9.53"])
                .args(arguments);
            let output = dig.output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        })
    }

    fn short(&self, arguments: &[&str]) -> String {
        let said = self.dig(&[arguments, &["+short"]].concat());
        said.trim_end().to_owned()
    }

    fn count(&self, answer: &str) -> f64 {
        let label = format!("answer=\"{answer}\"");
        self.yard.sidecar(Host::Client, || {
            self.proxy.metric("tulle_dns_queries_total", &[&label])
        })
    }
}

#[test]
fn names_of_the_mesh() {
    let Some(scene) = scene(|_| {}) else { return };
    for transport in ["+notcp", "+tcp"] {
        for server in ["@10.99.9.53", "@fd74:3::53", "@127.0.0.1", "@::1"] {
            for name in ["ratings", "RaTings.Default.", "ratings.default"] {
                let ask = |kind| scene.short(&[server, transport, name, kind]);
                assert_eq!(ask("A"), "10.99.9.80", "{transport} {server} {name}");
                assert_eq!(ask("AAAA"), "fd74:3::80", "{transport} {server} {name}");
            }
        }
    }
    // The case of the question is that of the answer; nothing there is no error.
    let said = scene.dig(&["rAtInGs", "A"]);
    assert!(
        said.contains("rAtInGs.") && said.contains("status: NOERROR"),
        "{said}"
    );
    for (name, kind) in [("four", "AAAA"), ("ratings", "MX"), ("ratings", "TXT")] {
        let said = scene.dig(&[name, kind]);
        assert!(
            said.contains("status: NOERROR") && said.contains("ANSWER: 0"),
            "{said}"
        );
    }
    assert_eq!(scene.short(&["-x", "10.99.9.80"]), "ratings.");
    assert_eq!(scene.short(&["-x", "fd74:3::80"]), "ratings.");
    // None of it was anybody else's business.
    assert!(scene.resolver.asked.lock().unwrap().is_empty());
    assert_eq!(scene.count("forwarded"), 0.0);
    assert!(scene.count("mesh") >= 54.0);
    // And the C library finds it, as an application would.
    let found = scene.yard.application(Host::Client, || {
        let script = "import socket,struct\n\
            s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(10)\n\
            q=b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x07ratings\\0\\0\\x01\\0\\x01'\n\
            s.connect(('10.99.9.53',53)); s.send(q); print(s.recv(512)[-4:].hex())";
        let output = Command::new("python3")
            .args(["-c", script])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    assert_eq!(
        found.trim(),
        "0a630950",
        "the answer comes from where it was asked"
    );
}

#[test]
fn the_resolver_of_a_cluster_knows_headless_services_and_names_of_addresses() {
    // A name in a cluster has its namespace.
    let Some(scene) = scene(|config| {
        let service = |name: &str, addresses: Value| {
            json!({
                "name": name, "addresses": addresses, "hostnames": [name],
                "identities": [id("web")], "ports": [],
            })
        };
        let services = config["services"].as_array_mut().unwrap();
        services.push(service("web.shop", json!(["10.99.9.82"])));
        services.push(service("headless.shop", json!([])));
    }) else {
        return;
    };
    let asked = |name: &str| scene.resolver.asked(name).len();
    assert_eq!(scene.short(&["web.shop", "A"]), "10.99.9.82");
    assert_eq!(asked("web.shop"), 0);
    assert_eq!(scene.short(&["headless.shop", "A"]), "192.0.2.1");
    assert_eq!(asked("headless.shop"), 1);
    scene.dig(&["-x", "10.99.9.82"]);
    assert_eq!(asked("82.9.99.10.in-addr.arpa"), 1);
}

#[test]
fn other_names_are_passed_on_and_kept() {
    let Some(scene) = scene(|_| {}) else { return };
    let asked = |name: &str| scene.resolver.asked(name).len();
    assert_eq!(scene.short(&["www.example.test", "A"]), "192.0.2.1");
    assert_eq!(scene.short(&["www.example.test", "AAAA"]), "2001:db8::1");
    assert_eq!(asked("www.example.test"), 2);
    // The answer comes from memory, in the case of the question; the remaining time shrinks and never
    // grows.
    let said = scene.dig(&["WWW.Example.TEST", "A"]);
    assert!(said.contains("WWW.Example.TEST."), "{said}");
    let line = said.lines().find(|l| l.ends_with("192.0.2.1")).unwrap();
    let ttl: u32 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(ttl <= 300, "{line}");
    assert_eq!(asked("www.example.test"), 2);
    assert_eq!(scene.count("cached"), 1.0);
    // Missing names are remembered, too; failures are not.
    for _ in 0..2 {
        let said = scene.dig(&["none.test", "A"]);
        assert!(said.contains("status: NXDOMAIN"), "{said}");
        let said = scene.dig(&["broken.test", "A"]);
        assert!(said.contains("status: SERVFAIL"), "{said}");
    }
    assert_eq!(asked("none.test"), 1);
    assert_eq!(asked("broken.test"), 2);
    // A question with other wishes is another question.
    let said = scene.dig(&["www.example.test", "A", "+dnssec"]);
    assert!(said.contains("192.0.2.1"), "{said}");
    assert_eq!(asked("www.example.test"), 3);
    // The case goes out as it came, and each question has a number of its own.
    scene.short(&["MiXed.TeSt", "A"]);
    let queries = scene.resolver.asked("mixed.test");
    assert_eq!(name(&queries[0]), "MiXed.TeSt");
    let all = scene.resolver.asked.lock().unwrap().clone();
    let mut ids: Vec<[u8; 2]> = all.iter().map(|q| [q[0], q[1]]).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() + 1 >= all.len(), "{} of {}", ids.len(), all.len());
}

#[test]
fn answers_that_do_not_fit_or_do_not_come() {
    let Some(scene) = scene(|_| {}) else { return };
    // dig asks again over TCP when it is told that there is more.
    let said = scene.short(&["long.test", "TXT"]);
    assert_eq!(
        said.lines().count(),
        100,
        "{said}\n{}",
        scene.dig(&["long.test", "TXT"])
    );
    let said = scene.dig(&["long.test", "TXT", "+ignore"]);
    assert!(
        said.contains("flags: qr tc") || said.contains(" tc "),
        "{said}"
    );
    // A resolver that is slow to answer is asked again, a forged answer is not believed.
    assert_eq!(scene.short(&["slow.test", "A", "+time=10"]), "192.0.2.1");
    assert_eq!(scene.resolver.asked("slow.test").len(), 2);
    assert_eq!(scene.short(&["forged.test", "A"]), "192.0.2.1");
    assert_eq!(scene.count("failed"), 0.0);
}

/// Connections that say nothing, or begin a question: more than there are places, from one address and
/// from two.
#[test]
fn connections_that_ask_nothing_keep_no_question_out() {
    raise_descriptor_limit();
    let Some(scene) = scene(|_| {}) else { return };
    let hold = |server: &str| {
        let to = SocketAddr::new(ip(server), 53);
        scene.yard.application(Host::Client, || {
            let connect = |number: usize| {
                let mut tcp = TcpStream::connect(to).ok()?;
                if number % 2 == 1 {
                    // It may have had to go already.
                    let _ = tcp.write_all(&[0]);
                }
                Some(tcp)
            };
            (0..2000).filter_map(connect).collect::<Vec<_>>()
        })
    };
    let mut held = Vec::new();
    for server in ["127.0.0.1", "10.99.9.53"] {
        held.push(hold(server));
        for asked in ["@10.99.9.53", "@127.0.0.1"] {
            for transport in ["+tcp", "+notcp"] {
                let answer = scene.short(&[asked, transport, "ratings", "A"]);
                assert_eq!(answer, "10.99.9.80", "{server} held, {asked} {transport}");
                let answer = scene.short(&[asked, transport, "www.test", "A"]);
                assert_eq!(answer, "192.0.2.1", "{server} held, {asked} {transport}");
            }
        }
    }
}

#[test]
fn nobody_to_ask_is_said_at_once() {
    let scene = scene(|config| {
        // Nobody listens there, and there is no way to the other.
        config["dns"]["resolvers"] = json!(["10.99.9.2:5399", "203.0.113.1:53"]);
    });
    let Some(scene) = scene else { return };
    let said = scene.dig(&["www.example.test", "A"]);
    assert!(said.contains("status: SERVFAIL"), "{said}");
    assert_eq!(scene.count("failed"), 1.0);
    assert_eq!(scene.short(&["ratings", "A"]), "10.99.9.80");
}

#[test]
fn nonsense_is_refused_and_harms_nobody() {
    let Some(scene) = scene(|_| {}) else { return };
    let idle = scene.yard.application(Host::Client, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect("127.0.0.1:53").unwrap();
        // Too short, an answer, nothing at all: silence. Then two questions: refused.
        let mut response = vec![0; 12];
        response[2] = 0x80;
        for bytes in [&b""[..], b"short", &response, &[0xff; 1400]] {
            socket.send(bytes).unwrap();
        }
        let mut two = vec![7, 7, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0];
        two.extend(b"\x01a\0\0\x01\0\x01");
        socket.send(&two).unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        assert_eq!((&answer[..2], answer[3] & 15, length), (&[7, 7][..], 1, 12));
        // Over TCP a length without a message holds a place for a while, not the others up.
        let mut idle: Vec<_> = (0..20)
            .map(|_| std::net::TcpStream::connect("127.0.0.1:53").unwrap())
            .collect();
        for tcp in &mut idle {
            tcp.write_all(&[0xff, 0xff, 1]).unwrap();
        }
        idle
    });
    assert_eq!(scene.short(&["ratings", "A", "+tcp"]), "10.99.9.80");
    drop(idle);
    assert!(scene.count("refused") >= 4.0);
}

/// Tests that the mesh can forbid its names.
#[test]
fn the_mesh_may_forbid_its_names() {
    let Some(scene) = scene(|config| config["mesh"] = json!({})) else {
        return;
    };
    assert_eq!(scene.short(&["ratings", "A"]), "192.0.2.1");
    assert_eq!(scene.resolver.asked("ratings").len(), 1);
    assert_eq!(scene.count("mesh"), 0.0);
}
