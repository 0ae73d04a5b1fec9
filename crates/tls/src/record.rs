//! The TLS 1.3 record layer (RFC 8446, 5): one direction's keys, sealing and opening in place.
//!
//! It has no buffers of its own and no messages: [`crate::Session`] gives records their meaning.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::AeadKey;

/// Largest plaintext of one record.
pub(crate) const MAX_PLAINTEXT_BYTES: usize = 1 << 14;
/// Bytes before a record's ciphertext: type, version, length.
pub(crate) const HEADER_BYTES: usize = 5;
/// All suites of TLS 1.3 that we use have this tag length.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a record's plaintext: header, inner type, tag.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Returns the bytes of the records that `length` bytes of plaintext are sealed into.
pub const fn sealed_bytes(length: usize) -> usize {
    let records = length.div_ceil(MAX_PLAINTEXT_BYTES);
    length.saturating_add(records.saturating_mul(OVERHEAD_BYTES))
}
/// Largest length a header may name (RFC 8446, 5.2).
const MAX_CIPHERTEXT_BYTES: usize = MAX_PLAINTEXT_BYTES + 256;
/// Largest record as received, header included: a read buffer of this size always holds one.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_CIPHERTEXT_BYTES;

/// Record types.
pub(crate) mod content {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const APPLICATION_DATA: u8 = 23;
}

/// A record that cannot be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its first byte is not that of an encrypted record, or its version is wrong.
    Unexpected(u8),
    /// Its length is over the limit.
    TooLarge(usize),
    /// Its length leaves no room for content.
    TooShort(usize),
    /// It was not sealed with our key, or changed on the way.
    Authentication,
    /// It holds padding only.
    NoType,
    /// All record numbers of this key are used.
    Exhausted,
    /// The cryptographic library refuses.
    Crypto,
}

/// Keys of one direction.
pub(crate) struct DirectionKeys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl DirectionKeys {
    pub(crate) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Fault> {
        let (algorithm, key, iv): (_, AeadKey, _) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&aead::CHACHA20_POLY1305, key, iv)
            }
            _ => return Err(Fault::Crypto),
        };
        let iv = iv.as_ref().try_into().map_err(|_| Fault::Crypto)?;
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| Fault::Crypto)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv,
            sequence,
        })
    }

    /// Records sealed or opened with these keys.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Acts as if this many records had been sealed already.
    #[cfg(test)]
    pub(crate) fn set_sequence(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Returns the next nonce: the IV XOR the record number. A number is never used twice.
    fn nonce(&mut self) -> Result<Nonce, Fault> {
        let next = self.sequence.checked_add(1).ok_or(Fault::Exhausted)?;
        let mut nonce = self.iv;
        let number = self.sequence.to_be_bytes();
        for (n, s) in nonce.iter_mut().rev().zip(number.iter().rev()) {
            *n ^= s;
        }
        self.sequence = next;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Seals one record: `fill` appends its plaintext, at most [`MAX_PLAINTEXT_BYTES`].
    pub(crate) fn seal(
        &mut self,
        content_type: u8,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Fault> {
        let start = out.len();
        let sealed = self.seal_at(start, content_type, out, fill);
        if sealed.is_err() {
            // Never leave plaintext where it would be sent.
            out.truncate(start);
        }
        sealed
    }

    fn seal_at(
        &mut self,
        start: usize,
        content_type: u8,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Fault> {
        out.extend_from_slice(&[content::APPLICATION_DATA, 3, 3, 0, 0]);
        fill(out);
        out.push(content_type);
        let record = out.get_mut(start..).ok_or(Fault::Crypto)?;
        let (header, body) = record
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(Fault::Crypto)?;
        let length = body.len() + TAG_BYTES;
        if length > MAX_PLAINTEXT_BYTES + 1 + TAG_BYTES {
            return Err(Fault::TooLarge(length));
        }
        let [high, low] = u16::try_from(length)
            .map_err(|_| Fault::TooLarge(length))?
            .to_be_bytes();
        header[3] = high;
        header[4] = low;
        let nonce = self.nonce()?;
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(*header), body)
            .map_err(|_| Fault::Crypto)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Opens a record in place.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<Inner, Fault> {
        let (header, body) = record
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(Fault::TooShort(0))?;
        let nonce = self.nonce()?;
        let plain = self
            .key
            .open_in_place(nonce, Aad::from(*header), body)
            .map_err(|_| Fault::Authentication)?;
        // The limit is one byte more than that of content: the type.
        if plain.len() > MAX_PLAINTEXT_BYTES + 1 {
            return Err(Fault::TooLarge(plain.len()));
        }
        let length = plain.iter().rposition(|b| *b != 0).ok_or(Fault::NoType)?;
        let content_type = plain.get(length).copied().ok_or(Fault::NoType)?;
        Ok(Inner {
            content_type,
            length,
        })
    }
}

/// Content of an opened record; it starts right behind the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) content_type: u8,
    pub(crate) length: usize,
}

/// Length of the first record of `incoming`, header included; `None` if the header is incomplete.
pub(crate) fn record_length(incoming: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(first) = incoming.first() else {
        return Ok(None);
    };
    // After the handshake everything is encrypted, and travels as application data.
    if *first != content::APPLICATION_DATA {
        return Err(Fault::Unexpected(*first));
    }
    let Some(header) = incoming.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    if header[1] != 3 || header[2] != 3 {
        return Err(Fault::Unexpected(*first));
    }
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length > MAX_CIPHERTEXT_BYTES {
        return Err(Fault::TooLarge(length));
    }
    if length <= TAG_BYTES {
        return Err(Fault::TooShort(length));
    }
    Ok(Some(HEADER_BYTES + length))
}
