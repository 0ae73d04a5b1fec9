//! Tasks that go on beside requests.

use std::pin::Pin;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Starts a task on the runtime of this thread. All are of one type: the runtime has two and a half kilobytes of code for each type
/// of task, which is too much for what runs once, or seldom.
pub fn start<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
    tokio::spawn(task)
}

/// Waits until then, or for ever without a time.
pub async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
