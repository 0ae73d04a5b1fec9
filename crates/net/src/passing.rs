//! Passes listening sockets to another process over a Unix socket, so that whoever may open a port need not be the one
//! who serves it.
//!
//! A message names an address and carries one listening socket for each worker. Without sockets it says that the address
//! is to be closed. The receiver answers each message with one line, empty or the reason of a failure, before the next
//! message is sent.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Most sockets of one message: the kernel passes no more at once.
pub const MOST: usize = 253;
/// More than the text of an address has.
const LONGEST_ADDRESS: usize = 64;
/// The part of a reason that is passed on.
const LONGEST_ANSWER: usize = 256;

/// An address with its listening sockets.
#[derive(Debug)]
pub struct PassedAddress {
    /// Where to listen, or no longer to.
    pub address: SocketAddr,
    /// A listening socket for each worker; none: the address is to be closed.
    pub sockets: Vec<TcpListener>,
}

/// Returns the Unix socket that this process inherited under a number.
///
/// # Errors
/// Nothing is open under the number, or it is no Unix socket.
pub fn inherited(number: u16) -> io::Result<UnixStream> {
    // SAFETY: borrowed for the next call only, which fails harmlessly if nothing is open under the number.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(number.into()) };
    // A copy: whoever else may have a handle of that number keeps it.
    let socket = StdUnixStream::from(borrowed.try_clone_to_owned()?);
    socket.local_addr()?;
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Passes the sockets of an address on, or says that it is to be closed.
///
/// # Errors
/// The receiver is gone, or there are more than [`MOST`] sockets.
pub async fn pass(to: &UnixStream, address: SocketAddr, sockets: &[TcpListener]) -> io::Result<()> {
    let text = address.to_string();
    let files: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other(format!("{} sockets at once", files.len())));
        }
        let text = [IoSlice::new(text.as_bytes())];
        Ok(sendmsg(to, &text, &mut control, SendFlags::NOSIGNAL)?)
    };
    to.async_io(Interest::WRITABLE, send).await.map(drop)
}

/// Receives the next message; none: the sender is gone.
///
/// # Errors
/// It cannot be received or is no such message, or this process may open too few files for its sockets.
pub async fn receive(from: &UnixStream) -> io::Result<Option<PassedAddress>> {
    let mut text = [0; LONGEST_ADDRESS];
    let read = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [IoSliceMut::new(&mut text)];
        let received = recvmsg(from, &mut text, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                sockets.extend(files.map(TcpListener::from));
            }
        }
        match received.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(io::Error::other("too few open files for its sockets")),
            false => Ok((received.bytes, sockets)),
        }
    };
    let (length, sockets) = from.async_io(Interest::READABLE, read).await?;
    if length == 0 {
        return Ok(None);
    }
    let address = text
        .get(..length)
        .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(PassedAddress { address, sockets }))
}

/// Answers a message: done, or why not.
///
/// # Errors
/// The sender is gone.
pub async fn answer(to: &UnixStream, done: &Result<(), String>) -> io::Result<()> {
    let reason = done.as_ref().err().map_or("", String::as_str).as_bytes();
    let mut line = reason.get(..LONGEST_ANSWER).unwrap_or(reason).to_vec();
    line.push(b'\n');
    to.writable().await?;
    to.try_write(&line).map(drop)
}

/// Waits for the answer to the last message.
///
/// # Errors
/// The receiver is gone.
pub async fn answered(from: &UnixStream) -> io::Result<Result<(), String>> {
    let mut line = [0; LONGEST_ANSWER + 1];
    loop {
        from.readable().await?;
        match from.try_read(&mut line) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                let line = line.get(..length).unwrap_or_default();
                let reason = String::from_utf8_lossy(line).trim_end().to_owned();
                return Ok(if reason.is_empty() {
                    Ok(())
                } else {
                    Err(reason)
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::AsRawFd;

    #[tokio::test]
    async fn clients_that_the_sender_accepted_none_of_are_served_by_the_receiver() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let first = socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let sockets = vec![first, socket::open(address).unwrap()];
        let clients: Vec<_> = (0..8)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        pass(&ours, address, &sockets).await.unwrap();
        drop(sockets);
        let passed = receive(&theirs).await.unwrap().unwrap();
        assert_eq!((passed.address, passed.sockets.len()), (address, 2));
        let accepted: usize = passed
            .sockets
            .iter()
            .map(|socket| std::iter::from_fn(|| socket.accept().ok()).count())
            .sum();
        assert_eq!(accepted, clients.len());

        // The receiver holds the last handle, so closing it closes the port.
        drop(passed);
        assert!(TcpStream::connect(address).is_err());
    }

    #[tokio::test]
    async fn messages_and_answers_alternate_until_one_side_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let address = "[fe80::1%4294967295]:65535".parse().unwrap();
        pass(&ours, address, &[]).await.unwrap();
        let passed = receive(&theirs).await.unwrap().unwrap();
        assert!(passed.address == address && passed.sockets.is_empty());
        for done in [Ok(()), Err("no room".to_owned())] {
            answer(&theirs, &done).await.unwrap();
            assert_eq!(answered(&ours).await.unwrap(), done);
        }
        answer(&theirs, &Err("x".repeat(1000))).await.unwrap();
        let cut = answered(&ours).await.unwrap().unwrap_err();
        assert_eq!(cut.len(), LONGEST_ANSWER);

        ours.try_write(b"nowhere").unwrap();
        assert!(receive(&theirs).await.is_err());
        drop(ours);
        assert!(receive(&theirs).await.unwrap().is_none());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(answered(&ours).await.is_err());
        assert!(pass(&ours, address, &[]).await.is_err());
    }

    #[tokio::test]
    async fn more_sockets_than_the_kernel_passes_are_refused() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let one = socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = one.local_addr().unwrap();
        let many = |count| -> Vec<TcpListener> {
            let copies = (0..count).map(|_| one.try_clone().unwrap());
            copies.collect()
        };
        assert!(pass(&ours, address, &many(MOST + 1)).await.is_err());
        pass(&ours, address, &many(MOST)).await.unwrap();
    }

    #[tokio::test]
    async fn only_a_unix_socket_is_inherited() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let number = |file: i32| u16::try_from(file).unwrap();
        let copy = inherited(number(theirs.as_raw_fd())).unwrap();
        drop(theirs);
        answer(&copy, &Ok(())).await.unwrap();
        assert_eq!(answered(&ours).await.unwrap(), Ok(()));
        let other = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(inherited(number(other.as_raw_fd())).is_err());
        assert!(inherited(u16::MAX).is_err());
    }
}
