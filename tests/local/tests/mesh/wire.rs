//! Tests, with a packet capture, the traffic between the namespaces of the mesh, and who cannot get in:
//! plaintext, and certificates of the wrong kind.

use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};
use tests_local::{
    Client, Demo, Message, RATING, Stream, TLS13, TlsClient, can_redirect, edge, eventually, id,
    post,
};
use tulle_control::ca::Authority;
use tulle_control::store::Embedded;
use tulle_model::identity::SpiffeId;
use tulle_tls::testing::{Issued, Leaf, TestCa};

const RATINGS_PORT: u16 = 8101;
const GATEWAY_PORT: u16 = 10000;

fn mesh(mode: &str, anyone: bool) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: bookinfo\n\
         spec:\n  permissiveMode: {anyone}\n  mtls:\n    mode: {mode}\n"
    )
}

fn request(target: &str, secret: &str) -> Vec<u8> {
    let body = format!(r#"{{"productId": "{secret}"}}"#);
    format!(
        "POST {target} HTTP/1.1\r\nHost: ratings\r\nX-Secret: {secret}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends it in path, header and body, on both paths; it comes back in the application's answers.
fn tell(client: &mut Client, prefixes: &[&str], secret: &str) {
    for prefix in prefixes {
        client.send(format!(
            "GET {prefix}/ratings/{secret} HTTP/1.1\r\nHost: ratings\r\nX-Secret: {secret}\r\n\r\n"
        ));
        let answer = client.response("GET");
        assert_eq!(answer.status(), 400, "{}", answer.head);
        assert!(answer.text().contains(secret), "the application saw it");
        client.send(request(&format!("{prefix}/ratings"), secret));
        assert_eq!(client.response("POST").status(), 400);
    }
}

fn to_port(streams: &[Stream], port: u16) -> impl Iterator<Item = &Stream> {
    streams
        .iter()
        .filter(move |s| s.to.port() == port || s.from.port() == port)
}

/// Nothing that a listener could read.
fn assert_unreadable(streams: &[Stream], secret: &str) {
    for stream in streams {
        for text in [
            secret,
            "HTTP/1.1", // in lower case it is the name of a protocol that is offered
            "Host:",
            "X-Secret",
            "content-length",
            "Content-Length",
            "x-forwarded-client-cert",
            "/ratings",
            "spiffe://",
            "reviewerId",
        ] {
            assert!(
                !stream.contains(text),
                "{text:?} passes from {} to {}",
                stream.from,
                stream.to
            );
        }
        assert!(
            stream.is_partial || stream.is_tls(),
            "no TLS from {} to {}: {:?}",
            stream.from,
            stream.to,
            String::from_utf8_lossy(&stream.bytes)
        );
    }
}

#[test]
fn no_plaintext_passes_between_namespaces_but_in_permissive_mode() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let secret = "s3cret-0f-the-wire";
    let capture = demo.capture("");
    tell(
        &mut Client::connect(demo.ingress),
        &["", "/bookinfo-ratings"],
        secret,
    );
    assert_eq!(demo.get("/productpage").status(), 200);
    let streams = capture.stop();
    for port in [RATINGS_PORT, GATEWAY_PORT, 9080, 8102, 8103] {
        let whole = to_port(&streams, port).filter(|s| !s.is_partial);
        assert!(whole.count() >= 2, "both directions of port {port}");
    }
    assert_unreadable(&streams, secret);

    // The same capture sees what is plain: else the above would prove nothing.
    demo.apply(&demo.write("permissive.yaml", &mesh("permissive", false)));
    let ratings: SocketAddr = (demo.address("ratings", false, false), RATINGS_PORT).into();
    let asks = || demo.inside("details", false, || Client::connect(ratings).get("/health"));
    eventually("policies know nobody without an identity", || {
        asks().header("x-tulle-reason") == "denied"
    });
    demo.apply(&demo.write("anyone.yaml", &mesh("permissive", true)));
    let capture = demo.capture("");
    let plain = "s3cret-in-plain-sight";
    eventually("plaintext is accepted", || asks().status() == 200);
    demo.inside("details", false, || {
        tell(&mut Client::connect(ratings), &[""], plain);
    });
    let streams = capture.stop();
    assert!(streams.iter().any(|s| s.contains(plain)));
    assert!(streams.iter().any(|s| s.contains("HTTP/1.1 400")));
    assert!(
        to_port(&streams, RATINGS_PORT).any(|s| !s.is_tls()),
        "the test knows what TLS is"
    );
    eventually("status shows the plaintext", || {
        let status = demo.status();
        let edges = status["edges"].as_array().unwrap().clone();
        edges
            .iter()
            .any(|e| e["security"] == "plaintext" && e["source"] == "")
    });

    demo.apply(&demo.write("strict.yaml", &mesh("strict", true)));
    eventually("plaintext is refused again", || {
        asks().header("x-tulle-reason") == "plaintext_refused"
    });
}

/// Whether a text reached the application, from a capture of its namespace.
fn reached_application(streams: &[Stream], text: &str) -> bool {
    let app = |s: &&Stream| s.to.ip().is_loopback() && s.to.port() == RATINGS_PORT;
    streams.iter().filter(app).any(|s| s.contains(text))
}

fn assert_refused(answer: &Message, reason: &str) {
    assert_eq!(answer.status(), 403, "{}", answer.head);
    assert_eq!(answer.header("x-tulle-reason"), reason);
}

#[test]
fn plaintext_is_refused_and_the_application_never_sees_it() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let capture = demo.capture("ratings");
    let forbidden = "never-to-be-seen";
    let send = |address: SocketAddr| {
        let mut client = Client::connect(address);
        client.send(request("/ratings", forbidden));
        client.response("POST")
    };
    for v6 in [false, true] {
        let ratings = SocketAddr::from((demo.address("ratings", false, v6), RATINGS_PORT));
        // Past the sidecar of the caller, and from the host.
        let answer = demo.inside("details", false, || send(ratings));
        assert_refused(&answer, "plaintext_refused");
        assert_refused(&send(ratings), "plaintext_refused");
        // An application's own connection becomes mutual TLS, and then it is a question of policy.
        for of_service in [false, true] {
            let address = (demo.address("ratings", of_service, v6), RATINGS_PORT).into();
            let answer = demo.inside("details", true, || send(address));
            assert_refused(&answer, "denied");
        }
        // The sidecar's own doors.
        for port in [15000, 15001, 15006] {
            let door = (ratings.ip(), port).into();
            let opened = demo.inside("details", false, || Client::try_connect(door).is_ok());
            assert!(!opened, "{door}");
            assert!(Client::try_connect(door).is_err(), "{door} from the host");
        }
    }
    // The capture shows the allowed request, so it would have shown the others.
    let allowed = "this-may-be-seen";
    tell(
        &mut Client::connect(demo.ingress),
        &["", "/bookinfo-ratings"],
        allowed,
    );
    let streams = capture.stop();
    assert!(reached_application(&streams, allowed));
    assert!(!reached_application(&streams, forbidden));
    // Refusals are counted as refusals (after their last byte has gone), and are no hop.
    let mut plain = json!(null);
    eventually("every refusal is counted", || {
        let status = demo.status();
        let mut edges = status["edges"].as_array().unwrap().iter();
        let found = edges.find(|e| e["security"] == "plaintext");
        plain = found.cloned().unwrap_or_default();
        plain["requests"].as_u64() >= Some(4)
    });
    assert_eq!(
        (&plain["requests"], &plain["denied"]),
        (&json!(4), &json!(4))
    );
    let text = demo.tulle(&["status"]).out;
    assert!(text.contains("hops, each mutual TLS"), "{text}");
}

/// The mesh's own authority. Its key is in the store, which has one user at a time.
pub(crate) fn own_authority(demo: &Demo) -> Authority {
    assert_eq!(demo.tulle(&["down"]).code, 0);
    let store = Embedded::open(&demo.path().join("state/controller/store.redb")).unwrap();
    let authority = Authority::open(&store).unwrap();
    drop(store);
    assert_eq!(demo.tulle(&["up", "--detach"]).code, 0);
    authority
}

/// A certificate for an hour from `now` on.
pub(crate) fn issue(authority: &Authority, id: &str, now: SystemTime) -> Issued {
    let (id, hour) = (SpiffeId::parse(id).unwrap(), Duration::from_secs(3600));
    let (issued, key) = authority.issue_with_key(&id, hour, now).unwrap();
    Issued::from_der(issued.certificate, key.secret_pkcs8_der())
}

/// GET with this certificate, past the caller's sidecar.
pub(crate) fn ask(demo: &Demo, certificate: Option<&Issued>, target: &str) -> io::Result<Message> {
    let ratings = (demo.address("ratings", false, false), RATINGS_PORT).into();
    demo.inside("details", false, || {
        TlsClient::connect(ratings, certificate, TLS13, &["http/1.1"])?.get(target)
    })
}

#[test]
fn only_the_meshs_own_certificates_of_allowed_services_get_in() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let authority = own_authority(&demo);
    let issue = |id: &str, now| issue(&authority, id, now);

    let now = SystemTime::now();
    let good = format!("/ratings/{RATING}");
    let gateway = issue(&id("gateway"), now);
    let answer = ask(&demo, Some(&gateway), &good).unwrap();
    assert_eq!(answer.status(), 200, "a member that is allowed gets in");
    assert_eq!(answer.header("x-called-by"), id("gateway"));

    let capture = demo.capture("ratings");
    let target = "/ratings/from-an-impostor";
    let details = issue(&id("details"), now);
    let answer = ask(&demo, Some(&details), target).unwrap();
    assert_refused(&answer, "denied");

    let day = Duration::from_secs(24 * 3600);
    let other = TestCa::new("Tulle mesh root");
    let wrong = [
        ("expired", Some(issue(&id("gateway"), now - day))),
        (
            "another trust domain",
            Some(issue("spiffe://other.mesh/svc/gateway", now)),
        ),
        (
            "another authority",
            Some(other.issue_leaf(&Leaf::new(&id("gateway")))),
        ),
        ("none", None),
    ];
    for (what, certificate) in wrong {
        let answer = ask(&demo, certificate.as_ref(), target);
        assert!(answer.is_err(), "{what}: {answer:?}");
    }
    assert_eq!(ask(&demo, Some(&gateway), &good).unwrap().status(), 200);
    assert!(!reached_application(&capture.stop(), "impostor"));
    // The operator can find out why, a moment after the client has been told.
    for code in ["expired", "wrong_trust_domain", "unknown_issuer"] {
        eventually(&format!("{code} in /errors"), || {
            demo.admin("ratings", "/errors").text().contains(code)
        });
    }
}

#[test]
fn ipv6_is_mutual_tls_as_well() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let calls = [
        ("gateway", "ratings", 8101, format!("/ratings/{RATING}")),
        ("gateway", "reviews", 8102, "/reviews/1".to_owned()),
        ("productpage", "details", 8103, "/details/1".to_owned()),
        ("reviews", "ratings", 8101, format!("/ratings/{RATING}")),
    ];
    let capture = demo.capture("");
    for (source, destination, port, target) in &calls {
        for of_service in [true, false] {
            let address = demo.address(destination, of_service, true);
            assert!(address.is_ipv6());
            let answer = demo.inside(source, true, || {
                Client::connect((address, *port).into()).get(target)
            });
            assert!(answer.status() < 500, "{source}: {}", answer.head);
            assert_eq!(answer.header("x-tulle-reason"), "", "{}", answer.head);
            assert_eq!(answer.header("x-called-by"), id(source));
        }
    }
    // Past redirection there is nothing but the workload's own address, which speaks TLS.
    let details = demo.address("ratings", false, true);
    let refused = demo.inside("details", false, || {
        let mut client = Client::connect((details, RATINGS_PORT).into());
        client.send(post("/ratings", b"x"));
        client.response("POST")
    });
    assert_refused(&refused, "plaintext_refused");
    let streams: Vec<_> = capture
        .stop()
        .into_iter()
        .filter(|s| !(s.from.ip() == details || s.to.ip() == details))
        .collect();
    assert_unreadable(&streams, RATING);
    eventually("every call is counted", || {
        let status = demo.status();
        calls.iter().all(|(source, destination, ..)| {
            edge(&status, source, destination).is_some_and(|edge| {
                edge["security"] == "mutual_tls" && edge["requests"].as_u64() >= Some(2)
            })
        })
    });
    // An application may use either family when it calls by name.
    for source in ["gateway", "productpage", "reviews"] {
        let pid = demo.application(source);
        let hosts = std::fs::read_to_string(format!("/proc/{pid}/root/etc/hosts")).unwrap();
        for v6 in [false, true] {
            let line = format!("{} ratings", demo.address("ratings", true, v6));
            let lines: Vec<_> = hosts.lines().map(|l| l.replace('\t', " ")).collect();
            assert!(lines.contains(&line), "no {line:?} in:\n{hosts}");
        }
    }
}
