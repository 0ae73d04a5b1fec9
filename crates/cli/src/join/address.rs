//! This host's address on the way to the controller, which may become another while it is up: a lease ends, a modem dials
//! anew, somebody plugs the cable in elsewhere.
//!
//! A connection that has lost its address is just silent. So the kernel is asked, whenever it says
//! that addresses or routes have changed, and now and then.

use crate::supervise::context::Context;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Addresses and routes of IPv4 and IPv6 (rtnetlink(7): RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, and those of IPv6).
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// Between looks at what the kernel has not told, and at everything where it tells nothing.
const LOOK: Duration = Duration::from_secs(15);
const LOOK_OFTEN: Duration = Duration::from_millis(500);
/// An address that comes brings routes along a moment later.
const SETTLE: Duration = Duration::from_millis(50);

/// Follows the address for as long as the host is up. `advertised`: others reach this host at an address that was named.
pub(super) async fn follow(context: Rc<Context>, advertised: bool) {
    let news = News::listen();
    if let Err(error) = &news {
        tracing::warn!(%error, "the kernel does not tell of addresses; they are looked at often");
    }
    let reachable = *context.reachable.borrow();
    let first = match advertised {
        true => own(context.controller).unwrap_or(reachable),
        // It was found when the start began, and may have become another since.
        false => reachable,
    };
    let wait = async || match &news {
        Ok(news) => {
            tokio::select! {
                () = news.wait() => sleep(SETTLE).await,
                () = sleep(LOOK) => {}
            }
        }
        Err(_) => sleep(LOOK_OFTEN).await,
    };
    let tell = |last: IpAddr, now: IpAddr| {
        tracing::warn!(%last, %now, "this host has another address on the way to the controller");
        if advertised {
            context.nudge.notify_one();
        } else {
            context.reachable.send_replace(now);
            if let Some(known) = &context.last_known {
                known.note_address(now);
            }
        }
        context.line.change();
    };
    look(first, || own(context.controller), wait, tell).await;
}

/// Looks at the address at once and after each wait, and tells whenever it is another than it was last.
async fn look(
    mut last: IpAddr,
    own: impl Fn() -> Option<IpAddr>,
    wait: impl AsyncFn(),
    tell: impl Fn(IpAddr, IpAddr),
) {
    loop {
        // Without a route the address may be the same in a moment.
        if let Some(now) = own().filter(|now| *now != last) {
            tell(last, now);
            last = now;
        }
        wait().await;
    }
}

/// This host's address on the way there. It sends nothing: the kernel looks into its routes.
pub(super) fn own(controller: SocketAddr) -> Option<IpAddr> {
    let any = match controller {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(controller).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The kernel's news of addresses and routes, heard by a thread that ends with the process.
struct News(Arc<Notify>);

impl News {
    fn listen() -> io::Result<Self> {
        // The first protocol of netlink is that of addresses and routes.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        let news = Arc::new(Notify::new());
        let told = Arc::clone(&news);
        std::thread::Builder::new()
            .name("addresses".into())
            .spawn(move || {
                let mut buffer = [0_u8; 4096];
                // The text of news does not matter, and neither does that some were lost.
                while matches!(
                    recv(&socket, &mut buffer[..], RecvFlags::empty()),
                    Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
                ) {
                    told.notify_one();
                }
            })?;
        Ok(Self(news))
    }

    /// Waits for news.
    async fn wait(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::future::pending;
    use tokio::time::timeout;

    #[tokio::test]
    async fn an_address_that_became_another_during_the_start_is_told_before_any_wait() {
        let [first, second, third] = [1, 2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
        let told = RefCell::new(Vec::new());
        let tell = |last, now| told.borrow_mut().push((last, now));
        let looking = look(first, || Some(second), pending::<()>, tell);
        assert!(timeout(Duration::ZERO, looking).await.is_err());
        assert_eq!(told.take(), [(first, second)]);
        // Looks find: the same, none, the same, another, the same.
        let looks = [Some(first), None, Some(first), Some(third), Some(third)];
        let next = Cell::new(0);
        let own = || looks[next.get()];
        let wait = async || match next.get() + 1 {
            over if over == looks.len() => pending().await,
            more => next.set(more),
        };
        let looking = look(first, own, wait, tell);
        assert!(timeout(Duration::ZERO, looking).await.is_err());
        assert_eq!(told.take(), [(first, third)]);
    }

    #[test]
    fn the_address_on_the_way_is_found_without_a_packet() {
        assert_eq!(own(([127, 0, 0, 1], 9).into()), Some([127, 0, 0, 1].into()));
    }
}
