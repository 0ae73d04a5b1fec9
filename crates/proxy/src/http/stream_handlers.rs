//! Handlers of streams, kept for the next stream: a request costs no allocation and no new task.

use crate::decision::ConnectionContext;
use crate::http::exchange;
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use tulle_net::Buf;

/// Stream handlers kept for the next stream.
const IDLE_HANDLERS: usize = 512;

thread_local! {
    /// A worker is a thread. The tasks own their mailboxes.
    static IDLE: RefCell<Vec<Weak<Mailbox>>> = const { RefCell::new(Vec::new()) };
}

/// Gives a stream of exchanges to a handler: an idle one if there is one.
pub fn handle(worker: &Rc<Worker>, stream: Link, scope: Rc<ConnectionContext>) {
    let job = (stream, scope);
    match idle() {
        Some(mailbox) => mailbox.put(job),
        None => {
            let mailbox = Rc::new(Mailbox {
                job: Cell::new(Some(job)),
                waker: Cell::default(),
            });
            tokio::task::spawn_local(handler(worker.clone(), mailbox));
        }
    }
}

fn idle() -> Option<Rc<Mailbox>> {
    IDLE.with_borrow_mut(|idle| std::iter::from_fn(|| idle.pop()).find_map(|m| m.upgrade()))
}

/// Serves streams one after another. Clients decide how many handlers wait for them, so each
/// byte of its state counts thousands of times. (An `async fn` stores each argument twice.)
#[expect(clippy::manual_async_fn, reason = "smaller")]
fn handler(worker: Rc<Worker>, mailbox: Rc<Mailbox>) -> impl Future<Output = ()> {
    async move {
        loop {
            let (stream, scope) = mailbox.take().await;
            exchange::serve(&worker, stream, Buf::new(), &scope).await;
            drop(scope);
            if !keep(&mailbox) {
                return;
            }
        }
    }
}

fn keep(mailbox: &Rc<Mailbox>) -> bool {
    IDLE.with_borrow_mut(|idle| {
        let kept = idle.len() < IDLE_HANDLERS;
        if kept {
            idle.push(Rc::downgrade(mailbox));
        }
        kept
    })
}

type Job = (Link, Rc<ConnectionContext>);

/// Delivers the next stream to a handler.
struct Mailbox {
    job: Cell<Option<Job>>,
    waker: Cell<Option<Waker>>,
}

impl Mailbox {
    fn put(&self, job: Job) {
        self.job.set(Some(job));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn take(&self) -> Job {
        poll_fn(|cx| match self.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
