//! A machine beside the nodes: on their network, and neither a node nor a pod. To the cluster it is a client outside.

use crate::{Cluster, eventually};

/// The neighbour. It goes with the value.
pub struct Neighbour<'a> {
    cluster: &'a Cluster,
    /// Its address.
    pub address: &'static str,
}

/// The namespace, and its link at the bridge of the nodes.
const NAME: &str = "beside";

impl<'a> Neighbour<'a> {
    /// Brings one up.
    ///
    /// # Panics
    /// Its network cannot be made, as when there is one already.
    pub fn new(cluster: &'a Cluster) -> Self {
        let neighbour = Self {
            cluster,
            address: "10.200.0.100",
        };
        let address = format!("{}/24", neighbour.address);
        for words in [
            &["netns", "add", NAME][..],
            &[
                "-n", "switch", "link", "add", NAME, "master", "nodes", "up", "type", "veth",
                "peer", "name", "eth0", "netns", NAME,
            ],
            &["-n", NAME, "address", "add", &address, "dev", "eth0"],
            &["-n", NAME, "link", "set", "eth0", "up"],
        ] {
            neighbour.ip(words);
        }
        neighbour
    }

    /// Sends what is meant for an address to a node, as a load balancer that has chosen this node does.
    ///
    /// # Panics
    /// The route cannot be made.
    pub fn reaches_by(&self, address: &str, node: &str) {
        self.ip(&["-n", NAME, "route", "replace", address, "via", node]);
    }

    /// Asks for a URL: status and content, or `000` and why there is no answer.
    ///
    /// # Panics
    /// There is no curl.
    pub fn get(&self, url: &str, options: &[&str]) -> String {
        let words = [
            "exec",
            "ip",
            "netns",
            "exec",
            NAME,
            "curl",
            "--silent",
            "--show-error",
        ];
        let mut command = self.cluster.command(&words);
        let command = command.args(["--max-time", "5", "--write-out", "\n%{http_code}"]);
        let done = command.args(options).arg(url).output();
        let done = done.unwrap_or_else(|e| panic!("curl: {e}"));
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap_or_default();
        format!("{code} {body}{}", String::from_utf8_lossy(&done.stderr))
    }

    /// Asks until the answer is as it shall be, and returns it.
    ///
    /// # Panics
    /// It does not become so in time.
    pub fn gets(&self, url: &str, options: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        eventually(
            &format!("{url} {options:?} is answered as it shall be"),
            || {
                let said = self.get(url, options);
                if said != last {
                    println!("{url} {options:?}: {said}");
                }
                last = said;
                holds(&last)
            },
        );
        last
    }

    fn ip(&self, words: &[&str]) {
        let done = self
            .cluster
            .command(&[&["exec", "ip"], words].concat())
            .output();
        let done = done.unwrap_or_else(|e| panic!("ip: {e}"));
        assert!(done.status.success(), "ip {words:?}: {done:?}");
    }
}

impl Drop for Neighbour<'_> {
    fn drop(&mut self) {
        // The link goes with its namespace, but later than the next neighbour may come.
        for words in [
            &["-n", "switch", "link", "delete", NAME][..],
            &["netns", "delete", NAME],
        ] {
            let words = [&["exec", "ip"], words].concat();
            let _ = self.cluster.command(&words).output();
        }
    }
}
