mod exports;
mod incomplete;
mod no_wider;
mod passed_over;
mod policies;
mod port_numbers;
mod requests;
mod routes;
mod traffic;

use super::*;
use crate::import::imported::Made;
use crate::import::tests::{checked, lost};
use serde_json::json;

fn imported(text: &str) -> Imported {
    checked(text, import)
}

const SERVICES: &str = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: reviews, namespace: shop}
  spec: {selector: {app: reviews}, ports: [{port: 80, targetPort: 9080}, {port: 81, targetPort: admin}]}
- apiVersion: v1
  kind: Service
  metadata: {name: ratings, namespace: shop}
  spec: {selector: {app: ratings, tier: back}, ports: [{port: 9080}]}
- apiVersion: v1
  kind: Service
  metadata: {name: reviews, namespace: other}
  spec: {selector: {app: reviews}, ports: [{port: 80}]}
---
";

/// A server of a Gateway that becomes a listener as a whole.
const SERVER: &str = "{port: {number: 80, protocol: HTTP}, hosts: ['*']}";

/// Everything that is made but the Gateways.
fn beside_gateways(text: &str) -> Imported {
    let mut all = imported(text);
    all.objects.retain(|made| made.object["kind"] != "Gateway");
    all
}
