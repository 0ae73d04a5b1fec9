//! Streams of server-sent events: their form, how many there are, and their end.
//!
//! A browser that takes too little is told so and cut; whoever makes the events never waits for it.

use crate::response::{Answer, AnswerBody, refusal, response};
use crate::sessions::{STREAMS_OF_SESSION, SessionView};
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, interval_at, timeout};
use tulle_control::observe::Refusal;
use tulle_net::places::{HeldPlace, Stage};

/// Streams of all sessions.
pub(crate) const MAX_STREAMS: usize = 64;
/// Longest wait for a browser that takes nothing.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });
/// Between two signs of life, each of which also asks whether the session has ended.
const BEAT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });
/// Frames on their way to a connection.
const QUEUE: usize = 2;

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    SessionExpired,
    Shutdown,
    Slow,
    /// There is nothing more to tell.
    Finished,
}

impl End {
    fn frame(self) -> Bytes {
        let reason = match self {
            Self::SessionExpired => "session_expired",
            Self::Shutdown => "shutdown",
            Self::Slow => "slow",
            Self::Finished => "finished",
        };
        Bytes::from(format!("event: end\ndata: {{\"reason\":\"{reason}\"}}\n\n"))
    }
}

/// The next thing of a source of events.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// One or several events.
    Frame(Bytes),
    /// Its end.
    End(End),
}

/// A source of events.
pub(crate) trait Source: Send + 'static {
    /// Waits for what comes next. Nothing is lost if the wait is given up.
    fn next(&mut self) -> impl Future<Output = Next> + Send;
}

/// Adds an event to a frame.
pub(crate) fn event(frame: &mut String, id: u64, name: &str, data: &impl Serialize) {
    match serde_json::to_string(data) {
        // JSON has no line breaks of its own here. Writing to memory does not fail.
        Ok(json) => drop(write!(frame, "id: {id}\nevent: {name}\ndata: {json}\n\n")),
        Err(error) => tracing::error!(%error, name, "an event of the console is no JSON"),
    }
}

/// Places of a stream; dropping them gives them back.
struct StreamPlaces {
    _all: OwnedSemaphorePermit,
    _session: OwnedSemaphorePermit,
    /// The connection's, which nobody takes while the stream is open.
    connection: Arc<HeldPlace>,
}

impl Drop for StreamPlaces {
    fn drop(&mut self) {
        self.connection.reach(Stage::Silent);
    }
}

/// All streams of the console.
#[derive(Clone)]
pub(crate) struct Streams {
    places: Arc<Semaphore>,
    down: watch::Receiver<bool>,
}

impl Streams {
    pub(crate) fn new(down: watch::Receiver<bool>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            down,
        }
    }

    /// Answers with the events of a source.
    ///
    /// # Errors
    /// There are too many streams.
    pub(crate) fn open<S: Source>(
        &self,
        session: &SessionView,
        connection: &Arc<HeldPlace>,
        source: impl FnOnce() -> Result<S, Refusal>,
    ) -> Result<Answer, Refusal> {
        let take = |places: &Arc<Semaphore>, most: usize, whose: &str| {
            places.clone().try_acquire_owned().map_err(|_| {
                refusal(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too_many_streams",
                    format!("{whose} has {most} streams already"),
                    "close other tabs of the console",
                )
            })
        };
        let own = take(&session.streams, STREAMS_OF_SESSION, "this session")?;
        let all = take(&self.places, MAX_STREAMS, "the console")?;
        let source = source()?;
        connection.reach(Stage::Pinned);
        let places = StreamPlaces {
            _all: all,
            _session: own,
            connection: connection.clone(),
        };
        let (frames, receiver) = mpsc::channel(QUEUE);
        let end = Arc::<OnceLock<End>>::default();
        let body = EventBody {
            frames: receiver,
            end: end.clone(),
            ended: false,
            _places: places,
        };
        let outlet = Outlet {
            frames,
            end,
            session: session.clone(),
            down: self.down.clone(),
        };
        tokio::spawn(outlet.run(source));
        let body = AnswerBody::Stream(Box::new(body));
        Ok(response(
            StatusCode::OK,
            "text/event-stream",
            "no-store",
            body,
        ))
    }
}

/// The body of a stream.
struct EventBody {
    frames: mpsc::Receiver<Bytes>,
    end: Arc<OnceLock<End>>,
    ended: bool,
    _places: StreamPlaces,
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match std::task::ready!(self.frames.poll_recv(context)) {
            Some(frame) => Some(frame),
            None if self.ended => None,
            None => {
                self.ended = true;
                self.end.get().map(|end| end.frame())
            }
        };
        Poll::Ready(next.map(|frame| Ok(Frame::data(frame))))
    }
}

/// The end of a stream into which events go.
struct Outlet {
    frames: mpsc::Sender<Bytes>,
    end: Arc<OnceLock<End>>,
    session: SessionView,
    down: watch::Receiver<bool>,
}

impl Outlet {
    async fn run(mut self, source: impl Source) {
        if let Some(end) = self.pass_on(source).await {
            // It is set once, here.
            let _ = self.end.set(end);
        }
    }

    /// Passes on what comes; none: the browser has gone.
    async fn pass_on(&mut self, mut source: impl Source) -> Option<End> {
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        loop {
            let frame = tokio::select! {
                () = self.frames.closed() => return None,
                // An error means that the console was dropped.
                _ = self.down.wait_for(|down| *down) => return Some(End::Shutdown),
                _ = beat.tick() => Bytes::from_static(b":\n\n"),
                next = source.next() => match next {
                    Next::Frame(frame) => frame,
                    Next::End(end) => return Some(end),
                },
            };
            if self.session.has_ended() {
                return Some(End::SessionExpired);
            }
            match timeout(PATIENCE, self.frames.send(frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(End::Slow),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::{ConsoleClock, Sessions};
    use http_body_util::BodyExt;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tulle_net::places::{Class, PlaceLimits, Places};

    struct Endless;

    impl Source for Endless {
        async fn next(&mut self) -> Next {
            Next::Frame(Bytes::from_static(b"data: 1\n\n"))
        }
    }

    struct Silence;

    impl Source for Silence {
        async fn next(&mut self) -> Next {
            std::future::pending().await
        }
    }

    fn place() -> Arc<HeldPlace> {
        let limits = PlaceLimits {
            all: 1,
            source: 1,
            reserved: 0,
        };
        let places = Places::new(limits);
        let taken = places.take(Ipv4Addr::LOCALHOST.into(), Class::Anyone);
        Arc::new(taken.unwrap())
    }

    fn session(sessions: &Sessions) -> SessionView {
        let code = sessions.code("root").unwrap();
        let cookie = sessions.open(&code).unwrap().unwrap();
        sessions.find(&cookie).unwrap()
    }

    async fn rest(answer: Answer) -> String {
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn who_takes_nothing_is_told_and_cut_and_holds_two_frames_meanwhile() {
        let (_down, watched) = watch::channel(false);
        let streams = Streams::new(watched);
        let sessions = Sessions::new(ConsoleClock::default());
        let session = session(&sessions);
        let answer = streams.open(&session, &place(), || Ok(Endless)).unwrap();
        tokio::time::sleep(PATIENCE * 3).await;
        let text = rest(answer).await;
        assert_eq!(text.matches("data: 1\n").count(), QUEUE, "{text}");
        assert!(
            text.ends_with("event: end\ndata: {\"reason\":\"slow\"}\n\n"),
            "{text}"
        );
        assert_eq!(streams.places.available_permits(), MAX_STREAMS);
        assert_eq!(session.streams.available_permits(), STREAMS_OF_SESSION);
    }

    #[tokio::test]
    async fn streams_end_with_the_session_and_with_the_console() {
        let (down, watched) = watch::channel(false);
        let streams = Streams::new(watched);
        let seconds = Arc::<AtomicU64>::default();
        let shown = seconds.clone();
        let clock = ConsoleClock::new(move || Duration::from_secs(shown.load(Ordering::Relaxed)));
        let session = session(&Sessions::new(clock));
        // Its Sessions are gone, and the session with them.
        let gone = streams.open(&session, &place(), || Ok(Silence)).unwrap();
        assert!(rest(gone).await.ends_with("\"session_expired\"}\n\n"));
        let sessions = Sessions::new(ConsoleClock::default());
        let session = self::session(&sessions);
        let answer = streams.open(&session, &place(), || Ok(Silence)).unwrap();
        down.send_replace(true);
        assert!(rest(answer).await.ends_with("\"shutdown\"}\n\n"));
    }

    #[tokio::test]
    async fn streams_of_a_session_and_of_all_are_limited() {
        let (_down, watched) = watch::channel(false);
        let streams = Streams::new(watched);
        let sessions = Sessions::new(ConsoleClock::default());
        let one = session(&sessions);
        let open = |session: &SessionView| streams.open(session, &place(), || Ok(Silence));
        let mut held: Vec<Answer> = (0..STREAMS_OF_SESSION)
            .map(|_| open(&one).unwrap())
            .collect();
        let why = open(&one).err().unwrap();
        assert_eq!((why.status, why.code), (429, "too_many_streams"));
        while let Ok(answer) = open(&session(&sessions)) {
            held.push(answer);
        }
        assert_eq!(held.len(), MAX_STREAMS);
        held.pop();
        assert!(open(&session(&sessions)).is_ok());
    }
}
