//! Deadlines without a timer per request.
//!
//! Each task has one slot. Arming it is a store and a compare; one sweeper per worker sleeps until
//! the earliest deadline it knows of, marks those whose time has come and wakes their tasks. A
//! deadline that is moved or cleared costs at most one early wake-up of the sweeper, not a timer
//! operation. Only arming looks at a clock, a coarse one; a deadline is at most one of its ticks late, and never early
//! unless the kernel's tick itself is late, as on a machine that stands still for a moment.

use crate::clock;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::sync::Notify;

const NEVER: u64 = u64::MAX;
/// The sweeper found that the time had come.
const EXPIRED: u64 = 0;

struct Slot {
    at: u64,
    waker: Option<Waker>,
}

/// All deadlines of a worker.
pub struct Deadlines {
    /// How late a coarse clock may be, in milliseconds, rounded up.
    tick: u64,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    /// The time at which the sweeper wakes up, in milliseconds of the monotonic clock.
    next: Cell<u64>,
    earlier: Notify,
}

impl Deadlines {
    /// An empty set.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            tick: millis(clock::tick() + Duration::from_nanos(999_999)) + 1,
            slots: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            next: Cell::new(NEVER),
            earlier: Notify::new(),
        })
    }

    /// A slot for one task.
    pub fn register(self: &Rc<Self>) -> Deadline {
        let slot = Slot {
            at: NEVER,
            waker: None,
        };
        let mut slots = self.slots.borrow_mut();
        let key = match self.free.borrow_mut().pop() {
            Some(key) => {
                slots[key] = slot;
                key
            }
            None => {
                slots.push(slot);
                slots.len() - 1
            }
        };
        Deadline {
            key,
            owner: self.clone(),
        }
    }

    /// Wakes tasks when their time has come. Runs as long as the worker.
    pub async fn sweep(self: Rc<Self>) {
        loop {
            let next = self.wake_due();
            self.next.set(next);
            if next == NEVER {
                self.earlier.notified().await;
                continue;
            }
            let left = Duration::from_millis(next).saturating_sub(clock::precise());
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    /// Wakes every task that waits with a deadline, so that it looks at the world again.
    pub fn wake_all(&self) {
        for slot in self.slots.borrow_mut().iter_mut() {
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }

    /// Wakes what is due and returns the next deadline.
    fn wake_due(&self) -> u64 {
        let now = millis(clock::precise());
        let mut next = NEVER;
        for slot in self.slots.borrow_mut().iter_mut() {
            if slot.at <= now {
                slot.at = EXPIRED;
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            } else {
                next = next.min(slot.at);
            }
        }
        next
    }
}

/// In milliseconds, at most a tick late.
fn coarse_now() -> u64 {
    millis(clock::monotonic())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER / 2)
}

/// The deadline of a task.
pub struct Deadline {
    key: usize,
    owner: Rc<Deadlines>,
}

impl Deadline {
    /// The task is to be woken `after` from now (at least 1 ms). Replaces an earlier setting.
    #[inline]
    pub fn arm(&self, after: Duration) {
        let after = millis(after).max(1).saturating_add(self.owner.tick);
        let at = coarse_now().saturating_add(after).min(NEVER - 1);
        self.owner.slots.borrow_mut()[self.key].at = at;
        if at < self.owner.next.get() {
            self.owner.next.set(at);
            self.owner.earlier.notify_one();
        }
    }

    /// Removes the deadline.
    pub fn disarm(&self) {
        self.owner.slots.borrow_mut()[self.key].at = NEVER;
    }

    /// Time left, at most a tick too long; none without a deadline.
    pub fn left(&self) -> Option<Duration> {
        let at = self.owner.slots.borrow()[self.key].at;
        let left = at.saturating_sub(coarse_now());
        (at != NEVER).then(|| Duration::from_millis(left))
    }

    /// Whether the time has come. Remembers the task to wake when it has not.
    #[inline]
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> bool {
        let mut slots = self.owner.slots.borrow_mut();
        let slot = &mut slots[self.key];
        match slot.at {
            NEVER => return false,
            EXPIRED => return true,
            _ => {}
        }
        match &slot.waker {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => slot.waker = Some(cx.waker().clone()),
        }
        false
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let mut slots = self.owner.slots.borrow_mut();
        slots[self.key] = Slot {
            at: NEVER,
            waker: None,
        };
        self.owner.free.borrow_mut().push(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    fn run<F: Future>(f: F) -> F::Output {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .build_local(Default::default())
            .unwrap();
        runtime.block_on(f)
    }

    async fn expire(deadline: &Deadline) {
        poll_fn(|cx| {
            if deadline.poll_expired(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    #[test]
    fn a_shorter_deadline_set_later_fires_first() {
        run(async {
            let deadlines = Deadlines::new();
            tokio::task::spawn_local(deadlines.clone().sweep());
            let long = deadlines.register();
            long.arm(Duration::from_secs(3600));
            tokio::task::yield_now().await;
            let short = deadlines.register();
            short.arm(Duration::from_millis(5));
            expire(&short).await;
            assert!(!poll_fn(|cx| Poll::Ready(long.poll_expired(cx))).await);
        });
    }

    #[test]
    fn none_is_early() {
        run(async {
            let deadlines = Deadlines::new();
            tokio::task::spawn_local(deadlines.clone().sweep());
            let deadline = deadlines.register();
            for ms in 1..20 {
                // Beside the same clock: how late that one is on a busy machine is the kernel's doing.
                let (start, after) = (clock::monotonic(), Duration::from_millis(ms));
                deadline.arm(after);
                expire(&deadline).await;
                let passed = clock::precise() - start;
                assert!(passed >= after + clock::tick(), "{ms} ms: {passed:?}");
            }
        });
    }

    #[test]
    fn the_time_left_is_known() {
        run(async {
            let deadlines = Deadlines::new();
            let deadline = deadlines.register();
            assert_eq!(deadline.left(), None);
            let hour = Duration::from_secs(3600);
            deadline.arm(hour);
            let left = deadline.left().unwrap();
            assert!(left > hour / 2 && left <= hour + hour / 2, "{left:?}");
        });
    }

    #[test]
    fn a_slot_is_used_again() {
        run(async {
            let deadlines = Deadlines::new();
            let first = deadlines.register();
            first.arm(Duration::from_millis(1));
            drop(first);
            let second = deadlines.register();
            assert_eq!(second.key, 0);
            assert!(!poll_fn(|cx| Poll::Ready(second.poll_expired(cx))).await);
        });
    }
}
