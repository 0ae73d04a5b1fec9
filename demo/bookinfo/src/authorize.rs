//! Decides about requests for a mesh (external authorization), over HTTP and gRPC on one port: lets
//! in who brings the token, and says whose it is.

use crate::grpc::{call, is_call};
use crate::http::{Body, answer, error};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use tonic::Status as Failed;
use tulle_api::ext_authz::authorization_server::{Authorization, AuthorizationServer};
use tulle_api::ext_authz::check_response::HttpResponse;
use tulle_api::ext_authz::{
    CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValue as Value, HeaderValueOption,
    HttpStatus, OkHttpResponse, Status,
};

/// Says whose the token is.
const USER: HeaderName = HeaderName::from_static("x-user");
/// `UNAUTHENTICATED` of gRPC.
const UNAUTHENTICATED: i32 = 16;
const TOLD: &str = "bring the token: Authorization: Bearer …\n";

/// The service.
pub(crate) struct Authorize {
    rule: Arc<Rule>,
    grpc: AuthorizationServer<Rule>,
}

struct Rule {
    token: String,
    user: HeaderValue,
}

impl Rule {
    fn lets_in(&self, authorization: Option<&str>) -> bool {
        authorization.and_then(|a| a.strip_prefix("Bearer ")) == Some(&self.token)
    }
}

impl Authorize {
    /// One that knows this token and its user.
    pub(crate) fn new(token: String, user: &str) -> Result<Self, String> {
        let user = HeaderValue::from_str(user).map_err(|e| format!("user {user:?}: {e}"))?;
        let rule = Arc::new(Rule { token, user });
        let grpc = AuthorizationServer::from_arc(Arc::clone(&rule));
        Ok(Self { rule, grpc })
    }
}

impl Answer for Authorize {
    const HTTP2: bool = true;

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if is_call(&request) {
            return call(&self.grpc, request).await;
        }
        let authorization = request.headers().get(AUTHORIZATION);
        if self
            .rule
            .lets_in(authorization.and_then(|a| a.to_str().ok()))
        {
            let mut response = answer(StatusCode::OK, "text/plain", "");
            response.headers_mut().insert(USER, self.rule.user.clone());
            return response;
        }
        let mut response = error(StatusCode::UNAUTHORIZED, TOLD.trim());
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }
}

fn set(name: &HeaderName, value: &str) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(Value {
            key: name.to_string(),
            value: value.into(),
            ..Value::default()
        }),
        ..HeaderValueOption::default()
    }
}

#[tonic::async_trait]
impl Authorization for Rule {
    async fn check(
        &self,
        request: tonic::Request<CheckRequest>,
    ) -> Result<tonic::Response<CheckResponse>, Failed> {
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let http = attributes.request.and_then(|r| r.http).unwrap_or_default();
        let authorization = http.headers.get(AUTHORIZATION.as_str());
        let answer = if self.lets_in(authorization.map(String::as_str)) {
            let user = self.user.to_str().unwrap_or_default();
            CheckResponse {
                status: Some(Status::default()),
                http_response: Some(HttpResponse::OkResponse(OkHttpResponse {
                    headers: vec![set(&USER, user)],
                    ..OkHttpResponse::default()
                })),
            }
        } else {
            CheckResponse {
                status: Some(Status {
                    code: UNAUTHENTICATED,
                    message: TOLD.into(),
                }),
                http_response: Some(HttpResponse::DeniedResponse(DeniedHttpResponse {
                    status: Some(HttpStatus { code: 401 }),
                    headers: vec![set(&WWW_AUTHENTICATE, "Bearer")],
                    body: TOLD.into(),
                })),
            }
        };
        Ok(tonic::Response::new(answer))
    }
}
