//! Tests which connections are redirected, and to which port.

use crate::roles::dial;
use crate::world::{World, ask, start};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tulle_redirect::{
    FilterBackend, Hosts, LaunchSpec, Namespace, Network, RESOLV_CONF, Redirection,
    apply_redirection,
};

const SIDECAR: (u32, u32) = (1500, 1500);
const APPLICATION: (u32, u32) = (1600, 1600);

fn inside(namespace: &Namespace, user: (u32, u32)) -> LaunchSpec {
    LaunchSpec {
        namespace: Some(namespace.name.clone()),
        user: Some(user),
        ..LaunchSpec::default()
    }
}

fn addresses(namespace: &Namespace) -> Vec<IpAddr> {
    std::iter::once(namespace.v4.into())
        .chain(namespace.v6.map(IpAddr::from))
        .collect()
}

fn at(address: IpAddr, port: u16) -> String {
    SocketAddr::from((address, port)).to_string()
}

/// Asserts with the whole conversation in the message.
fn expect(spec: &LaunchSpec, role: &[&str], expected: &str) {
    assert_eq!(
        ask(spec, role),
        expected,
        "{role:?} as {:?} in {:?}",
        spec.user,
        spec.namespace
    );
}

pub(crate) fn by_nft(mesh: &str) {
    redirection(mesh, FilterBackend::Nft);
}

pub(crate) fn by_iptables(mesh: &str) {
    redirection(mesh, FilterBackend::Iptables);
}

/// The rules of each backend mean the same.
fn redirection(mesh: &str, backend: FilterBackend) {
    let before = World::look();
    let network = Network::new(mesh).unwrap();
    network.ensure().unwrap();
    let a = network.add_workload("a", 0).unwrap();
    let b = network.add_workload("b", 1).unwrap();

    // A second time, and from a fresh start, the result is the same.
    let once = World::look();
    let again = Network::new(mesh).unwrap();
    assert_eq!(again, network);
    again.ensure().unwrap();
    assert_eq!(
        (
            again.add_workload("a", 0).unwrap(),
            again.add_workload("b", 1).unwrap()
        ),
        (a.clone(), b.clone())
    );
    assert_eq!(World::look().beyond(&once), [""; 0]);
    assert_eq!(network.list().unwrap(), ["a", "b"]);

    let mut running = Vec::new();
    for namespace in [&a, &b] {
        let ports = |ports: &[u16]| -> Vec<String> {
            let both = ["0.0.0.0", "::"].map(|a| a.parse::<IpAddr>().unwrap());
            both.iter()
                .flat_map(|a| ports.iter().map(|p| at(*a, *p)))
                .collect()
        };
        for (user, ports) in [
            (SIDECAR, ports(&[15000, 15001, 15006, 15020])),
            ((0, 0), ports(&[22, 8080])),
        ] {
            let role: Vec<&str> = std::iter::once("listen")
                .chain(ports.iter().map(String::as_str))
                .collect();
            running.push(start(&inside(namespace, user), &role));
        }
    }
    let application = inside(&a, APPLICATION);
    let sidecar = inside(&a, SIDECAR);

    // Without rules every workload reaches every other, and the host, too.
    for address in addresses(&b) {
        expect(&application, &["dial", &at(address, 8080)], "8080 for me");
        assert_eq!(dial(&at(address, 8080), None), "8080 for me");
    }

    let (shows, expected) = match backend {
        FilterBackend::Iptables => (
            &["iptables-save", "ip6tables-save"][..],
            "REDIRECT --to-ports 15006",
        ),
        _ => (&["nft list ruleset"][..], "redirect to :15006"),
    };
    let rules = |namespace: &Namespace| {
        let mut all = String::new();
        for show in shows {
            let mut command = std::process::Command::new("ip");
            command.args(["netns", "exec", &namespace.name]);
            let shown = command.args(show.split(' ')).output().unwrap();
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains(expected), "{show}: {shown}");
            // iptables-save adds the time and counters.
            let lines = shown.lines().filter(|l| !l.starts_with(['#', ':']));
            all.extend(lines.map(|line| format!("{line}\n")));
        }
        all
    };
    let past_it = Redirection {
        exclude_inbound_ports: vec![22, 15020, 15021],
        exclude_outbound_ports: vec![22],
        ..Redirection::default()
    };
    for namespace in [&a, &b] {
        apply_redirection(namespace, backend, &past_it).unwrap();
        let first = rules(namespace);
        apply_redirection(namespace, backend, &past_it).unwrap();
        assert_eq!(rules(namespace), first);
    }
    // The host has no rule of ours.
    assert!(
        !World::look()
            .beyond(&before)
            .iter()
            .any(|line| line.starts_with("nft"))
    );

    let service = network.plan().service(4).unwrap();
    let services: Vec<IpAddr> = std::iter::once(service.0.into())
        .chain(service.1.map(IpAddr::from))
        .collect();
    for address in services {
        let to = at(address, 9080);
        expect(&application, &["dial", &to], &format!("15001 for {to}"));
        expect(
            &inside(&a, (0, 0)),
            &["dial", &to],
            &format!("15001 for {to}"),
        );
        // Port 22 is excluded, and no process listens there.
        expect(&application, &["dial", &at(address, 22)], "HostUnreachable");
    }
    for address in addresses(&b) {
        let to = at(address, 8080);
        // Calls go out through the own sidecar; a sidecar's and the host's come in through the
        // other's.
        expect(&application, &["dial", &to], &format!("15001 for {to}"));
        expect(&sidecar, &["dial", &to], &format!("15006 for {to}"));
        assert_eq!(dial(&to, None), format!("15006 for {to}"));
        // Excluded ports, out and in.
        expect(&application, &["dial", &at(address, 22)], "22 for me");
        assert_eq!(dial(&at(address, 15020), None), "15020 for me");
        // The sidecar's own ports are closed to others.
        for port in [15000, 15001, 15006] {
            assert_eq!(
                dial(&at(address, port), None),
                "ConnectionRefused",
                "{port}"
            );
            expect(&sidecar, &["dial", &at(address, port)], "ConnectionRefused");
        }
    }
    // Calls that stay inside.
    for (own, local) in addresses(&a).into_iter().zip(["127.0.0.1", "::1"]) {
        let to = at(own, 8080);
        let loopback = at(local.parse().unwrap(), 8080);
        expect(&application, &["dial", &to], "8080 for me");
        expect(&application, &["dial", &loopback], "8080 for me");
        expect(&sidecar, &["dial", &loopback], "8080 for me");
        // A sidecar that calls its own workload is redirected like any other caller, …
        expect(&sidecar, &["dial", &to], &format!("15006 for {to}"));
        // … and reaches the application behind it from loopback; otherwise it would call itself for
        // ever.
        expect(&sidecar, &["dial", &to, local], "8080 for me");
    }

    // UDP is not touched.
    let udp = at(b.v4.into(), 8080);
    running.push(start(&inside(&b, APPLICATION), &["udp-echo", &udp]));
    expect(&application, &["udp", &udp], &format!("hello from {udp}"));

    // No route leads outside yet, and a call fails at once.
    expect(
        &application,
        &["dial", "203.0.113.1:80"],
        "NetworkUnreachable",
    );

    leads_out(&network, &a, backend, [&application, &sidecar]);

    // New rules replace the earlier ones.
    let ranges = addresses(&b)
        .iter()
        .map(|a| (*a, if a.is_ipv4() { 32 } else { 128 }))
        .collect();
    let other = Redirection {
        exclude_outbound_ranges: ranges,
        exclude_outbound_ports: vec![9081],
        ..Redirection::default()
    };
    apply_redirection(&a, backend, &other).unwrap();
    for address in addresses(&b) {
        let to = at(address, 8080);
        expect(&application, &["dial", &to], &format!("15006 for {to}"));
    }
    let to = at(service.0.into(), 22);
    expect(&application, &["dial", &to], &format!("15001 for {to}"));

    names_and_user(&network, &a);

    let removed = Network::remove_all(mesh).unwrap();
    let names = [network.bridge_namespace(), a.name, b.name];
    assert_eq!(removed.namespaces, names);
    assert_eq!(removed.links, [network.host_link()]);
    assert_eq!(removed.processes, running.len());
    assert_eq!(
        Network::remove_all(mesh).unwrap(),
        tulle_redirect::Removed::default()
    );
    assert_eq!(World::look().beyond(&before), [""; 0]);
}

/// With a route out only the sidecar may use it.
fn leads_out(
    network: &Network,
    a: &Namespace,
    backend: FilterBackend,
    [application, sidecar]: [&LaunchSpec; 2],
) {
    let kept = Redirection {
        keep_within: network.plan().networks(),
        ..Redirection::default()
    };
    apply_redirection(a, backend, &kept).unwrap();
    // Twice is the same as once.
    network.lead_out(a).unwrap();
    network.lead_out(a).unwrap();
    for (outside, nodad) in [("203.0.113.1", &[][..]), ("2001:db8:113::1", &["nodad"])] {
        // The host itself is outside the mesh, at any address but that of the mesh.
        let mut add = std::process::Command::new("ip");
        add.args(["address", "add", outside, "dev", &network.host_link()]);
        assert!(add.args(nodad).status().unwrap().success());
        let outside: IpAddr = outside.parse().unwrap();
        let udp = std::net::UdpSocket::bind((outside, 0)).unwrap();
        let tcp = std::net::TcpListener::bind((outside, 0)).unwrap();
        let to = tcp.local_addr().unwrap().to_string();
        expect(application, &["dial", &to], &format!("15001 for {to}"));
        expect(
            &inside(a, (0, 0)),
            &["dial", &to],
            &format!("15001 for {to}"),
        );
        // Bytes that are on their way when the sidecar closes have no user any more, and arrive.
        let left = ask(sidecar, &["leave", &to]);
        let (mut stream, _) = tcp.accept().unwrap();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .unwrap();
        let got = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        assert_eq!(got.to_string(), left);
        let accepted = std::thread::spawn(move || {
            let (mut stream, _) = tcp.accept().unwrap();
            std::io::Write::write_all(&mut stream, b"outside").unwrap();
        });
        expect(sidecar, &["dial", &to], "outside");
        accepted.join().unwrap();
        let to = udp.local_addr().unwrap().to_string();
        expect(application, &["udp", &to], "PermissionDenied");
    }
    // Within the mesh all is as before.
    expect(
        application,
        &["udp", &at(network.plan().host().0.into(), 9)],
        "ConnectionRefused",
    );
}

fn names_and_user(network: &Network, a: &Namespace) {
    let directory = Directory::new();
    let (hosts_file, resolv_conf) = (directory.0.join("hosts"), directory.0.join("resolv.conf"));
    std::fs::write(&resolv_conf, RESOLV_CONF).unwrap();
    let mut hosts = Hosts::new();
    let (v4, v6) = network.plan().service(0).unwrap();
    hosts.insert(v4, ["ratings", "ratings.mesh"]).unwrap();
    hosts.insert(v6.unwrap(), ["ratings"]).unwrap();
    hosts.write(&hosts_file).unwrap();
    let spec = LaunchSpec {
        hosts: Some(hosts_file.clone()),
        resolv_conf: Some(resolv_conf),
        ..inside(a, APPLICATION)
    };
    expect(&spec, &["resolve", "ratings.mesh"], &v4.to_string());
    expect(
        &spec,
        &["resolve", "ratings"],
        &format!("{v4} {}", v6.unwrap()),
    );
    expect(&spec, &["resolve", "details"], "unknown");
    let own = std::fs::read_to_string("/etc/hosts").unwrap();
    assert!(
        !own.contains("ratings.mesh"),
        "the host's own file must not change"
    );

    // A running process sees a change.
    let mut watch = spec.command("sh", std::env::vars_os()).unwrap();
    let script = "echo ready; read line; getent ahostsv4 details | head -n1 | cut -d' ' -f1";
    watch.args(["-c", script]);
    watch
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut stdout = std::io::BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    hosts
        .insert(network.plan().service(1).unwrap().0, ["details"])
        .unwrap();
    hosts.write(&hosts_file).unwrap();
    std::io::Write::write_all(&mut watch.stdin.take().unwrap(), b"go\n").unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(
        line.trim(),
        network.plan().service(1).unwrap().0.to_string()
    );
    watch.wait().unwrap();

    let status = ask(&spec, &["status"]);
    for expected in [
        "Uid:\t1600\t1600\t1600\t1600",
        "Gid:\t1600\t1600\t1600\t1600",
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
    ] {
        assert!(status.contains(expected), "{expected}: {status}");
    }
    assert!(
        status.lines().any(|line| line.trim_end() == "Groups:"),
        "{status}"
    );
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tulle-redirect-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Repeating the set-up repairs broken and moved parts.
pub(crate) fn repair(mesh: &str) {
    let network = Network::new(mesh).unwrap();
    let up = |index| {
        network.ensure().unwrap();
        let a = network.add_workload("a", index).unwrap();
        let _listener = start(&inside(&a, APPLICATION), &["listen", "0.0.0.0:8080"]);
        assert_eq!(dial(&at(a.v4.into(), 8080), None), "8080 for me");
        a
    };
    let ip = |line: String| {
        assert!(
            std::process::Command::new("ip")
                .args(line.split(' '))
                .status()
                .unwrap()
                .success()
        );
    };
    let a = up(0);
    let switch = network.bridge_namespace();
    ip(format!("-netns {} link delete eth0", a.name));
    up(0);
    ip(format!("-netns {switch} link delete br0"));
    up(0);
    ip(format!("link delete {}", network.host_link()));
    up(0);
    ip(format!("netns delete {switch}"));
    up(0);
    // Another index gives other addresses, and frees the old ones.
    let moved = up(7);
    assert_ne!(moved.v4, a.v4);
    assert_eq!(network.add_workload("b", 0).unwrap().v4, a.v4);
    // A workload takes over another's index.
    let b = network.add_workload("b", 7).unwrap();
    assert_eq!(b.v4, moved.v4);
    network.remove_workload("b").unwrap();
    network.remove_workload("b").unwrap();
    assert_eq!(network.list().unwrap(), ["a"]);
    assert!(network.add_workload("c", u16::MAX).is_err());
}

/// Two meshes run at a time; the name of one begins with the other's.
pub(crate) fn two_meshes(mesh: &str) {
    let longer = format!("{mesh}-b");
    let (first, second) = (Network::new(mesh).unwrap(), longer.as_str());
    first.ensure().unwrap();
    let second = Network::new(second).unwrap();
    assert_ne!(first.plan().subnet4, second.plan().subnet4);
    second.ensure().unwrap();
    first.add_workload("a", 0).unwrap();
    second.add_workload("a", 0).unwrap();
    Network::remove_all(mesh).unwrap();
    assert_eq!(second.list().unwrap(), ["a"]);
    assert_eq!(Network::remove_all(&longer).unwrap().namespaces.len(), 2);
}
