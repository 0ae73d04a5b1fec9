//! DNS in a whole mesh: names are asked of the controller when they are first used, and follow it.

use std::net::SocketAddr;
use std::process::Command;
use tests_local::{Client, Demo, RATING, can_redirect, eventually, installed};

#[test]
fn names_of_services_come_from_the_controller() {
    if !can_redirect() || installed("dig", "bind9-dnsutils").is_none() {
        return;
    }
    let demo = Demo::start(|text| {
        let with = text.replacen(
            "  permissiveMode: false\n",
            "  permissiveMode: false\n  dns: true\n",
            1,
        );
        assert_ne!(with, text);
        with
    });
    let dig = |arguments: &[&str]| {
        demo.inside("gateway", true, || {
            let mut dig = Command::new("dig");
            dig.args(["+time=8", "+tries=1", "@127.0.0.1"])
                .args(arguments);
            String::from_utf8(dig.output().unwrap().stdout).unwrap()
        })
    };
    let short = |name: &str, kind: &str| dig(&[name, kind, "+short"]);
    let v4 = demo.address("ratings", true, false);
    let v6 = demo.address("ratings", true, true);
    for form in ["", ".default", ".default.svc", ".default.svc.cluster.local"] {
        let name = format!("ratings{form}");
        // The service's own address first.
        let said = short(&name, "A");
        assert_eq!(
            said.lines().next(),
            Some(v4.to_string().as_str()),
            "{name}: {said}"
        );
        let said = short(&name, "AAAA");
        assert_eq!(
            said.lines().next(),
            Some(v6.to_string().as_str()),
            "{name}: {said}"
        );
    }
    // The service can be called by that address, as by its name.
    let address = SocketAddr::new(v4, 8101);
    let answer = demo.inside("gateway", true, || {
        Client::connect(address).get(&format!("/ratings/{RATING}"))
    });
    assert_eq!(answer.status(), 200);
    // Other names go to the host's resolvers, which cannot be reached from here.
    let said = dig(&["nobody.default.svc.cluster.local", "A"]);
    assert!(
        !said.contains("ANSWER SECTION") && said.contains("status: "),
        "{said}"
    );
    // A service that is gone has no name any more.
    let gone = demo.tulle(&["delete", "workload", "details"]);
    assert_eq!(gone.code, 0, "{gone:?}");
    eventually("details has no name", || short("details", "A").is_empty());
    assert!(!short("ratings", "A").is_empty());
}

/// Where the mesh does not ask for it DNS passes by: nobody listens, and nothing is redirected.
#[test]
fn without_it_dns_is_not_touched() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let refused = demo.inside("gateway", true, || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:53").unwrap();
        socket.send(b"anybody?").unwrap();
        socket
            .set_read_timeout(Some(tests_local::PATIENCE))
            .unwrap();
        socket.recv(&mut [0; 64]).unwrap_err().kind()
    });
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
}
