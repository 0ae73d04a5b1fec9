//! Tasks that go on beside requests.

use std::pin::Pin;
use tokio::task::JoinHandle;

/// Starts a task on the runtime of this thread. All are of one type: the runtime has two and a half kilobytes of code for each type
/// of task, which is too much for what runs once, or seldom.
pub fn start<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
    tokio::spawn(task)
}
