//! The root of the mesh: made once, kept in a Secret that all replicas read.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use tulle_control::ca::Root;

/// Its name, in the controller's namespace.
pub const SECRET: &str = "tulle-root";
const KEY: &str = "root.key.der";
const CERTIFICATE: &str = "root.crt.der";

/// Reads the root, or makes it when there is none.
///
/// # Errors
/// The API server does not answer, or the Secret holds something else.
pub async fn open(client: Client, namespace: &str) -> Result<Root, String> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let failed = |e: kube::Error| format!("Secret {namespace}/{SECRET}: {e}");
    if let Some(secret) = api.get_opt(SECRET).await.map_err(failed)? {
        return read(&secret);
    }
    let made = Root::generate().map_err(|e| e.to_string())?;
    let data = BTreeMap::from([
        (KEY.to_owned(), ByteString(made.key.clone())),
        (CERTIFICATE.to_owned(), ByteString(made.certificate.clone())),
    ]);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.into()),
            ..Default::default()
        },
        data: Some(data),
        type_: Some("tulle.dev/root".into()),
        ..Default::default()
    };
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(made),
        // Another replica was first.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            read(&api.get(SECRET).await.map_err(failed)?)
        }
        Err(error) => Err(failed(error)),
    }
}

fn read(secret: &Secret) -> Result<Root, String> {
    let bytes = |key| {
        let found = secret.data.as_ref().and_then(|data| data.get(key));
        let found = found.map(|bytes| bytes.0.clone());
        found.ok_or_else(|| {
            format!(
                "Secret {SECRET} has no {key}: it is not replaced, because no pod would trust a new \
                 root. Restore it"
            )
        })
    };
    Ok(Root {
        key: bytes(KEY)?,
        certificate: bytes(CERTIFICATE)?,
    })
}
