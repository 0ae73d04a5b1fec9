//! The connections of a worker with peers of the mesh, so that those of a revoked peer are cut the
//! moment it is known.
//!
//! It is the socket that is ended: whatever the connection carries, and whoever waits for it, sees the
//! end like that of any other, so nothing that is built on connections has to know of revocation.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_model::resource::Revoked;
use tulle_net::socket::Cut;
use tulle_tls::{PeerCertificate, Session};

/// Connections with peers.
#[derive(Default)]
pub struct Peers {
    connected: RefCell<HashMap<u64, (PeerCertificate, Cut)>>,
    next: Cell<u64>,
    revoked: RefCell<Arc<Revoked>>,
}

/// A connection's place among them. It goes before the connection does.
pub struct Connected {
    peers: Rc<Peers>,
    number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.peers.connected.borrow_mut().remove(&self.number);
    }
}

impl Peers {
    /// A connection whose handshake is over.
    #[must_use]
    pub fn enter(self: &Rc<Self>, tcp: &TcpStream, session: &Session) -> Connected {
        let (certificate, cut) = (session.peer_certificate(), Cut::of(tcp));
        // The handshake has looked at this, too, but it had to wait since.
        if certificate.is_revoked(&self.revoked.borrow()) {
            cut.now();
        }
        let number = self.next.get();
        self.next.set(number + 1);
        self.connected
            .borrow_mut()
            .insert(number, (certificate, cut));
        Connected {
            peers: self.clone(),
            number,
        }
    }

    /// From now on this is revoked. Cuts the connections it is about; how many.
    pub fn revoke(&self, revoked: &Arc<Revoked>) -> usize {
        if Arc::ptr_eq(&self.revoked.borrow(), revoked) {
            return 0;
        }
        *self.revoked.borrow_mut() = revoked.clone();
        let connected = self.connected.borrow();
        let meant = connected
            .values()
            .filter(|(certificate, _)| certificate.is_revoked(revoked));
        meant.map(|(_, cut)| cut.now()).count()
    }
}
