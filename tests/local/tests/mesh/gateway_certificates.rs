//! Secrets of a gateway's listeners that are missing, do not fit or have expired: what `apply`, `status`
//! and `check` say, and that only the listener concerned is out of service.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};
use tests_local::{Client, Demo, eventually, free_port};
use tulle_tls::testing::{Issued, Leaf, TestCa};

struct Shop {
    demo: Demo,
    web: TestCa,
    address: SocketAddr,
}

fn secret(name: &str, issued: &Issued) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": issued.chain_pem, "tls.key": issued.key_pem },
    })
}

impl Shop {
    /// A gateway of two hosts, each with a listener and a Secret of its own.
    fn open() -> Self {
        let web = TestCa::new("web root");
        let port = free_port();
        let listener = |name: &str| {
            json!({
                "name": name, "port": port, "protocol": "HTTPS", "hostname": format!("{name}.test"),
                "tls": { "certificateRefs": [{ "name": name }] },
            })
        };
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "name": "shop" },
            "spec": { "gatewayClassName": "tulle", "listeners": [listener("one"), listener("two")] },
        });
        let secrets = ["one", "two"].map(|name| secret(name, &issue(&web, name)));
        let demo = Demo::start_on_loopback(|text| {
            let [one, two] = &secrets;
            format!("{text}\n---\n{one}\n---\n{two}\n---\n{gateway}\n")
        });
        std::fs::write(demo.path().join("web.pem"), web.pem()).unwrap();
        let address = ([127, 0, 0, 1], port).into();
        Self { demo, web, address }
    }

    /// Whether a client ends up with TLS of a valid certificate. No route is there, which says 404.
    fn serves(&self, name: &str) -> bool {
        let output = Command::new("curl")
            .args([
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--max-time",
                "20",
            ])
            .arg("--cacert")
            .arg(self.demo.path().join("web.pem"))
            .args(["--connect-to", &format!("::{}", self.address)])
            .arg(format!("https://{name}.test/"))
            .output()
            .unwrap();
        output.stdout == b"404"
    }

    fn write(&self, object: &Value) -> PathBuf {
        self.demo.write("object.json", &object.to_string())
    }

    /// Returns the gateway's status: whether it is ready, and its note.
    fn status(&self) -> (bool, String) {
        let status = self.demo.status();
        let gateways = status["gateways"].as_array().unwrap();
        let shop = gateways.iter().find(|g| g["name"] == "shop").unwrap();
        let message = shop["message"].as_str().unwrap().to_owned();
        (shop["ready"].as_bool().unwrap(), message)
    }
}

fn issue(web: &TestCa, name: &str) -> Issued {
    issue_until(web, name, SystemTime::now() + Duration::from_secs(3600))
}

fn issue_until(web: &TestCa, name: &str, not_after: SystemTime) -> Issued {
    web.issue_leaf(&Leaf {
        uris: vec![],
        dns: vec![format!("{name}.test")],
        not_after,
        ..Leaf::new("spiffe://none/none")
    })
}

#[test]
fn a_key_that_does_not_fit_is_refused_by_apply_and_its_dry_run() {
    let shop = Shop::open();
    assert!(shop.serves("one") && shop.serves("two"));
    let mut unfit = issue(&shop.web, "one");
    unfit.key_pem = issue(&shop.web, "one").key_pem;
    let file = shop.write(&secret("one", &unfit));
    let file = file.to_str().unwrap();
    let refused = shop.demo.tulle(&["apply", file]);
    assert_eq!(refused.code, 65, "{refused:?}");
    let dry = shop.demo.tulle(&["apply", "--dry-run", file]);
    assert_eq!((dry.code, &dry.err), (65, &refused.err));
    for said in [
        "TL0048",
        "Gateway/shop",
        "Secret `one`",
        "tls.key does not belong",
    ] {
        assert!(refused.err.contains(said), "{said}: {refused:?}");
    }
    assert!(!refused.err.contains("PRIVATE"), "{refused:?}");
    assert!(shop.serves("one") && shop.serves("two"));
    assert_eq!(shop.status(), (true, String::new()));
}

#[test]
fn expired_and_missing_certificates_are_told_by_apply_status_and_check() {
    let shop = Shop::open();
    let past = SystemTime::now() - Duration::from_secs(60);
    let expired = shop.write(&secret("one", &issue_until(&shop.web, "one", past)));
    let dry = shop
        .demo
        .tulle(&["apply", "--dry-run", expired.to_str().unwrap()]);
    assert!(dry.code == 79 && dry.out.contains("TL0049"), "{dry:?}");
    let applied = shop.demo.tulle(&["apply", expired.to_str().unwrap()]);
    assert!(
        applied.code == 0 && applied.err.contains("TL0049"),
        "{applied:?}"
    );
    let (ready, message) = shop.status();
    assert!(
        !ready && message.contains("listener one: Secret `one`: the certificate expired"),
        "{message}"
    );
    let check = shop.demo.tulle(&["check"]);
    assert!(
        check.code == 79 && check.out.contains("TL0049 Gateway/shop"),
        "{check:?}"
    );
    eventually("it is presented", || !shop.serves("one"));
    assert!(shop.serves("two"));

    assert_eq!(shop.demo.tulle(&["delete", "secret", "one"]).code, 0);
    let (ready, message) = shop.status();
    assert!(
        !ready && message.contains("listener one: Secret `one`: it does not exist"),
        "{message}"
    );
    let check = shop.demo.tulle(&["check"]);
    assert!(
        check.code == 79 && check.out.contains("TL0017 Gateway/shop"),
        "{check:?}"
    );
    assert!(shop.serves("two"));

    // A port without any of its certificates answers nobody, not even in plaintext.
    assert_eq!(shop.demo.tulle(&["delete", "secret", "two"]).code, 0);
    eventually("the other is gone, too", || !shop.serves("two"));
    let request = "GET / HTTP/1.1\r\nHost: two.test\r\n\r\n";
    let cut = Client::is_cut(shop.address, request);
    assert!(cut, "it is answered in plaintext");
    let two = shop.write(&secret("two", &issue(&shop.web, "two")));
    shop.demo.apply(&two);
    eventually("the other is served again", || shop.serves("two"));

    let good = shop.write(&secret("one", &issue(&shop.web, "one")));
    shop.demo.apply(&good);
    assert_eq!(shop.status(), (true, String::new()));
    eventually("it is served again", || shop.serves("one"));
}

#[test]
fn a_pair_of_files_becomes_the_secret_of_a_listener() {
    let shop = Shop::open();
    let (demo, name) = (&shop.demo, "one");
    assert_eq!(demo.tulle(&["delete", "secret", name]).code, 0);
    let pair = issue(&shop.web, name);
    let chain = demo.write("one.pem", &pair.chain_pem).display().to_string();
    let key = demo.write("one.key", &pair.key_pem).display().to_string();
    let tls = |key: &str, more: &[&str]| {
        let args = ["secret", "tls", name, "--cert", &chain, "--key", key];
        demo.tulle(&[&args, more].concat())
    };
    let made = tls(&key, &[]);
    assert_eq!(
        (made.code, &*made.out),
        (0, "secret/one created\n"),
        "{made:?}"
    );
    eventually("it is served again", || shop.serves(name));

    // The same Secret is printed as a manifest, and is not stored.
    let printed = tls(&key, &["-o", "yaml"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let file = demo.write("one.yaml", &printed.out);
    let applied = demo.tulle(&["apply", file.to_str().unwrap()]);
    assert_eq!(applied.out, "secret/one unchanged\n", "{applied:?}");

    let other = demo.write("other.key", &issue(&shop.web, name).key_pem);
    for (key, said) in [
        (
            other.to_str().unwrap(),
            "tls.key does not belong to tls.crt",
        ),
        ("nowhere.key", "cannot read nowhere.key"),
        (&chain, "tls.key cannot be used"),
    ] {
        let refused = tls(key, &[]);
        assert_eq!(refused.code, 65, "{refused:?}");
        assert!(refused.err.contains(said), "{said}: {refused:?}");
        assert!(!refused.err.contains("PRIVATE"), "{refused:?}");
    }
    assert!(shop.serves(name));
}
