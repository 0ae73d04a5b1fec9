//! Calls under way: what each is about, what it wishes for, and what it answered.

use crate::failure::{FailureCause, ScriptFailure};
use crate::head::Head;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// The highest number of a call.
const LAST: u32 = (1 << 29) - 1;

/// Names a call of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub(crate) u32);

/// Names a wish of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WishId(pub(crate) u32);

/// One end of a request.
#[derive(Debug, Clone, Default)]
pub struct Party {
    /// SPIFFE id; empty: none.
    pub identity: String,
    /// Namespace; empty: not known.
    pub namespace: String,
    /// Service; empty: not known.
    pub service: String,
    /// Address; empty: not known.
    pub address: String,
}

/// The request that a call is about.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// The request's head.
    pub request: Head,
    /// Whether the request has a body.
    pub has_body: bool,
    /// The response's head, once there is one.
    pub response: Option<Head>,
    /// The caller.
    pub source: Party,
    /// The destination.
    pub destination: Party,
    /// Backends among which it may choose: `service:port`. In a cluster the service has its namespace, which scripts may leave
    /// out.
    pub backends: Vec<String>,
}

impl Subject {
    /// A request with nothing else known.
    pub fn new(request: Head) -> Self {
        Self {
            request,
            ..Self::default()
        }
    }
}

/// An answer in place of the upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScriptAnswer {
    /// Status.
    pub status: u16,
    /// Fields: names in lower case.
    pub fields: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Something that a call waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Its name, for [`crate::ScriptEngine::settle`].
    pub id: WishId,
    /// Its kind.
    pub kind: WishKind,
}

/// Kinds of wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WishKind {
    /// So much time passes.
    Timer(Duration),
    /// A request through the mesh.
    Fetch {
        /// `service:port`, then the path.
        target: String,
        /// Method.
        method: String,
        /// Fields: names in lower case.
        fields: Vec<(String, String)>,
        /// Body.
        body: Vec<u8>,
        /// How long it may take.
        timeout: Duration,
    },
}

impl WishKind {
    /// Bytes that it holds until it is settled.
    fn bytes(&self) -> usize {
        match self {
            Self::Timer(_) => 0,
            Self::Fetch {
                target,
                method,
                fields,
                body,
                timeout: _,
            } => {
                let fields = fields.iter().map(|(name, value)| name.len() + value.len());
                target.len() + method.len() + body.len() + fields.sum::<usize>()
            }
        }
    }
}

/// A call under way.
#[derive(Default)]
pub(crate) struct Call {
    pub(crate) subject: Subject,
    /// CPU time it has taken.
    pub(crate) taken: Duration,
    /// Whether the prelude may hold its context.
    pub(crate) has_context: bool,
    /// Wishes of this turn.
    pub(crate) wishes: Vec<Wish>,
    /// Wishes that are not settled, and their bytes.
    pub(crate) waiting: Vec<(WishId, usize)>,
    /// The body that the next hook sees.
    pub(crate) body: Vec<u8>,
    /// The body that the last hook wants instead.
    pub(crate) instead: Option<Vec<u8>>,
    /// Whether it wants to see the body of the request, and of the response, no more.
    pub(crate) skips: [bool; 2],
    /// Which of the backends it has chosen.
    pub(crate) backend: Option<usize>,
    /// Whether its connection may go on; `None`: it has not decided.
    pub(crate) verdict: Option<bool>,
    /// Names and values for the log.
    pub(crate) tags: Vec<(String, String)>,
    /// How the hook ended.
    pub(crate) end: Option<Result<Option<ScriptAnswer>, ScriptFailure>>,
}

/// Calls of an engine. What a script does is done to the call whose turn it is, or to one that it names.
#[derive(Default)]
pub(crate) struct Calls {
    calls: RefCell<BTreeMap<u32, Box<Call>>>,
    /// Bytes that wishes of all calls may have yet.
    room: Cell<usize>,
    last: Cell<u32>,
    last_wish: Cell<u32>,
    /// The call whose turn it is.
    pub(crate) current: Cell<u32>,
    /// Counters of the plugin, by name.
    pub(crate) counts: RefCell<BTreeMap<String, u64>>,
}

impl Calls {
    /// None yet. `room`: bytes that their wishes may have.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            room: Cell::new(room),
            ..Self::default()
        }
    }

    pub(crate) fn begin(&self, subject: Subject, most: usize) -> Result<CallId, ScriptFailure> {
        let mut calls = self.calls.borrow_mut();
        if calls.len() >= most {
            let text = format!("{most} calls of the plugin are under way");
            return Err(ScriptFailure::new(FailureCause::Busy, text));
        }
        let mut id = self.last.get();
        loop {
            // 0 is none, and twice the last one a small integer of the engine.
            id = (id % LAST) + 1;
            if !calls.contains_key(&id) {
                break;
            }
        }
        self.last.set(id);
        let call = Call {
            subject,
            ..Call::default()
        };
        calls.insert(id, Box::new(call));
        Ok(CallId(id))
    }

    pub(crate) fn end(&self, id: CallId) -> Option<Box<Call>> {
        let ended = self.calls.borrow_mut().remove(&id.0)?;
        let bytes = ended.waiting.iter().map(|(_, bytes)| bytes).sum::<usize>();
        self.room.update(|room| room + bytes);
        Some(ended)
    }

    /// Takes a wish away that is granted; false: the call did not wait for it.
    pub(crate) fn granted(&self, call: CallId, wish: WishId) -> bool {
        let taken = self.with(call.0, |call| {
            let at = call.waiting.iter().position(|(other, _)| *other == wish)?;
            Some(call.waiting.remove(at).1)
        });
        let Some(bytes) = taken.flatten() else {
            return false;
        };
        self.room.update(|room| room + bytes);
        true
    }

    /// Does something with a call; `None`: it has ended.
    pub(crate) fn with<R>(&self, id: u32, then: impl FnOnce(&mut Call) -> R) -> Option<R> {
        self.calls.borrow_mut().get_mut(&id).map(|call| then(call))
    }

    /// Notes a wish of the call whose turn it is.
    pub(crate) fn wish(&self, kind: WishKind, most: usize) -> Result<WishId, String> {
        let id = WishId(self.last_wish.get().wrapping_add(1));
        let bytes = kind.bytes();
        let room = self.room.get().checked_sub(bytes);
        let noted = self.with(self.current.get(), |call| {
            if call.waiting.len() >= most {
                return Err(format!("a call may wait for {most} things at once"));
            }
            let Some(room) = room else {
                return Err(
                    "requests that are under way have as many bytes as limits.memory".into(),
                );
            };
            self.room.set(room);
            call.waiting.push((id, bytes));
            call.wishes.push(Wish { id, kind });
            Ok(id)
        });
        self.last_wish.set(id.0);
        noted.unwrap_or_else(|| Err("there is no request that waits".to_owned()))
    }
}
