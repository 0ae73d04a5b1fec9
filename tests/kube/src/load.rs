//! A client that asks services of `manifests/life.yaml` without end, and what became of its requests.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use crate::{CONTROLLER, Cluster, MESH, eventually, note_wait};
use serde_json::Value;
use std::time::Instant;

/// The account of a client that asks without end.
pub struct Load<'a> {
    cluster: &'a Cluster,
    url: String,
    answered: u64,
    /// How often nobody was ready to be asked, as far as that is Kubernetes' own doing.
    pub nobody: u64,
}

impl<'a> Load<'a> {
    /// Starts two servers and a client in the namespace `life`, and waits until requests are answered.
    pub fn start(cluster: &'a Cluster) -> Self {
        cluster.apply_file("life.yaml", &[]);
        cluster.await_deployment("life", "server");
        await_endpoints(cluster, "life", "server", 2);
        scale(cluster, "life", "deployment/load", 1);
        cluster.await_deployment("life", "load");
        let mut load = Self::from_cluster(cluster);
        load.goes_on("at first");
        load
    }

    /// The load generator of the namespace `life`, counted from here on.
    pub fn from_cluster(cluster: &'a Cluster) -> Self {
        let pods = cluster.get_json(&["-n", "life", "pods", "-l", "app=load"]);
        let mut pods = pods["items"].as_array().unwrap().iter();
        let living = pods.find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
        let ip = living.unwrap()["status"]["podIP"].as_str().unwrap();
        Self::at(cluster, format!("http://{ip}:8107/"))
    }

    /// The load generator that reports at this URL.
    pub fn at(cluster: &'a Cluster, url: String) -> Self {
        Self {
            cluster,
            url,
            answered: 0,
            nobody: 0,
        }
    }

    /// Returns the generator's account of its requests.
    pub fn account(&self) -> Value {
        serde_json::from_str(&self.cluster.curl(&self.url)).unwrap()
    }

    /// Nothing was lost so far, and requests are answered.
    pub fn goes_on(&mut self, while_what: &str) {
        let answered = |account: &Value| {
            let count = |kind: &str| account[kind].as_u64().unwrap();
            count("answeredKept").min(count("answeredNew"))
        };
        eventually("requests are answered", || {
            answered(&self.account()) > self.answered + 20
        });
        let account = self.account();
        self.answered = answered(&account);
        println!("{while_what}: {account}");
        let said = || self.cluster.said("life");
        for lost in ["refused", "endedKept", "endedNew", "cut", "status", "late"] {
            assert_eq!(account[lost], 0, "{while_what}: {account:#}\n{}", said());
        }
        assert_eq!(
            account["nobody"],
            self.nobody,
            "{while_what}: {account:#}\n{}",
            said()
        );
    }
}

/// Requests have come to each of so many servers.
pub fn all_serve(cluster: &Cluster, count: usize) {
    eventually("each server is asked", || {
        let pods = cluster.get_json(&["-n", "life", "pods", "-l", "app=server"]);
        let pods = pods["items"].as_array().unwrap();
        let living: Vec<&str> = pods
            .iter()
            .filter(|pod| pod["metadata"].get("deletionTimestamp").is_none())
            .filter_map(|pod| pod["status"]["podIP"].as_str())
            .collect();
        let asked = |ip: &&str| {
            let metrics =
                ["net", "curl", "-s", &format!("http://{ip}:15020/metrics")].map(str::to_owned);
            let metrics = metrics.each_ref().map(String::as_str);
            let metrics = cluster.command(&metrics).output().unwrap();
            String::from_utf8_lossy(&metrics.stdout).contains("istio_requests_total{")
        };
        living.len() == count && living.iter().all(asked)
    });
}

/// Waits until Kubernetes says that so many pods of a service may be asked, which it does a moment after
/// they are ready. Who starts before would have nobody to ask.
pub fn await_endpoints(cluster: &Cluster, namespace: &str, service: &str, count: usize) {
    let label = format!("kubernetes.io/service-name={service}");
    eventually(&format!("{service} has {count} endpoints"), || {
        let slices = cluster.get_json(&["-n", namespace, "endpointslices", "-l", &label]);
        let slices = slices["items"].as_array().into_iter().flatten();
        let all = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        all.filter(|e| e["conditions"]["ready"] == true).count() >= count
    });
}

/// Starts the pods anew, one after another, and waits.
pub fn rollout(cluster: &Cluster, namespace: &str, what: &str) {
    let begun = Instant::now();
    cluster.kubectl(&["-n", namespace, "rollout", "restart", what]);
    cluster.kubectl(&["-n", namespace, "rollout", "status", what, "--timeout=600s"]);
    note_wait(&format!("rollout of {namespace}/{what}"), begun.elapsed());
}

/// Asks for another number of pods.
pub fn scale(cluster: &Cluster, namespace: &str, what: &str, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    cluster.kubectl(&["-n", namespace, "scale", what, &replicas]);
}

/// Stops the controller, and waits until it is gone.
pub fn stop_controller(cluster: &Cluster) {
    scale(cluster, MESH, CONTROLLER, 0);
    let begun = Instant::now();
    let pods = ["-n", MESH, "wait", "--for=delete", "--timeout=300s", "pods"];
    let label = ["-l", "app.kubernetes.io/name=tulle-controller"];
    cluster.kubectl(&[&pods[..], &label[..]].concat());
    note_wait("the controller is gone", begun.elapsed());
}

/// Starts the controller again after [`stop_controller`].
pub fn start_controller(cluster: &Cluster) {
    scale(cluster, MESH, CONTROLLER, 1);
    cluster.await_deployment(MESH, "tulle-controller");
}

/// Ends the pods of the controller at once, as if their node had lost power.
pub fn kill_controller(cluster: &Cluster) {
    let label = "app.kubernetes.io/name=tulle-controller";
    let delete = ["-n", MESH, "delete", "pods", "-l", label];
    cluster.kubectl(&[&delete[..], &["--force", "--grace-period=0"]].concat());
}
