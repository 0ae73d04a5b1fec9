//! One-time codes, and the sessions that they are exchanged for: these say who is let in.
//!
//! Codes and cookies are random, and only their hashes are kept. A code lives a minute and serves once; a session lives
//! twelve hours. The oldest gives way where there are too many, because whoever may make one may open another.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// Lifetime of a code.
pub(crate) const CODE_LIFETIME: Duration = Duration::from_secs(60);
/// Lifetime of a session.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Most codes that wait to be used.
const MAX_CODES: usize = 64;
/// Most sessions.
pub(crate) const MAX_SESSIONS: usize = 64;
/// Most streams of one session.
pub(crate) const STREAMS_OF_SESSION: usize = 20;
/// Bytes of a code: 128 bits.
const CODE: usize = 16;
/// Bytes of a cookie.
const COOKIE: usize = 32;

/// Time that only goes on. Tests have one of their own.
#[derive(Clone)]
pub struct ConsoleClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl ConsoleClock {
    /// A clock that shows what this function says.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for ConsoleClock {
    fn default() -> Self {
        let begin = Instant::now();
        Self::new(move || begin.elapsed())
    }
}

impl fmt::Debug for ConsoleClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConsoleClock").field(&self.now()).finish()
    }
}

type Digest = [u8; 32];

struct Code {
    digest: Digest,
    user: Arc<str>,
    until: Duration,
}

struct Session {
    digest: Digest,
    user: Arc<str>,
    csrf: Arc<str>,
    until: Duration,
    streams: Arc<Semaphore>,
    /// Dropped with the session, which ends its streams.
    alive: watch::Sender<()>,
}

#[derive(Default)]
struct Held {
    codes: Vec<Code>,
    sessions: Vec<Session>,
}

/// All codes and sessions.
#[derive(Clone)]
pub(crate) struct Sessions {
    held: Arc<Mutex<Held>>,
    clock: ConsoleClock,
}

/// A session that is in force.
#[derive(Clone)]
pub(crate) struct SessionView {
    /// The user who opened it.
    pub(crate) user: Arc<str>,
    /// The token that actions carry.
    pub(crate) csrf: Arc<str>,
    /// Places for streams.
    pub(crate) streams: Arc<Semaphore>,
    until: Duration,
    alive: watch::Receiver<()>,
    clock: ConsoleClock,
}

impl SessionView {
    /// When it ends, in Unix seconds.
    pub(crate) fn expires_at(&self) -> u64 {
        let left = self.until.saturating_sub(self.clock.now());
        let end = SystemTime::now() + left;
        end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Whether its time is over, or it has given way to another.
    pub(crate) fn has_ended(&self) -> bool {
        self.clock.now() >= self.until || self.alive.has_changed().is_err()
    }

    /// Whether this is its token for actions.
    pub(crate) fn allows(&self, csrf: &str) -> bool {
        verify_slices_are_equal(self.csrf.as_bytes(), csrf.as_bytes()).is_ok()
    }
}

/// The system has no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRandom;

impl Sessions {
    pub(crate) fn new(clock: ConsoleClock) -> Self {
        Self {
            held: Arc::default(),
            clock,
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a code with which this user opens a session.
    pub(crate) fn code(&self, user: &str) -> Result<String, NoRandom> {
        let code = random::<CODE>()?;
        let now = self.clock.now();
        let mut held = self.held();
        held.codes.retain(|code| now < code.until);
        make_room(&mut held.codes, MAX_CODES);
        held.codes.push(Code {
            digest: hash(&code),
            user: user.into(),
            until: now + CODE_LIFETIME,
        });
        Ok(code)
    }

    /// Opens the session of a code and returns its cookie; none: nobody has made this code, it was used, or it is too
    /// old.
    pub(crate) fn open(&self, code: &str) -> Result<Option<String>, NoRandom> {
        let (cookie, csrf) = (random::<COOKIE>()?, random::<CODE>()?);
        let (digest, now) = (hash(code), self.clock.now());
        let mut held = self.held();
        held.codes.retain(|code| now < code.until);
        let Some(at) = held.codes.iter().position(|c| equal(&c.digest, &digest)) else {
            return Ok(None);
        };
        let user = held.codes.remove(at).user;
        held.sessions.retain(|session| now < session.until);
        make_room(&mut held.sessions, MAX_SESSIONS);
        held.sessions.push(Session {
            digest: hash(&cookie),
            user,
            csrf: csrf.into(),
            until: now + SESSION_LIFETIME,
            streams: Arc::new(Semaphore::new(STREAMS_OF_SESSION)),
            alive: watch::Sender::new(()),
        });
        Ok(Some(cookie))
    }

    /// The session of a cookie.
    pub(crate) fn find(&self, cookie: &str) -> Option<SessionView> {
        let (digest, now) = (hash(cookie), self.clock.now());
        let mut held = self.held();
        held.sessions.retain(|session| now < session.until);
        let mut all = held.sessions.iter();
        let session = all.find(|session| equal(&session.digest, &digest));
        session.map(|session| SessionView {
            user: session.user.clone(),
            csrf: session.csrf.clone(),
            streams: session.streams.clone(),
            until: session.until,
            alive: session.alive.subscribe(),
            clock: self.clock.clone(),
        })
    }
}

/// The first are the oldest.
fn make_room<T>(all: &mut Vec<T>, most: usize) {
    if all.len() >= most {
        all.drain(..=all.len() - most);
    }
}

fn random<const N: usize>() -> Result<String, NoRandom> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn hash(text: &str) -> Digest {
    let mut out = Digest::default();
    // SHA-256 has as many bytes.
    out.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    out
}

fn equal(one: &Digest, other: &Digest) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn sessions() -> (Sessions, Arc<AtomicU64>) {
        let seconds = Arc::<AtomicU64>::default();
        let shown = seconds.clone();
        let clock = ConsoleClock::new(move || Duration::from_secs(shown.load(Ordering::Relaxed)));
        (Sessions::new(clock), seconds)
    }

    #[test]
    fn a_code_serves_once() {
        let (sessions, _) = sessions();
        let code = sessions.code("root").unwrap();
        assert_eq!(code.len(), 22, "128 bits");
        assert!(sessions.open("").unwrap().is_none());
        assert!(sessions.open(&code[1..]).unwrap().is_none());
        let cookie = sessions.open(&code).unwrap().unwrap();
        assert!(sessions.open(&code).unwrap().is_none(), "used");
        assert_eq!(&*sessions.find(&cookie).unwrap().user, "root");
        assert!(sessions.find(&code).is_none(), "a code is no cookie");
        assert!(sessions.open(&cookie).unwrap().is_none());
    }

    #[test]
    fn a_code_lives_a_minute_and_a_session_twelve_hours() {
        let (sessions, clock) = sessions();
        let (old, other) = (sessions.code("a").unwrap(), sessions.code("b").unwrap());
        clock.store(59, Ordering::Relaxed);
        let cookie = sessions.open(&other).unwrap().unwrap();
        clock.store(60, Ordering::Relaxed);
        assert!(sessions.open(&old).unwrap().is_none());
        let view = sessions.find(&cookie).unwrap();
        clock.store(59 + 12 * 3600 - 1, Ordering::Relaxed);
        assert!(!view.has_ended() && sessions.find(&cookie).is_some());
        clock.store(59 + 12 * 3600, Ordering::Relaxed);
        assert!(view.has_ended() && sessions.find(&cookie).is_none());
    }

    #[test]
    fn the_oldest_gives_way() {
        let (sessions, _) = sessions();
        let open = || {
            let code = sessions.code("root").unwrap();
            sessions.open(&code).unwrap().unwrap()
        };
        let first = open();
        let view = sessions.find(&first).unwrap();
        let others: Vec<String> = (1..MAX_SESSIONS).map(|_| open()).collect();
        assert!(!view.has_ended());
        let last = open();
        assert!(sessions.find(&first).is_none() && view.has_ended());
        assert!(others.iter().all(|cookie| sessions.find(cookie).is_some()));
        assert!(sessions.find(&last).is_some());

        let unused = sessions.code("root").unwrap();
        (0..MAX_CODES).for_each(|_| drop(sessions.code("root")));
        assert!(sessions.open(&unused).unwrap().is_none());
        assert_eq!(sessions.held().codes.len(), MAX_CODES);
    }

    #[test]
    fn tokens_of_actions_are_a_sessions_own() {
        let (sessions, _) = sessions();
        let view = || {
            let code = sessions.code("root").unwrap();
            let cookie = sessions.open(&code).unwrap().unwrap();
            sessions.find(&cookie).unwrap()
        };
        let (one, other) = (view(), view());
        assert!(one.allows(&one.csrf) && !one.allows(&other.csrf));
        assert!(!one.allows("") && !one.allows(&one.csrf[1..]));
    }
}
