//! A Gateway's listeners change while it serves: where the ports stay, nothing is restarted.

use crate::cli_join::only;
use tests_local::{Client, Demo, RATING, eventually};

#[test]
fn a_listener_that_changes_on_its_port_keeps_the_proxy_and_the_connections() {
    let demo = Demo::start_without_privileges(|text| text);
    let rating = format!("/ratings/{RATING}");
    demo.await_answer(&rating);
    let proxy = demo.sidecar("gateway.ingress");
    let mut kept = Client::connect(demo.ingress);
    assert_eq!(kept.get(&rating).status(), 200);

    let text = std::fs::read_to_string(&demo.manifest).unwrap();
    let gateway = only(&text, |d| d.contains("kind: Gateway\n"));
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
