//! Tests that Prometheus gets from proxies and controller what docs/metrics.md promises, and that every
//! query of the dashboards and rules finds something in it.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tests_kube::{Cluster, Documented, eventually, install, root};

const NAMESPACE: &str = "measured";
const PROMETHEUS: &str = "127.0.0.1:19090";
/// Objects are counted by kind.
const OBJECTS: &str = r#"
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: { name: anybody, namespace: measured }
spec:
  destination: { kind: ServiceAccount, name: web }
  sources: [{ kind: ServiceAccount, name: client, namespace: measured }]
"#;
/// A limit that is never reached.
const LIMIT: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: TrafficPolicy
metadata: { name: web, namespace: measured }
spec:
  targetRefs: [{ name: web }]
  connections: { maxRequests: @MOST@ }
"#;

#[test]
fn prometheus_finds_what_the_dashboards_ask_for() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let prometheus = Command::new("prometheus").arg("--version").output();
    assert!(
        prometheus.is_ok(),
        "no prometheus: Debian's package of this name brings it"
    );
    install(&cluster);
    cluster.apply_file("traffic.yaml", &[("@NAMESPACE@", NAMESPACE)]);
    cluster.apply(OBJECTS);
    for name in ["web", "client"] {
        cluster.await_deployment(NAMESPACE, name);
    }
    let documented = Documented::read();
    let targets = targets(&cluster);
    // Two of web, the client, and the controller.
    assert!(targets.len() >= 4, "{targets:?}");
    for target in &targets {
        let scrape = cluster.curl(&format!("http://{target}/metrics"));
        assert_eq!(documented.missing(&scrape), BTreeSet::new(), "{target}");
    }
    eventually("the controller tells what it should", || {
        let untold = untold_by_the_controller(&cluster);
        println!("not told yet: {untold:?}");
        untold.is_empty()
    });

    let load = Load::start(&cluster);
    let prometheus = Prometheus::start(&cluster, &targets);
    let mut open: Vec<(String, String)> = Vec::new();
    for (dashboard, queries) in dashboards() {
        assert!(queries.len() > 5, "{dashboard}: {queries:?}");
        queries
            .iter()
            .for_each(|q| promised(&documented, &dashboard, q));
        open.extend(queries.into_iter().map(|q| (dashboard.clone(), q)));
    }
    open.extend(hop().map(|query| ("Istio's labels".to_owned(), query)));
    eventually("every query of the dashboards finds something", || {
        load.keep_on(&cluster);
        // All at once: a program that is started for each of them takes longer than its answer.
        let each: Vec<BTreeSet<String>> = open.iter().map(|(_, q)| meant(q)).collect();
        let answers = prometheus.ask_all(&cluster, each.iter().flatten());
        let mut answers = answers.into_iter();
        let mut found = each.iter().map(|meant| {
            let found = answers.by_ref().take(meant.len());
            found.filter(|values| !values.is_empty()).count() > 0
        });
        open.retain(|_| !found.next().unwrap());
        println!("nothing is found yet by {open:#?}");
        open.is_empty()
    });
    rules(&cluster, &documented, &prometheus);
    drop(prometheus);
    drop(load);
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]);
}

/// Returns the pods of a list that are not about to end, as pods of earlier tests may be.
fn living(pods: &Value) -> impl Iterator<Item = &Value> {
    let pods = pods["items"].as_array().unwrap().iter();
    pods.filter(|pod| pod["metadata"].get("deletionTimestamp").is_none())
}

/// The targets that ask by annotations to be scraped.
fn targets(cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.get_json(&["pods", "--all-namespaces"]);
    let annotated = living(&pods).filter_map(|pod| {
        let annotations = &pod["metadata"]["annotations"];
        let wanted = annotations["prometheus.io/scrape"] == "true";
        assert!(!wanted || annotations["prometheus.io/path"] == "/metrics");
        let port = annotations["prometheus.io/port"]
            .as_str()
            .filter(|_| wanted)?;
        let ready = pod["status"]["conditions"].as_array()?.iter();
        let ready = ready.filter(|c| c["type"] == "Ready" && c["status"] == "True");
        let ip = pod["status"]["podIP"].as_str()?;
        (ready.count() > 0).then(|| format!("{ip}:{port}"))
    });
    annotated.collect()
}

/// Numbers that this test knows and that are not told. Objects, pods and proxies come by and by, and
/// the lease of a leader.
fn untold_by_the_controller(cluster: &Cluster) -> Vec<String> {
    let label = "app.kubernetes.io/name=tulle-controller";
    let pods = cluster.get_json(&["-n", "tulle-system", "pods", "-l", label]);
    let ip = living(&pods).next().unwrap()["status"]["podIP"].as_str();
    let text = cluster.curl(&format!("http://{}:15014/metrics", ip.unwrap()));
    let value = |row: &str| -> Option<f64> {
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix(row)?.strip_prefix(' '));
        lines.next()?.parse().ok()
    };
    let exactly = [
        ("tulle_controller_leader", 1.0),
        ("tulle_controller_kinds_missing", 0.0),
    ];
    let at_least = [
        ("tulle_controller_proxies_connected", 3.0),
        ("tulle_controller_pods{sidecar=\"true\"}", 3.0),
        ("tulle_controller_objects{kind=\"TrafficTarget\"}", 1.0),
        ("tulle_controller_certificates_issued_total", 3.0),
        ("tulle_controller_config_push_seconds_count", 3.0),
        ("tulle_controller_watches_begun_total{kind=\"Pod\"}", 1.0),
        (
            "tulle_controller_webhook_reviews_total{webhook=\"inject\",result=\"patched\"}",
            3.0,
        ),
        ("process_resident_memory_bytes", 1e6),
        ("tulle_controller_root_not_after_seconds", 1.7e9),
    ];
    let wrong = exactly.iter().filter(|(row, is)| value(row) != Some(*is));
    let less = at_least
        .iter()
        .filter(|(row, least)| value(row) < Some(*least));
    let all = wrong.chain(less);
    all.map(|(row, _)| format!("{row}: {:?}", value(row)))
        .collect()
}

/// Queries of each dashboard.
fn dashboards() -> BTreeMap<String, BTreeSet<String>> {
    let files = std::fs::read_dir(root().join("deploy/dashboards")).unwrap();
    let mut all = BTreeMap::new();
    for file in files.map(|file| file.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        assert!(
            dashboard["schemaVersion"].as_u64().unwrap() >= 38,
            "Grafana 10 and newer"
        );
        let mut queries = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
                queries.insert(target["expr"].as_str().unwrap().to_owned());
            }
        }
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        all.insert(name, queries);
    }
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["controller", "mesh", "service", "workload"]);
    all
}

/// The queries that Grafana makes of one, for each service and workload.
fn meant(query: &str) -> BTreeSet<String> {
    let query = query.replace("[$__rate_interval]", "[30s]");
    let each = ["web", "nobody", "client"].map(|name| {
        let query = query.replace("$service", &format!("{name}.{NAMESPACE}.svc.cluster.local"));
        query.replace("$workload", name)
    });
    each.into()
}

/// The hop of the load, as each of its sides names it: workloads come from pods and their owners.
fn hop() -> [String; 2] {
    ["source", "destination"].map(|reporter| {
        format!(
            "sum(rate(istio_requests_total{{reporter=\"{reporter}\",source_workload=\"client\",\
             source_workload_namespace=\"{NAMESPACE}\",source_cluster=\"Kubernetes\",\
             destination_workload=\"web\",destination_workload_namespace=\"{NAMESPACE}\",\
             destination_service=\"web.{NAMESPACE}.svc.cluster.local\",destination_service_name=\"web\"}}[30s])) > 0"
        )
    })
}

/// A query names metrics that are documented, and their labels.
fn promised(documented: &Documented, whose: &str, query: &str) {
    let words = |text: &str| -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let all = text.split(|c| !is_part(c)).filter(|w| !w.is_empty());
        all.map(str::to_owned).collect()
    };
    // Texts first: they are no names.
    let without_texts: String = query.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let prefixes = ["istio_", "tulle_", "process_"];
    let named = words(&without_texts);
    let metrics = named
        .iter()
        .filter(|w| prefixes.iter().any(|p| w.starts_with(p)));
    let mut labels: BTreeSet<&str> = ["instance", "job"].into();
    for metric in metrics {
        let known = documented.metrics.get(metric);
        let known = known.unwrap_or_else(|| panic!("{whose}: {metric} is not in docs/metrics.md"));
        labels.extend(known.iter().map(String::as_str));
    }
    // Between braces, and after `by` and `on`.
    let mut parts: Vec<&str> = Vec::new();
    for (open, close) in [("{", '}'), ("by (", ')'), ("on (", ')')] {
        let each = without_texts.split(open).skip(1);
        parts.extend(each.filter_map(|rest| rest.split(close).next()));
    }
    for label in parts.into_iter().flat_map(words) {
        assert!(
            labels.contains(label.as_str()),
            "{whose}: the label {label} of {query}"
        );
    }
}

/// Alerts parse, and what they look at is there; none of them is on.
fn rules(cluster: &Cluster, documented: &Documented, prometheus: &Prometheus) {
    let file = root().join("deploy/prometheus/rules.yaml");
    let checked = Command::new("promtool")
        .args(["check", "rules"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let each = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let each: Vec<&str> = each.collect();
    assert!(each.len() >= 5, "{each:?}");
    for query in each {
        promised(documented, "rules", query);
        // A query may be true for a moment; an alert must last.
        eventually(&format!("{query} is not on"), || {
            prometheus.ask(cluster, query).is_empty()
        });
        // The compared series exists.
        let (left, _) = query
            .rsplit_once([' '])
            .and_then(|(l, _)| l.rsplit_once(' '))
            .unwrap();
        assert!(
            !prometheus.ask(cluster, left).is_empty(),
            "{left} finds nothing"
        );
    }
}

/// Requests that go well, that fail, that reach nobody, and connections.
struct Load {
    process: Child,
    told: AtomicU32,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let mut command = cluster.command(&[
            "kubectl",
            "-n",
            NAMESPACE,
            "exec",
            "deployment/client",
            "--",
        ]);
        let urls = ["http://web/", "http://web/status/503", "http://nobody/"];
        let started = command
            .args(["bookinfo", "load", "--lanes", "1", "--pause", "100"])
            .args(urls)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            process: started.unwrap(),
            told: AtomicU32::new(0),
        }
    }

    /// Repeats events that would otherwise be out of sight soon.
    fn keep_on(&self, cluster: &Cluster) {
        let words = ["bookinfo", "talk", "tcp://web:9000", "hello"];
        cluster.exec(NAMESPACE, "deployment/client", &words);
        // Something is told to proxies.
        let most = 1000 + self.told.fetch_add(1, Ordering::Relaxed);
        cluster.apply(&LIMIT.replace("@MOST@", &most.to_string()));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Prometheus {
    process: Child,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(cluster: &Cluster, targets: &BTreeSet<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let targets: Vec<&String> = targets.iter().collect();
        let config = serde_json::json!({
            "global": { "scrape_interval": "1s" },
            "scrape_configs": [{ "job_name": "mesh", "static_configs": [{ "targets": targets }] }],
        });
        let file = directory.path().join("prometheus.yml");
        // JSON is YAML.
        std::fs::write(&file, config.to_string()).unwrap();
        let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let data: PathBuf = directory.path().join("data");
        let mut command = cluster.command(&["net", "prometheus"]);
        let started = command
            .arg(option("config.file", &file))
            .arg(option("storage.tsdb.path", &data))
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let prometheus = Self {
            process: started.unwrap(),
            _directory: directory,
        };
        eventually("every target is scraped", || {
            let up = prometheus.try_ask_all(cluster, &[&"up == 1".to_owned()]);
            up.into_iter().flatten().any(|up| up.len() == targets.len())
        });
        prometheus
    }

    /// Values that are numbers; the query must be one.
    fn ask(&self, cluster: &Cluster, query: &str) -> Vec<f64> {
        self.ask_all(cluster, [&query.to_owned()]).remove(0)
    }

    /// The same for several queries, in their order.
    fn ask_all<'a>(
        &self,
        cluster: &Cluster,
        queries: impl IntoIterator<Item = &'a String>,
    ) -> Vec<Vec<f64>> {
        let queries: Vec<&String> = queries.into_iter().collect();
        let answers = self.try_ask_all(cluster, &queries);
        assert_eq!(answers.len(), queries.len(), "Prometheus is not there");
        let values = answers.into_iter().zip(queries);
        values
            .map(|(values, query)| {
                values.unwrap_or_else(|| panic!("Prometheus does not understand {query}"))
            })
            .collect()
    }

    /// An answer to each query, as far as there is one; `None` if it is an error.
    fn try_ask_all(&self, cluster: &Cluster, queries: &[&String]) -> Vec<Option<Vec<f64>>> {
        let asked = queries.iter().map(|query| {
            // A text of JSON is one of curl's.
            let query = Value::from(format!("query={query}"));
            format!("url = \"http://{PROMETHEUS}/api/v1/query\"\nget\nsilent\ndata-urlencode = {query}\n")
        });
        let config = asked.collect::<Vec<_>>().join("next\n");
        let mut curl = cluster.command(&["exec", "curl", "--config", "-"]);
        let curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut curl = curl.spawn().unwrap();
        let mut stdin = curl.stdin.take().unwrap();
        // Read whole before anything is answered.
        stdin.write_all(config.as_bytes()).unwrap();
        drop(stdin);
        let told = curl.wait_with_output().unwrap().stdout;
        let answers = serde_json::Deserializer::from_slice(&told).into_iter::<Value>();
        answers.map(|answer| values(&answer.ok()?)).collect()
    }
}

/// The numbers in an answer of Prometheus, if it is none of an error.
fn values(answer: &Value) -> Option<Vec<f64>> {
    let result = answer
        .pointer("/data/result")
        .filter(|_| answer["status"] == "success")?;
    let values = result.as_array()?.iter();
    let values = values.filter_map(|r| r["value"][1].as_str()?.parse::<f64>().ok());
    Some(values.filter(|value| !value.is_nan()).collect())
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
