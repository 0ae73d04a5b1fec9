//! The listeners of a gateway. Their sockets are opened here and passed to the gateway's proxy, so listeners come and go
//! while it serves, and the proxy needs no privilege for ports below 1024.
//!
//! The supervisor keeps them, too, and gives the same ones to the process that comes after: clients who wait in them are not
//! refused. They are closed when the proxy closes them, and while no process runs.

use super::ports;
use crate::failure::{OrFail, Result};
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tulle_model::bootstrap::Bootstrap;
use tulle_net::passing;
use tulle_proxy::run::allowed_cores;

/// How long a proxy may take to open or close a listener before its gateway counts as not ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to pass listeners to a gateway's proxy, whichever process that is at present.
#[derive(Default)]
pub(crate) struct Listening {
    process: RefCell<Option<Rc<Process>>>,
    renewed: Notify,
    open: RefCell<BTreeMap<SocketAddr, Vec<TcpListener>>>,
}

/// Why a process does not listen where it should.
#[derive(Debug)]
pub(super) enum NotListening {
    /// It does not do what it is told.
    Process(String),
    /// An address cannot be opened. It listens at the others.
    Address(String),
}

impl fmt::Display for NotListening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Process(why) | Self::Address(why)) = self;
        f.write_str(why)
    }
}

/// One process of the proxy.
struct Process {
    channel: UnixStream,
    /// It wants a socket for each of its workers.
    workers: u16,
    /// Where it listens.
    at: RefCell<BTreeSet<SocketAddr>>,
    /// The address whose message it has not answered yet.
    unanswered: Cell<Option<SocketAddr>>,
}

impl Listening {
    /// Prepares the next process of the proxy, which inherits the returned socket and listens nowhere yet.
    pub(super) fn renew(&self, bootstrap: &mut Bootstrap) -> Result<OwnedFd> {
        let what = || "cannot make the socket over which a gateway gets its listeners".to_owned();
        let (ours, theirs) = StdUnixStream::pair().or_fail(what)?;
        ours.set_nonblocking(true).or_fail(what)?;
        let channel = UnixStream::from_std(ours).or_fail(what)?;
        bootstrap.gateway_sockets = Some(u16::try_from(theirs.as_raw_fd()).or_fail(what)?);
        let workers = match bootstrap.workers {
            0 => u16::try_from(allowed_cores()).unwrap_or(u16::MAX),
            configured => configured,
        };
        let most = u16::try_from(passing::MOST).unwrap_or(u16::MAX);
        bootstrap.workers = workers.min(most);
        *self.process.borrow_mut() = Some(Rc::new(Process {
            channel,
            workers: bootstrap.workers,
            at: RefCell::default(),
            unanswered: Cell::default(),
        }));
        self.renewed.notify_one();
        Ok(theirs.into())
    }

    /// Completes when there is another process, which has no listeners yet.
    pub(super) async fn renewed(&self) {
        self.renewed.notified().await;
    }

    /// Has the proxy listen at these addresses and no others. A failure is the first reason why it does not; it listens
    /// wherever it can all the same.
    pub(super) async fn listen_on(
        &self,
        wanted: &[SocketAddr],
    ) -> std::result::Result<(), NotListening> {
        let process = self.process.borrow().clone();
        let starting = || NotListening::Process("the proxy is starting".to_owned());
        let process = process.ok_or_else(starting)?;
        process.answered().await?;
        let at = process.at.borrow().clone();
        // First, because an old address may overlap with a new one.
        self.open
            .borrow_mut()
            .retain(|address, _| wanted.contains(address));
        for &address in at.iter().filter(|address| !wanted.contains(address)) {
            process.tell(address, &[]).await?;
        }
        let mut failed = None;
        for &address in wanted {
            if process.at.borrow().contains(&address) {
                continue;
            }
            match self.sockets(address, process.workers) {
                Ok(sockets) => process.tell(address, &sockets).await?,
                Err(failure) => {
                    failed = failed.or(Some(NotListening::Address(failure.to_string())))
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The sockets of the process before, or new ones.
    fn sockets(&self, address: SocketAddr, workers: u16) -> Result<Vec<TcpListener>> {
        let mut open = self.open.borrow_mut();
        let sockets = match open.entry(address) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(ports::open(address, workers)?),
        };
        // Whoever waits in one too many is served by the process before, which has it, too.
        sockets.truncate(workers.into());
        while sockets.len() < workers.into() {
            sockets.push(ports::open_another(address)?);
        }
        let copies: std::io::Result<_> = sockets.iter().map(TcpListener::try_clone).collect();
        copies.or_fail(|| format!("cannot pass {address} to the proxy"))
    }

    /// Closes all of them: no process accepts from them, and clients are refused rather than kept waiting.
    pub(super) fn close(&self) {
        self.open.borrow_mut().clear();
    }
}

impl Process {
    /// Opens the address with these sockets, or closes it without any.
    async fn tell(
        &self,
        address: SocketAddr,
        sockets: &[TcpListener],
    ) -> std::result::Result<(), NotListening> {
        let passed = passing::pass(&self.channel, address, sockets).await;
        passed.map_err(|e| {
            NotListening::Process(format!("cannot pass {address} to the proxy: {e}"))
        })?;
        self.unanswered.set(Some(address));
        if sockets.is_empty() {
            tracing::info!(%address, "a gateway closes a listener");
            self.at.borrow_mut().remove(&address);
        } else {
            tracing::info!(%address, "a gateway opens a listener");
            self.at.borrow_mut().insert(address);
        }
        self.answered().await
    }

    /// Waits until it has done what it was told last.
    async fn answered(&self) -> std::result::Result<(), NotListening> {
        let Some(address) = self.unanswered.get() else {
            return Ok(());
        };
        let answer = timeout(PATIENCE, passing::answered(&self.channel)).await;
        let late = |_| NotListening::Process(format!("the proxy does not answer about {address}"));
        let answer = answer.map_err(late)?;
        self.unanswered.set(None);
        answer.map_err(|e| NotListening::Process(format!("the proxy has ended: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::ports::{Pool, Reserved};
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::IntoRawFd;

    /// A port that no other test gets.
    fn reserved() -> Reserved {
        Pool::new().take(Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    fn bootstrap() -> Bootstrap {
        let text = "identity: spiffe://m.local/svc/in\nworkers: 2\n\
             certificates: {certificate: a, key: b, trustBundle: c}\n";
        Bootstrap::parse("proxy.yaml", text).unwrap()
    }

    /// Takes the place of the proxy's next process.
    fn renewed(listening: &Listening) -> StdUnixStream {
        let mut bootstrap = bootstrap();
        let theirs = listening.renew(&mut bootstrap).unwrap();
        assert_eq!(bootstrap.workers, 2);
        let number = bootstrap.gateway_sockets.unwrap();
        let inherited = passing::inherited(number).unwrap();
        assert_eq!(theirs.into_raw_fd(), i32::from(number));
        inherited
    }

    /// Has the proxy listen at these addresses, of which one is news. Returns what came of it, and the news.
    async fn listen(
        listening: &Listening,
        wanted: &[SocketAddr],
        proxy: &StdUnixStream,
    ) -> (
        std::result::Result<(), NotListening>,
        SocketAddr,
        Vec<TcpListener>,
    ) {
        let proxy = proxy.try_clone().unwrap();
        let take = tokio::task::spawn_blocking(move || {
            let passed = passing::receive(&proxy).unwrap().unwrap();
            (passed.address, passed.sockets)
        });
        let (done, passed) = tokio::join!(listening.listen_on(wanted), take);
        let (address, sockets) = passed.unwrap();
        (done, address, sockets)
    }

    #[tokio::test]
    async fn a_listener_that_cannot_be_opened_keeps_no_other_from_serving() {
        let reserved = [reserved(), reserved()];
        let [taken_at, free] = [&reserved[0], &reserved[1]].map(Reserved::address);
        let taken = TcpListener::bind(taken_at).unwrap();
        let listening = Listening::default();
        let early = listening.listen_on(&[free]).await.unwrap_err().to_string();
        assert!(early.contains("starting"), "{early}");

        let proxy = renewed(&listening);
        let wanted = [taken_at, free];
        let (said, at, sockets) = listen(&listening, &wanted, &proxy).await;
        let said = said.unwrap_err();
        assert!(matches!(said, NotListening::Address(_)), "it serves");
        let said = said.to_string();
        assert!(
            said.contains(&format!("cannot listen on {taken_at}")),
            "{said}"
        );
        assert_eq!((at, sockets.len()), (free, 2));
        assert!(TcpStream::connect(free).is_ok());

        // Nothing is passed twice, and the other one as soon as it is free.
        drop(taken);
        let (done, at, sockets) = listen(&listening, &wanted, &proxy).await;
        done.unwrap();
        assert_eq!((at, sockets.len()), (taken_at, 2));
        listening.listen_on(&wanted).await.unwrap();

        let (done, at, sockets) = listen(&listening, &[taken_at], &proxy).await;
        done.unwrap();
        assert!(at == free && sockets.is_empty());
    }

    #[tokio::test]
    async fn a_new_process_gets_all_listeners_again_with_the_clients_who_wait() {
        let listening = Listening::default();
        let reserved = reserved();
        let address = reserved.address();
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let proxy = renewed(&listening);
            listening.renewed().await;
            let (done, at, sockets) = listen(&listening, &[address], &proxy).await;
            done.unwrap();
            assert_eq!((at, sockets.len()), (address, 2));
            let accepted = || sockets.iter().find_map(|socket| socket.accept().ok());
            for client in waiting.drain(..) {
                let client: TcpStream = client;
                let (_, at) = accepted().unwrap();
                assert_eq!(at, client.local_addr().unwrap());
            }
            waiting.push(TcpStream::connect(address).unwrap());
        }
        listening.close();
        assert!(TcpStream::connect(address).is_err());
    }
}
