//! How workers ask the controller for what is not in the snapshot.

use tokio::sync::mpsc;

/// Names that may wait to be subscribed to.
const QUEUE: usize = 1024;

/// Requests of workers for resources that are not in the snapshot.
#[derive(Clone)]
pub struct Lookups(mpsc::Sender<String>);

impl Lookups {
    /// Asks for a resource by name. The answer comes as a new snapshot. Asking again is harmless.
    pub fn ask(&self, name: &str) {
        // A full queue empties soon; the waiting connection asks again at the next change.
        let _ = self.0.try_send(name.to_owned());
    }
}

/// The channel between workers and the control stream.
pub fn lookups() -> (Lookups, mpsc::Receiver<String>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Lookups(sender), receiver)
}
