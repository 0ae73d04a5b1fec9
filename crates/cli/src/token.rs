//! `tulle token`: how another host gets in.

use crate::args::identity::Token;
use crate::client::{Objects, Rpc};
use crate::failure::Result;
use crate::output::{self, line};
use crate::supervise::state::{Mode, RunState};
use serde::Serialize;
use tulle_api::v1::JoinTokenRequest;

#[derive(Serialize)]
struct Made {
    token: String,
    ca_fingerprint: String,
    spiffe_id: String,
    controller: String,
}

/// Makes a token and shows the command that uses it.
pub(crate) async fn token(mut objects: Objects, state: &RunState, args: &Token) -> Result<()> {
    let Token::Create {
        identity,
        ttl,
        format,
    } = args;
    let request = JoinTokenRequest {
        identity: identity.clone(),
        ttl_seconds: u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX),
    };
    let answer = objects
        .create_join_token(request)
        .await
        .rpc(|| format!("cannot make a token for {identity}"))?;
    let made = Made {
        token: answer.token,
        ca_fingerprint: answer.ca_fingerprint,
        spiffe_id: answer.spiffe_id,
        controller: state.address_for_hosts.to_string(),
    };
    if output::structured(&made, format.output)? {
        return Ok(());
    }
    line(&format!(
        "A token for {}, to be used once within {}s. On the other host:\n",
        made.spiffe_id,
        ttl.as_secs()
    ));
    line(&format!(
        "  TULLE_TOKEN={} tulle join --controller {} --ca-fingerprint {} FILE",
        made.token, made.controller, made.ca_fingerprint
    ));
    if state.address_for_hosts.ip().is_loopback() || state.mode == Mode::Namespaces {
        line(
            "\nNo other host reaches this address. Start the mesh with\n  \
             tulle up --loopback --listen 0.0.0.0:15010 --advertise ADDRESS FILE",
        );
    }
    Ok(())
}
