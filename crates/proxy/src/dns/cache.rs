//! A cache of upstream answers, bounded by count and bytes, each kept for its time to live.

use crate::codec::dns_message;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Answers kept at most.
const ENTRIES: usize = 1024;
/// Bytes of all answers and questions at most.
const BYTES: usize = 1024 * 1024;
/// Longest answer that is kept.
const LONGEST: usize = 4096;
/// Longest time that an answer is kept.
const MOST_SECONDS: u32 = 3600;

/// The answers, oldest first.
#[derive(Default)]
pub struct Cache {
    entries: HashMap<Vec<u8>, Entry>,
    /// Keys with the number of the entry they were made for: a key may have been put again since.
    order: VecDeque<(u64, Vec<u8>)>,
    made: u64,
    bytes: usize,
}

struct Entry {
    number: u64,
    answer: Vec<u8>,
    places: Vec<(u16, u32)>,
    kept: Instant,
    seconds: u32,
}

impl Cache {
    /// Returns an answer that is still valid, with its remaining time to live.
    pub fn get(&self, key: &[u8], now: Instant) -> Option<Vec<u8>> {
        let entry = self.entries.get(key)?;
        let old = now.saturating_duration_since(entry.kept).as_secs();
        let old = u32::try_from(old).ok().filter(|old| *old < entry.seconds)?;
        let mut answer = entry.answer.clone();
        dns_message::age(&mut answer, &entry.places, old);
        Some(answer)
    }

    /// Keeps an answer, if it may be kept.
    pub fn put(&mut self, key: Vec<u8>, answer: &[u8], now: Instant) {
        let Some(lifetime) = dns_message::lifetime(answer).filter(|_| answer.len() <= LONGEST)
        else {
            return;
        };
        self.made += 1;
        let entry = Entry {
            number: self.made,
            answer: answer.to_vec(),
            places: lifetime.places,
            kept: now,
            seconds: lifetime.seconds.min(MOST_SECONDS),
        };
        self.bytes += size(&key, &entry);
        self.order.push_back((self.made, key.clone()));
        if let Some(before) = self.entries.insert(key.clone(), entry) {
            self.bytes -= size(&key, &before);
        }
        // The order may hold more than the entries: keys may have been put again.
        while self.order.len() > ENTRIES || self.bytes > BYTES {
            let Some((number, key)) = self.order.pop_front() else {
                return;
            };
            if self.entries.get(&key).is_some_and(|e| e.number == number)
                && let Some(gone) = self.entries.remove(&key)
            {
                self.bytes -= size(&key, &gone);
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}

fn size(key: &[u8], entry: &Entry) -> usize {
    key.len() + entry.answer.len() + 8 * entry.places.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::dns_message::Query;
    use std::time::Duration;

    fn answer(name: &str, ttl: u32) -> (Vec<u8>, Vec<u8>) {
        let mut query = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.push(u8::try_from(name.len()).unwrap());
        query.extend(name.as_bytes());
        query.extend([0, 0, 1, 0, 1]);
        let read = Query::read(&query).unwrap();
        let answer = read.addresses(&query, &["192.0.2.1".parse().unwrap()], ttl);
        (read.key(&query), answer)
    }

    #[test]
    fn answers_grow_old() {
        let mut cache = Cache::default();
        let now = Instant::now();
        let (key, bytes) = answer("a", 10);
        cache.put(key.clone(), &bytes, now);
        assert_eq!(cache.get(&key, now), Some(bytes));
        let later = cache.get(&key, now + Duration::from_secs(9)).unwrap();
        assert_eq!(dns_message::lifetime(&later).unwrap().seconds, 1);
        assert_eq!(cache.get(&key, now + Duration::from_secs(10)), None);
        let (key, bytes) = answer("b", 0);
        cache.put(key.clone(), &bytes, now);
        assert_eq!(cache.get(&key, now), None);
    }

    #[test]
    fn it_stays_bounded() {
        let mut cache = Cache::default();
        let now = Instant::now();
        for number in 0..5000 {
            let (key, bytes) = answer(&format!("n{number}"), 60);
            cache.put(key.clone(), &bytes, now);
            // The same key is put repeatedly.
            let (same, bytes) = answer("same", 60);
            cache.put(same, &bytes, now);
            assert!(cache.count() <= ENTRIES && cache.order.len() <= ENTRIES);
            assert!(cache.get(&key, now).is_some(), "the newest is there");
        }
        let sizes = cache.entries.iter().map(|(key, entry)| size(key, entry));
        assert_eq!(sizes.sum::<usize>(), cache.bytes);
    }
}
