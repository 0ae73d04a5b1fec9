//! Exceptions from a pod's redirection, as its annotations, the cluster's settings and the CNI
//! plugin's input give them.

use crate::redirection::{DNS_PORT, Redirection};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// Annotation of a pod whose rules the node makes: [`PodRules`] as JSON.
pub const REDIRECTION: &str = "tulle.dev/redirection";

/// Traffic that is not redirected, or the only traffic that is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Exceptions {
    /// Ports of the pod that clients reach directly.
    pub exclude_inbound_ports: Vec<u16>,
    /// Ports that the application reaches directly.
    pub exclude_outbound_ports: Vec<u16>,
    /// Networks that the application reaches directly.
    pub exclude_outbound_ranges: Vec<String>,
    /// The only networks that are reached through the sidecar; empty: all.
    pub include_outbound_ranges: Vec<String>,
}

impl Exceptions {
    /// Returns the redirection of a pod with these exceptions.
    ///
    /// # Errors
    /// A range is not valid; the text says which.
    pub fn redirection(&self) -> Result<Redirection, String> {
        let mut redirection = Redirection::default();
        redirection
            .exclude_inbound_ports
            .extend(&self.exclude_inbound_ports);
        redirection
            .exclude_outbound_ports
            .extend(&self.exclude_outbound_ports);
        redirection.exclude_outbound_ranges = ranges(&self.exclude_outbound_ranges)?;
        redirection.include_outbound_ranges = ranges(&self.include_outbound_ranges)?;
        Ok(redirection)
    }
}

/// The rules of a pod: the exceptions, and whether the sidecar answers the pod's DNS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRules {
    /// Traffic that is not redirected.
    pub exceptions: Exceptions,
    /// Whether the sidecar answers the pod's DNS, at [`DNS_PORT`].
    pub dns: bool,
}

impl PodRules {
    /// Reads the annotation [`REDIRECTION`].
    ///
    /// # Errors
    /// The text is not a valid annotation; the error says why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut read: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let dns = match read.remove("dns") {
            None => false,
            Some(Value::Bool(dns)) => dns,
            Some(other) => return Err(format!("dns is {other}: use true or false")),
        };
        let exceptions = serde_json::from_value(read.into()).map_err(|e| e.to_string())?;
        Ok(Self { exceptions, dns })
    }

    /// Writes the annotation. The field `dns` is left out unless it is true: older plugins refuse it.
    pub fn annotation(&self) -> String {
        let mut written = serde_json::json!(self.exceptions);
        if self.dns {
            written["dns"] = true.into();
        }
        written.to_string()
    }

    /// Returns the redirection of a pod with these rules.
    ///
    /// # Errors
    /// As [`Exceptions::redirection`].
    pub fn redirection(&self) -> Result<Redirection, String> {
        let mut redirection = self.exceptions.redirection()?;
        redirection.dns_port = self.dns.then_some(DNS_PORT);
        Ok(redirection)
    }
}

fn ranges(texts: &[String]) -> Result<Vec<(IpAddr, u8)>, String> {
    texts.iter().map(|text| range(text)).collect()
}

fn range(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, prefix.parse().ok()),
        None => (text, Some(u8::MAX)), // a host: as long as the address
    };
    match (address.parse(), prefix) {
        (Ok(address), Some(prefix)) => Ok((address, prefix)),
        _ => Err(format!("{text:?} is not a network like 10.0.0.0/8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_rules_are_read_as_they_were_written() {
        let mut rules = PodRules {
            exceptions: Exceptions {
                exclude_inbound_ports: vec![9090],
                ..Exceptions::default()
            },
            dns: true,
        };
        assert_eq!(PodRules::parse(&rules.annotation()).as_ref(), Ok(&rules));
        assert_eq!(rules.redirection().unwrap().dns_port, Some(15053));
        rules.dns = false;
        assert!(
            !rules.annotation().contains("dns"),
            "an older plugin reads it"
        );
        assert_eq!(PodRules::parse(&rules.annotation()).as_ref(), Ok(&rules));
        assert_eq!(rules.redirection().unwrap().dns_port, None);
        for wrong in [r#"{"dns":"yes"}"#, r#"{"dnss":true}"#, "[]", "7", ""] {
            assert!(PodRules::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn by_default_only_the_sidecars_own_ports_pass_it_by() {
        let redirection = Exceptions::default().redirection().unwrap();
        assert_eq!(redirection.exclude_inbound_ports, [15020, 15021]);
        assert_eq!(redirection.exclude_outbound_ports, [0; 0]);
    }

    #[test]
    fn what_is_no_network_is_refused() {
        let with = |range: &str| Exceptions {
            exclude_outbound_ranges: vec![range.to_owned()],
            ..Exceptions::default()
        };
        let read = with("10.0.0.0/8").redirection().unwrap();
        assert_eq!(
            read.exclude_outbound_ranges,
            [("10.0.0.0".parse().unwrap(), 8)]
        );
        for wrong in ["10.0.0.0/8; flush ruleset", "10.0.0/8", "/8", "::/x"] {
            let error = with(wrong).redirection().unwrap_err();
            assert!(error.contains("is not a network"), "{error}");
        }
    }
}
