//! `tulle dashboard`: a port of this host leads to a web page in the cluster, the mesh's own or another.

use super::cluster::Cluster;
use super::console;
use super::workloads::{self, containers, is_ready, items, text};
use crate::args::console::Dashboard;
use crate::failure::{Failure, OrFail, Result};
use crate::output::line;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time.
const CONNECTIONS: usize = 64;

/// Leads connections there until Ctrl-C.
pub(crate) async fn dashboard(cluster: &Cluster, args: &Dashboard) -> Result<()> {
    let Some(what) = &args.what else {
        return console::open(cluster, args).await;
    };
    let (service, port) = find(cluster, what).await?;
    let (namespace, pod, port) = behind(cluster, &service, port.as_deref()).await?;
    let (listener, address) = listen(args.port).await?;
    line(&format!(
        "http://{address}/ leads to port {port} of pod {namespace}/{pod} until Ctrl-C"
    ));
    forward(cluster, &listener, (namespace, pod), port).await
}

/// A port of this host's loopback; 0: a free one.
pub(super) async fn listen(port: u16) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.or_fail(|| format!("cannot listen on port {port}"))?;
    let address = listener.local_addr();
    let address = address.or_fail(|| "the port is not known".to_owned())?;
    Ok((listener, address))
}

/// Leads connections to a port of a pod until Ctrl-C.
pub(super) async fn forward(
    cluster: &Cluster,
    listener: &TcpListener,
    (namespace, pod): (String, String),
    port: u16,
) -> Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await;
        let mut here = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
            told = tokio::signal::ctrl_c() => return told.or_fail(|| "cannot wait for Ctrl-C".to_owned()),
        };
        let (cluster, namespace, pod) = (cluster.clone(), namespace.clone(), pod.clone());
        tokio::spawn(async move {
            let _place = place;
            match cluster.forward((&namespace, &pod), port).await {
                // A browser that goes away is none of our business.
                Ok(mut there) => drop(copy_bidirectional(&mut here, &mut there).await),
                Err(failure) => anstream::eprintln!("error: {failure}"),
            }
        });
    }
}

/// The Service that is meant, with the port if one is named.
async fn find(cluster: &Cluster, what: &str) -> Result<(Value, Option<String>)> {
    let (name, port) = match what.split_once(':') {
        Some((name, port)) => (name, Some(port.to_owned())),
        None => (what, None),
    };
    let found = match name.split_once('/') {
        Some((namespace, name)) => {
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            cluster.get(&path).await?
        }
        // Charts put their own name before or after.
        None => {
            let all = cluster.list("/api/v1/services").await?;
            let exact = all.iter().find(|s| text(s, "/metadata/name") == name);
            let like = |s: &&Value| {
                let found = text(s, "/metadata/name");
                found.ends_with(&format!("-{name}")) || found.starts_with(&format!("{name}-"))
            };
            exact.or_else(|| all.iter().find(like)).cloned()
        }
    };
    let found = found.ok_or_else(|| {
        Failure::new(format!("there is no Service {what} in the cluster")).fix(
            "name one: `tulle dashboard NAMESPACE/SERVICE`; `tulle stat` and `edges` need none",
        )
    })?;
    Ok((found, port))
}

/// A pod behind a Service that is ready, and its port.
async fn behind(
    cluster: &Cluster,
    service: &Value,
    port: Option<&str>,
) -> Result<(String, String, u16)> {
    let namespace = text(service, "/metadata/namespace");
    let name = text(service, "/metadata/name");
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let pods = workloads::pods(cluster, Some(namespace)).await?;
    let pod = pods.iter().find(|pod| {
        let labels = pod.pointer("/metadata/labels");
        is_ready(pod)
            && selector.is_some_and(|wanted| {
                wanted
                    .iter()
                    .all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
            })
    });
    let pod = pod.ok_or_else(|| Failure::new(format!("no pod of {namespace}/{name} is ready")))?;
    let mut ports = items(service, "/spec/ports");
    let number = |p: &Value, member: &str| p.get(member).and_then(Value::as_u64);
    let chosen = ports.find(|p| {
        port.is_none_or(|port| {
            text(p, "/name") == port
                || number(p, "port").map(|n| n.to_string()).as_deref() == Some(port)
        })
    });
    let chosen = chosen.ok_or_else(|| {
        Failure::usage(format!(
            "{namespace}/{name} has no port {}",
            port.unwrap_or_default()
        ))
    })?;
    let target = match text(chosen, "/targetPort") {
        "" => number(chosen, "targetPort").or(number(chosen, "port")),
        target => {
            let mut all = containers(pod).flat_map(|c| items(c, "/ports"));
            let found = all.find(|p| text(p, "/name") == target);
            found.and_then(|p| number(p, "containerPort"))
        }
    };
    let target = target.and_then(|t| u16::try_from(t).ok());
    let target = target.ok_or_else(|| {
        Failure::new(format!(
            "the Service {namespace}/{name} has no port of a container as target"
        ))
    })?;
    Ok((
        namespace.to_owned(),
        text(pod, "/metadata/name").to_owned(),
        target,
    ))
}
