//! The socket between a sidecar and the supervisor of its joined host.
//!
//! The supervisor makes a pair for each start of a sidecar and hands it one end, as it does with the
//! memory file of its key. So nobody has to prove anything: whatever comes over a socket is from the
//! sidecar of that workload, and gets that workload's identity and no other. Datagrams keep one message
//! apart from the next; a late answer is known by its number.

use prost::Message;
use std::io;
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::time::timeout;
use tulle_api::v1::host_request::Ask;
use tulle_api::v1::host_response::Answer;
use tulle_api::v1::{HostRequest, HostResponse, SignResponse};

/// Longest message: a chain and some roots. A signing request is far shorter.
const MAX_BYTES: usize = 64 * 1024;
/// Longest wait for an answer. The supervisor asks the controller for tokens, and gives up first.
const PATIENCE: Duration = Duration::from_secs(7);

/// The sidecar's end.
pub struct HostSocket {
    socket: UnixDatagram,
    last: u64,
}

impl HostSocket {
    /// Takes the socket that this process inherited under a number.
    ///
    /// # Errors
    /// There is none.
    pub fn inherited(number: u16) -> io::Result<Self> {
        Self::new(tulle_net::passing::inherited_datagrams(number)?)
    }

    fn new(socket: std::os::unix::net::UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        Ok(Self { socket, last: 0 })
    }

    /// Asks for a certificate of the host's authority.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn sign(&mut self, csr_der: Vec<u8>) -> Result<SignResponse, String> {
        match self.ask(Ask::CsrDer(csr_der)).await? {
            Answer::Signed(signed) => Ok(signed),
            Answer::Refused(why) => Err(why),
            Answer::JoinToken(_) => Err("it answers another question".to_owned()),
        }
    }

    /// Asks for a join token of the controller.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn join_token(&mut self) -> Result<String, String> {
        match self.ask(Ask::JoinToken(true)).await? {
            Answer::JoinToken(token) => Ok(token),
            Answer::Refused(why) => Err(why),
            Answer::Signed(_) => Err("it answers another question".to_owned()),
        }
    }

    async fn ask(&mut self, ask: Ask) -> Result<Answer, String> {
        self.last = self.last.wrapping_add(1);
        let id = self.last;
        let request = HostRequest { id, ask: Some(ask) }.encode_to_vec();
        let exchange = async {
            self.socket.send(&request).await?;
            let mut bytes = vec![0; MAX_BYTES];
            loop {
                let length = self.socket.recv(&mut bytes).await?;
                let bytes = bytes.get(..length).unwrap_or_default();
                match HostResponse::decode(bytes) {
                    Ok(HostResponse {
                        id: answered,
                        answer: Some(answer),
                    }) if answered == id => return Ok(answer),
                    // An answer that was waited for no longer.
                    Ok(_) => {}
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
        };
        match timeout(PATIENCE, exchange).await {
            Ok(answer) => answer.map_err(|e: io::Error| e.to_string()),
            Err(_) => Err("the supervisor of this host does not answer".to_owned()),
        }
    }
}

/// The supervisor's end.
pub struct SidecarSocket(UnixDatagram);

impl SidecarSocket {
    /// Makes a pair; the second end is for the sidecar to inherit.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pair() -> io::Result<(Self, std::os::unix::net::UnixDatagram)> {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair()?;
        ours.set_nonblocking(true)?;
        Ok((Self(UnixDatagram::from_std(ours)?), theirs))
    }

    /// Waits for the next question that can be read.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn next(&self) -> io::Result<HostRequest> {
        let mut bytes = vec![0; MAX_BYTES];
        loop {
            let length = self.0.recv(&mut bytes).await?;
            if let Ok(request) = HostRequest::decode(bytes.get(..length).unwrap_or_default()) {
                return Ok(request);
            }
        }
    }

    /// Answers a question.
    ///
    /// # Errors
    /// The sidecar is gone.
    pub async fn answer(&self, id: u64, answer: Answer) -> io::Result<()> {
        let answer = Some(answer);
        let response = HostResponse { id, answer }.encode_to_vec();
        self.0.send(&response).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_answer_is_not_taken_for_the_next() {
        let (supervisor, sidecar) = SidecarSocket::pair().unwrap();
        let mut sidecar = HostSocket::new(sidecar).unwrap();
        let late = Answer::Refused("late".into());
        supervisor.answer(0, late).await.unwrap();
        let answering = async {
            let asked = supervisor.next().await.unwrap();
            assert_eq!(asked.ask, Some(Ask::CsrDer(vec![1])));
            let signed = SignResponse {
                not_after_unix_seconds: 7,
                ..Default::default()
            };
            let answer = Answer::Signed(signed);
            supervisor.answer(asked.id, answer).await.unwrap();
            let asked = supervisor.next().await.unwrap();
            let refused = Answer::Refused("away".into());
            supervisor.answer(asked.id, refused).await.unwrap();
        };
        let asking = async {
            let signed = sidecar.sign(vec![1]).await.unwrap();
            assert_eq!(signed.not_after_unix_seconds, 7);
            assert_eq!(sidecar.join_token().await, Err("away".to_owned()));
        };
        tokio::join!(answering, asking);
    }
}
