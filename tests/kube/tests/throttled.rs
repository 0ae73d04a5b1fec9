//! The API server answers the controller with nothing but 429, as an overloaded one does: what was known holds,
//! the controller does not add to the load, and what changed meanwhile arrives afterwards.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests_kube::load::{Load, all_serve, scale};
use tests_kube::{CONTROLLER, Cluster, MESH, eventually, install, pause, root};

/// Priority and Fairness: no request of the controller is let in.
const NAME: &str = "throttled-controller";
const OTHER: &str = "throttled-other";
/// The test counts the controller's requests after each of these times. Together they are longer than a lease
/// of leadership (15 s), and the pauses between tries grow from half a second to eight (0.5 + 1 + 2 + 4 + 8).
const LOOKS: u32 = 3;
const LOOK: Duration = Duration::from_secs(8);

fn priority(kind: &str, name: &str, spec: Value) -> String {
    let version = "flowcontrol.apiserver.k8s.io/v1";
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec })
        .to_string()
}

fn schema(name: &str, precedence: u32, subject: &Value) -> String {
    let all = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
    });
    let spec = json!({
        "priorityLevelConfiguration": { "name": NAME }, "matchingPrecedence": precedence,
        "rules": [{
            "subjects": [subject], "resourceRules": [all],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
        }],
    });
    priority("FlowSchema", name, spec)
}

/// Somebody who keeps the only place. Without one, a level of no places lets in a request at a time.
struct Other(Child);

impl Other {
    fn start(cluster: &Cluster) -> Self {
        // Its request never ends; the API server waits for the body as long as `--request-timeout` allows
        // (`node.sh`): longer than this test. The request is refused until it has the place, and then tried
        // again. Anybody who is authenticated may send it.
        let script = r#"
            . "$0"
            token=$(sed -n 's/,admin,.*//p' "$CONF/tokens.csv")
            while sleep 0.05; do
                curl --silent --http1.1 --cacert "$PKI/ca.crt" --header "Authorization: Bearer $token" \
                    --header "Impersonate-User: other" --header "Content-Type: application/json" \
                    --header "Expect:" --request POST --upload-file - \
                    "https://$NODE_HOST:6443/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" < <(sleep 1000)
            done"#;
        let child = cluster
            .command(&["exec", "bash", "-c", script])
            .arg(root().join("tests/kube/cluster/env.sh"))
            .process_group(0)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Kill its children, too.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn throttle(cluster: &Cluster) -> Other {
    let level = json!({ "type": "Limited", "limited": {
        "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": { "type": "Reject" },
    } });
    let controller = json!({ "namespace": MESH, "name": "tulle-controller" });
    let controller = json!({ "kind": "ServiceAccount", "serviceAccount": controller });
    let other = json!({ "kind": "User", "user": { "name": "other" } });
    cluster.apply(&priority("PriorityLevelConfiguration", NAME, level));
    cluster.apply(&schema(OTHER, 11, &other));
    let dispatched = || requests(cluster, OTHER, "dispatched");
    eventually("the other is of this level", || {
        cluster.try_kubectl(&["--as=other", "get", "--raw", "/version"]);
        dispatched() > 0
    });
    let asked = dispatched();
    let other = Other::start(cluster);
    eventually("the only place is taken", || dispatched() > asked);
    cluster.apply(&schema(NAME, 10, &controller));
    other
}

/// How many requests were `rejected` or `dispatched`.
fn requests(cluster: &Cluster, whose: &str, how: &str) -> u64 {
    let metrics = cluster.try_kubectl(&["get", "--raw", "/metrics"]).stdout;
    let metrics = String::from_utf8(metrics).unwrap();
    let name = format!("apiserver_flowcontrol_{how}_requests_total{{");
    let schema = format!("flow_schema=\"{whose}\"");
    let ours = metrics
        .lines()
        .filter(|line| line.starts_with(&name) && line.contains(&schema));
    let counts = ours.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    counts.map(|count| count as u64).sum()
}

/// Returns a pod's uid, its restarts and the start of its readiness.
fn of_life(pod: &Value) -> [Value; 3] {
    let status = &pod["status"];
    let mut conditions = status["conditions"].as_array().unwrap().iter();
    let ready = conditions.find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True");
    [
        pod["metadata"]["uid"].clone(),
        status["containerStatuses"][0]["restartCount"].clone(),
        ready["lastTransitionTime"].clone(),
    ]
}

#[test]
fn an_api_server_that_has_no_time_for_the_controller() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let mut load = Load::start(&cluster);
    let controller = || {
        let label = "app.kubernetes.io/name=tulle-controller";
        let pods = cluster.get_json(&["-n", MESH, "pods", "-l", label]);
        pods["items"][0].clone()
    };
    let log = || cluster.kubectl(&["-n", MESH, "logs", CONTROLLER]);
    let (before, logged) = (of_life(&controller()), log().lines().count());

    let other = throttle(&cluster);
    // It may have nothing to ask for some seconds: asked in its name.
    let asked = [
        "--as=system:serviceaccount:tulle-system:tulle-controller",
        "--request-timeout=1s",
        "get",
        "--raw",
        "/version",
    ];
    eventually("the controller is refused", || {
        cluster.try_kubectl(&asked);
        requests(&cluster, NAME, "rejected") > 0
    });
    // The watches that there are would go on.
    let ip = controller()["status"]["podIP"].as_str().unwrap().to_owned();
    let cut = "ss --kill --no-header --tcp dst @IP sport = :6443".replace("@IP", &ip);
    let cut: Vec<&str> = ["net"].into_iter().chain(cut.split(' ')).collect();
    let cut = cluster.command(&cut).output().unwrap();
    let count = cut.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert!(count > 10, "{cut:?}");
    let late = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "late" } });
    cluster.apply(&late.to_string());
    // A pod goes, and one comes that gets no certificate.
    scale(&cluster, "life", "deployment/server", 1);
    load.goes_on("a pod less");
    scale(&cluster, "life", "deployment/server", 2);
    let mut counts = vec![requests(&cluster, NAME, "rejected")];
    for _ in 0..LOOKS {
        pause("what the controller does while it is refused", LOOK);
        load.goes_on("the API server has no time");
        counts.push(requests(&cluster, NAME, "rejected"));
    }
    assert_eq!(requests(&cluster, NAME, "dispatched"), 0);
    let log: Vec<String> = log().lines().skip(logged).map(str::to_owned).collect();
    println!(
        "answered with 429, every {LOOK:?}: {counts:?}; {} lines of log",
        log.len()
    );
    // It watches two dozen kinds, and looks after leases and webhooks: a few requests each, and at last one or
    // two.
    assert!(counts.last().unwrap() < &250, "{counts:?}");
    let [.., before_last, last] = counts[..] else {
        unreachable!()
    };
    assert!(last - before_last < 80, "{counts:?}");
    assert!(!log.is_empty() && log.len() < 100, "{log:#?}");
    let bundle = ["-n", "late", "get", "configmap", "tulle-trust-bundle"];
    assert!(!cluster.try_kubectl(&bundle).status.success());

    cluster.kubectl(&["delete", "flowschema", NAME]);
    drop(other);
    let lifted = Instant::now();
    all_serve(&cluster, 2);
    eventually(
        "a namespace that came meanwhile has what its pods trust",
        || cluster.try_kubectl(&bundle).status.success(),
    );
    println!("all is known {:?} after the end of it", lifted.elapsed());
    load.goes_on("the API server has time again");
    assert_eq!(of_life(&controller()), before);
}
