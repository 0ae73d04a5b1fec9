//! The host's subscription at the controller.

use super::HostServices;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tulle_api::v1;
use tulle_api::v1::config_client::ConfigClient;

/// The first wait before another try, and the longest.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// The wait after a refusal: a controller of an earlier version tells hosts of no services.
const REFUSED: Duration = Duration::from_mins(5);
/// How long proxies wait for the next subscription before they look to the controller: what they say then costs more.
const MOMENT: Duration = Duration::from_secs(2);
/// Longest update, as of proxies.
pub(super) const MAX_UPDATE_BYTES: usize = 64 << 20;

/// Whatever ends the subscriptions, proxies do not count on them any more.
struct Ended<'a>(&'a HostServices);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set_session(0);
    }
}

impl HostServices {
    /// Keeps a subscription at the controller once a proxy is there, for ever. Where there is none for more than a moment,
    /// proxies look to the controller. After one that failed this waits for a while, and then for `there`: that the
    /// controller answers.
    pub async fn follow(&self, channel: Channel, there: impl AsyncFn()) -> Infallible {
        self.attached.notified().await;
        let _ended = Ended(self);
        let mut wait = FIRST;
        let mut number = 0;
        let mut known = String::new();
        loop {
            number += 1;
            let began = Instant::now();
            let mut listening = pin!(self.listen(channel.clone(), number));
            let Err(ended) = tokio::select! {
                ended = &mut listening => ended,
                () = sleep(MOMENT) => {
                    if *self.session.borrow() != number {
                        self.set_session(0);
                    }
                    listening.await
                }
            };
            if *self.session.borrow() == number {
                // The certificate was renewed, or the controller is another: most likely it answers at once.
                wait = match began.elapsed() > LONGEST {
                    true => FIRST,
                    false => (wait * 2).min(LONGEST),
                };
                if wait > MOMENT {
                    self.set_session(0);
                }
                known.clear();
                sleep(wait).await;
                continue;
            }
            self.set_session(0);
            wait = match ended.code() {
                Code::PermissionDenied | Code::Unimplemented => REFUSED,
                _ => (wait * 2).min(LONGEST),
            };
            let reason = ended.message();
            if known != reason {
                tracing::info!(reason, retry_in = ?wait, "sidecars get services of the controller");
                reason.clone_into(&mut known);
            }
            sleep(wait).await;
            there().await;
        }
    }

    /// Notes the session that tells of changes; whether it is another one.
    fn set_session(&self, number: u64) -> bool {
        self.session
            .send_if_modified(|known| std::mem::replace(known, number) != number)
    }

    /// One subscription. Proxies count on it once all is there that has changed since the last one.
    async fn listen(&self, channel: Channel, number: u64) -> Result<Infallible, Status> {
        let mut client = ConfigClient::new(channel).max_decoding_message_size(MAX_UPDATE_BYTES);
        let (requests, stream) = mpsc::channel(1);
        let ended = || Status::unavailable("the subscription has ended");
        // The channel has room for the first one.
        let _ = requests.try_send(self.first_request());
        let updates = client.subscribe(ReceiverStream::new(stream)).await?;
        let mut updates = updates.into_inner();
        loop {
            let request = tokio::select! {
                update = updates.message() => {
                    let update = update?.ok_or_else(ended)?;
                    let more = update.more;
                    let ack = self.take(update);
                    if !more && self.set_session(number) {
                        tracing::info!("sidecars get services of this host's own subscription");
                    }
                    let ack = Some(ack);
                    v1::SubscribeRequest { ack, ..Default::default() }
                }
                () = self.changed.notified() => match self.next_request() {
                    Some(request) => request,
                    None => continue,
                },
            };
            requests.send(request).await.map_err(|_| ended())?;
        }
    }
}
