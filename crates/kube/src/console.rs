//! Asks the API server whose a token is, and whether that user may look at the mesh: whoever may read the Mesh may see the
//! console.

use crate::names::CONSOLE_AUDIENCE;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::timeout;
use tulle_control::observe::Refusal;

/// Longest token that is passed on.
const MAX_TOKEN: usize = 16 * 1024;
/// Longest wait for the API server.
const TIME: Duration = Duration::from_secs(10);
/// A user must be allowed to do this with Meshes.
const VERBS: [&str; 2] = ["get", "list"];

/// Whether the controller has a console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConsoleOptions {
    /// It has one.
    pub enabled: bool,
    /// Sessions may change levels of logs, not only look.
    pub actions: bool,
}

/// Reviews the tokens of those who open the console.
#[derive(Clone)]
pub struct Visitors(pub(crate) Client);

impl std::fmt::Debug for Visitors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitors").finish_non_exhaustive()
    }
}

impl Visitors {
    /// Returns the name of a token's user, who may look at the mesh.
    ///
    /// # Errors
    /// The token is not valid, its user may not look, or the API server does not answer.
    pub async fn review(&self, token: String) -> Result<String, Refusal> {
        if token.len() > MAX_TOKEN {
            return Err(not_valid("it is longer than 16 KiB"));
        }
        let reviewed = timeout(TIME, self.user_who_may_look(token)).await;
        reviewed.unwrap_or_else(|_| Err(unavailable("it took more than ten seconds")))
    }

    async fn user_who_may_look(&self, token: String) -> Result<String, Refusal> {
        let user = self.user(token).await?;
        for verb in VERBS {
            if !self.may(&user, verb).await? {
                return Err(not_allowed(&user, verb));
            }
        }
        Ok(user.username.unwrap_or_default())
    }

    /// The user of a token that was made for the console, or for the API server itself.
    async fn user(&self, token: String) -> Result<UserInfo, Refusal> {
        let own = vec![CONSOLE_AUDIENCE.to_owned()];
        let reviewed = self.token(token.clone(), Some(own)).await?;
        if let Ok(user) = user_for(reviewed, Some(CONSOLE_AUDIENCE)) {
            return Ok(user);
        }
        user_for(self.token(token, None).await?, None)
    }

    async fn token(
        &self,
        token: String,
        audiences: Option<Vec<String>>,
    ) -> Result<TokenReviewStatus, Refusal> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token),
                audiences,
            },
            ..Default::default()
        };
        let api: Api<TokenReview> = Api::all(self.0.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| unavailable(&error.to_string()))?;
        Ok(answer.status.unwrap_or_default())
    }

    async fn may(&self, user: &UserInfo, verb: &str) -> Result<bool, Refusal> {
        let api: Api<SubjectAccessReview> = Api::all(self.0.clone());
        let review = access(user, verb);
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| unavailable(&error.to_string()))?;
        Ok(answer
            .status
            .is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

fn access(user: &UserInfo, verb: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username.clone(),
            groups: user.groups.clone(),
            uid: user.uid.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("tulle.dev".into()),
                resource: Some("meshes".into()),
                verb: Some(verb.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// The user of a reviewed token. An API server without support for audiences accepts a token for any audience, and says
/// none: such a token passes for the API server's own, and not for the console's.
fn user_for(status: TokenReviewStatus, audience: Option<&str>) -> Result<UserInfo, Refusal> {
    if status.authenticated != Some(true) {
        let why = status.error.filter(|why| !why.is_empty());
        return Err(not_valid(
            why.as_deref().unwrap_or("the API server refuses it"),
        ));
    }
    let audiences = status.audiences.unwrap_or_default();
    if audience.is_some_and(|wanted| !audiences.iter().any(|a| a == wanted)) {
        return Err(not_valid("it was made for something else"));
    }
    let user = status.user.unwrap_or_default();
    match user.username.as_deref() {
        Some(name) if !name.is_empty() => Ok(user),
        _ => Err(not_valid("it names no user")),
    }
}

fn not_valid(why: &str) -> Refusal {
    Refusal {
        code: "no_session",
        message: format!("the token is not valid: {why}"),
        fix: "log in to the cluster again, then run `tulle dashboard`".into(),
        status: 401,
    }
}

fn not_allowed(user: &UserInfo, verb: &str) -> Refusal {
    let name = user.username.as_deref().unwrap_or_default();
    Refusal {
        code: "not_allowed",
        message: format!("{name} may not {verb} meshes.tulle.dev"),
        fix: "ask the cluster's administrator for `get` and `list` of meshes.tulle.dev".into(),
        status: 403,
    }
}

fn unavailable(why: &str) -> Refusal {
    Refusal {
        code: "unavailable",
        message: format!("the API server cannot be asked about the token: {why}"),
        fix: "try again; the controller's log may say more".into(),
        status: 503,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(authenticated: bool, audiences: &[&str], user: &str) -> TokenReviewStatus {
        let status = json!({
            "authenticated": authenticated, "audiences": audiences,
            "user": { "username": user, "groups": ["a"], "extra": { "b": ["c"] } },
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn only_a_valid_token_for_the_console_passes_as_one() {
        let own = Some(CONSOLE_AUDIENCE);
        let found = user_for(status(true, &[CONSOLE_AUDIENCE], "u"), own).unwrap();
        assert_eq!(found.username.as_deref(), Some("u"));
        for (authenticated, audiences, user) in [
            (false, [CONSOLE_AUDIENCE].as_slice(), "u"),
            (true, &[], "u"),
            (true, &["tulle.dev"], "u"),
            (true, &[CONSOLE_AUDIENCE], ""),
        ] {
            let why = user_for(status(authenticated, audiences, user), own).unwrap_err();
            assert_eq!((why.status, why.code), (401, "no_session"));
        }
        assert!(user_for(status(true, &["https://kubernetes"], "u"), None).is_ok());
        assert!(user_for(status(false, &[], "u"), None).is_err());
    }

    #[test]
    fn all_that_is_known_of_a_user_is_asked_about() {
        let user = user_for(status(true, &[], "u"), None).unwrap();
        let asked = json!(access(&user, "list"));
        assert_eq!(asked["spec"]["user"], "u");
        assert_eq!(asked["spec"]["groups"], json!(["a"]));
        assert_eq!(asked["spec"]["extra"], json!({ "b": ["c"] }));
        let attributes = json!({ "group": "tulle.dev", "resource": "meshes", "verb": "list" });
        assert_eq!(asked["spec"]["resourceAttributes"], attributes);
    }
}
