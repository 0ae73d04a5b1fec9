use super::*;

fn settings() -> Settings {
    serde_json::from_value(json!({
        "image": "localhost/tulle-proxy:test",
        "initImage": "localhost/tulle-init:test",
        "controller": "tulle-controller.tulle-system.svc:15010",
        "trustDomain": "cluster.local",
    }))
    .unwrap()
}

fn pod() -> Value {
    json!({
        "metadata": {"generateName": "web-"},
        "spec": {
            "containers": [
                {
                    "name": "web",
                    "image": "localhost/web:test",
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "livenessProbe": {
                        "httpGet": {"path": "live?x=1", "port": "http", "httpHeaders": [{"name": "X", "value": "a$$b $(POD_IP)"}]},
                        "periodSeconds": 7,
                    },
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "timeoutSeconds": 4},
                    "startupProbe": {"exec": {"command": ["true"]}},
                },
                {
                    "name": "side",
                    "image": "localhost/side:test",
                    "livenessProbe": {"grpc": {"port": 9090, "service": "s"}},
                    "readinessProbe": {"httpGet": {"port": 9443, "scheme": "HTTPS"}},
                },
            ],
            "serviceAccountName": "web",
            "fieldOfTheFuture": {"kept": true},
        },
    })
}

fn injected(pod: &Value, settings: &Settings) -> Value {
    match inject(pod, InjectionSetting::Enabled, settings).unwrap() {
        InjectionOutcome::Injected(pod) => pod,
        InjectionOutcome::Left(why) => panic!("{why}"),
    }
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let items = pod["spec"][list].as_array();
    let names = items.into_iter().flatten().map(|i| i["name"].as_str());
    names.map(|n| n.unwrap().to_owned()).collect()
}

fn sidecar(pod: &Value) -> &Value {
    let lists = ["initContainers", "containers"].iter();
    let mut all = lists.flat_map(|l| pod["spec"][*l].as_array().unwrap());
    all.find(|c| c["name"] == names::SIDECAR).unwrap()
}

fn config(pod: &Value) -> Value {
    let mut env = sidecar(pod)["env"].as_array().unwrap().iter();
    let config = env.find(|e| e["name"] == "TULLE_CONFIG").unwrap();
    serde_json::from_str(config["value"].as_str().unwrap()).unwrap()
}

#[test]
fn a_native_sidecar_starts_before_everything_else() {
    let mut pod = pod();
    pod["spec"]["initContainers"] = json!([{"name": "migrate", "image": "m"}]);
    let pod = injected(&pod, &settings());
    assert_eq!(
        names(&pod, "initContainers"),
        ["tulle-init", "tulle-proxy", "migrate"]
    );
    assert_eq!(names(&pod, "containers"), ["web", "side"]);
    assert_eq!(sidecar(&pod)["restartPolicy"], "Always");
    assert_eq!(sidecar(&pod)["startupProbe"]["httpGet"]["path"], "/ready");
    assert_eq!(pod["spec"]["fieldOfTheFuture"]["kept"], true);
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(
        annotations["kubectl.kubernetes.io/default-container"],
        "web"
    );
    assert_eq!(annotations["prometheus.io/port"], "15020");
}

#[test]
fn elsewhere_it_is_the_first_container_and_holds_the_others() {
    let settings = Settings {
        native_sidecar: false,
        ..settings()
    };
    let mut pod = pod();
    pod["spec"]["initContainers"] = json!([{"name": "migrate", "image": "m"}]);
    let pod = injected(&pod, &settings);
    assert_eq!(names(&pod, "initContainers"), ["migrate", "tulle-init"]);
    assert_eq!(names(&pod, "containers"), ["tulle-proxy", "web", "side"]);
    let sidecar = sidecar(&pod);
    assert!(sidecar.get("restartPolicy").is_none());
    assert_eq!(
        sidecar["lifecycle"]["postStart"]["exec"]["command"][1],
        "--wait-ready"
    );
}

#[test]
fn annotations_say_how_one_sidecar_starts() {
    let with = |annotations: Value| {
        let mut pod = pod();
        pod["metadata"]["annotations"] = annotations;
        sidecar(&injected(&pod, &settings())).clone()
    };
    let usual = with(json!({ "tulle.dev/cpu-request": "25m" }));
    assert_eq!(usual["resources"]["requests"]["cpu"], "25m");
    assert_eq!(usual["restartPolicy"], "Always");
    let ordinary = with(json!({ "tulle.dev/native-sidecar": "disabled" }));
    assert!(ordinary.get("restartPolicy").is_none());
    assert!(ordinary["lifecycle"]["postStart"].is_object());
    let late = with(json!({
        "tulle.dev/native-sidecar": "disabled", "tulle.dev/hold-application": "disabled",
    }));
    assert!(late.get("lifecycle").is_none(), "{late}");
}

#[test]
fn with_the_plugin_there_is_no_privileged_container() {
    let settings = Settings {
        init_image: None,
        ..settings()
    };
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({ "tulle.dev/exclude-outbound-ports": "3306" });
    let pod = injected(&pod, &settings);
    // The first only looks whether the rules are there.
    assert_eq!(names(&pod, "initContainers"), ["tulle-init", "tulle-proxy"]);
    assert!(!pod.to_string().contains("NET_ADMIN"));
    let init = &pod["spec"]["initContainers"][0];
    assert_eq!(init["image"], settings.image.as_str());
    assert_eq!(init["securityContext"]["runAsUser"], 1500);
    let annotation = &pod["metadata"]["annotations"]["tulle.dev/redirection"];
    let exceptions: Exceptions = serde_json::from_str(annotation.as_str().unwrap()).unwrap();
    assert_eq!(exceptions.exclude_outbound_ports, [3306]);
}

#[test]
fn a_sidecar_has_no_rights() {
    let pod = injected(&pod(), &settings());
    let context = &sidecar(&pod)["securityContext"];
    assert_eq!(context["runAsUser"], 1500);
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    for no in ["allowPrivilegeEscalation", "privileged"] {
        assert_eq!(context[no], false, "{no}");
    }
    for yes in ["readOnlyRootFilesystem", "runAsNonRoot"] {
        assert_eq!(context[yes], true, "{yes}");
    }
    let init = &pod["spec"]["initContainers"][0]["securityContext"]["capabilities"];
    assert_eq!(*init, json!({"add": ["NET_ADMIN"], "drop": ["ALL"]}));
}

#[test]
fn checks_ask_the_sidecar_and_it_asks_the_application() {
    let pod = injected(&pod(), &settings());
    let web = &pod["spec"]["containers"][0];
    assert_eq!(
        web["livenessProbe"],
        json!({
            "httpGet": {"path": "/probe/web/liveness", "port": 15021, "scheme": "HTTP"},
            "periodSeconds": 7,
        })
    );
    assert!(web["readinessProbe"].get("tcpSocket").is_none());
    assert_eq!(web["startupProbe"]["exec"]["command"][0], "true");
    assert_eq!(
        config(&pod)["probes"],
        json!([
            {
                "path": "/probe/web/liveness",
                "check": {"http": {
                    "port": 8080, "path": "/live?x=1", "tls": false,
                    // Once the kubelet has read the variable, it is what the pod says.
                    "headers": [{"name": "X", "value": "a$$$$b $$(POD_IP)"}],
                }},
                "timeoutMs": 1000,
            },
            {
                "path": "/probe/web/readiness",
                "check": {"tcp": {"port": 8080}},
                "timeoutMs": 4000,
            },
            {
                "path": "/probe/side/liveness",
                "check": {"grpc": {"port": 9090, "service": "s"}},
                "timeoutMs": 1000,
            },
            {
                "path": "/probe/side/readiness",
                "check": {"http": {"port": 9443, "path": "/", "tls": true}},
                "timeoutMs": 1000,
            },
        ])
    );
}

#[test]
fn checks_that_do_not_pass_the_sidecar_stay() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({"tulle.dev/exclude-inbound-ports": "9443, 8080"});
    pod["spec"]["containers"][1]["livenessProbe"] =
        json!({"httpGet": {"host": "192.0.2.1", "port": 80}});
    let before = pod.clone();
    let pod = injected(&pod, &settings());
    for (i, field) in [
        (0, "livenessProbe"),
        (0, "readinessProbe"),
        (1, "livenessProbe"),
        (1, "readinessProbe"),
    ] {
        let container = format!("/spec/containers/{i}/{field}");
        assert_eq!(pod.pointer(&container), before.pointer(&container));
    }
}

#[test]
fn a_check_of_an_unknown_port_is_refused_by_name() {
    let mut pod = pod();
    pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"] = "https".into();
    let refused = inject(&pod, InjectionSetting::Enabled, &settings()).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.starts_with("container web: livenessProbe: port \"https\""),
        "{text}"
    );
}

#[test]
fn annotations_change_one_sidecar() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({
        "tulle.dev/cpu-limit": "500m",
        "tulle.dev/memory-request": "20Mi",
        "tulle.dev/log-level": "debug",
        "tulle.dev/workers": "2",
        "tulle.dev/exclude-outbound-ranges": "10.1.0.0/16, fd00::/8",
        "tulle.dev/include-outbound-ranges": "10.0.0.0/8",
        "tulle.dev/exclude-outbound-ports": "3306",
        "prometheus.io/scrape": "false",
    });
    let pod = injected(&pod, &settings());
    let sidecar = sidecar(&pod);
    assert_eq!(
        sidecar["resources"],
        json!({
            "requests": {"cpu": "10m", "memory": "20Mi"},
            "limits": {"cpu": "500m", "memory": "128Mi"},
        })
    );
    assert_eq!(config(&pod)["workers"], 2);
    let own = json!({"name": "TULLE_LOG", "value": "debug"});
    assert!(sidecar["env"].as_array().unwrap().contains(&own));
    assert_eq!(
        pod["spec"]["initContainers"][0]["args"],
        json!([
            "redirect",
            "--exclude-outbound-ports=3306",
            "--exclude-outbound-ranges=10.1.0.0/16,fd00::/8",
            "--include-outbound-ranges=10.0.0.0/8",
        ])
    );
    assert!(
        pod["metadata"]["annotations"]
            .get("prometheus.io/port")
            .is_none()
    );
}

#[test]
fn annotations_that_are_not_understood_are_refused() {
    for (key, value, part) in [
        ("cpu-limit", "much", "found `much`"),
        ("memory-limit", "1Zi", "found `1Zi`"),
        ("log-level", "loud", "use one of error, warn"),
        ("workers", "0", "from 1 to 256"),
        ("exclude-inbound-ports", "80,http", "\"http\" is no port"),
        ("exclude-outbound-ranges", "10.0.0.0/33", "10.0.0.0/33"),
        ("native-sidecar", "yes", "use enabled or disabled"),
        ("cpu-limits", "1", "there is no option of this name"),
    ] {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({format!("tulle.dev/{key}"): value});
        let refused = inject(&pod, InjectionSetting::Enabled, &settings()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(key) && text.contains(part), "{text}");
    }
}

#[test]
fn who_gets_a_sidecar() {
    let with = |place: &str, value: &str| {
        let mut pod = pod();
        pod["metadata"][place] = json!({names::INJECT: value});
        pod
    };
    let mut host = pod();
    host["spec"]["hostNetwork"] = true.into();
    for (pod, namespace, injected) in [
        (pod(), InjectionSetting::None, false),
        (pod(), InjectionSetting::Enabled, true),
        (pod(), InjectionSetting::Disabled, false),
        (with("labels", "enabled"), InjectionSetting::None, true),
        (with("labels", "enabled"), InjectionSetting::Disabled, true),
        (
            with("annotations", "disabled"),
            InjectionSetting::Enabled,
            false,
        ),
        (with("labels", "disabled"), InjectionSetting::Enabled, false),
        (host, InjectionSetting::Enabled, false),
    ] {
        let outcome = inject(&pod, namespace, &settings()).unwrap();
        let is = matches!(outcome, InjectionOutcome::Injected(_));
        assert_eq!(is, injected, "{namespace:?} {pod}");
    }
    assert!(inject(&with("labels", "on"), InjectionSetting::None, &settings()).is_err());
}

fn mesh(spec: Value) -> MeshSpec {
    serde_json::from_value(spec).unwrap()
}

#[test]
fn a_mesh_says_what_new_sidecars_get() {
    let said = mesh(json!({
        "dns": true,
        "sidecar": {"cpuLimit": "5m", "memoryLimit": "64Mi", "workers": 2},
    }));
    let settings = settings().of_mesh(&said);
    let pod = injected(&pod(), &settings);
    let resources = &sidecar(&pod)["resources"];
    assert_eq!(resources["limits"], json!({"cpu": "5m", "memory": "64Mi"}));
    // Kubernetes refuses a request above the limit.
    assert_eq!(
        resources["requests"],
        json!({"cpu": "5m", "memory": "16Mi"})
    );
    let config = config(&pod);
    assert_eq!(config["workers"], 2);
    assert_eq!(
        config["dns"]["addresses"],
        json!(["127.0.0.1:15053", "[::1]:15053"])
    );
    let init = &pod["spec"]["initContainers"][0];
    assert_eq!(init["args"], json!(["redirect", "--dns"]));

    // The CNI plugin gets it, too.
    let by_node = Settings {
        init_image: None,
        ..settings
    };
    let pod = injected(&super::tests::pod(), &by_node);
    let annotation = pod["metadata"]["annotations"]["tulle.dev/redirection"].as_str();
    assert!(PodRules::parse(annotation.unwrap()).unwrap().dns);
}

#[test]
fn a_pod_has_the_last_word_over_the_mesh() {
    let said = mesh(json!({
        "dns": true,
        "sidecar": {"cpuLimit": "2", "memoryLimit": "64Mi", "workers": 2},
    }));
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({
        "tulle.dev/cpu-limit": "1", "tulle.dev/memory-limit": "1Gi", "tulle.dev/workers": "3",
        "tulle.dev/exclude-outbound-ports": "53",
    });
    let pod = injected(&pod, &settings().of_mesh(&said));
    let limits = &sidecar(&pod)["resources"]["limits"];
    assert_eq!(*limits, json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(config(&pod)["workers"], 3);
    assert!(config(&pod).get("dns").is_none());
    // A Mesh that says nothing leaves what was chosen at the installation.
    assert_eq!(settings().of_mesh(&MeshSpec::default()), settings());
}

#[test]
fn a_pod_that_is_older_than_a_setting_is_known() {
    let old = injected(&pod(), &settings());
    assert!(differences(&old, &settings()).is_empty());
    let said = mesh(json!({
        "dns": true,
        "sidecar": {"cpuLimit": "0.5", "memoryLimit": "64Mi", "workers": 2},
    }));
    let now = settings().of_mesh(&said);
    let expected = [
        "CPU limit: none, new pods have 0.5",
        "memory limit: 128Mi, new pods have 64Mi",
        "workers: as many as the CPU limit allows, new pods have 2",
        "DNS: the cluster's, new pods have the sidecar's",
    ];
    assert_eq!(differences(&old, &now), expected);
    let mut new = injected(&pod(), &now);
    // The API server writes the same quantity like this.
    new["spec"]["initContainers"][1]["resources"]["limits"]["cpu"] = "500m".into();
    assert!(differences(&new, &now).is_empty());
    assert!(differences(&pod(), &now).is_empty(), "it has no sidecar");
}

#[test]
fn the_sidecar_serves_what_the_application_wants_scraped() {
    let annotated = |annotations: Value| {
        let mut pod = pod();
        pod["metadata"]["annotations"] = annotations;
        let pod = injected(&pod, &settings());
        let application = config(&pod).get("applicationMetrics").cloned();
        (pod["metadata"]["annotations"].clone(), application)
    };
    let (annotations, application) = annotated(json!({
        "prometheus.io/scrape": "true", "prometheus.io/port": "9100", "prometheus.io/path": "stats?all",
        "prometheus.io/scheme": "https", "prometheus.io/job": "shop",
    }));
    assert_eq!(
        application,
        Some(json!({"port": 9100, "path": "/stats?all", "tls": true}))
    );
    for (name, value) in [
        ("scrape", "true"),
        ("port", "15020"),
        ("path", "/metrics"),
        ("job", "shop"),
    ] {
        assert_eq!(
            annotations[format!("prometheus.io/{name}")],
            value,
            "{name}"
        );
    }
    assert!(annotations.get("prometheus.io/scheme").is_none());
    let before: Value = serde_json::from_str(
        annotations["tulle.dev/application-metrics"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(
        before,
        json!({"scrape": "true", "port": "9100", "path": "stats?all", "scheme": "https"})
    );

    // A port that is not said is the only one there is.
    let (_, application) = annotated(json!({"prometheus.io/scrape": "true"}));
    assert_eq!(application, Some(json!({"port": 8080, "path": "/metrics"})));

    for own in [
        json!({"prometheus.io/scrape": "false", "prometheus.io/port": "9100"}),
        json!({"prometheus.io/scrape": "true", "prometheus.io/port": "15020"}),
        json!({"prometheus.io/scrape": "true", "prometheus.io/port": "http"}),
        json!({"prometheus.io/scrape": "true", "prometheus.io/scheme": "ftp"}),
        json!({"prometheus.io/scrape": "true", "tulle.dev/metrics": "disabled"}),
        json!({"tulle.dev/metrics": "disabled"}),
    ] {
        let (annotations, application) = annotated(own.clone());
        assert_eq!(application, None, "{own}");
        for name in ["scrape", "port", "path", "scheme"] {
            let name = format!("prometheus.io/{name}");
            assert_eq!(annotations.get(&name), own.get(&name), "{own}");
        }
        assert!(annotations.get("tulle.dev/application-metrics").is_none());
    }
    let mut odd = pod();
    odd["metadata"]["annotations"] = json!({"tulle.dev/metrics": "off"});
    assert!(inject(&odd, InjectionSetting::Enabled, &settings()).is_err());
}

#[test]
fn opaque_ports_are_ports() {
    let with = |ports: &str| {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({"tulle.dev/opaque-ports": ports});
        inject(&pod, InjectionSetting::Enabled, &settings())
    };
    assert!(with("8080, 9090").is_ok());
    let refused = with("8080,nonsense").unwrap_err().to_string();
    assert!(refused.contains("tulle.dev/opaque-ports"), "{refused}");
    assert!(refused.contains("\"nonsense\" is no port"), "{refused}");
}

#[test]
fn a_pod_is_injected_once() {
    let once = injected(&pod(), &settings());
    let again = inject(&once, InjectionSetting::Enabled, &settings()).unwrap();
    assert_eq!(again, InjectionOutcome::Left("it has a sidecar already"));
}

#[test]
fn names_of_ours_are_taken() {
    let mut pod = pod();
    pod["spec"]["volumes"] = json!([{"name": "tulle-state", "emptyDir": {}}]);
    let refused = inject(&pod, InjectionSetting::Enabled, &settings()).unwrap_err();
    assert!(
        refused.to_string().contains("tulle-state already"),
        "{refused}"
    );
}

#[test]
fn the_sidecar_understands_its_configuration() {
    let pod = injected(&pod(), &settings());
    // The kubelet replaces the variables like this.
    let text = config(&pod)
        .to_string()
        .replace("$(POD_NAME)", "web-1")
        .replace("$(POD_NAMESPACE)", "shop")
        .replace("$(POD_IP)", "10.0.0.7")
        .replace("$(SERVICE_ACCOUNT)", "web");
    let bootstrap = tulle_model::bootstrap::Bootstrap::parse("pod", &text).unwrap();
    assert_eq!(
        bootstrap.identity.as_str(),
        "spiffe://cluster.local/ns/shop/sa/web"
    );
    assert_eq!(
        bootstrap.control.unwrap().service.as_deref(),
        Some("web-1.shop")
    );
    assert_eq!(bootstrap.probes.len(), 4);
}

mod reviews {
    use super::*;
    use crate::review::Review;
    use base64::Engine as _;

    fn ask(object: Value) -> Value {
        let text = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "1-2-3",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "namespace": "shop",
                "operation": "CREATE",
                "object": object,
            },
        })
        .to_string();
        review::response(
            &Review::read(text.as_bytes()).unwrap(),
            setting,
            &settings(),
        )
    }

    fn setting(namespace: &str) -> InjectionSetting {
        assert_eq!(namespace, "shop");
        InjectionSetting::Enabled
    }

    #[test]
    fn the_patch_makes_the_injected_pod() {
        let answer = ask(pod());
        assert_eq!(answer["response"]["uid"], "1-2-3");
        assert_eq!(answer["response"]["allowed"], true);
        let patch = answer["response"]["patch"].as_str().unwrap();
        let patch = base64::engine::general_purpose::STANDARD
            .decode(patch)
            .unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let mut patched = pod();
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, injected(&pod(), &settings()));
    }

    #[test]
    fn a_pod_that_cannot_have_one_is_refused_with_the_reason() {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({"tulle.dev/workers": "many"});
        let answer = ask(pod);
        assert_eq!(answer["response"]["allowed"], false);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("tulle.dev/workers"), "{message}");
    }
}
