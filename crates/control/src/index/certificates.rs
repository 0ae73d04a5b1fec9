//! Checks whether the listeners of gateways can end TLS with their Secrets and ConfigMaps. No message
//! shows the content of those.

use super::Inputs;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_model::manifest::{
    EXPIRED, FilterRefs, GatewaySpec, ListenerTlsSpec, NO_TEXT, Object, ObjectRef, Problem,
    Severity, UNUSABLE,
};
use tulle_tls::outside::{self, OutsideError};

/// The texts that references mean: those of objects about to be stored, else the stored ones.
pub(crate) struct Texts<'a> {
    stored: &'a Inputs,
    new: BTreeMap<(&'a str, &'a str), &'a Object>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(stored: &'a Inputs, batch: &'a [Object]) -> Self {
        let new = batch.iter().map(|o| ((o.kind(), o.name()), o));
        Self {
            stored,
            new: new.collect(),
        }
    }

    fn text(&self, kind: &str, reference: &ObjectRef, key: &str) -> Option<String> {
        match self.new.get(&(kind, reference.name.as_str())) {
            Some(Object::Secret(secret)) => secret.text(key),
            Some(Object::ConfigMap(map)) => map.text(key),
            _ => self.stored.text(
                &ObjectRef {
                    kind: Some(kind.to_owned()),
                    ..reference.clone()
                },
                key,
            ),
        }
    }
}

/// Checks the gateways of a batch, and the stored ones that refer to a Secret or ConfigMap of it.
pub(crate) fn of_batch(stored: &Inputs, batch: &[Object], now: SystemTime) -> Vec<Problem> {
    let texts = Texts::new(stored, batch);
    let mut problems = Vec::new();
    for object in batch {
        if let Object::Gateway(gateway) = object {
            of_gateway(&texts, object.name(), &gateway.spec, now, &mut problems);
        }
    }
    let concerned = |spec: &GatewaySpec| {
        let mut references = spec.listeners.iter().filter_map(|l| l.tls.as_ref());
        references
            .any(|tls| references_of(tls).any(|(_, k, r)| texts.new.contains_key(&(k, &r.name))))
    };
    let kept = stored.gateways.iter();
    let kept = kept.filter(|(name, _)| !texts.new.contains_key(&("Gateway", name.as_str())));
    for (name, spec) in kept.filter(|(_, spec)| concerned(spec)) {
        of_gateway(&texts, name.as_str(), spec, now, &mut problems);
    }
    problems
}

/// Checks all gateways that are stored.
pub(crate) fn of_stored(stored: &Inputs, now: SystemTime) -> Vec<Problem> {
    let texts = Texts::new(stored, &[]);
    let mut problems = Vec::new();
    for (name, spec) in &stored.gateways {
        of_gateway(&texts, name.as_str(), spec, now, &mut problems);
    }
    problems
}

/// Lists the certificates that listeners of gateways present: gateway, Secret and when it ends, in Unix seconds. One that
/// cannot be used is a problem, and not among these.
pub(super) fn of_listeners(stored: &Inputs) -> Vec<(String, String, i64)> {
    let texts = Texts::new(stored, &[]);
    let mut all = BTreeSet::new();
    for (name, spec) in &stored.gateways {
        let listeners = spec.listeners.iter().filter_map(|l| l.tls.as_ref());
        for reference in listeners.flat_map(|tls| &tls.certificate_refs) {
            let text = |key| texts.text("Secret", reference, key);
            let (Some(chain), Some(key)) = (text("tls.crt"), text("tls.key")) else {
                continue;
            };
            let until = check_pair(&chain, &key).ok();
            let until = until.and_then(|until| until.duration_since(UNIX_EPOCH).ok());
            if let Some(until) = until {
                let until = i64::try_from(until.as_secs()).unwrap_or(i64::MAX);
                all.insert((name.to_string(), reference.name.clone(), until));
            }
        }
    }
    all.into_iter().collect()
}

fn of_gateway(
    texts: &Texts<'_>,
    name: &str,
    spec: &GatewaySpec,
    now: SystemTime,
    problems: &mut Vec<Problem>,
) {
    if spec.gateway_class_name != "tulle" {
        return;
    }
    for (place, listener) in spec.listeners.iter().enumerate() {
        let Some(tls) = listener.tls.as_ref().filter(|_| !listener.passes_through()) else {
            continue;
        };
        for (field, kind, reference) in references_of(tls) {
            let found = match kind == "Secret" && field.starts_with("certificateRefs") {
                true => pair(texts, reference, now),
                false => roots(texts, kind, reference),
            };
            let Err((code, severity, why)) = found else {
                continue;
            };
            problems.push(Problem {
                code: code.into(),
                severity,
                object: format!("Gateway/{name}"),
                field: format!("spec.listeners[{place}].tls.{field}"),
                message: format!(
                    "listener {}: {kind} `{}`: {why}",
                    listener.name, reference.name
                ),
            });
        }
    }
}

fn references_of(tls: &ListenerTlsSpec) -> impl Iterator<Item = (String, &str, &ObjectRef)> {
    let certificates = tls.certificate_refs.iter().enumerate();
    let certificates = certificates.map(|(i, r)| (format!("certificateRefs[{i}]"), "Secret", r));
    let validation = tls.frontend_validation.iter();
    let roots = validation.flat_map(|v| v.ca_certificate_refs.iter().enumerate());
    certificates.chain(roots.map(|(i, r)| {
        let field = format!("frontendValidation.caCertificateRefs[{i}]");
        (field, r.kind.as_deref().unwrap_or("ConfigMap"), r)
    }))
}

type Found = Result<(), (&'static str, Severity, String)>;

fn absent(key: &str) -> (&'static str, Severity, String) {
    let why = format!("it does not exist, or has no `{key}`; the listener is not served");
    (NO_TEXT, Severity::Warning, why)
}

fn pair(texts: &Texts<'_>, reference: &ObjectRef, now: SystemTime) -> Found {
    let part = |key| {
        texts
            .text("Secret", reference, key)
            .ok_or_else(|| absent(key))
    };
    let (chain, key) = (part("tls.crt")?, part("tls.key")?);
    let until = check_pair(&chain, &key).map_err(|why| (UNUSABLE, Severity::Error, why))?;
    match expired(until, now) {
        None => Ok(()),
        Some(why) => Err((EXPIRED, Severity::Warning, why)),
    }
}

/// Says that a certificate has expired; `None`: it has not.
pub fn expired(until: SystemTime, now: SystemTime) -> Option<String> {
    (until <= now).then(|| {
        format!(
            "the certificate expired on {}; clients refuse it. Replace it",
            tulle_tls::time_text(until)
        )
    })
}

fn roots(texts: &Texts<'_>, kind: &str, reference: &ObjectRef) -> Found {
    let text = texts.text(kind, reference, "ca.crt");
    let text = text.ok_or_else(|| absent("ca.crt"))?;
    let lists = texts.text(kind, reference, "ca.crl");
    check_roots(&text, lists.as_deref()).map_err(|why| (UNUSABLE, Severity::Error, why))
}

/// Checks a chain and its key as a Secret has them; returns when the server's own certificate expires.
///
/// # Errors
/// A listener cannot present them; the text names `tls.crt` or `tls.key` and shows nothing of them.
pub fn check_pair(chain: &str, key: &str) -> Result<SystemTime, String> {
    outside::check(chain, key).map_err(|error| match error {
        OutsideError::Chain(_, why) => format!(
            "tls.crt cannot be used: {why}; it must be certificates in PEM, the server's own first"
        ),
        OutsideError::Key(_, why) => {
            format!("tls.key cannot be used: {why}; it must be an unencrypted key in PEM")
        }
        OutsideError::KeyMismatch(_) => {
            "tls.key does not belong to tls.crt; replace both together".into()
        }
        other => other.to_string(),
    })
}

/// Joins certificates of authorities with the revocation lists beside them: proxies take one text.
pub(super) fn with_lists(mut roots: String, lists: Option<&str>) -> String {
    if let Some(lists) = lists {
        roots.push('\n');
        roots.push_str(lists);
    }
    roots
}

/// Checks authorities of clients as a ConfigMap or Secret has them, with their revocation lists.
///
/// # Errors
/// A listener cannot believe them; the text names `ca.crt` or `ca.crl` and shows nothing of it.
pub fn check_roots(roots: &str, lists: Option<&str>) -> Result<(), String> {
    if lists.is_some_and(|lists| !lists.contains("-----BEGIN X509 CRL-----")) {
        return Err("ca.crl cannot be used: there is no revocation list in PEM in it".into());
    }
    let all = with_lists(roots.to_owned(), lists);
    outside::check_roots(&all).map_err(|error| match error {
        OutsideError::Roots(why) => format!("ca.crt cannot be used: {why}"),
        OutsideError::RevocationList(..) => format!("ca.crl cannot be used: {error}"),
        other => format!("ca.crt cannot be used: {other}"),
    })
}
