//! The controller as commands reach it: gRPC over a Unix socket that only its owner can open.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_proxy::control::dial::{self, Stream};

/// Answers with all objects of a large mesh fit.
const LONGEST_MESSAGE: usize = 64 << 20;

/// The objects service.
pub(crate) type Objects = ObjectsClient<Channel>;

/// A client that connects when it is first used, and again whenever the connection broke.
pub(crate) fn lazy(socket: &Path) -> Objects {
    let socket: PathBuf = socket.to_owned();
    let connect = dial::connector(move || {
        let socket = socket.clone();
        async move { Ok(Box::new(UnixStream::connect(socket).await?) as Box<dyn Stream>) }
    });
    // The address is never looked up; HTTP/2 wants one for its `:authority`.
    objects_over(Endpoint::from_static("http://controller").connect_with_connector_lazy(connect))
}

/// The objects service over any connection.
pub(crate) fn objects_over(channel: Channel) -> Objects {
    ObjectsClient::new(channel)
        .max_decoding_message_size(LONGEST_MESSAGE)
        .max_encoding_message_size(LONGEST_MESSAGE)
}

/// A refusal or failure of the controller, in words.
pub(crate) fn failure(what: impl Into<String>, status: &Status) -> Failure {
    match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::AlreadyExists => {
            Failure::input(what).because(status.message())
        }
        Code::NotFound => Failure::new(what).because(status.message()),
        Code::Unavailable | Code::Unknown => Failure::new(what)
            .because(deepest(status))
            .fix("`tulle status` shows whether the controller runs, `tulle check` what is wrong"),
        _ => Failure::new(what).because(status.message()),
    }
}

/// Whether no controller has answered.
pub(crate) fn is_away(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

/// tonic says "transport error"; the reason is at the end of the chain.
fn deepest(status: &Status) -> String {
    let mut error: Option<&dyn std::error::Error> = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(e) = error {
        text = e.to_string();
        error = e.source();
    }
    text
}

/// Turns an RPC's result into ours.
pub(crate) trait Rpc<T> {
    /// `what` names the action and its object.
    fn rpc(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Rpc<T> for std::result::Result<tonic::Response<T>, Status> {
    fn rpc(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map(tonic::Response::into_inner)
            .map_err(|status| failure(what(), &status))
    }
}
