//! Asks the API server which service account a pod's token belongs to (authentication.k8s.io/v1,
//! TokenReview).

use crate::names::AUDIENCE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use tulle_control::cluster::{Account, Accounts, ReviewError, ReviewFuture};

/// Longest token that is passed on; one has about 1,200 bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// Asks the API server.
pub struct TokenReviews(pub Client);

impl Accounts for TokenReviews {
    fn review(&self, token: String) -> ReviewFuture {
        let client = self.0.clone();
        Box::pin(async move {
            if token.len() > MAX_TOKEN {
                return Err(ReviewError::Refused("it is longer than 16 KiB".into()));
            }
            let review = TokenReview {
                spec: TokenReviewSpec {
                    token: Some(token),
                    audiences: Some(vec![AUDIENCE.into()]),
                },
                ..Default::default()
            };
            let api: Api<TokenReview> = Api::all(client);
            let answer = api.create(&PostParams::default(), &review).await;
            let answer = answer.map_err(|e| ReviewError::Unavailable(e.to_string()))?;
            account(answer.status.unwrap_or_default())
        })
    }
}

fn account(status: TokenReviewStatus) -> Result<Account, ReviewError> {
    let refused = |why: &str| Err(ReviewError::Refused(why.to_owned()));
    if status.authenticated != Some(true) {
        let why = status.error.filter(|why| !why.is_empty());
        return refused(why.as_deref().unwrap_or("it is not valid"));
    }
    // An API server without support for audiences accepts a token for any audience.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.iter().any(|a| a == AUDIENCE) {
        return refused("it was not made for this mesh");
    }
    let user = status
        .user
        .and_then(|user| user.username)
        .unwrap_or_default();
    let account = user.strip_prefix("system:serviceaccount:");
    match account.and_then(|account| account.split_once(':')) {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Account {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => refused("it is not a service account's"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(authenticated: bool, audiences: &[&str], user: &str) -> Result<Account, ReviewError> {
        let status = json!({
            "authenticated": authenticated, "audiences": audiences, "user": {"username": user},
        });
        account(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn only_a_service_account_for_this_mesh() {
        let user = "system:serviceaccount:shop:web";
        let account = said(true, &["tulle.dev"], user).unwrap();
        assert_eq!(
            (account.namespace.as_str(), account.name.as_str()),
            ("shop", "web")
        );
        for (authenticated, audiences, user) in [
            (false, ["tulle.dev"].as_slice(), user),
            (true, &[], user),
            (true, &["https://kubernetes.default.svc"], user),
            (true, &["tulle.dev"], "system:node:node1"),
            (true, &["tulle.dev"], "system:serviceaccount:shop"),
            (true, &["tulle.dev"], "system:serviceaccount::web"),
            (true, &["tulle.dev"], "admin"),
        ] {
            assert!(
                said(authenticated, audiences, user).is_err(),
                "{audiences:?} {user}"
            );
        }
    }
}
