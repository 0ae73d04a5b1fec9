//! New programs take over while the mesh serves.

use super::replicas::{endpoints, is_ready, replica};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests_local::{
    Client, Demo, Load, RATING, can_redirect, eventually, free_port, get, pause, signal,
};

/// Reviews with the ratings that their service asks for.
const REVIEWS: &str = "/bookinfo-reviews/reviews/a071c269-369c-4f79-be03-6a41f27d6b5f";
const APPLICATIONS: [&str; 5] = ["ratings", "reviews", "details", "productpage", "gateway"];

/// Whether a process runs the program that is in this file now. It is mapped, and what the kernel executes may be qemu.
fn runs(pid: i32, program: &Path) -> bool {
    let Ok(file) = fs::metadata(program) else {
        return false;
    };
    let (inode, name) = (file.ino().to_string(), program.file_name());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(4);
        let is_file = fields.next() == Some(&*inode);
        is_file && fields.next().and_then(|path| Path::new(path).file_name()) == name
    })
}

/// Makes other files of the same names, as `install` does.
fn install_anew(demo: &Demo) -> [PathBuf; 2] {
    let programs = ["tulle", "tulle-proxy"].map(|name| demo.path().join(name));
    for program in &programs {
        let new = program.with_extension("new");
        fs::copy(program, &new).unwrap();
        fs::rename(&new, program).unwrap();
    }
    programs
}

/// Upgrades twice under load, which no application may notice. Each service but that of `more` has one Workload.
fn upgrade_without_a_loss(demo: &Demo, more: &[&str]) {
    let direct = format!("/ratings/{RATING}");
    let by_gateway = format!("/bookinfo-ratings/ratings/{RATING}");
    // One of the clients comes anew for each request; the others keep their connections.
    let paths: [&str; 4] = [&direct, &by_gateway, REVIEWS, "/productpage"];
    let load = Load::whole_gets(demo.ingress, 6, &paths);
    let workloads: Vec<&str> = APPLICATIONS.iter().chain(more).copied().collect();
    let proxies: Vec<&str> = ["gateway.ingress"]
        .into_iter()
        .chain(workloads.iter().copied())
        .collect();
    let pids = || -> Vec<i32> { workloads.iter().map(|w| demo.application(w)).collect() };
    let applications = pids();
    // The second time, sidecars that have taken over are taken over from.
    for _ in 0..2 {
        let [tulle, proxy] = &install_anew(demo);
        let (supervisor, controller) = demo.supervisor_and_controller();
        let before: Vec<i32> = proxies.iter().map(|p| demo.sidecar(p)).collect();
        assert!(!runs(controller, tulle), "they differ");
        assert!(!before.iter().any(|pid| runs(*pid, proxy)));
        let answer = demo.tulle(&["service", "upgrade"]);
        load.await_more(50);
        assert_eq!(answer.code, 0, "{answer:?}");
        for name in &workloads {
            let done = format!("workload/{name} has a new sidecar");
            assert!(answer.out.contains(&done), "{answer:?}");
        }
        let (same, controller) = demo.supervisor_and_controller();
        assert_eq!(same, supervisor);
        assert!(runs(controller, tulle), "the controller is the old program");
        for name in &proxies {
            assert!(runs(demo.sidecar(name), proxy), "{name} is the old program");
        }
        assert_eq!(pids(), applications, "applications go on");
        eventually("the old processes are gone", || {
            let gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
            before.iter().all(gone)
        });
    }
    load.await_more(50);
    let done = load.assert_no_failure();
    eprintln!("{done} requests, none failed");

    // A sidecar that has taken over is started again as any other is.
    let killed = demo.sidecar("reviews");
    signal(killed, Signal::KILL);
    eventually("another one runs", || {
        let now = demo.proxy("reviews");
        now["pid"]
            .as_i64()
            .is_some_and(|pid| pid != i64::from(killed))
            && now["ready"] == true
    });
    demo.await_answer(REVIEWS);
    assert_eq!(pids(), applications);
}

/// A question for the IPv4 addresses of a name with one label.
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    // Recursion is desired, and there is one question.
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    bytes.push(u8::try_from(name.len()).unwrap());
    bytes.extend(name.as_bytes());
    // The root, A, IN.
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Asks for a service's name again and again until `stop`. Returns how often that was, and what was not answered.
fn ask_for_names(demo: &Demo, stop: &AtomicBool) -> (u16, Vec<String>) {
    demo.inside("gateway", true, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:53").unwrap();
        let patience = Some(Duration::from_secs(4));
        socket.set_read_timeout(patience).unwrap();
        let (mut asked, mut failures) = (0_u16, Vec::new());
        while !stop.load(Ordering::SeqCst) {
            asked += 1;
            socket.send(&question(asked, "ratings")).unwrap();
            let mut answer = [0; 512];
            match socket.recv(&mut answer) {
                // The code is that of success, and there is an address.
                Ok(_)
                    if answer[..2] == asked.to_be_bytes()
                        && answer[3] & 15 == 0
                        && answer[7] > 0 => {}
                Ok(length) => failures.push(format!("{asked}: {:?}", &answer[..length])),
                Err(error) => failures.push(format!("{asked}: {error}")),
            }
            pause("between questions", Duration::from_millis(2));
        }
        (asked, failures)
    })
}

#[test]
fn an_upgrade_runs_every_new_program_and_loses_no_request_of_a_service_with_one_workload() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| {
        let with = "  permissiveMode: false\n  dns: true\n";
        let text = text.replacen("  permissiveMode: false\n", with, 1);
        assert!(text.contains("dns: true"), "{text}");
        text
    });
    let file = demo.write("replica.yaml", &replica(&demo));
    demo.apply(&file);
    eventually("it is ready", || is_ready(&demo, "ratings-2"));
    eventually("both are used", || endpoints(&demo) == 2);
    let stop = AtomicBool::new(false);
    let (asked, failures) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_for_names(&demo, &stop));
        let upgraded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            upgrade_without_a_loss(&demo, &["ratings-2"]);
        }));
        stop.store(true, Ordering::SeqCst);
        let answered = asking.join().unwrap();
        if let Err(panic) = upgraded {
            std::panic::resume_unwind(panic);
        }
        answered
    });
    assert!(failures.is_empty(), "of {asked} questions: {failures:?}");
    assert!(asked > 50, "{asked} questions");
}

#[test]
fn an_upgrade_without_privileges_loses_no_request_either() {
    let demo = Demo::start_without_privileges(|text| text);
    upgrade_without_a_loss(&demo, &[]);
}

/// An application that answers in pieces until a file is there.
const SLOW: &str = r#"
import http.server, os, sys, time

class Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not os.path.exists(sys.argv[2]):
            self.wfile.write(b"6\r\npiece\n\r\n")
            time.sleep(0.1)
        self.wfile.write(b"4\r\nend\n\r\n0\r\n\r\n")

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Slow).serve_forever()
"#;

/// The demo with that application behind the ingress.
fn with_slow(text: &str, end: &Path) -> String {
    let script: String = SLOW.lines().map(|l| format!("        {l}\n")).collect();
    let (port, end) = (free_port(), end.display());
    text.replacen("permissiveMode: false", "permissiveMode: true", 1)
        + &format!(
            "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: slow}}\nspec:\n  command:\n    - python3\n    - -c\n    - |\n\
             {script}    - '{port}'\n    - {end}\n  ports: [{{port: {port}, appProtocol: http}}]\n\
             ---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: slow}}\nspec:\n  parentRefs: [{{name: ingress}}]\n  \
             rules:\n    - matches: [{{path: {{type: PathPrefix, value: /slow}}}}]\n      timeouts: {{request: 0s}}\n      backendRefs: [{{name: slow, port: {port}}}]\n"
        )
}

/// The number of TCP sockets in which a process listens.
fn listeners(pid: i32) -> usize {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let all = read("net/tcp") + &read("net/tcp6");
    let listening = all.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[3] == "0A").then(|| format!("socket:[{}]", fields[9]))
    });
    let listening: HashSet<String> = listening.collect();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let files = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    files
        .filter(|file| listening.contains(&*file.to_string_lossy()))
        .count()
}

/// Longer than a process has that is stopped, which is killed after 7 s.
const LONG: Duration = Duration::from_secs(8);

#[test]
fn an_answer_that_lasts_longer_than_an_upgrade_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let end = dir.path().join("end");
    let demo = Demo::start_without_privileges(|text| with_slow(&text, &end));
    let mut client = Client::connect(demo.ingress);
    client.send(get("/slow"));
    let head = client.read_exact(12);
    assert_eq!(String::from_utf8_lossy(&head), "HTTP/1.1 200");
    let through = ["gateway.ingress", "slow"];
    let before = through.map(|p| demo.sidecar(p));
    let [_, proxy] = install_anew(&demo);
    let answer = demo.tulle(&["service", "upgrade"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    pause("whatever ends the answer early would have done so", LONG);
    for name in through {
        assert!(
            runs(demo.sidecar(name), &proxy),
            "{name} is the old program"
        );
    }
    let goes_on = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
    assert!(before.iter().all(|pid| goes_on(*pid)), "they serve it");
    // All else comes to the new ones: requests, and questions for metrics and health.
    demo.await_answer(&format!("/ratings/{RATING}"));
    let listening = [before, through.map(|p| demo.sidecar(p))].map(|p| p.map(listeners));
    assert_eq!(listening[0], [0, 0]);
    assert!(listening[1].iter().all(|count| *count > 2), "{listening:?}");
    fs::write(&end, "").unwrap();
    let rest = client.read_to_end().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("end\n\r\n0\r\n\r\n"), "{rest}");
    eventually("the old processes are gone", || {
        !before.iter().any(|pid| goes_on(*pid))
    });

    // A mesh that ends waits for none of them.
    fs::remove_file(&end).unwrap();
    let mut client = Client::connect(demo.ingress);
    client.send(get("/slow"));
    client.read_exact(12);
    install_anew(&demo);
    assert_eq!(demo.tulle(&["service", "upgrade"]).code, 0);
    assert_eq!(demo.tulle(&["down"]).code, 0);
    demo.await_nothing_left();
}
