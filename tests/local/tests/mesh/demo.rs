//! The demo as an operator sees it: up, three paths, who talked to whom, down, nothing left.

use serde_json::{Value, json};
use tests_local::{Client, Demo, RATING, can_redirect, edge, eventually, id, post};

/// Every call that the three paths make.
pub(crate) const EDGES: [(&str, &str); 7] = [
    ("ingress", "ratings"),
    ("ingress", "gateway"),
    ("gateway", "ratings"),
    ("ingress", "productpage"),
    ("productpage", "reviews"),
    ("productpage", "details"),
    ("reviews", "ratings"),
];

fn names(list: &Value, field: &str) -> Vec<String> {
    let mut names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v[field].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn ask_all_paths(demo: &Demo) {
    for target in [
        format!("/ratings/{RATING}"),
        format!("/bookinfo-ratings/ratings/{RATING}"),
    ] {
        let answer = demo.get(&target);
        assert_eq!(answer.status(), 200, "{target}: {}", answer.head);
        let rating: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(rating["id"], RATING);
        assert_eq!(rating["rating"], 5);
    }
    let page = demo.get("/productpage");
    assert_eq!(page.status(), 200, "{}", page.head);
    let page = page.text();
    for part in [
        "The Comedy of Errors", // of the page itself
        "PublisherA",           // details
        "entertaining play",    // reviews
        "5 of 5 stars",
        "★★★★☆", // ratings
    ] {
        assert!(page.contains(part), "no {part:?} in:\n{page}");
    }
}

#[test]
fn every_path_answers_and_every_hop_is_mutual_tls() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let before = demo.status();
    assert_eq!(before["edges"], json!([]), "nobody has asked yet");
    for _ in 0..3 {
        ask_all_paths(&demo);
    }

    // Requests are counted after their last byte has gone.
    let mut status = Value::Null;
    eventually("every request is counted", || {
        status = demo.status();
        let counts = status["edges"].as_array().unwrap();
        let sum: u64 = counts.iter().map(|e| e["requests"].as_u64().unwrap()).sum();
        // Each page asks for two ratings.
        sum == 3 * (EDGES.len() as u64 + 1)
    });
    let edges = status["edges"].as_array().unwrap();
    assert_eq!(edges.len(), EDGES.len(), "{edges:#?}");
    for (source, destination) in EDGES {
        let edge = edge(&status, source, destination).unwrap();
        assert_eq!(edge["security"], "mutual_tls", "{edge}");
        let expected = if source == "reviews" { 6 } else { 3 };
        assert_eq!(edge["requests"], expected, "{edge}");
        assert_eq!(edge["denied"], 0, "{edge}");
        assert_eq!(edge["success_rate"], 1.0, "{edge}");
        let (p50, p99) = (&edge["p50_ms"], &edge["p99_ms"]);
        let (p50, p99) = (p50.as_f64().unwrap(), p99.as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{edge}");
    }
    assert_eq!(status["unreached"], json!([]));
    assert_eq!(status["warnings"], json!([]));
}

#[test]
fn a_command_runs_in_the_place_of_an_application() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let ask = |workload: &str, url: &str| {
        let show = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url];
        let args = [&["exec", workload, "--"][..], &show].concat();
        demo.tulle(&args)
    };
    let answer = ask("reviews", &format!("http://ratings:8101/ratings/{RATING}"));
    assert_eq!((answer.code, answer.out.as_str()), (0, "200"), "{answer:?}");
    let answer = ask("details", &format!("http://ratings:8101/ratings/{RATING}"));
    assert_eq!(answer.out, "403", "details may not: {answer:?}");

    let run = |command: &str| demo.tulle(&["exec", "reviews", "--", "sh", "-c", command]);
    let of_app = |file: &str| format!("/proc/{}/{file}", demo.application("reviews"));
    let status = std::fs::read_to_string(of_app("status")).unwrap();
    let user = status.lines().find(|l| l.starts_with("Uid:")).unwrap();
    let user = user.split_whitespace().nth(1).unwrap();
    assert_eq!(run("id -u").out.trim(), user);
    assert_ne!(user, "0");
    let directory = std::fs::read_link(of_app("cwd")).unwrap();
    assert_eq!(run("pwd").out.trim(), directory.to_str().unwrap());
    assert!(run("echo $STATE_DIRECTORY").out.trim().ends_with("reviews"));
    assert_eq!(run("exit 7").code, 7);
    assert_eq!(demo.tulle(&["exec", "nobody", "--", "true"]).code, 1);
    assert_eq!(demo.tulle(&["exec", "reviews"]).code, 64);
}

#[test]
fn status_shows_the_whole_mesh_in_every_format() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    ask_all_paths(&demo);
    let status = demo.status();
    assert_eq!(status["mesh"]["mode"], "namespaces");
    assert_eq!(status["mesh"]["ready"], true);
    assert_eq!(status["mesh"]["trust_domain"], "tulle.local");
    assert_eq!(status["controller"]["ready"], true);
    assert_eq!(status["controller"]["proxies_connected"], 6);
    let services = ["details", "gateway", "productpage", "ratings", "reviews"];
    assert_eq!(names(&status["services"], "name"), services);
    let mut identities = services.map(id).to_vec();
    identities.push(id("ingress"));
    identities.sort();
    assert_eq!(names(&status["proxies"], "identity"), identities);
    for proxy in status["proxies"].as_array().unwrap() {
        assert_eq!(proxy["ready"], true, "{proxy}");
        assert_eq!(proxy["connected"], true, "{proxy}");
        assert_eq!(proxy["restarts"], 0, "{proxy}");
        assert_eq!(proxy["last_nack"], Value::Null, "{proxy}");
        assert!(proxy["rss_bytes"].as_u64().unwrap() > 0, "{proxy}");
        assert!(
            proxy["certificate_not_after"].as_u64().unwrap() > 0,
            "{proxy}"
        );
    }

    // The last request is counted after its last byte has gone.
    let hop = |line: &&str| line.starts_with("spiffe://") && line.contains("mutual_tls");
    let mut text = demo.tulle(&["status"]);
    eventually("every hop is shown", || {
        text = demo.tulle(&["status"]);
        text.out.lines().filter(hop).count() == EDGES.len()
    });
    assert_eq!(text.code, 0, "{text:?}");
    for service in services {
        assert!(text.out.contains(service), "{}", text.out);
    }
    assert!(!text.out.contains("plaintext"), "{}", text.out);
    assert!(!text.out.contains('\x1b'), "no colours in a pipe");
    let wide = demo.tulle(&["status", "-o", "wide"]);
    assert!(wide.out.contains("10.") && wide.out.len() > text.out.len());
    let yaml = demo.tulle(&["status", "-o", "yaml"]);
    assert_eq!(yaml.code, 0, "{yaml:?}");
    for line in [
        "  mode: namespaces",
        "- source: spiffe://tulle.local/svc/gateway",
    ] {
        assert!(yaml.out.contains(line), "no {line:?} in:\n{}", yaml.out);
    }
}

#[test]
fn a_posted_rating_can_be_read_on_both_paths() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let new = json!({
        "productId": "a071c269-369c-4f79-be03-6a41f27d6b5f",
        "reviewerId": "9bc908be-0717-4eab-bb51-ea14f669ef20",
        "rating": 2,
    });
    let mut client = Client::connect(demo.ingress);
    for path in ["/ratings", "/bookinfo-ratings/ratings"] {
        client.send(post(path, new.to_string().as_bytes()));
        let made = client.response("POST");
        assert_eq!(made.status(), 201, "{}{}", made.head, made.text());
        let place = made.header("location").to_owned();
        let made: Value = serde_json::from_slice(&made.body).unwrap();
        assert_eq!(place, format!("/ratings/{}", made["id"].as_str().unwrap()));
        for target in [place.clone(), format!("/bookinfo-ratings{place}")] {
            let read = client.get(&target);
            assert_eq!(read.status(), 200, "{target}: {}", read.head);
            let read: Value = serde_json::from_slice(&read.body).unwrap();
            assert_eq!(read, made);
            assert_eq!(read["rating"], 2);
        }
    }
    let unknown = client.get("/ratings/00000000-0000-4000-8000-000000000000");
    assert_eq!(unknown.status(), 404, "the application's own answer");
    assert_eq!(unknown.header("x-tulle-reason"), "");
}

#[test]
fn down_leaves_nothing() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    ask_all_paths(&demo);
    let up = demo.left();
    // Five applications, six proxies, controller, supervisor, janitor; six namespaces; the link.
    assert!(up.len() >= 20, "the test sees what there is: {up:#?}");
    let run = demo.status()["mesh"]["run_directory"].clone();
    let down = demo.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert!(down.out.contains("nothing is left"), "{down:?}");
    assert_eq!(demo.left(), [""; 0]);
    let ruined = demo.tulle(&["status"]);
    assert_eq!(ruined.code, 1, "{ruined:?}");
    assert!(Client::try_connect(demo.ingress).is_err());

    // Stored objects remain until they are purged.
    assert_eq!(demo.tulle(&["up", "--detach"]).code, 0);
    ask_all_paths(&demo);
    let purged = demo.tulle(&["down", "--purge"]);
    assert_eq!(purged.code, 0, "{purged:?}");
    assert_eq!(demo.left(), [""; 0]);
    assert!(!demo.path().join("state").exists());
    assert!(!std::path::Path::new(run.as_str().unwrap()).exists());
}
