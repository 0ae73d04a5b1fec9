//! The applications of a round between pods, and the client of its load.

use super::way_in::WayIn;
use super::{App as Application, Options, Tool, jmeter, pod_load};
use crate::kubernetes::{App, Nodes};
use serde_json::{Value, json};

/// Applications whose sidecars are limited, and where they listen.
pub(super) const GATEWAY: (&str, u16) = ("gateway", 10000);
pub(super) const RATINGS: (&str, u16) = ("ratings", 8101);
/// The ConfigMap of the load's plan.
const PLAN: &str = "plan";

/// Returns the pods of a round.
pub(super) fn apps(
    options: &Options,
    nodes: &Nodes,
    sidecar: bool,
    share: Option<f64>,
    way: &WayIn,
) -> Vec<App> {
    let fortio = &options.cluster.fortio_image;
    let limited = [GATEWAY, RATINGS].into_iter().enumerate();
    let limited = limited.map(|(number, (name, port))| {
        let pairs = [
            ("RATINGS_URL", "http://ratings:8101"),
            // The Spring applications read this; the native ones are told by words.
            ("BIND", "0.0.0.0"),
        ];
        let (image, command, args) = program(options, name);
        App {
            name,
            image,
            command,
            args,
            env: pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            port: Some((port, "http")),
            sidecar,
            share,
            files: None,
            node: nodes.of_application(number),
        }
    });
    let mut apps: Vec<_> = limited.collect();
    let client = sidecar && way.client_has_sidecar();
    apps.push(match options.load {
        Tool::Oha => App::client(fortio, client),
        Tool::Jmeter => App {
            command: vec!["fortio".to_owned()],
            files: Some((PLAN, pod_load::PLAN)),
            ..App::client(&options.java_image, client)
        },
    });
    if sidecar {
        apps.push(App::stranger(fortio));
    }
    let limited = [GATEWAY, RATINGS].len();
    for app in apps.iter_mut().skip(limited) {
        app.node = nodes.of_load();
    }
    apps
}

/// Image, program and words of an application.
fn program(options: &Options, name: &str) -> (String, Vec<String>, Vec<String>) {
    let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    match options.app {
        Application::Native => (
            options.cluster.bookinfo_image.clone(),
            Vec::new(),
            owned(&[name, "--bind", "0.0.0.0"]),
        ),
        Application::Spring => {
            let archive = format!("/bookinfo/{name}.jar");
            // The same heap as on a host.
            let words = ["-Xmx256m", "-XX:-UsePerfData", "-jar", &archive];
            (options.java_image.clone(), owned(&["java"]), owned(&words))
        }
    }
}

/// Returns the objects that come with the pods: the plan of JMeter's load.
pub(super) fn plan(options: &Options) -> Vec<Value> {
    let mut data = json!({});
    for (name, text) in jmeter::configurations() {
        data[name] = text.into();
    }
    let plan = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": PLAN }, "data": data });
    match options.load {
        Tool::Oha => Vec::new(),
        Tool::Jmeter => vec![plan],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Mesh;

    fn made(words: &[&str]) -> Vec<App> {
        let options: Options = crate::args::parse(&[&["--kubernetes"][..], words].concat());
        let way = WayIn::find(&options, &Mesh::tulle(), "c").unwrap();
        apps(&options, &Nodes::default(), true, Some(0.1), &way)
    }

    #[test]
    fn spring_under_jmeter_is_java_in_pods() {
        let pods = made(&["--app", "spring", "--load", "jmeter", "--java-image", "j"]);
        let names: Vec<&str> = pods.iter().map(|app| app.name).collect();
        assert_eq!(names, ["gateway", "ratings", "client", "stranger"]);
        assert_eq!(pods[0].image, "j");
        assert_eq!(pods[0].command, ["java"]);
        assert_eq!(pods[0].args.last().unwrap(), "/bookinfo/gateway.jar");
        assert_eq!((pods[0].share, pods[2].share), (Some(0.1), None));
        assert_eq!(pods[2].command, ["fortio"]);
        assert!(pods[2].sidecar && pods[2].files.is_some());
        assert!(!pods[3].sidecar);
    }

    #[test]
    fn a_client_of_an_ingress_is_outside_the_mesh() {
        let pods = made(&["--ingress"]);
        assert!(pods[1].sidecar && !pods[2].sidecar);
        assert!(pods[2].command.is_empty() && pods[2].files.is_none());
        assert_eq!(pods[0].args, ["gateway", "--bind", "0.0.0.0"]);
    }
}
