//! Objects that change all the time: some fifty changes a second go through the controller while
//! requests and a download are on their way. Nothing fails, and what was said last holds.

use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_local::{
    Client, Demo, Gate, Load, RATING, Server, can_redirect, eventually, get, ok, pause,
};
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_api::v1::{ApplyRequest, DeleteRequest, Object};

const PORT: u16 = 8200;
const CHANGES: u32 = 300;
/// Minimum time between two changes.
const APART: Duration = Duration::from_millis(20);
/// A piece of the download.
const PIECE: [u8; 1000] = [b'x'; 1000];
const PIECES: usize = 5000;
/// Workloads that are deleted at once. Their namespaces are made at the same time, which takes a while.
const BRIEF: usize = 8;

/// A service whose application is the test.
const FILES: &str = "apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: files}
spec:
  command: [sleep, infinity]
  ports: [{name: http, port: 8200, appProtocol: http}]
";

fn object(version: &str, kind: &str, name: &str, spec: Value) -> Object {
    let manifest = json!({
        "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    Object {
        kind: kind.into(),
        name: name.into(),
        json: manifest.to_string(),
    }
}

/// The ingress's route to `files`, which says the number of the change in each response.
fn route(number: u32) -> Object {
    let says = json!([{ "name": "x-change", "value": number.to_string() }]);
    let spec = json!({
        "parentRefs": [{ "name": "ingress" }],
        "rules": [{
            "matches": [{ "path": { "type": "PathPrefix", "value": "/files" } }],
            "filters": [{ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "set": says } }],
            "backendRefs": [{ "name": "files", "port": PORT }],
        }],
    });
    object("gateway.networking.k8s.io/v1", "HTTPRoute", "files", spec)
}

/// Returns a TrafficTarget that allows these callers and a different one each time.
fn callers(service: &str, may: &[&str], number: u32) -> Object {
    let another = format!("another-{number}");
    let all = may.iter().copied().chain([another.as_str()]);
    let sources = all.map(|name| json!({ "kind": "ServiceAccount", "name": name }));
    let spec = json!({
        "destination": { "kind": "ServiceAccount", "name": service },
        "sources": sources.collect::<Vec<_>>(),
    });
    object(
        "access.smi-spec.io/v1alpha3",
        "TrafficTarget",
        service,
        spec,
    )
}

/// How requests to `ratings` are treated by those that call it.
fn treatment(number: u32) -> Object {
    let spec = json!({
        "targetRefs": [{ "kind": "Service", "name": "ratings" }],
        "connections": { "maxConnections": 10_000 + number },
    });
    object("tulle.dev/v1alpha1", "TrafficPolicy", "ratings", spec)
}

/// The change of that number: another object than the one before.
fn change(number: u32) -> Object {
    match number % 4 {
        0 => route(number),
        1 => callers("files", &["ingress"], number),
        2 => callers("ratings", &["ingress", "gateway", "reviews"], number),
        _ => treatment(number),
    }
}

fn control_socket(demo: &Demo) -> PathBuf {
    let admin = demo.proxy("ratings")["admin_socket"]
        .as_str()
        .unwrap()
        .to_owned();
    let run = Path::new(&admin).ancestors().nth(3).unwrap();
    run.join("control/control.sock")
}

/// Applies objects one by one, each when the one before is stored.
fn apply(demo: &Demo, objects: impl Iterator<Item = Object>) {
    let socket = control_socket(demo);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let target = format!("unix:{}", socket.display());
        let mut controller = ObjectsClient::connect(target).await.unwrap();
        let mut pace = tokio::time::interval(APART);
        let (began, mut count) = (Instant::now(), 0);
        for object in objects {
            pace.tick().await;
            count += 1;
            let what = object.json.clone();
            let request = ApplyRequest {
                objects: vec![object],
                ..Default::default()
            };
            let applied = controller.apply(request).await;
            let applied = applied
                .unwrap_or_else(|e| panic!("{what}: {e}"))
                .into_inner();
            assert_ne!(applied.results[0].outcome, "unchanged", "{what}");
        }
        println!("{count} changes in {:?}", began.elapsed());
    });
}

/// Answers at once, but for `/files/long`: the last piece of that comes when the gate is open.
fn files(last: &Arc<Gate>) -> Server {
    let last = last.clone();
    Server::on(
        (Ipv4Addr::UNSPECIFIED, PORT).into(),
        move |mut connection| {
            while let Ok(request) = connection.request() {
                if !request.start.contains("/files/long") {
                    if connection.try_send(ok(b"short")).is_err() {
                        return;
                    }
                    continue;
                }
                let length = PIECE.len() * PIECES;
                connection.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                ));
                for sent in 0..PIECES {
                    if sent + 1 == PIECES {
                        last.pass();
                    }
                    connection.send(PIECE);
                    if !last.is_open() {
                        // Slower in the end: where the changes take long, there is still
                        // something to come.
                        let time = if sent < PIECES - 500 { 1 } else { 100 };
                        pause("between pieces of a download", Duration::from_millis(time));
                    }
                }
            }
        },
    )
}

/// Asks for what is long; how many bytes of it came.
fn download(ingress: SocketAddr) -> usize {
    let mut client = Client::connect(ingress);
    client.send(get("/files/long"));
    let response = client.response("GET");
    assert_eq!(response.status(), 200, "{}", response.head);
    assert!(response.body.iter().all(|&b| b == b'x'));
    response.body.len()
}

#[test]
fn fifty_changes_a_second_disturb_nothing_and_the_last_one_holds() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    demo.apply(&demo.write("files.yaml", FILES));
    let last = Arc::<Gate>::default();
    eventually("the workload has a namespace", || {
        demo.application_now("files").is_some()
    });
    let _files = demo.inside("files", true, || files(&last));
    apply(
        &demo,
        [route(0), callers("files", &["ingress"], 0)].into_iter(),
    );
    eventually("files answers", || demo.get("/files/short").status() == 200);

    let by_gateway = format!("/bookinfo-ratings/ratings/{RATING}");
    let load = Load::gets(demo.ingress, 4, &["/files/short", &by_gateway]);
    let ingress = demo.ingress;
    let long = std::thread::spawn(move || download(ingress));
    apply(&demo, (1..=CHANGES).map(change));
    // Each that was the last of its kind.
    let said = CHANGES - CHANGES % 4;
    eventually("the last route holds", || {
        demo.get("/files/short").header("x-change") == said.to_string()
    });
    load.await_more(50);
    load.assert_no_failure();
    assert!(!long.is_finished(), "it was under way all the time");
    last.open();
    assert_eq!(long.join().unwrap(), PIECE.len() * PIECES);

    // Policies follow, too.
    apply(&demo, std::iter::once(callers("files", &[], CHANGES + 1)));
    eventually("the ingress may not any more", || {
        demo.get("/files/short").status() == 403
    });
}

#[test]
fn a_workload_that_is_deleted_while_its_namespace_is_made_leaves_none() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let names: Vec<String> = (0..BRIEF).map(|number| format!("brief-{number}")).collect();
    let exists = |name: &String| Path::new("/run/netns").join(demo.namespace(name)).exists();
    let spec = json!({
        "command": ["sleep", "infinity"],
        "ports": [{ "name": "http", "port": PORT, "appProtocol": "http" }],
    });
    let workload = |name: &String| object("tulle.dev/v1alpha1", "Workload", name, spec.clone());
    let objects = names.iter().map(workload).collect();
    let target = format!("unix:{}", control_socket(&demo).display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut controller = runtime.block_on(ObjectsClient::connect(target)).unwrap();
    let request = ApplyRequest {
        objects,
        ..Default::default()
    };
    runtime.block_on(controller.apply(request)).unwrap();
    eventually("the first namespace is being made", || {
        names.iter().any(exists)
    });
    for name in &names {
        let request = DeleteRequest {
            kind: "Workload".into(),
            name: name.clone(),
        };
        runtime.block_on(controller.delete(request)).unwrap();
    }
    eventually("no namespace of them is left", || !names.iter().any(exists));
}
