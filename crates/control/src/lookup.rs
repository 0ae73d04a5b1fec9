//! Look-ups of names, which the C library makes on blocking threads.
//!
//! The controller has four of these threads, and also signs certificates and writes to the disk on them. The C
//! library may take half a minute for one name. So each purpose has places of its own, and all of them together
//! leave a thread to others.

use std::net::{SocketAddr, ToSocketAddrs};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Names of key sets. Whoever writes an Authentication chooses them.
pub(crate) static KEY_SETS: LookupPlaces = LookupPlaces(Semaphore::const_new(2));
/// The name of an issuer of certificates. It has a place of its own: names of key sets must not keep
/// certificates from sidecars.
pub static ISSUER: LookupPlaces = LookupPlaces(Semaphore::const_new(1));

/// Places for look-ups.
#[derive(Debug)]
pub struct LookupPlaces(Semaphore);

impl LookupPlaces {
    /// Returns the addresses of a host.
    ///
    /// # Errors
    /// The host cannot be looked up.
    pub async fn resolve(&'static self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let name = host.to_owned();
        let look = move || (name.as_str(), port).to_socket_addrs();
        let found = self.run(look).await?;
        let found = found.map_err(|e| format!("{host} cannot be resolved: {e}"))?;
        Ok(found.collect())
    }

    /// Looks something up where there is room. Whoever no longer waits leaves its thread at work, which counts until
    /// it ends.
    ///
    /// # Errors
    /// The look-up panicked.
    pub async fn run<T: Send + 'static>(
        &'static self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let permit = self.0.acquire().await.map_err(|e| e.to_string())?;
        let looking = spawn_blocking(move || {
            let _permit = permit;
            look()
        });
        looking.await.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;
    use tokio::time::timeout;

    #[test]
    fn names_that_nobody_answers_for_leave_threads_to_others() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.max_blocking_threads(4).enable_all().build();
        let (answer, asked) = mpsc::channel::<()>();
        let asked = Arc::new(Mutex::new(asked));
        runtime.unwrap().block_on(async {
            for lookups in [&KEY_SETS, &ISSUER].repeat(8) {
                let asked = Arc::clone(&asked);
                let look = lookups.run(move || drop(asked.lock().map(|asked| asked.recv())));
                let _ = timeout(Duration::from_millis(20), look).await;
            }
            let other = timeout(Duration::from_secs(20), spawn_blocking(|| "done"));
            assert_eq!(other.await.unwrap().unwrap(), "done");
            drop(answer);
            assert_eq!(KEY_SETS.run(|| 1).await, Ok(1));
            assert_eq!(ISSUER.run(|| 1).await, Ok(1));
        });
    }
}
