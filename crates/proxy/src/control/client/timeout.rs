//! The timeout of a call: a controller that hangs must not hold up this proxy.

use super::error::ControlError;
use std::time::Duration;

/// Longest wait for an answer.
const RPC_LIMIT: Duration = Duration::from_secs(10);

/// Bounds a call by `RPC_LIMIT`, so that a controller that hangs does not block us.
pub(super) async fn within<T>(
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(RPC_LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ControlError::Connect(format!(
            "no answer within {RPC_LIMIT:?}"
        ))),
    }
}
