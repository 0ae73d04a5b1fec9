//! `tulle why` in a cluster: the controller's answer, with what the proxies of both sides remember.

use super::cluster::Cluster;
use super::workloads::{self, text};
use crate::args::cluster::Within;
use crate::args::diagnosis::Why;
use crate::client::Rpc;
use crate::failure::Result;
use crate::proxies::{Meshed, ProxySource, Target, ask_all};
use crate::why::{self, Told};
use serde_json::Value;
use std::process::ExitCode;
use tulle_api::v1::StatusRequest;

/// Proxies of a side that are asked.
const ASKED: usize = 10;

/// Explains; the exit code is 0 if the call is allowed.
pub(crate) async fn why(cluster: &Cluster, args: &Why) -> Result<ExitCode> {
    let here = args
        .within
        .namespace
        .as_deref()
        .unwrap_or(&cluster.namespace);
    let mut objects = cluster.objects().await?;
    let status = objects.status(StatusRequest::default()).await;
    let trust_domain = status
        .rpc(|| "cannot ask the controller".to_owned())?
        .trust_domain;
    let mut args = args.clone();
    if let Some((name, port)) = with_port(&args.to).filter(|_| args.port == 0) {
        (args.to, args.port) = (name.to_owned(), port);
    }
    let callers = match pods(cluster, &args.from, here).await {
        Ok(callers) => callers,
        Err(failure) => {
            let Some(address) = without_sidecar(cluster, &args.from, here).await? else {
                return Err(failure);
            };
            // The name that the controller understands for a plaintext caller.
            args.from = format!("plaintext:{address}");
            Vec::new()
        }
    };
    let named = pods(cluster, &args.to, here).await.unwrap_or_default();
    // The controller knows identities and services; who is who is the API server's to say.
    if let Some(pod) = callers.first() {
        args.from = format!(
            "spiffe://{trust_domain}/ns/{}/sa/{}",
            pod.namespace, pod.account
        );
    }
    if let Some(service) = service(cluster, &args.to, here).await? {
        args.to = service;
    }
    let explanation = why::explain(&mut objects, &args).await?;
    let mut not_ready = not_ready(&callers, &named);
    let mut to_errors = vec![(args.to.clone(), ask(cluster, &named, "/errors").await)];
    for service in why::called(&args, &explanation).iter().skip(1) {
        let name = format!("svc/{service}");
        let called = pods(cluster, &name, here).await.unwrap_or_default();
        not_ready.extend(self::not_ready(&[], &called));
        to_errors.push((service.clone(), ask(cluster, &called, "/errors").await));
    }
    not_ready.sort_unstable();
    not_ready.dedup();
    let told = Told {
        from_errors: ask(cluster, &callers, "/errors").await,
        from_endpoints: ask(cluster, &callers, "/endpoints").await,
        to_errors,
        not_ready,
    };
    why::why(&args, cluster.mesh(), explanation, &told)
}

/// `web:80`; an address of IPv6 alone has more colons.
fn with_port(name: &str) -> Option<(&str, u16)> {
    let (name, port) = name.rsplit_once(':')?;
    let is_whole = !name.contains(':') || name.starts_with('[') && name.ends_with(']');
    let name = name.trim_start_matches('[').trim_end_matches(']');
    Some((
        name,
        port.parse().ok().filter(|port| *port > 0 && is_whole)?,
    ))
}

/// `web.shop` and `svc/web.shop.svc.cluster.local` have a namespace, `web` that of `-n`. Names of pods
/// may have dots, those of namespaces have none.
fn parts<'a>(name: &'a str, here: &'a str) -> (&'a str, &'a str) {
    let host = name.strip_suffix(".svc").unwrap_or(name);
    let host = host.split_once(".svc.").map_or(host, |(host, _)| host);
    host.rsplit_once('.').unwrap_or((host, here))
}

/// The pods with sidecars that are meant; none for an identity.
async fn pods(cluster: &Cluster, name: &str, here: &str) -> Result<Vec<Meshed>> {
    if name.starts_with("spiffe://") {
        return Ok(Vec::new());
    }
    let (name, namespace) = parts(name, here);
    let within = Within {
        namespace: Some(namespace.to_owned()),
    };
    let mut found = cluster.select(name, &within).await?;
    found.truncate(ASKED);
    Ok(found)
}

/// The address of the first pod that is meant and runs without a sidecar: its calls are plaintext.
async fn without_sidecar(cluster: &Cluster, name: &str, here: &str) -> Result<Option<String>> {
    let (name, namespace) = parts(name, here);
    let target = Target::parse(name)?;
    let pods = workloads::pods(cluster, Some(namespace)).await?;
    let mut meant = pods.iter().filter(|pod| target.takes_plain(pod));
    let address = meant.find_map(|pod| match text(pod, "/status/podIP") {
        "" => None,
        address => Some(address.to_owned()),
    });
    Ok(address)
}

/// The service that is meant, if the cluster has it; else it may be a host outside.
async fn service(cluster: &Cluster, name: &str, here: &str) -> Result<Option<String>> {
    let (name, namespace) = parts(name, here);
    let name = match name.split_once('/') {
        Some(("svc" | "service" | "services", name)) => name,
        Some(_) => return Ok(None),
        None => name,
    };
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let found = cluster.get(&path).await?;
    Ok(found.map(|_| format!("{name}.{namespace}")))
}

async fn ask(cluster: &Cluster, pods: &[Meshed], path: &str) -> Vec<Value> {
    let answers = ask_all(cluster, pods, path).await;
    let texts = answers.into_iter().filter_map(|(_, answer)| answer.ok());
    texts
        .filter_map(|text| serde_json::from_str(&text).ok())
        .collect()
}

fn not_ready(callers: &[Meshed], called: &[Meshed]) -> Vec<String> {
    let both = callers.iter().chain(called);
    let mut names: Vec<String> = both
        .filter(|pod| !pod.ready)
        .map(|pod| format!("pod {}: not ready", pod.shown()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_said_with_the_name() {
        assert_eq!(with_port("nginx:80"), Some(("nginx", 80)));
        assert_eq!(with_port("svc/web.shop:8080"), Some(("svc/web.shop", 8080)));
        assert_eq!(with_port("[2001:db8::1]:443"), Some(("2001:db8::1", 443)));
        for none in [
            "nginx",
            "nginx:http",
            "nginx:0",
            "2001:db8::1",
            "spiffe://t/ns/a/sa/b",
        ] {
            assert_eq!(with_port(none), None, "{none}");
        }
    }

    #[test]
    fn names_have_the_namespace_they_say() {
        assert_eq!(parts("web", "shop"), ("web", "shop"));
        assert_eq!(parts("web.other", "shop"), ("web", "other"));
        assert_eq!(
            parts("svc/web.other.svc.cluster.local", "shop"),
            ("svc/web", "other")
        );
        assert_eq!(parts("web.other.svc", "shop"), ("web", "other"));
        assert_eq!(parts("pod/web.1.other", "shop"), ("pod/web.1", "other"));
    }
}
