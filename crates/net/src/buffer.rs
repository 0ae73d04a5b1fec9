//! Byte buffers that belong to the worker and are lent to a connection while it has bytes in hand.
//!
//! An idle connection owns no buffer: it takes one when bytes can be read and gives it back when
//! they are used up. The pool is last-in first-out, so the buffer just returned is still in cache.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Capacity of a buffer to read into: one TLS record (16,645 bytes) less a byte, and room to read
/// on behind it, so that it need not grow. Also a size class of the allocator.
pub const BUFFER_BYTES: usize = 20 * 1024;
/// Capacity of a buffer for what is known to be short: most heads, and messages of a few hundred
/// bytes. With many requests under way each holds its head, and room that nobody uses is still
/// written to when the buffer is next lent for something long.
const SMALL_BYTES: usize = 2 * 1024;
/// Least room for a read.
const READ_BYTES: usize = 3 * 1024;
/// Most bytes of a short read: the data made of them fits into a short buffer, too.
pub const SHORT_READ: usize = 1024;
/// Bytes of free buffers of each kind a worker keeps. More are given back to the allocator at once.
const POOL_BYTES: usize = 16 * 1024 * 1024;
/// Capacity from which on a buffer is a large one.
const LARGE_BYTES: usize = 2 * BUFFER_BYTES;
/// A larger buffer than this is not kept. It covers what one turn of a busy shared connection seals.
const KEEP_BYTES: usize = 160 * 1024;
/// Larger buffers a worker keeps. They are lent for a moment each, and only to those who ask for
/// the room: lent to everyone, they would soon be the storage of every small message. Shared
/// connections hold one each while they send in bulk.
const KEEP_LARGE: usize = 8;

/// Free buffers of one capacity.
struct Shelf<const CAPACITY: usize> {
    free: Vec<Vec<u8>>,
    /// Fewest free ones since the last `trim`: so many were not needed.
    fewest: usize,
}

struct Pool {
    small: Shelf<SMALL_BYTES>,
    usual: Shelf<BUFFER_BYTES>,
    large: Vec<Vec<u8>>,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool {
            small: Shelf::new(),
            usual: Shelf::new(),
            large: Vec::new(),
        })
    };
}

impl<const CAPACITY: usize> Shelf<CAPACITY> {
    const fn new() -> Self {
        Self {
            free: Vec::new(),
            fewest: 0,
        }
    }

    fn take(&mut self) -> Vec<u8> {
        match self.free.pop() {
            Some(storage) => {
                self.fewest = self.fewest.min(self.free.len());
                storage
            }
            None => Vec::with_capacity(CAPACITY),
        }
    }

    fn give_back(&mut self, storage: Vec<u8>) {
        if self.free.len() < POOL_BYTES / CAPACITY {
            self.free.push(storage);
        }
    }

    fn trim(&mut self) {
        // The ones in front have been free for the longest time.
        self.free.drain(..self.fewest);
        self.fewest = self.free.len();
        if self.free.is_empty() {
            self.free = Vec::new();
        }
    }
}

/// Storage for at least `wanted` bytes.
fn take(wanted: usize) -> Vec<u8> {
    POOL.with_borrow_mut(|pool| {
        if wanted <= SMALL_BYTES {
            return pool.small.take();
        }
        if wanted <= BUFFER_BYTES {
            return pool.usual.take();
        }
        let wanted = wanted.max(LARGE_BYTES);
        match pool.large.iter().position(|s| s.capacity() >= wanted) {
            Some(place) => pool.large.swap_remove(place),
            None => Vec::with_capacity(wanted.next_power_of_two()),
        }
    })
}

fn give_back(mut storage: Vec<u8>) {
    storage.clear();
    // A task that outlives the thread-local pool (process exit) just frees its buffer.
    let _ = POOL.try_with(|pool| {
        let pool = &mut *pool.borrow_mut();
        match storage.capacity() {
            BUFFER_BYTES => pool.usual.give_back(storage),
            SMALL_BYTES => pool.small.give_back(storage),
            LARGE_BYTES..=KEEP_BYTES if pool.large.len() < KEEP_LARGE => pool.large.push(storage),
            // The pool has too many already, or a writer made the buffer grow to another size.
            _ => {}
        }
    });
}

/// Frees the buffers that nobody has needed since the last call. Without it the pool would keep
/// what the busiest moment needed; with a small fixed pool every busy moment would allocate.
pub fn trim() {
    POOL.with_borrow_mut(|pool| {
        pool.small.trim();
        pool.usual.trim();
        pool.large = Vec::new();
    });
}

/// Bytes received and not yet used, in pooled storage.
#[derive(Debug, Default)]
pub struct Buf {
    storage: Vec<u8>,
    start: usize,
}

impl Buf {
    /// A buffer without storage.
    pub const fn new() -> Self {
        Self {
            storage: Vec::new(),
            start: 0,
        }
    }

    /// The unused bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.storage.get(self.start..).unwrap_or_default()
    }

    /// The unused bytes, to be changed in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.storage.get_mut(self.start..).unwrap_or_default()
    }

    /// Number of unused bytes.
    pub fn len(&self) -> usize {
        self.storage.len() - self.start
    }

    /// Whether there are no unused bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Marks the first `count` bytes as used. Storage goes back to the worker when none is left.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.storage.len());
        if self.start == self.storage.len() {
            self.release();
        }
    }

    /// Drops all bytes and gives the storage back.
    pub fn release(&mut self) {
        self.start = 0;
        if self.storage.capacity() > 0 {
            give_back(std::mem::take(&mut self.storage));
        }
    }

    /// The storage to append to; it is taken from the worker if this buffer has none.
    pub fn storage(&mut self) -> &mut Vec<u8> {
        self.storage_for(BUFFER_BYTES)
    }

    /// Returns the storage like `storage`, but takes one of the worker's short ones if `wanted`
    /// bytes fit. More may be appended, but that may allocate.
    pub fn storage_for(&mut self, wanted: usize) -> &mut Vec<u8> {
        if self.storage.capacity() == 0 {
            self.storage = take(wanted.min(BUFFER_BYTES));
        }
        &mut self.storage
    }

    /// Gives away the storage with the unused bytes alone. If this buffer has no storage, it takes
    /// some from the worker.
    pub fn take_storage(&mut self) -> Vec<u8> {
        let mut storage = std::mem::take(self.storage());
        storage.drain(..std::mem::take(&mut self.start));
        storage
    }

    /// Appends bytes. Used ones make way first, so that a buffer that never empties does not grow
    /// with everything that ever passed through it.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.storage.extend_from_slice(bytes);
    }

    /// Shortens to the first `len` unused bytes.
    pub fn truncate(&mut self, len: usize) {
        if len == 0 {
            self.release();
        } else {
            self.storage.truncate(self.start + len);
        }
    }

    /// Makes room for at least `wanted` more bytes by moving the unused bytes to the front first.
    pub fn make_room(&mut self, wanted: usize) {
        let storage = &mut self.storage;
        if storage.capacity() == 0 {
            *storage = take(wanted);
            return;
        }
        if storage.capacity() - storage.len() >= wanted {
            return;
        }
        if self.start > 0 {
            storage.copy_within(self.start.., 0);
            storage.truncate(storage.len() - self.start);
            self.start = 0;
        }
        let needed = self.storage.len() + wanted;
        if self.storage.capacity() < needed {
            let mut larger = take(needed);
            larger.extend_from_slice(&self.storage);
            give_back(std::mem::replace(&mut self.storage, larger));
        }
    }

    /// Reads once into the free part; keeps no storage when there is nothing to read.
    ///
    /// tokio clears readiness itself when a read leaves part of the buffer free, so a message
    /// costs one `recv`, not two.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut R,
    ) -> Poll<io::Result<usize>> {
        self.make_room(READ_BYTES);
        self.read_once(cx, stream)
    }

    /// Reads like `poll_fill`, but at most `limit` bytes: the reader's own peer takes no more now.
    /// `limit` must be above 0.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_fill_up_to<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut R,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(limit > 0);
        self.make_room(limit.min(READ_BYTES));
        self.read_once(cx, &mut stream.take(limit as u64))
    }

    /// Moves the unused bytes to storage of their own size when most of the storage is unused. For
    /// bytes that have to wait for their reader: thousands may wait at once.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.release();
        } else if self.storage.capacity() >= 2 * self.len() {
            let exact = self.as_slice().to_vec();
            self.start = 0;
            give_back(std::mem::replace(&mut self.storage, exact));
        }
    }

    fn read_once<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut R,
    ) -> Poll<io::Result<usize>> {
        let result = pin!(stream.read_buf(&mut self.storage)).poll(cx);
        if self.is_empty() {
            self.release();
        }
        result
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_goes_back_when_used_up() {
        let mut buf = Buf::new();
        buf.extend_from_slice(b"hello world");
        let storage = buf.as_slice().as_ptr();
        buf.consume(6);
        assert_eq!(buf.as_slice(), b"world");
        buf.consume(5);
        assert!(buf.is_empty());
        assert_eq!(
            buf.storage.capacity(),
            0,
            "an empty buffer holds no storage"
        );
        let mut next = Buf::new();
        next.extend_from_slice(b"x");
        assert_eq!(
            next.as_slice().as_ptr(),
            storage,
            "the last one returned is used first"
        );
    }

    #[test]
    fn storage_that_is_given_away_has_no_used_bytes() {
        let mut buf = Buf::new();
        buf.extend_from_slice(b"hello world");
        buf.consume(6);
        assert_eq!(buf.take_storage(), b"world");
        assert!(buf.is_empty());
        buf.extend_from_slice(b"next");
        assert_eq!(buf.as_slice(), b"next");
    }

    #[test]
    fn what_was_not_needed_is_freed_and_what_was_is_kept() {
        let buffers = |count, wanted| {
            let mut all: Vec<_> = (0..count).map(|_| Buf::new()).collect();
            all.iter_mut().for_each(|buf| buf.make_room(wanted));
        };
        let free = || POOL.with_borrow(|pool| (pool.small.free.len(), pool.usual.free.len()));
        trim();
        trim();
        assert_eq!(free(), (0, 0));
        buffers(100, SMALL_BYTES);
        trim();
        assert_eq!(free(), (100, 0), "they were all in use");
        buffers(3, SMALL_BYTES);
        buffers(2, BUFFER_BYTES);
        trim();
        assert_eq!(free(), (3, 2));
        buffers(9000, SMALL_BYTES);
        buffers(2000, BUFFER_BYTES);
        let most = |capacity| POOL_BYTES / capacity;
        assert_eq!(free(), (most(SMALL_BYTES), most(BUFFER_BYTES)), "bounded");
    }

    #[test]
    fn large_storage_is_lent_only_for_large_contents() {
        let small = |buf: &Buf| buf.storage.capacity() == SMALL_BYTES;
        let mut buf = Buf::new();
        buf.extend_from_slice(b"start ");
        buf.extend_from_slice(&[b'x'; 3 * BUFFER_BYTES]);
        assert_eq!(&buf.as_slice()[..8], b"start xx");
        let large = buf.as_slice().as_ptr();
        buf.release();
        let mut next = Buf::new();
        next.extend_from_slice(b"x");
        assert!(small(&next));
        let mut next = Buf::new();
        next.make_room(3 * BUFFER_BYTES);
        assert_eq!(next.storage.as_ptr(), large, "it is used again");
        let many: Vec<_> = (0..2 * KEEP_LARGE)
            .map(|_| {
                let mut buf = Buf::new();
                buf.make_room(3 * BUFFER_BYTES);
                buf
            })
            .collect();
        drop(many);
        assert_eq!(POOL.with_borrow(|pool| pool.large.len()), KEEP_LARGE);
    }

    #[test]
    fn what_turns_out_to_be_longer_moves_to_longer_storage() {
        let mut buf = Buf::new();
        let mut all = Vec::new();
        let capacities = [
            (SMALL_BYTES, SMALL_BYTES),
            (1, BUFFER_BYTES),
            (16_384, BUFFER_BYTES),
            (16_384, 64 * 1024),
        ];
        for (count, capacity) in capacities {
            let bytes = vec![count as u8; count];
            buf.extend_from_slice(&bytes);
            all.extend_from_slice(&bytes);
            assert_eq!(buf.as_slice(), all);
            assert_eq!(buf.storage.capacity(), capacity);
        }
        // A writer that appends more than it announced keeps its bytes, but not the pool's order.
        let mut buf = Buf::new();
        buf.storage_for(10).extend_from_slice(&[b'x'; 5000]);
        assert_eq!(buf.len(), 5000);
        let odd = buf.storage.capacity();
        buf.release();
        assert!(![SMALL_BYTES, BUFFER_BYTES].contains(&odd));
        assert_eq!(Buf::new().storage_for(10).capacity(), SMALL_BYTES);
        assert_eq!(Buf::new().storage().capacity(), BUFFER_BYTES);
    }

    #[test]
    fn bytes_that_wait_do_not_keep_a_buffer_that_is_mostly_empty() {
        let mut buf = Buf::new();
        buf.extend_from_slice(&[b'a'; BUFFER_BYTES]);
        buf.consume(BUFFER_BYTES / 4);
        buf.shrink();
        assert_eq!(buf.storage.capacity(), BUFFER_BYTES, "most of it is used");
        buf.consume(BUFFER_BYTES / 4 * 3 - 3);
        buf.shrink();
        assert_eq!((buf.as_slice(), buf.storage.capacity()), (&b"aaa"[..], 3));
        // The storage is a buffer like any other.
        buf.extend_from_slice(b"b");
        assert_eq!(buf.as_slice(), b"aaab");
        buf.consume(4);
        buf.shrink();
        assert_eq!(buf.storage.capacity(), 0);
    }

    #[tokio::test]
    async fn a_limited_read_takes_no_more() {
        let mut stream = &[b'x'; 100][..];
        let mut buf = Buf::new();
        let read = std::future::poll_fn(|cx| buf.poll_fill_up_to(cx, &mut stream, 64));
        assert_eq!(read.await.unwrap(), 64);
        assert_eq!((buf.len(), stream.len()), (64, 36));
    }

    #[test]
    fn make_room_moves_the_rest_to_the_front() {
        let mut buf = Buf::new();
        buf.extend_from_slice(&[b'a'; BUFFER_BYTES]);
        buf.consume(BUFFER_BYTES - 3);
        buf.make_room(1024);
        assert_eq!(buf.as_slice(), b"aaa");
        assert_eq!(buf.storage.capacity(), BUFFER_BYTES);
    }
}
