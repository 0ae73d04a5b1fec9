//! Tasks of the controller.

use std::pin::Pin;
use tokio::task::JoinHandle;

/// Spawns a task that lasts. Its future is boxed: the runtime has code for each type of future, twice.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
    tokio::spawn(task)
}
