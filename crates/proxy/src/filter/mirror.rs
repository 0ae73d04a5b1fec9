//! Which requests are copied for another service (`http/mirror_send.rs` sends the copies).

use super::fault::{WHOLE, hits};
use tulle_model::resource;

/// Where a share of the requests goes as well, compiled.
pub struct Mirror {
    service: String,
    port: u16,
    ppm: u32,
}

impl Mirror {
    /// Checks a mirror.
    ///
    /// # Errors
    /// Its share is more than everything.
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

    /// Who gets the copies.
    pub fn service(&self) -> &str {
        &self.service
    }
}
