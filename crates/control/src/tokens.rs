//! One-time join tokens: how a proxy or a host proves its identity before it has a certificate.
//!
//! A token is `<public part>.<secret>`, both hexadecimal. The store keeps the SHA-256 of the secret
//! under the public part. So a stolen store gives no token away, and looking a token up tells
//! nothing about its secret. A token stands for exactly one identity and is spent durably before
//! the certificate is made: a crash in between costs a token, never a second certificate.

use crate::store::{Space, Store, StoreError, Write};
use aws_lc_rs::{constant_time, digest, rand};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tulle_model::hex;
use tulle_model::identity::SpiffeId;

/// How long a token is good when nothing else is asked for.
pub const DEFAULT_TTL: Duration = Duration::from_secs(600);
/// The longest a token may be good.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// Tokens of the operator that may wait to be spent, and of all hosts together.
const MAX_TOKENS: usize = 20_000;
/// Tokens of one host that may wait.
const MAX_TOKENS_OF_NODE: usize = 1_000;

const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

#[derive(Serialize, Deserialize)]
struct Entry {
    identity: SpiffeId,
    /// The host that asked for it; empty: the operator.
    #[serde(default)]
    by: String,
    secret_sha256: String,
    not_after: u64,
}

/// Why a token is refused or cannot be made.
#[derive(Debug)]
pub enum TokenError {
    /// The token is unknown, spent or wrong. The cases look alike, so that a guess learns nothing.
    Refused,
    /// The token was right, but too late.
    Expired,
    /// Too many tokens wait to be spent.
    TooMany(usize),
    /// There are no random numbers.
    Random,
    /// The store fails.
    Store(StoreError),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str(
                "the join token is refused: it is not one of this controller's or has been used \
                 before. Make a new one",
            ),
            Self::Expired => f.write_str("the join token has expired. Make a new one"),
            Self::TooMany(most) => write!(
                f,
                "{most} join tokens wait to be used. Use them, or wait until they expire"
            ),
            Self::Random => f.write_str("the system gives no random numbers"),
            Self::Store(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for TokenError {}

impl From<StoreError> for TokenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Makes a token for one identity, asked for by a host or (empty) the operator. Removes expired
/// tokens first. The tokens of one host leave room for those of others.
///
/// # Errors
/// Too many tokens wait, or the store fails.
pub fn create(
    store: &dyn Store,
    identity: &SpiffeId,
    by: &str,
    ttl: Duration,
    now: SystemTime,
) -> Result<String, TokenError> {
    let tokens = store.values(Space::Tokens)?;
    let (mut own, mut of_nodes) = (0, 0);
    let mut writes = Vec::new();
    for (key, value) in tokens {
        let entry = serde_json::from_slice::<Entry>(&value);
        match entry {
            Ok(entry) if unix(now) < entry.not_after => {
                own += usize::from(entry.by == by);
                of_nodes += usize::from(!entry.by.is_empty());
            }
            _ => writes.push(delete(key)),
        }
    }
    let most = if by.is_empty() {
        MAX_TOKENS
    } else {
        MAX_TOKENS_OF_NODE
    };
    if own >= most {
        return Err(TokenError::TooMany(most));
    }
    if !by.is_empty() && of_nodes >= MAX_TOKENS {
        return Err(TokenError::TooMany(MAX_TOKENS));
    }
    let mut id = [0; ID_BYTES];
    let mut secret = [0; SECRET_BYTES];
    rand::fill(&mut id).map_err(|_| TokenError::Random)?;
    rand::fill(&mut secret).map_err(|_| TokenError::Random)?;
    let entry = Entry {
        identity: identity.clone(),
        by: by.to_owned(),
        secret_sha256: hash(&hex(&secret)),
        not_after: unix(now + ttl.min(MAX_TTL)),
    };
    writes.push(Write::PutValue {
        space: Space::Tokens,
        key: hex(&id),
        value: serde_json::to_vec(&entry).unwrap_or_default(),
    });
    store.commit(&writes)?;
    Ok(format!("{}.{}", hex(&id), hex(&secret)))
}

/// The meaning of a token that was spent.
#[derive(Debug, PartialEq, Eq)]
pub struct Spent {
    /// The identity that it gives.
    pub identity: SpiffeId,
    /// The host that asked for it; empty: the operator.
    pub by: String,
}

/// Returns the host that asked for a token which is not spent yet; empty: the operator did.
///
/// # Errors
/// It is not right or spent, or the store fails.
pub(crate) fn maker(store: &dyn Store, token: &str) -> Result<String, TokenError> {
    look_up(store, token).map(|entry| entry.by)
}

/// Spends a token: of several callers exactly one succeeds, and it is spent for good.
///
/// # Errors
/// It is not right, spent or expired, or the store fails (then it is not spent).
pub fn spend(store: &dyn Store, token: &str, now: SystemTime) -> Result<Spent, TokenError> {
    let entry = look_up(store, token)?;
    if unix(now) >= entry.not_after {
        return Err(TokenError::Expired);
    }
    let (id, _) = token.split_once('.').ok_or(TokenError::Refused)?;
    match store.take(Space::Tokens, id)? {
        Some(_) => Ok(Spent {
            identity: entry.identity,
            by: entry.by,
        }),
        None => Err(TokenError::Refused),
    }
}

/// The writes that take back what waits for a host: tokens to join as it, and those it asked for.
///
/// # Errors
/// The store fails.
pub(crate) fn withdraw(store: &dyn Store, node: &str) -> Result<Vec<Write>, StoreError> {
    let of_node = |entry: &Entry| entry.by == node || entry.identity.node() == Some(node);
    let tokens = store.values(Space::Tokens)?.into_iter();
    let tokens = tokens.filter(|(_, value)| {
        serde_json::from_slice::<Entry>(value).is_ok_and(|entry| of_node(&entry))
    });
    Ok(tokens.map(|(key, _)| delete(key)).collect())
}

fn delete(key: String) -> Write {
    Write::DeleteValue {
        space: Space::Tokens,
        key,
    }
}

fn look_up(store: &dyn Store, token: &str) -> Result<Entry, TokenError> {
    let (id, secret) = token.split_once('.').ok_or(TokenError::Refused)?;
    let right_length = id.len() == 2 * ID_BYTES && secret.len() == 2 * SECRET_BYTES;
    if !right_length || !token.bytes().all(|b| b.is_ascii_hexdigit() || b == b'.') {
        return Err(TokenError::Refused);
    }
    let value = store.value(Space::Tokens, id)?;
    let entry = value.and_then(|v| serde_json::from_slice::<Entry>(&v).ok());
    let entry = entry.ok_or(TokenError::Refused)?;
    let same = constant_time::verify_slices_are_equal(
        hash(secret).as_bytes(),
        entry.secret_sha256.as_bytes(),
    );
    same.map_err(|_| TokenError::Refused)?;
    Ok(entry)
}

fn hash(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    fn identity() -> SpiffeId {
        SpiffeId::parse("spiffe://tulle.local/svc/reviews").unwrap()
    }

    #[test]
    fn a_token_gives_its_identity_once() {
        let store = Memory::new();
        let now = SystemTime::now();
        let token = create(&store, &identity(), "n1", DEFAULT_TTL, now).unwrap();
        let spent = Spent {
            identity: identity(),
            by: "n1".to_owned(),
        };
        assert_eq!(spend(&store, &token, now).unwrap(), spent);
        let again = spend(&store, &token, now);
        assert!(matches!(again, Err(TokenError::Refused)));
    }

    #[test]
    fn an_expired_token_is_refused_and_removed_with_the_next_one() {
        let store = Memory::new();
        let now = SystemTime::now();
        let token = create(&store, &identity(), "", DEFAULT_TTL, now).unwrap();
        let late = now + DEFAULT_TTL;
        assert!(matches!(
            spend(&store, &token, late),
            Err(TokenError::Expired)
        ));
        create(&store, &identity(), "", DEFAULT_TTL, late).unwrap();
        assert_eq!(store.values(Space::Tokens).unwrap().len(), 1);
    }

    #[test]
    fn a_wrong_secret_neither_passes_nor_spends() {
        let store = Memory::new();
        let now = SystemTime::now();
        let token = create(&store, &identity(), "", DEFAULT_TTL, now).unwrap();
        let (id, secret) = token.split_once('.').unwrap();
        let other = create(&store, &identity(), "", DEFAULT_TTL, now).unwrap();
        let (_, other_secret) = other.split_once('.').unwrap();
        for wrong in [
            String::new(),
            ".".into(),
            id.to_owned(),
            format!("{id}."),
            format!("{id}.{other_secret}"),
            format!("{id}.{}", hash(secret)),
            format!("{id}.{}", secret.to_uppercase() + "00"),
            format!("{id}.{secret}.{secret}"),
        ] {
            let refused = spend(&store, &wrong, now);
            assert!(matches!(refused, Err(TokenError::Refused)), "{wrong}");
        }
        assert!(spend(&store, &token, now).is_ok());
    }

    #[test]
    fn one_host_leaves_room_for_the_others() {
        let store = Memory::new();
        let now = SystemTime::now();
        let make = |by: &str, now| create(&store, &identity(), by, DEFAULT_TTL, now);
        for _ in 0..MAX_TOKENS_OF_NODE {
            make("n1", now).unwrap();
        }
        let refused = make("n1", now);
        assert!(matches!(
            refused,
            Err(TokenError::TooMany(MAX_TOKENS_OF_NODE))
        ));
        make("n2", now).unwrap();
        let token = make("", now).unwrap();
        // Tokens go when they expire, or with their host.
        store.commit(&withdraw(&store, "n1").unwrap()).unwrap();
        assert_eq!(store.values(Space::Tokens).unwrap().len(), 2);
        make("n1", now + DEFAULT_TTL).unwrap();
        assert_eq!(store.values(Space::Tokens).unwrap().len(), 1);
        assert!(spend(&store, &token, now).is_err());
    }

    #[test]
    fn the_store_does_not_hold_the_secret() {
        let store = Memory::new();
        let token = create(&store, &identity(), "", DEFAULT_TTL, SystemTime::now()).unwrap();
        let (_, secret) = token.split_once('.').unwrap();
        let values = store.values(Space::Tokens).unwrap();
        let kept = String::from_utf8(values[0].1.clone()).unwrap();
        assert!(!kept.contains(secret));
    }

    #[test]
    fn a_token_may_end_after_2038() {
        let store = Memory::new();
        // Its ten minutes go past the seconds of 31 bits and of 32.
        for seconds in [(1 << 31) - 300, (1 << 32) - 300] {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            let token = create(&store, &identity(), "", DEFAULT_TTL, now).unwrap();
            let end = now + DEFAULT_TTL;
            let late = spend(&store, &token, end);
            assert!(matches!(late, Err(TokenError::Expired)));
            assert!(spend(&store, &token, end - Duration::from_secs(1)).is_ok());
        }
    }
}
