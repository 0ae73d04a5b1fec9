//! Wakes a poll at a given time to the microsecond: epoll's own timeout counts milliseconds, which
//! would be the larger part of every latency at a fixed rate.

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::time::{Duration, Instant};

pub(super) struct Timer {
    descriptor: OwnedFd,
    /// When it goes off next, if it is set.
    set: Option<Instant>,
}

impl Timer {
    pub(super) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(
            &mut SourceFd(&descriptor.as_raw_fd()),
            token,
            Interest::READABLE,
        )?;
        Ok(Self {
            descriptor,
            set: None,
        })
    }

    /// Goes off at `when`.
    pub(super) fn set(&mut self, when: Option<Instant>) -> io::Result<()> {
        let Some(when) = when.filter(|when| self.set != Some(*when)) else {
            return Ok(());
        };
        let time = when.saturating_duration_since(Instant::now());
        // Zero would disarm it.
        let time = time.max(Duration::from_nanos(1));
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec::try_from(time).unwrap_or(zero);
        let spec = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &spec)?;
        self.set = Some(when);
        Ok(())
    }

    /// It went off. Setting it anew makes the descriptor unreadable again; nothing is to be read.
    pub(super) fn went_off(&mut self) {
        self.set = None;
    }
}
