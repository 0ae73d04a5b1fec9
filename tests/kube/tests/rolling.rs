//! A client asks its servers without end while the controller is updated, killed and away, and while the servers
//! are updated. No request is lost, and what changes afterwards arrives.
//!
//! More trouble of this kind, which takes longer, is in `life.rs`.

#![allow(clippy::unwrap_used)]

use tests_kube::load::{
    Load, all_serve, kill_controller, rollout, scale, start_controller, stop_controller,
};
use tests_kube::{CONTROLLER, Cluster, MESH, install};

#[test]
fn nothing_is_lost() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let mut load = Load::start(&cluster);

    rollout(&cluster, MESH, CONTROLLER);
    load.goes_on("a rolling update of the controller");

    kill_controller(&cluster);
    load.goes_on("the controller is killed");
    cluster.await_deployment(MESH, "tulle-controller");

    stop_controller(&cluster);
    load.goes_on("the controller is away");
    start_controller(&cluster);
    scale(&cluster, "life", "deployment/server", 3);
    all_serve(&cluster, 3);
    load.goes_on("a server more, told by the new controller");

    rollout(&cluster, "life", "deployment/server");
    load.goes_on("a rolling update of the servers");

    cluster.kubectl(&["delete", "namespace", "life", "--wait=false"]);
}
