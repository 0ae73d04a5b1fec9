//! An object of one namespace changes nothing for the others, whatever its age and whenever it comes.

use super::edits::{cluster, edit, named, pod, service};
use super::manifests::{self, EVIL, MADE, made, text};
use super::told::{compare, told_to_others};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use tulle_control::index::Edit;

/// The events in the cluster, in this order.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    edits: Vec<Edit>,
    /// Whether each edit comes by itself.
    singly: bool,
}

impl Case {
    /// Puts edits of `evil` between those of the others, each at its place (modulo their number).
    pub(crate) fn new(others: Vec<Edit>, own: Vec<(Edit, u8)>, singly: bool) -> Self {
        let mut placed: Vec<(usize, Edit)> = others.into_iter().enumerate().collect();
        let places = placed.len() + 1;
        let own = own.into_iter();
        placed.extend(own.map(|(edit, at)| (usize::from(at) % places, edit)));
        placed.sort_by_key(|(at, _)| *at);
        let edits = placed.into_iter().map(|(_, edit)| edit).collect();
        Self { edits, singly }
    }
}

/// The others' edits in any order, and between them random ones of `evil`.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let own = prop::collection::vec((own_edits(), any::<u8>()), 1..24);
    (others(), own, any::<bool>()).prop_map(|(others, own, singly)| Case::new(others, own, singly))
}

/// The others' edits in any order.
pub(crate) fn others() -> impl Strategy<Value = Vec<Edit>> {
    Just(victims()).prop_shuffle()
}

/// One edit of `evil`.
pub(crate) fn own_edits() -> impl Strategy<Value = Edit> {
    prop_oneof![
        1 => services_and_pods(),
        2 => manifests::object().prop_filter_map("the index reads it", |object| edit(&object)),
        1 => texts(),
    ]
}

/// The resources that the others receive in a cluster in which `evil` has nothing.
static WITHOUT_EVIL: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let mut index = cluster();
    index.apply(victims());
    told_to_others(&index)
});

/// Applies the edits, and compares what the others receive with what they receive without `evil`.
///
/// # Errors
/// The resource that differs or is new.
pub(crate) fn check(case: Case) -> Result<(), String> {
    let lost: BTreeSet<String> = case.edits.iter().flat_map(older_addresses).collect();
    let mut index = cluster();
    match case.singly {
        true => case
            .edits
            .into_iter()
            .for_each(|edit| drop(index.apply([edit]))),
        false => drop(index.apply(case.edits)),
    }
    compare(&WITHOUT_EVIL, &told_to_others(&index), &lost)
}

/// The addresses that an object of `evil` has because it is not younger than the others: an address belongs to
/// whoever had it first.
fn older_addresses(edit: &Edit) -> Vec<String> {
    let (name, created, addresses) = match edit {
        Edit::Service(service) => (&service.name, &service.created, &service.addresses),
        Edit::Pod(pod) => (&pod.name, &pod.created, &pod.addresses),
        _ => return Vec::new(),
    };
    let older = name.namespace() == EVIL && created.as_str() <= MADE;
    let addresses = addresses.iter().filter(|_| older);
    addresses.map(|ip| format!("address/{ip}")).collect()
}

fn victims() -> Vec<Edit> {
    let read = |object: &serde_json::Value| edit(object).unwrap_or_else(|| panic!("{object}"));
    let mut edits: Vec<Edit> = manifests::victims().iter().map(read).collect();
    let http: &[(u16, Option<&str>, u16)] = &[(80, Some("http"), 8080)];
    let split = made(
        "shop",
        "split.smi-spec.io/v1alpha4",
        "TrafficSplit",
        "front",
        serde_json::json!({ "service": "front", "backends": [{ "service": "web", "weight": 1 }] }),
    );
    edits.extend(edit(&split));
    edits.extend([
        pod(
            ("web-1", "shop", MADE),
            "web",
            "10.244.0.5",
            &[8080, 9100],
            true,
        ),
        pod(
            ("front-1", "shop", MADE),
            "front",
            "10.244.0.6",
            &[8080],
            true,
        ),
        service(
            ("web", "shop", MADE),
            &["10.96.0.20"],
            http,
            &[("10.244.0.5", Some("web-1"))],
        ),
        service(
            ("front", "shop", MADE),
            &["10.96.0.21"],
            http,
            &[("10.244.0.6", Some("front-1"))],
        ),
        Edit::StrictNamespaces(BTreeSet::from(["shop".into()])),
    ]);
    for (namespace, kind) in [
        ("shop", "Secret"),
        ("shop", "ConfigMap"),
        ("infra", "Secret"),
    ] {
        edits.extend(edit(&text(namespace, kind, "x")));
    }
    edits
}

fn texts() -> impl Strategy<Value = Edit> {
    let kind = prop::sample::select(vec!["Secret", "ConfigMap"]);
    (manifests::name(), kind).prop_filter_map("the index reads it", |(name, kind)| {
        edit(&text(EVIL, kind, name))
    })
}

fn services_and_pods() -> impl Strategy<Value = Edit> {
    use manifests::{address, age, name, port};
    let protocol = prop::sample::select(vec![None, Some("http"), Some("tcp")]);
    let ports = prop::collection::vec((port(), protocol, port()), 1..3);
    let endpoints = prop::collection::vec((address(), prop::option::of(name())), 0..3);
    let addresses = prop::collection::vec(address(), 0..2);
    prop_oneof![
        (name(), age(), addresses, ports, endpoints).prop_map(|(name, age, ips, ports, ends)| {
            service((name, EVIL, age), &ips, &ports, &ends)
        }),
        (name(), age(), name(), address(), port(), any::<bool>()).prop_map(
            |(name, age, account, ip, port, sidecar)| {
                pod((name, EVIL, age), account, ip, &[port], sidecar)
            }
        ),
        name().prop_map(|name| Edit::RemoveService(named(name, EVIL))),
        name().prop_map(|name| Edit::RemovePod(named(name, EVIL))),
        name().prop_map(|name| Edit::RemoveGateway(named(name, EVIL))),
        (prop::sample::select(manifests::KINDS.to_vec()), name()).prop_map(
            |((api, kind), name)| {
                let kind = match (api.split('/').next(), kind) {
                    (Some("specs.smi-spec.io"), "TCPRoute") => "TCPRoute.specs.smi-spec.io",
                    _ => kind,
                };
                Edit::Delete {
                    kind: kind.into(),
                    name: format!("{name}.{EVIL}"),
                }
            }
        ),
        any::<bool>().prop_map(|strict| {
            let all = ["shop", EVIL].into_iter().take(1 + usize::from(strict));
            Edit::StrictNamespaces(all.map(str::to_owned).collect())
        }),
    ]
}
