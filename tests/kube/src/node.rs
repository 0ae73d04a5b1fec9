//! The node, as its container runtime sees it.

use crate::Cluster;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// Directories of the node.
pub struct Node {
    /// Where its runtime reads CNI configurations.
    pub configurations: PathBuf,
    /// Where its runtime finds CNI plugins.
    pub programs: PathBuf,
}

impl Node {
    /// The first one of the cluster.
    pub fn new(cluster: &Cluster) -> Self {
        Self::numbered(cluster, 1)
    }

    /// A node by its number, from 1. These are the places as this machine sees them; the node itself sees its
    /// own directories where the first node has them.
    pub fn numbered(cluster: &Cluster, number: usize) -> Self {
        let told = cluster.on(number, &["state"]).output();
        let told = told.expect("cluster.sh state");
        let state = PathBuf::from(String::from_utf8_lossy(&told.stdout).trim());
        Self {
            configurations: state.join("conf/cni"),
            programs: state.join("cni"),
        }
    }

    /// Files of its CNI configuration by name.
    pub fn configuration(&self) -> BTreeMap<String, String> {
        let files = std::fs::read_dir(&self.configurations).expect("CNI configurations");
        let read = files.filter_map(|file| {
            let file = file.expect("CNI configurations");
            let text = match std::fs::read_to_string(file.path()) {
                // Renamed after it was listed.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
                text => text.expect("a CNI configuration"),
            };
            Some((file.file_name().to_string_lossy().into_owned(), text))
        });
        read.collect()
    }

    /// Whether its configuration calls the mesh's plugin.
    pub fn is_chained(&self) -> bool {
        let file = self.configuration().remove("10-bridge.conflist");
        file.is_some_and(|text| text.contains("\"tulle-cni\""))
    }

    /// Whether it has the plugin's program.
    pub fn has_plugin(&self) -> bool {
        self.programs.join("tulle-cni").exists()
    }
}

/// A server on the node that lists a directory; it ends with the value.
pub struct OnNode(Child);

impl OnNode {
    /// Serves at this address and port of the node.
    pub fn serve(cluster: &Cluster, address: &str, port: u16) -> Self {
        let port = port.to_string();
        let server = cluster
            .command(&[
                "net",
                "python3",
                "-m",
                "http.server",
                &port,
                "--bind",
                address,
                "--directory",
                "/proc/net",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(server.expect("python3 on the node"))
    }
}

impl Drop for OnNode {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
