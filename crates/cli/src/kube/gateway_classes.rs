//! Decides which GatewayClasses and Gateways are the mesh's. As for the controller, a class is by its
//! `controllerName`, whatever its own name is.

use super::workloads::text;
use serde_json::Value;
use tulle_kube::gateway::CLASSES;
use tulle_kube::names::CONTROLLER_NAME;

/// Whether a GatewayClass names the mesh's controller.
pub(super) fn is_own(class: &Value) -> bool {
    text(class, "/spec/controllerName") == CONTROLLER_NAME
}

/// Whether a mesh that is removed served a Gateway. The classes that it made went with it, those of users are
/// still there.
pub(super) fn was_served(gateway: &Value, left: &[Value]) -> bool {
    let name = text(gateway, "/spec/gatewayClassName");
    let class = left.iter().find(|c| text(c, "/metadata/name") == name);
    class.map_or(CLASSES.contains(&name), is_own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gateways_of_a_removed_mesh_are_those_of_every_class_that_named_its_controller() {
        let class = |name: &str, controller: &str| {
            json!({
                "metadata": { "name": name },
                "spec": { "controllerName": controller },
            })
        };
        let served = |name: &str, left: &[Value]| {
            was_served(&json!({ "spec": { "gatewayClassName": name } }), left)
        };
        let left = [class("edge", CONTROLLER_NAME), class("nginx", "other")];
        for (name, expected) in [
            ("tulle", true),
            ("tulle-egress", true),
            ("edge", true),
            ("nginx", false),
            ("gone", false),
        ] {
            assert_eq!(served(name, &left), expected, "{name}");
        }
        // Another controller's class may have any name.
        assert!(!served("tulle", &[class("tulle", "other")]));
    }
}
