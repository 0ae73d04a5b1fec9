//! A Gateway's listeners change while it serves: nothing is restarted, and listeners that stay serve without a gap.

use crate::cli_join::only;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use tests_local::{Client, Demo, Load, RATING, eventually, free_port, is_root};

/// The demo's gateway, as its manifest has it.
fn gateway(demo: &Demo) -> String {
    let text = fs::read_to_string(&demo.manifest).unwrap();
    only(&text, |d| d.contains("kind: Gateway\n"))
}

fn with_listener(gateway: &str, port: u16) -> String {
    let listener = format!("    - name: other\n      port: {port}\n      protocol: HTTP\n");
    format!("{}\n{listener}", gateway.trim_end_matches('\n'))
}

fn answers(address: SocketAddr, path: &str) -> bool {
    let asked = Client::try_connect(address).and_then(|mut client| {
        client.try_send(tests_local::get(path))?;
        client.try_response("GET")
    });
    asked.is_ok_and(|answer| answer.status() == 200)
}

/// A listener comes at the first port, moves to the second and goes, while the ingress serves.
fn a_listener_comes_moves_and_goes(demo: &Demo, ports: [u16; 2]) {
    let path = format!("/ratings/{RATING}");
    demo.await_answer(&path);
    let proxy = demo.sidecar("gateway.ingress");
    let metrics = demo.proxy("gateway.ingress")["metrics"].clone();
    let mut kept = Client::connect(demo.ingress);
    assert_eq!(kept.get(&path).status(), 200);

    let load = Load::gets(demo.ingress, 4, &[&path]);
    let alone = gateway(demo);
    let [first, second] = ports.map(|port| SocketAddr::new(demo.ingress.ip(), port));
    let apply = |text: &str| demo.apply(&demo.write("gateway.yaml", text));
    let refuses = |address: SocketAddr| TcpStream::connect(address).is_err();
    for _ in 0..2 {
        apply(&with_listener(&alone, first.port()));
        eventually("the new listener answers", || answers(first, &path));
        load.await_more(50);
        apply(&with_listener(&alone, second.port()));
        eventually("it answers where it has moved to", || {
            answers(second, &path)
        });
        eventually("it refuses where it was", || refuses(first));
        load.await_more(50);
        apply(&alone);
        eventually("it refuses when it is gone", || refuses(second));
        load.await_more(50);
    }
    // Changes that come quickly after each other: some are taken back before they are in force.
    let passing = [free_port(), free_port()];
    for port in passing.into_iter().chain([second.port()]) {
        apply(&with_listener(&alone, port));
    }
    eventually("the last one holds", || answers(second, &path));
    let closed = |port: u16| refuses(SocketAddr::new(demo.ingress.ip(), port));
    eventually("those before do not", || passing.into_iter().all(closed));
    let mut expected = [demo.ingress, second];
    expected.sort_unstable();
    let expected = serde_json::json!(expected);
    eventually("the status shows where the gateway listens", || {
        let shown = &demo.status()["gateways"][0];
        shown["listeners"] == expected && shown["ready"] == true
    });
    let done = load.assert_no_failure();
    eprintln!("{done} requests, none failed");

    assert_eq!(kept.get(&path).status(), 200, "on the connection of before");
    assert_eq!(demo.sidecar("gateway.ingress"), proxy);
    let now = demo.proxy("gateway.ingress");
    assert_eq!((&now["metrics"], &now["restarts"]), (&metrics, &0.into()));
    let metrics: SocketAddr = metrics.as_str().unwrap().parse().unwrap();
    assert_eq!(Client::connect(metrics).get("/metrics").status(), 200);
}

#[test]
fn listeners_come_and_go_and_the_others_serve_without_a_gap() {
    let demo = Demo::start_without_privileges(|text| text);
    a_listener_comes_moves_and_goes(&demo, [free_port(), free_port()]);
}

#[test]
fn a_listener_moves_below_1024_without_a_gap() {
    if !is_root() {
        return;
    }
    let mut demo = Demo::prepare(true, |text| text);
    // An address that no other test has.
    let ip = format!("127.78.{}.1", demo.ingress.port() % 250);
    let text = fs::read_to_string(&demo.manifest).unwrap();
    let text = text.replace("value: 127.0.0.1", &format!("value: {ip}"));
    demo.manifest = demo.write("mesh.yaml", &text);
    demo.ingress.set_ip(ip.parse().unwrap());
    demo.up();
    a_listener_comes_moves_and_goes(&demo, [free_port(), 80]);
    // A proxy that is started again has its listeners again.
    let proxy = demo.sidecar("gateway.ingress");
    tests_local::signal(proxy, rustix::process::Signal::KILL);
    let path = format!("/ratings/{RATING}");
    let low = SocketAddr::new(demo.ingress.ip(), 80);
    eventually("both listeners are back", || {
        answers(low, &path) && answers(demo.ingress, &path)
    });
    eventually("the status shows its successor", || {
        demo.proxy("gateway.ingress")["restarts"] == 1
    });
}

#[test]
fn a_listener_that_changes_on_its_port_keeps_the_proxy_and_the_connections() {
    let demo = Demo::start_without_privileges(|text| text);
    let rating = format!("/ratings/{RATING}");
    demo.await_answer(&rating);
    let proxy = demo.sidecar("gateway.ingress");
    let mut kept = Client::connect(demo.ingress);
    assert_eq!(kept.get(&rating).status(), 200);

    let gateway = gateway(&demo);
    let elsewhere = gateway.replace(
        "    - name: http\n",
        "    - name: http\n      hostname: shop.example\n",
    );
    assert_ne!(gateway, elsewhere);
    // A port that is closed for a moment would refuse one of these connections.
    let file = demo.write("elsewhere.yaml", &elsewhere);
    demo.apply(&file);
    eventually("the listener serves another host", || {
        let status = demo.get(&rating).status();
        assert!([200, 404].contains(&status), "{status}");
        status == 404
    });
    let file = demo.write("back.yaml", &gateway);
    demo.apply(&file);
    eventually("the listener serves every host again", || {
        let status = demo.get(&rating).status();
        assert!([200, 404].contains(&status), "{status}");
        status == 200
    });
    assert_eq!(
        kept.get(&rating).status(),
        200,
        "on the connection of before"
    );
    assert_eq!(demo.sidecar("gateway.ingress"), proxy);
}
