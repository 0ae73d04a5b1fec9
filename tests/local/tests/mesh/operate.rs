//! Commands of a cluster on one host: the same views, asked of the proxies of the mesh that is up here.

use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use tests_local::{Demo, RATING, eventually};

const PASSWORD: &str = "xyzzy-of-the-app";

fn rating() -> String {
    format!("/ratings/{RATING}")
}

fn demo() -> Demo {
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: hidden}\n\
                  stringData: {password: xyzzy-of-the-secret}\n";
    let add = |text: String| {
        let env = format!("  env:\n    - name: PASSWORD\n      value: {PASSWORD}\n  command: [");
        let with_env = text.replacen("  command: [", &env, 1);
        assert_ne!(with_env, text, "a workload has a command");
        let quiet = "  permissiveMode: false";
        let logged = with_env.replacen(quiet, &format!("{quiet}\n  accessLog: true"), 1);
        assert_ne!(logged, with_env, "the Mesh is strict");
        logged.trim_end().to_owned() + "\n" + secret
    };
    Demo::start_without_privileges(add)
}

fn json(demo: &Demo, args: &[&str]) -> Value {
    let answer = demo.tulle(&[args, &["-o", "json"]].concat());
    assert_eq!(answer.code, 0, "{args:?}: {answer:?}");
    serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {answer:?}"))
}

fn row<'a>(rows: &'a Value, field: &str, name: &str) -> &'a Value {
    let mut rows = rows.as_array().unwrap().iter();
    let none = &Value::Null;
    rows.find(|row| row[field] == name).unwrap_or(none)
}

/// Runs this while requests go through the mesh.
fn under_load<T>(demo: &Demo, run: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                demo.get(&rating());
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        done.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn the_proxies_of_a_host_are_shown_as_those_of_a_cluster() {
    let demo = demo();
    assert_eq!(demo.get(&rating()).status(), 200);
    demo.await_edge("ingress", "ratings");
    proxies(&demo);
    edges(&demo);
    traffic(&demo);
    metrics(&demo);
    report(&demo);
    which(&demo);
}

fn proxies(demo: &Demo) {
    let rows = json(demo, &["proxy", "list"]);
    let ratings = row(&rows, "pod", "ratings");
    let fields: BTreeSet<&str> = ratings
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    // The fields are those of a cluster: one program writes both.
    let expected = [
        "namespace",
        "pod",
        "workload",
        "ready",
        "version",
        "identity",
        "generation",
        "refused",
        "certificate_not_after",
        "restarts",
    ];
    assert_eq!(fields, expected.into());
    assert_eq!(ratings["workload"], "workload/ratings", "{rows}");
    assert_eq!(ratings["identity"], "spiffe://tulle.local/svc/ratings");
    assert_eq!(ratings["version"], env!("CARGO_PKG_VERSION"));
    assert!(ratings["certificate_not_after"].is_i64(), "{rows}");
    let ingress = row(&rows, "pod", "gateway.ingress");
    assert_eq!(ingress["workload"], "gateway/ingress", "{rows}");
    let table = demo.tulle(&["proxy", "list"]).out;
    assert!(table.starts_with("NAMESPACE  POD"), "{table}");

    let shown = json(demo, &["proxy", "list", "--name", demo.name()]);
    assert_eq!(
        shown.as_array().map(Vec::len),
        rows.as_array().map(Vec::len)
    );
    let get = |query: &str, target: &str| {
        let answer = demo.tulle(&["proxy", "get", query, target]);
        assert_eq!(answer.code, 0, "{query} {target}: {answer:?}");
        answer.out
    };
    assert_eq!(get("ready", "ratings").trim(), "ready");
    assert!(get("config", "gateway/ingress").contains("svc/ingress"));
    let certificates = get("certificates", "svc/ratings");
    assert!(certificates.contains("svc/ratings") && !certificates.contains("PRIVATE"));
    assert!(get("endpoints", "gateway/ingress").contains("ratings"));
    assert_eq!(get("errors", "ratings").trim().chars().next(), Some('['));
    assert!(get("metrics", "gateway.ingress").contains("istio_requests_total"));
    let none = demo.tulle(&["proxy", "get", "config", "nobody"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.err.contains("workload/ratings"), "{none:?}");
}

fn edges(demo: &Demo) {
    let edges = json(demo, &["edges"]);
    let ratings = row(&edges, "destination_service", "ratings");
    assert_eq!(ratings["security"], "mutual_tls", "{edges}");
    let of_status = demo.status()["edges"].clone();
    let fields = |rows: &Value| {
        let row = rows[0].as_object().unwrap();
        row.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(fields(&edges), fields(&of_status));
    let table = demo.tulle(&["edges"]).out;
    assert!(
        table.contains("svc/ingress") && table.contains("mutual_tls"),
        "{table}"
    );
}

fn traffic(demo: &Demo) {
    let stat = under_load(demo, || json(demo, &["stat", "--window", "2s"]));
    let ratings = row(&stat, "name", "workload/ratings");
    assert!(
        ratings["requests_per_second"].as_f64() > Some(0.0),
        "{stat}"
    );
    assert_eq!(
        (&ratings["namespace"], &ratings["pods"]),
        (&"".into(), &1.into())
    );
    assert_eq!(ratings["success_rate"], 1.0, "{stat}");
    assert!(ratings["p50_ms"].is_f64(), "{stat}");
    let by = ["stat", "ratings", "--by", "service", "--window", "1s"];
    let stat = under_load(demo, || json(demo, &by));
    assert_eq!(row(&stat, "name", "ratings")["pods"], 1, "{stat}");

    let tap = [
        "tap", "ratings", "--path", "/ratings", "--count", "2", "--for", "60s",
    ];
    let told = under_load(demo, || demo.tulle(&[&tap[..], &["-o", "json"]].concat()));
    assert_eq!(told.code, 0, "{told:?}");
    let lines: Vec<Value> = told
        .out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{told:?}");
    for line in &lines {
        assert_eq!(line["mesh"], demo.name(), "{line}");
        assert_eq!(
            (&line["pod"], &line["response_code"]),
            (&"ratings".into(), &200.into())
        );
        assert_eq!(line["connection_security_policy"], "mutual_tls", "{line}");
    }
    let top = ["top", "svc/ratings", "--count", "3", "--for", "60s"];
    let rows = under_load(demo, || json(demo, &top));
    assert_eq!(
        row(&rows, "path", &rating())["source"],
        "svc/ingress",
        "{rows}"
    );
}

fn metrics(demo: &Demo) {
    let page = demo.tulle(&["metrics"]);
    assert_eq!((page.code, page.err.as_str()), (0, ""), "{page:?}");
    let samples = tulle_model::samples::parse(&page.out);
    let comments = page.out.lines().filter(|l| l.starts_with('#')).count();
    assert_eq!(
        samples.len() + comments,
        page.out.lines().count(),
        "every line is read"
    );
    let proxies = |name: &str| -> BTreeSet<&str> {
        let of_metric = samples.iter().filter(|s| s.name == name);
        of_metric.map(|s| s.label("proxy")).collect()
    };
    let all = proxies("tulle_proxy_up");
    assert!(
        all.contains("ratings") && all.contains("gateway.ingress"),
        "{all:?}"
    );
    assert_eq!(proxies("tulle_certificate_not_after_seconds"), all);
    assert!(samples.iter().all(|s| s.label("mesh") == demo.name()));
    // A scraper refuses a metric that is described twice, and a sample that is there twice.
    let types: Vec<&str> = page
        .out
        .lines()
        .filter(|l| l.starts_with("# TYPE"))
        .collect();
    assert_eq!(
        types.iter().collect::<BTreeSet<_>>().len(),
        types.len(),
        "{types:?}"
    );
    let keys: BTreeSet<String> = samples
        .iter()
        .map(|s| format!("{} {:?}", s.name, s.labels))
        .collect();
    assert_eq!(keys.len(), samples.len());
}

fn report(demo: &Demo) {
    demo.get(&format!("{}?token=xyzzy-of-a-query", rating()));
    eventually("the access log has the request", || {
        let log = demo.tulle(&["logs", "ratings", "--sidecar"]).out;
        log.contains("xyzzy-of-a-query")
    });
    let file = demo.path().join("report.tar.gz");
    let name = file.to_str().unwrap();
    let made = demo.tulle(&["support", "bug-report", "--file", name]);
    assert_eq!(made.code, 0, "{made:?}");
    let tar = |option: &str| {
        let output = Command::new("tar").args([option, name]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let listed = tar("-tzf");
    for part in [
        "version.txt",
        "check.json",
        "status.json",
        "objects/mesh.json",
        "logs/supervisor.log",
        "logs/controller.log",
        "logs/ratings.sidecar.log",
        "proxies/ratings/config.json",
        "proxies/gateway.ingress/metrics.txt",
    ] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    assert!(
        !listed.contains("logs/ratings.log"),
        "its log is the application's: {listed}"
    );
    let all = tar("-xzOf");
    assert!(all.contains("svc/ratings"), "nothing of the proxies");
    assert!(all.contains("?(left out)"), "nothing of the access log");
    for secret in [PASSWORD, "xyzzy", "PRIVATE KEY", "eyJ"] {
        assert!(!all.contains(secret), "{secret} is in the report");
    }
    std::fs::remove_file(&file).unwrap();
}

/// A cluster that nobody answers for.
const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: far
contexts: [{name: far, context: {cluster: far, user: far}}]
clusters: [{name: far, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: far, user: {}}]
";

fn which(demo: &Demo) {
    let kubeconfig = demo.write("kubeconfig", KUBECONFIG);
    let with_both = |args: &[&str]| {
        let mut command = demo.command();
        command.args(args).env("KUBECONFIG", &kubeconfig);
        answer(command)
    };
    let why = ["why", "gateway", "ratings", "-o", "json"];
    let here: Value = serde_json::from_str(&with_both(&why).1).unwrap();
    assert_eq!(here["mesh"], demo.name(), "{here}");
    assert_eq!(with_both(&["proxy", "get", "ready", "ratings"]).0, 0);
    for option in [&["-n", "shop"][..], &["--context", "far"]] {
        let (code, _, err) = with_both(&[&["edges"], option].concat());
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("http://127.0.0.1:1"), "{err}");
    }
    let (code, out, err) = with_both(&["dashboard", "--print-url"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("http://127.0.0.1:"), "{out}");

    // Without a mesh and without a cluster it says where it looked.
    if tests_local::runs_as_root() {
        let mut command = demo.command();
        command
            .arg("stat")
            .env("XDG_RUNTIME_DIR", demo.path().join("elsewhere"))
            .env("KUBECONFIG", "/nowhere/kubeconfig");
        for variable in ["TULLE_STATE", "TULLE_NAME"] {
            command.env_remove(variable);
        }
        let (code, _, err) = answer(command);
        assert_eq!(code, 1, "{err}");
        let run = demo.path().join("elsewhere/tulle");
        for part in [
            run.to_str().unwrap(),
            "/nowhere/kubeconfig",
            "tulle up",
            "--context",
        ] {
            assert!(err.contains(part), "{part}: {err}");
        }
    } else {
        tests_local::skip_part("it needs root to look for the mesh of root");
    }
}

fn answer(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A process that ends with its value.
struct Stray(Child);

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mesh whose supervisor and janitor were both killed leaves namespaces, a link, control groups and files.
#[test]
fn check_removes_what_a_crash_left_unless_it_may_still_serve() {
    if !tests_local::can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let run = demo.status()["mesh"]["run_directory"]
        .as_str()
        .unwrap()
        .to_owned();
    let check = |args: &[&str]| demo.tulle(&[&["check"], args].concat());
    assert_eq!(check(&["--fix"]).code, 0, "{:?}", check(&["--fix"]));
    assert_eq!(
        demo.get(&rating()).status(),
        200,
        "a mesh that is up is left alone"
    );

    let mut stay = Command::new("ip");
    stay.args(["netns", "exec", &demo.namespace("ratings"), "sleep", "1000"]);
    let stray = Stray(stay.stdin(Stdio::null()).spawn().unwrap());
    let state = std::fs::read_to_string(format!("{run}/supervisor.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    let pid = |of: &str| i32::try_from(state.pointer(of).unwrap().as_i64().unwrap()).unwrap();
    // A janitor that stands still cannot clear up before it is killed, too.
    tests_local::signal(pid("/janitor/id/pid"), Signal::STOP);
    tests_local::signal(pid("/supervisor/pid"), Signal::KILL);
    tests_local::signal(pid("/janitor/id/pid"), Signal::KILL);
    for process in marked(&run) {
        let _ = Command::new("kill").args(["-KILL", &process]).status();
    }
    eventually("nothing of it runs but the stray", || {
        marked(&run).is_empty()
    });

    let found = check(&[]);
    assert_eq!(found.code, 79, "{found:?}");
    assert!(found.out.contains("network namespace"), "{found:?}");
    // Whoever is in a namespace may serve.
    let left = check(&["--fix"]);
    assert_eq!(left.code, 79, "{left:?}");
    let says = format!("left as it is: processes {}", stray.0.id());
    assert!(left.out.starts_with(&says), "{left:?}");
    assert!(demo.left().iter().any(|l| l.starts_with("/run/netns/")));
    drop(stray);

    let dry = check(&["--fix", "--dry-run", "-o", "json"]);
    assert_eq!(dry.code, 79, "{dry:?}");
    let shown: Value = serde_json::from_str(&dry.out).unwrap();
    assert_eq!(shown["fixes"][0]["outcome"], "would", "{shown}");
    assert!(shown["findings"].as_array().unwrap().len() > 5, "{shown}");
    assert!(!demo.left().is_empty(), "a dry run changes nothing");
    let fixed = check(&["--fix"]);
    assert_eq!(fixed.code, 0, "{fixed:?}");
    assert!(
        fixed.out.starts_with("fixed: removed network namespace"),
        "{fixed:?}"
    );
    assert_eq!(demo.left(), Vec::<String>::new());
    // Durable files are still there, and there is nothing more to do.
    let again = check(&["--fix"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.starts_with("there is nothing"), "{again:?}");
    demo.up();
    assert_eq!(demo.get(&rating()).status(), 200);
}

/// Processes of the mesh with this run directory.
fn marked(run: &str) -> Vec<String> {
    let mark = format!("TULLE_MESH={run}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    names
        .filter(|name| {
            let environment = std::fs::read(format!("/proc/{name}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == mark.as_bytes())
        })
        .collect()
}
