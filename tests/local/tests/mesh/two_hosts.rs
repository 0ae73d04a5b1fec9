//! The controller's host and one that joined, in network namespaces with a wire between them.

use crate::cli_join::{only, said};
use std::process::{Command, Stdio};
use std::time::Duration;
use tests_local::{Client, Demo, Host, Yard, eventually, get};

const CENTRE: &str = "10.77.0.1";
pub(crate) const EDGE: &str = "10.77.0.2";
/// From the gateway of the centre's host to reviews of the edge, and from there back to ratings.
pub(crate) const ROUND: &str = "/bookinfo-reviews/reviews/a071c269-369c-4f79-be03-6a41f27d6b5f";

fn is_at_edge(document: &str) -> bool {
    document.contains("kind: Workload\nmetadata:\n  name: reviews\n")
}

/// The two. Everything ends with the value.
pub(crate) struct TwoHosts {
    pub(crate) centre: Demo,
    pub(crate) edge: Demo,
    /// Dropped last: the meshes are taken down inside it.
    pub(crate) yard: Yard,
}

impl TwoHosts {
    /// Starts the centre. Reviews are the edge's.
    pub(crate) fn start() -> Self {
        Self::start_with(|edge| edge)
    }

    /// The same, with another manifest of the edge.
    pub(crate) fn start_with(change: impl Fn(String) -> String) -> Self {
        let yard = Yard::new(&[(EDGE.parse().unwrap(), CENTRE.parse().unwrap())]);
        yard.count();
        let centre = Demo::prepare(true, |text| only(&text, |d| !is_at_edge(d)));
        let edge = Demo::prepare(true, |text| change(only(&text, is_at_edge)));
        let centre = centre.in_namespace(yard.name(Host::Server));
        let edge = edge.in_namespace(yard.name(Host::Client));
        let mut up = centre.command();
        up.args(["up", "--detach", "--loopback", "--advertise", CENTRE])
            .args(["--listen", &format!("{CENTRE}:0")])
            .arg(&centre.manifest);
        let up = said(&mut up);
        let log = centre.tulle(&["logs", "supervisor"]).out;
        assert_eq!(up.code, 0, "{up:?}\n{log}");
        Self { centre, edge, yard }
    }

    /// The command with which the edge joins.
    pub(crate) fn join(&self) -> Command {
        let made = crate::cli_join::token(&self.centre);
        let mut command = crate::cli_join::join(&self.edge, &made);
        command.stdout(Stdio::null());
        command
    }

    /// The status of a request through the centre's gateway.
    pub(crate) fn get(&self, path: &str) -> u16 {
        let get = || self.centre.get(path).status();
        self.yard.sidecar(Host::Server, get)
    }

    /// Whether a request is answered within half a second. One that was on its way to a place that is gone waits for
    /// longer than is of interest here.
    pub(crate) fn answers_soon(&self, path: &str) -> bool {
        let ask = || {
            let mut client = Client::try_connect(self.centre.ingress)?;
            let patience = Some(Duration::from_millis(500));
            client.stream().set_read_timeout(patience)?;
            client.try_send(get(path))?;
            client.try_response("GET")
        };
        let answer = self.yard.sidecar(Host::Server, ask);
        answer.is_ok_and(|answer| answer.status() == 200)
    }

    /// Waits until a path is answered.
    pub(crate) fn await_answer(&self, path: &str) {
        eventually(&format!("{path} is answered"), || self.get(path) == 200);
    }
}
