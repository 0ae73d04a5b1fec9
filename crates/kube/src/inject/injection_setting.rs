//! Decides whether a pod gets a sidecar.

use super::InjectionRefusal;
use crate::names;
use serde_json::Value;

/// The wish of a namespace or pod about sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InjectionSetting {
    /// Nothing.
    #[default]
    None,
    /// Sidecars.
    Enabled,
    /// No sidecars.
    Disabled,
}

impl InjectionSetting {
    /// Reads labels and annotations of a namespace or pod; a label wins over an annotation.
    ///
    /// # Errors
    /// The value is neither `enabled` nor `disabled`.
    pub fn from_object(object: &Value) -> Result<Self, InjectionRefusal> {
        for place in ["labels", "annotations"] {
            let found = object
                .get("metadata")
                .and_then(|m| m.get(place)?.get(names::INJECT));
            match found.map(|f| f.as_str()) {
                None => {}
                Some(Some("enabled")) => return Ok(Self::Enabled),
                Some(Some("disabled")) => return Ok(Self::Disabled),
                Some(_) => {
                    return Err(InjectionRefusal(format!(
                        "metadata.{place}: {} is `enabled` or `disabled`",
                        names::INJECT
                    )));
                }
            }
        }
        Ok(Self::None)
    }
}

/// Why a pod gets no sidecar; `None`: it gets one. The pod's own wish wins over its namespace's.
pub(super) fn left_alone(
    pod: &Value,
    namespace: InjectionSetting,
) -> Result<Option<&'static str>, InjectionRefusal> {
    let setting = match InjectionSetting::from_object(pod)? {
        InjectionSetting::None => namespace,
        own => own,
    };
    if setting != InjectionSetting::Enabled {
        return Ok(Some("neither it nor its namespace asks for a sidecar"));
    }
    // Its traffic is the node's: rules would redirect the whole node.
    if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        return Ok(Some("it uses the node's network"));
    }
    let has_one = ["containers", "initContainers"].iter().any(|list| {
        let containers = pod.get("spec").and_then(|s| s.get(list)?.as_array());
        let mut names = containers.into_iter().flatten().map(|c| c.get("name"));
        names.any(|name| name.and_then(Value::as_str) == Some(names::SIDECAR))
    });
    let marked = pod
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(names::STATUS));
    if has_one && marked.is_some() {
        return Ok(Some("it has a sidecar already"));
    }
    Ok(None)
}
