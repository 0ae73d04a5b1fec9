//! A CNI configuration with the plugin, and without it again. Pure.

use crate::plugin::ANNOTATIONS;
use serde_json::{Value, json};

/// The program, and how a configuration calls it.
pub(crate) const NAME: &str = "tulle-cni";

fn entry() -> Value {
    json!({ "type": NAME, "capabilities": { ANNOTATIONS: true } })
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").is_some_and(|kind| kind == NAME)
}

/// A list of plugins, whichever of the two forms the file has. None: it is no configuration.
fn list(text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(text).ok()?;
    if value.get("type").is_some_and(Value::is_string) {
        return Some(json!({
            "cniVersion": value.get("cniVersion").cloned().unwrap_or_else(|| "0.3.1".into()),
            "name": value.get("name").cloned().unwrap_or_default(),
            "plugins": [value],
        }));
    }
    let plugins = value.get("plugins")?.as_array()?;
    (!plugins.is_empty()).then_some(value)
}

/// Whether the configuration is a list that contains the plugin's present entry.
pub(crate) fn has(text: &str) -> bool {
    let plugins =
        list(text).and_then(|mut list| list["plugins"].as_array_mut().map(std::mem::take));
    plugins.is_some_and(|plugins| plugins.iter().any(|plugin| *plugin == entry()))
}

/// The configuration with the plugin, as a list. None: the file is no configuration.
pub(crate) fn with(text: &str) -> Option<String> {
    let mut list = list(text)?;
    let plugins = list["plugins"].as_array_mut()?;
    plugins.retain(|plugin| !is_ours(plugin));
    plugins.push(entry());
    Some(format!("{list:#}\n"))
}

/// The list without the plugin. None: it does not have it.
pub(crate) fn without(text: &str) -> Option<Value> {
    let mut list = list(text)?;
    let plugins = list["plugins"].as_array_mut()?;
    let before = plugins.len();
    plugins.retain(|plugin| !is_ours(plugin));
    (plugins.len() < before).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str =
        r#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;

    #[test]
    fn what_is_added_is_taken_away() {
        let chained = with(BRIDGE).unwrap();
        assert!(has(&chained) && !has(BRIDGE));
        assert_eq!(with(&chained).unwrap(), chained);
        let value: Value = serde_json::from_str(&chained).unwrap();
        assert_eq!(value["plugins"][1]["type"], NAME);
        assert_eq!(value["plugins"][1]["capabilities"][ANNOTATIONS], true);
        let before: Value = serde_json::from_str(BRIDGE).unwrap();
        assert_eq!(without(&chained), Some(before));
        assert_eq!(without(BRIDGE), None);
    }

    #[test]
    fn one_plugin_becomes_a_list() {
        let text = with(r#"{"cniVersion": "1.0.0", "name": "pods", "type": "ptp"}"#).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&list["name"], &list["cniVersion"]),
            (&"pods".into(), &"1.0.0".into())
        );
        assert_eq!(list["plugins"][0]["type"], "ptp");
        assert!(has(&text));
    }

    #[test]
    fn an_older_entry_is_replaced() {
        let text = BRIDGE.replace("]}", r#", {"type": "tulle-cni"}, {"type": "portmap"}]}"#);
        assert!(!has(&text));
        let list: Value = serde_json::from_str(&with(&text).unwrap()).unwrap();
        let kinds: Vec<&Value> = list["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| &p["type"])
            .collect();
        assert_eq!(kinds, ["bridge", "portmap", NAME]);
    }

    #[test]
    fn what_makes_no_network_is_left_alone() {
        for text in [
            "",
            "{}",
            "[]",
            "{\"plugins\": []}",
            "{\"plugins\": 1}",
            "not json",
        ] {
            assert_eq!(with(text), None, "{text}");
            assert_eq!(without(text), None, "{text}");
        }
    }
}
