//! Which requests are copied for another service (`http/mirror_send.rs` sends the copies).

use super::fault::{WHOLE, hits};
use tulle_model::resource;

/// A compiled mirror: the service that gets a share of the requests as well.
pub struct Mirror {
    service: String,
    port: u16,
    ppm: u32,
}

impl Mirror {
    /// Checks a mirror.
    ///
    /// # Errors
    /// Its share is more than one.
    pub fn compile(mirror: &resource::Mirror) -> Result<Self, String> {
        if mirror.ppm > WHOLE {
            return Err(format!("a mirror's share is at most {WHOLE} millionths"));
        }
        Ok(Self {
            service: mirror.service.clone(),
            port: mirror.port,
            ppm: mirror.ppm,
        })
    }

    /// Whether it includes a request, by a random number.
    pub fn hits(&self, random: impl FnOnce() -> u64) -> bool {
        hits(random, self.ppm)
    }

    /// The port that gets them.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the service that gets the copies.
    pub fn service(&self) -> &str {
        &self.service
    }
}
