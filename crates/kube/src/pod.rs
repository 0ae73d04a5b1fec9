//! The part of a Pod that is read here. Kubernetes' own type has all fields, and code that reads each: 1 MB of the
//! program, and memory for what nobody looks at.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

/// A pod as the API server has it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<PodSpec>,
    pub(crate) status: Option<PodStatus>,
}

/// The containers and where they run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    pub(crate) host_network: Option<bool>,
    pub(crate) node_name: Option<String>,
    pub(crate) service_account_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) args: Option<Vec<String>>,
    pub(crate) ports: Option<Vec<ContainerPort>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerPort {
    pub(crate) container_port: i32,
    pub(crate) protocol: Option<String>,
}

/// The state of the pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) conditions: Option<Vec<PodCondition>>,
    pub(crate) init_container_statuses: Option<Vec<ContainerStatus>>,
    pub(crate) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Option<Vec<PodIp>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    pub(crate) last_transition_time: Option<Time>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub(crate) ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    pub(crate) state: Option<ContainerState>,
    pub(crate) last_state: Option<ContainerState>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) terminated: Option<ContainerEnd>,
}

/// How a container has ended.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerEnd {
    pub(crate) exit_code: i32,
}

impl k8s_openapi::Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl PodSpec {
    /// Returns all containers, those that run before the others last.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> + Clone {
        let init = self.init_containers.iter().flatten();
        self.containers.iter().flatten().chain(init)
    }
}

impl PodStatus {
    /// Returns the condition that says the pod is ready, if it is.
    pub(crate) fn ready(&self) -> Option<&PodCondition> {
        let mut conditions = self.conditions.iter().flatten();
        conditions.find(|c| c.kind == "Ready" && c.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Go writes an empty list without `omitempty` as null, and newer Kubernetes has more fields.
    #[test]
    fn what_is_missing_null_or_unknown_does_not_keep_a_pod_from_being_read() {
        let read = |pod| serde_json::from_value::<Pod>(pod).unwrap();
        assert!(read(json!({})).spec.is_none());
        let pod = read(json!({
            "metadata": { "name": "a", "creationTimestamp": null },
            "spec": { "containers": null, "initContainers": [{ "name": "i", "of2030": [] }], "volumes": [{}] },
            "status": { "conditions": null, "containerStatuses": [{ "name": "i" }], "podIPs": [{ "ip": "::1" }] },
        }));
        let spec = pod.spec.unwrap();
        let names: Vec<&str> = spec.all_containers().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["i"]);
        let status = pod.status.unwrap();
        assert!(status.ready().is_none());
        assert_eq!(status.pod_ips.unwrap()[0].ip, "::1");
    }

    /// The names of fields are Kubernetes' own.
    #[test]
    fn what_is_read_is_what_kubernetes_own_type_writes() {
        use k8s_openapi::api::core::v1 as own;
        let ended = own::ContainerStateTerminated {
            exit_code: 79,
            ..Default::default()
        };
        let container = |name: &str| own::Container {
            name: name.into(),
            args: Some(vec!["run".into()]),
            ports: Some(vec![own::ContainerPort {
                container_port: 80,
                protocol: Some("TCP".into()),
                ..Default::default()
            }]),
            ..Default::default()
        };
        let written = own::Pod {
            metadata: ObjectMeta {
                name: Some("a".into()),
                ..Default::default()
            },
            spec: Some(own::PodSpec {
                containers: vec![container("app")],
                init_containers: Some(vec![container("init")]),
                host_network: Some(true),
                node_name: Some("n".into()),
                service_account_name: Some("web".into()),
                ..Default::default()
            }),
            status: Some(own::PodStatus {
                conditions: Some(vec![own::PodCondition {
                    type_: "Ready".into(),
                    status: "True".into(),
                    last_transition_time: Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH)),
                    ..Default::default()
                }]),
                init_container_statuses: Some(vec![own::ContainerStatus {
                    name: "init".into(),
                    last_state: Some(own::ContainerState {
                        terminated: Some(ended),
                        ..Default::default()
                    }),
                    ..Default::default()
                }]),
                phase: Some("Running".into()),
                pod_ip: Some("10.0.0.1".into()),
                pod_ips: Some(vec![own::PodIP {
                    ip: "10.0.0.1".into(),
                }]),
                ..Default::default()
            }),
        };
        let pod: Pod = serde_json::from_value(serde_json::to_value(written).unwrap()).unwrap();
        let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        let names: Vec<&str> = spec.all_containers().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["app", "init"]);
        for container in spec.all_containers() {
            assert_eq!(container.args.as_deref(), Some(&["run".to_owned()][..]));
        }
        for port in spec.all_containers().flat_map(|c| c.ports.iter().flatten()) {
            assert_eq!(
                (port.container_port, port.protocol.as_deref()),
                (80, Some("TCP"))
            );
        }
        assert_eq!(spec.host_network, Some(true));
        assert_eq!(spec.node_name.as_deref(), Some("n"));
        assert_eq!(spec.service_account_name.as_deref(), Some("web"));
        assert!(status.ready().unwrap().last_transition_time.is_some());
        let ended = &status.init_container_statuses.unwrap()[0];
        assert_eq!(ended.name, "init");
        assert!(ended.state.is_none());
        let last = ended.last_state.as_ref().unwrap();
        assert_eq!(last.terminated.as_ref().unwrap().exit_code, 79);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
        assert_eq!(status.pod_ips.unwrap()[0].ip, "10.0.0.1");
    }
}
