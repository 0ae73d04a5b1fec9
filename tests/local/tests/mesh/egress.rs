//! Tests the traffic that a mesh of `tulle up` lets out: through sidecars alone, with no NAT for servers on
//! the host.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use tests_local::{Client, Demo, Message, can_redirect, eventually};

/// An egress gateway, which the workload `details` may ask.
const WAY_OUT: &str = r#"
---
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata:
  name: way-out
spec:
  command: [sleep, infinity]
  ports:
    - port: 3128
      appProtocol: http
  readinessProbe:
    exec:
      command: ["true"]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata:
  name: way-out
spec:
  destination:
    kind: ServiceAccount
    name: way-out
  sources:
    - kind: ServiceAccount
      name: details
"#;

/// A server on the host that tells each client its address: by HTTP, or unasked.
fn server(address: IpAddr, speaks_first: bool) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let client = stream.peer_addr().unwrap().ip().to_string();
            std::thread::spawn(move || match speaks_first {
                true => drop(stream.write_all(client.as_bytes())),
                false => answer(stream, &client),
            });
        }
    });
    at
}

fn answer(mut stream: TcpStream, text: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    if lines.any(|line| line.map_or(true, |line| line.is_empty())) {
        let length = text.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n");
        // The client may have gone.
        let _ = stream.write_all(format!("{head}\r\n{text}").as_bytes());
    }
}

/// A request of a workload's application.
fn ask(demo: &Demo, workload: &str, to: SocketAddr, host: &str) -> Message {
    demo.inside(workload, true, || {
        let mut client = Client::connect(to);
        client.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response("GET")
    })
}

/// Returns the greeting of a server that speaks first; nothing, if the connection is cut.
fn listen(demo: &Demo, workload: &str, to: SocketAddr) -> String {
    demo.inside(workload, true, || {
        let said = Client::try_connect(to).and_then(|mut client| client.read_to_end());
        String::from_utf8(said.unwrap_or_default()).unwrap()
    })
}

fn egress(demo: &Demo, name: &str, spec: &str) {
    let head = format!("apiVersion: tulle.dev/v1alpha1\nkind: Egress\nmetadata: {{name: {name}}}");
    demo.apply(&demo.write("egress.yaml", &format!("{head}\nspec: {spec}\n")));
}

#[test]
fn what_leaves_a_mesh_leaves_by_its_sidecars() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text + WAY_OUT);
    for (outside, v6) in [("203.0.113.1", false), ("2001:db8:113::1", true)] {
        // The address is on the mesh's own link, so that it goes with the mesh.
        let mut add = Command::new("ip");
        add.args(["address", "add", outside, "dev", &demo.namespace("")]);
        let nodad: &[&str] = if v6 { &["nodad"] } else { &[] };
        assert!(add.args(nodad).status().unwrap().success());
        let outside: IpAddr = outside.parse().unwrap();
        let (http, tcp) = (server(outside, false), server(outside, true));
        let own = |workload| address(&demo, workload, v6);
        let refused = |workload, host: &str, status: u16, reason: &str| {
            let answer = ask(&demo, workload, http, host);
            assert_eq!(answer.status(), status, "{}", answer.text());
            assert_eq!(answer.header("x-tulle-reason"), reason);
            answer.text()
        };

        // Nothing, unless something says so.
        let text = refused("details", "books.test", 502, "no_service");
        assert!(text.contains("allowEgress"), "{text}");
        assert_eq!(listen(&demo, "details", tcp), "");
        // Nor by anything that sidecars do not judge.
        let udp = UdpSocket::bind((outside, 0)).unwrap();
        let sent = demo.inside("details", true, || {
            let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.send_to(b"x", udp.local_addr().unwrap())
        });
        assert!(sent.is_err(), "{sent:?}");

        // Allows one workload a host.
        let port = http.port();
        egress(
            &demo,
            "books",
            &format!(
                "{{hosts: [books.test], ports: [{{number: {port}, protocol: http}}], \
                 sources: [{{kind: ServiceAccount, name: details}}]}}"
            ),
        );
        eventually("the host is allowed", || {
            ask(&demo, "details", http, "books.test").text() == own("details")
        });
        refused("details", "other.test", 403, "egress_denied");
        // Each sidecar learns of it by itself.
        eventually("the other sidecar knows of it", || {
            ask(&demo, "ratings", http, "books.test").status() != 502
        });
        let text = refused("ratings", "books.test", 403, "egress_denied");
        assert!(text.contains("svc/ratings"), "{text}");
        assert_eq!(listen(&demo, "details", tcp), "");

        // Allows everybody an address and a port.
        let (port, range) = (
            tcp.port(),
            if v6 {
                "2001:db8:113::/48"
            } else {
                "203.0.113.0/24"
            },
        );
        let spec =
            format!("{{ipAddresses: [{range:?}], ports: [{{number: {port}, protocol: tcp}}]}}");
        egress(&demo, "range", &spec);
        eventually("the range is allowed", || {
            listen(&demo, "ratings", tcp) == own("ratings")
        });
        refused("ratings", "books.test", 403, "egress_denied");

        // Through the gateway: it is who calls. Told a name, it would look that up itself.
        let spec = format!(
            "{{ipAddresses: [{range:?}], ports: [{{number: {}}}], \
             gateway: {{service: way-out, port: 3128}}}}",
            http.port()
        );
        egress(&demo, "books", &spec);
        let host = match v6 {
            true => format!("[{outside}]"),
            false => outside.to_string(),
        };
        eventually("the way leads through the gateway", || {
            ask(&demo, "details", http, &host).text() == own("way-out")
        });
        // Its policy says no to others.
        eventually("who is not named is denied", || {
            let answer = ask(&demo, "ratings", http, &host);
            assert_ne!(answer.status(), 200, "{}", answer.text());
            answer.text().contains("403 denied")
        });

        // It is no hop of the mesh, and no plaintext in it.
        let mut rules = Vec::new();
        eventually("what left is counted as such", || {
            let status = demo.status();
            let edges = status["edges"].as_array().unwrap().clone();
            let plain = edges.iter().find(|e| e["security"] == "plaintext");
            assert_eq!(plain, None);
            let out = edges.iter().filter(|e| e["security"] == "egress");
            rules = out.map(|e| e["destination_service"].clone()).collect();
            rules.contains(&"Egress/books".into()) && rules.contains(&"Egress/range".into())
        });
        let text = demo.tulle(&["status"]).out;
        assert!(
            text.contains("outside, by Egress/range") && text.contains("each mutual TLS"),
            "{text}"
        );
        let check = demo.tulle(&["check"]).out;
        assert!(!check.contains("plaintext"), "{check}");

        for name in ["books", "range"] {
            let deleted = demo.tulle(&["delete", "egress", name]);
            assert_eq!(deleted.code, 0, "{deleted:?}");
        }
        eventually("nothing leaves any more", || {
            ask(&demo, "details", http, "books.test").status() == 502
        });
    }
    let down = demo.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    demo.await_nothing_left();
}

fn address(demo: &Demo, workload: &str, v6: bool) -> String {
    demo.address(workload, false, v6).to_string()
}
