//! The connections of a worker with peers of the mesh, so that those of a revoked peer are cut at
//! once.
//!
//! The socket is what is ended: its streams and their owners see the end of an ordinary connection,
//! so code built on connections need not know of revocation.

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

/// A connection's place among them, dropped before the connection.
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
    /// Enters a connection whose handshake is complete.
    #[must_use]
    pub fn enter(self: &Rc<Self>, tcp: &TcpStream, session: &Session) -> Connected {
        let (certificate, cut) = (session.peer_certificate(), Cut::for_stream(tcp));
        // The handshake has checked this, too, but the connection had to wait since.
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

    /// Cuts the connections of revoked peers, now and in future. Returns how many were cut.
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
