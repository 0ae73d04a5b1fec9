//! Ratings on disk: one redb table from UUID to the JSON that is sent for it.
//!
//! A read is one look-up whose bytes go out unchanged; a write is durable when it returns.

use crate::catalogue::{PRODUCT, REVIEWS};
use crate::uuid::Uuid;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use serde::Serialize;
use std::fmt::Display;
use std::path::Path;

const RATINGS: TableDefinition<u128, &[u8]> = TableDefinition::new("ratings");
/// Few rows, so a small cache: the default of 1 GiB suits a server of its own.
const CACHE_BYTES: usize = 4 * 1024 * 1024;
/// Most ratings kept.
const MAX_RATINGS: u64 = 100_000;

/// A rating as stored and sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rating<'a> {
    /// UUID.
    pub id: String,
    /// UUID of the product.
    pub product_id: &'a str,
    /// UUID of the reviewer.
    pub reviewer_id: &'a str,
    /// 1 to 5.
    pub rating: u8,
}

/// The database.
pub(crate) struct Store(Database);

/// Why a rating was not stored.
#[derive(Debug)]
pub(crate) enum PutError {
    /// The maximum number of ratings is stored.
    Full,
    /// The database failed.
    Database(String),
}

impl Store {
    /// Opens or makes the file and adds the sample's ratings if they are absent.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let cannot = |e: &dyn Display| {
            format!(
                "the ratings database {} cannot be opened: {e}. Is another ratings process using \
                 it, or does it belong to another user? --database or RATINGS_DATABASE names another file",
                path.display()
            )
        };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(|e| cannot(&e))?;
        }
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(path)
            .map_err(|e| cannot(&e))?;
        let store = Self(database);
        store.seed().map_err(|e| cannot(&e))?;
        Ok(store)
    }

    fn seed(&self) -> Result<(), redb::Error> {
        let write = self.0.begin_write()?;
        {
            let mut table = write.open_table(RATINGS)?;
            for review in &REVIEWS {
                let Some(id) = Uuid::parse(review.rating_id) else {
                    continue;
                };
                if table.get(id.0)?.is_some() {
                    continue;
                }
                let rating = Rating {
                    id: id.to_string(),
                    product_id: PRODUCT,
                    reviewer_id: review.reviewer_id,
                    rating: review.stars,
                };
                let json = serde_json::to_vec(&rating).unwrap_or_default();
                table.insert(id.0, json.as_slice())?;
            }
        }
        write.commit()?;
        Ok(())
    }

    /// The JSON of a rating.
    pub(crate) fn get(&self, id: Uuid) -> Result<Option<Vec<u8>>, String> {
        let read = || -> Result<_, redb::Error> {
            let table = self.0.begin_read()?.open_table(RATINGS)?;
            Ok(table.get(id.0)?.map(|json| json.value().to_vec()))
        };
        read().map_err(|e| e.to_string())
    }

    /// Stores the JSON of a rating durably. Blocks on the disk.
    pub(crate) fn put(&self, id: Uuid, json: &[u8]) -> Result<(), PutError> {
        let write = || -> Result<bool, redb::Error> {
            let write = self.0.begin_write()?;
            {
                let mut table = write.open_table(RATINGS)?;
                if table.len()? >= MAX_RATINGS {
                    return Ok(false);
                }
                table.insert(id.0, json)?;
            }
            write.commit()?;
            Ok(true)
        };
        match write() {
            Ok(true) => Ok(()),
            Ok(false) => Err(PutError::Full),
            Err(e) => Err(PutError::Database(e.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_there_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/ratings.redb");
        let id = Uuid(7);
        {
            let store = Store::open(&path).unwrap();
            assert_eq!(store.get(id).unwrap(), None);
            store.put(id, b"{}").unwrap();
            let seeded = Uuid::parse(REVIEWS[0].rating_id).unwrap();
            store.put(seeded, b"changed").unwrap();
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(store.get(id).unwrap().as_deref(), Some(&b"{}"[..]));
        let seeded = Uuid::parse(REVIEWS[0].rating_id).unwrap();
        assert_eq!(store.get(seeded).unwrap().as_deref(), Some(&b"changed"[..]));
    }

    #[test]
    fn every_sample_rating_is_seeded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("r.redb")).unwrap();
        for review in &REVIEWS {
            let id = Uuid::parse(review.rating_id).unwrap();
            let json = store.get(id).unwrap().unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            assert_eq!(json["rating"], review.stars);
        }
    }
}
