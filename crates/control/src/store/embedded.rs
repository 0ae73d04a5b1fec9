//! A store in one file (redb): every commit is on the disk before it is answered.
//!
//! The file holds the certificate authority's key, so only its owner may read it (0600). A file that
//! cannot be read is refused, never replaced: losing it means that every proxy has to join again.

use super::{
    Change, Commit, Space, Store, StoreError, StoreWatch, StoredObject, WATCH_BACKLOG, Write,
    WriteOutcome,
};
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, Table, TableDefinition,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{broadcast, watch};

/// (kind, name) to (revision, manifest).
const OBJECTS: TableDefinition<'_, (&str, &str), (u64, &str)> = TableDefinition::new("objects");
/// (space, key) to value.
const VALUES: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("values");
/// Numbers about the file itself.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Changes when an older Tulle could no longer read the file.
const FORMAT: u64 = 1;

/// A store in one file.
#[derive(Debug)]
pub struct Embedded {
    database: Database,
    /// Orders commits with their notifications, and watches with both.
    order: Mutex<()>,
    commits: broadcast::Sender<Arc<Commit>>,
    /// Why nothing can be written any more.
    failure: watch::Sender<Option<String>>,
}

impl Embedded {
    /// Opens the store, or makes a new one if there is no file.
    ///
    /// # Errors
    /// The file is damaged, of another format, open elsewhere, or cannot be created.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.try_exists().map_err(|e| unusable(path, &e))? {
            create(path)?;
        }
        // Mode first: a copy restored by hand may be readable by others.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(|e| unusable(path, &e))?;
        let database = Database::open(path).map_err(|e| open_error(path, e))?;
        let read = database.begin_read().map_err(|e| unusable(path, &e))?;
        let meta = read.open_table(META).map_err(|e| unusable(path, &e))?;
        let format = meta.get("format").map_err(|e| unusable(path, &e))?;
        match format.map(|f| f.value()) {
            Some(FORMAT) => {}
            other => {
                return Err(unusable(
                    path,
                    &format!("it has format {other:?}, this version reads format {FORMAT}"),
                ));
            }
        }
        drop((meta, read));
        Ok(Self::over(database))
    }

    /// A store in a database that has its tables.
    pub(super) fn over(database: Database) -> Self {
        Self {
            database,
            order: Mutex::new(()),
            commits: broadcast::Sender::new(WATCH_BACKLOG),
            failure: watch::Sender::new(None),
        }
    }

    /// Tells once that a write failed. From then on the file can be read, perhaps, but not written
    /// until it is opened again: redb trusts nothing it has in memory after an I/O error.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failure.subscribe()
    }

    /// Notes a failure, and wakes everybody who waits for one.
    fn noting<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &done {
            self.failure.send_replace(Some(error.to_string()));
        }
        done
    }

    fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Result<redb::WriteTransaction, StoreError> {
        let mut transaction = self.database.begin_write().map_err(writing)?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(writing)?;
        Ok(transaction)
    }
}

impl Embedded {
    fn try_commit(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, StoreError> {
        let _order = self.order();
        let transaction = self.begin()?;
        let (outcomes, commit) = write(&transaction, writes)?;
        let nothing =
            |o: &WriteOutcome| matches!(o, WriteOutcome::Unchanged | WriteOutcome::Absent);
        if outcomes.iter().all(nothing) {
            transaction.abort().map_err(writing)?;
            return Ok(outcomes);
        }
        transaction.commit().map_err(writing)?;
        if !commit.changes.is_empty() {
            // No watcher is no error.
            let _ = self.commits.send(Arc::new(commit));
        }
        Ok(outcomes)
    }

    fn try_take(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let _order = self.order();
        let transaction = self.begin()?;
        let taken = {
            let mut table = transaction.open_table(VALUES).map_err(writing)?;
            let old = table.remove((space.as_str(), key)).map_err(writing)?;
            old.map(|v| v.value().to_vec())
        };
        transaction.commit().map_err(writing)?;
        Ok(taken)
    }
}

/// Makes the file under another name first: a crash half-way leaves no file that would be refused.
fn create(path: &Path) -> Result<(), StoreError> {
    let io = |source| StoreError::Create {
        path: path.to_owned(),
        source,
    };
    let draft = PathBuf::from(format!("{}.new", path.display()));
    match fs::remove_file(&draft) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(&draft).map_err(io)?;
    let database = Database::create(&draft).map_err(|e| open_error(&draft, e))?;
    make_tables(&database)?;
    drop(database);
    fs::rename(&draft, path).map_err(io)?;
    let mut directories = path.ancestors().skip(1);
    if let Some(directory) = directories.next() {
        let directory = File::open(directory).map_err(io)?;
        directory.sync_all().map_err(io)?;
    }
    // They may be as new as the file, and whoever made them did not wait for the disk. One that this user
    // cannot open was there before.
    for directory in directories {
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
    }
    Ok(())
}

/// Makes the tables of a new database.
pub(super) fn make_tables(database: &Database) -> Result<(), StoreError> {
    let transaction = database.begin_write().map_err(writing)?;
    {
        transaction.open_table(OBJECTS).map_err(writing)?;
        transaction.open_table(VALUES).map_err(writing)?;
        let mut meta = transaction.open_table(META).map_err(writing)?;
        meta.insert("format", FORMAT).map_err(writing)?;
        meta.insert("revision", 0).map_err(writing)?;
    }
    transaction.commit().map_err(writing)
}

fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse {
            path: path.to_owned(),
        },
        other => unusable(path, &other),
    }
}

fn writing(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed {
        doing: "writing",
        reason: error.to_string(),
    }
}

fn reading(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed {
        doing: "reading",
        reason: error.to_string(),
    }
}

type Objects<'a> = Table<'a, (&'static str, &'static str), (u64, &'static str)>;
type Values<'a> = Table<'a, (&'static str, &'static str), &'static [u8]>;

fn put(table: &mut Objects<'_>, object: &StoredObject) -> Result<WriteOutcome, redb::StorageError> {
    let key = (object.kind.as_str(), object.name.as_str());
    let outcome = match table.get(key)? {
        Some(old) if old.value().1 == object.json => return Ok(WriteOutcome::Unchanged),
        Some(_) => WriteOutcome::Configured,
        None => WriteOutcome::Created,
    };
    table.insert(key, (object.revision, object.json.as_str()))?;
    Ok(outcome)
}

fn put_value(
    table: &mut Values<'_>,
    key: (&str, &str),
    value: &[u8],
) -> Result<WriteOutcome, redb::StorageError> {
    let old = table.insert(key, value)?;
    Ok(match old.as_ref().map(|old| old.value() == value) {
        None => WriteOutcome::Created,
        Some(true) => WriteOutcome::Unchanged,
        Some(false) => WriteOutcome::Configured,
    })
}

/// Makes the writes inside a transaction; returns the outcomes, and the changes for watchers.
fn write(
    transaction: &redb::WriteTransaction,
    writes: &[Write],
) -> Result<(Vec<WriteOutcome>, Commit), StoreError> {
    let mut objects = transaction.open_table(OBJECTS).map_err(writing)?;
    let mut values = transaction.open_table(VALUES).map_err(writing)?;
    let mut meta = transaction.open_table(META).map_err(writing)?;
    let last = meta.get("revision").map_err(writing)?;
    let revision = last.map_or(0, |r| r.value()) + 1;
    let mut outcomes = Vec::with_capacity(writes.len());
    let mut changes = Vec::new();
    for write in writes {
        let outcome = match write {
            Write::Put { kind, name, json } => {
                let object = StoredObject {
                    kind: kind.clone(),
                    name: name.clone(),
                    json: json.clone(),
                    revision,
                };
                let outcome = put(&mut objects, &object).map_err(writing)?;
                if outcome != WriteOutcome::Unchanged {
                    changes.push(Change::Applied(object));
                }
                outcome
            }
            Write::Delete { kind, name } => {
                let old = objects.remove((kind.as_str(), name.as_str()));
                if old.map_err(writing)?.is_some() {
                    changes.push(Change::Deleted {
                        kind: kind.clone(),
                        name: name.clone(),
                    });
                    WriteOutcome::Deleted
                } else {
                    WriteOutcome::Absent
                }
            }
            Write::PutValue { space, key, value } => {
                put_value(&mut values, (space.as_str(), key), value).map_err(writing)?
            }
            Write::DeleteValue { space, key } => {
                let old = values.remove((space.as_str(), key.as_str()));
                if old.map_err(writing)?.is_some() {
                    WriteOutcome::Deleted
                } else {
                    WriteOutcome::Absent
                }
            }
        };
        outcomes.push(outcome);
    }
    if !changes.is_empty() {
        meta.insert("revision", revision).map_err(writing)?;
    }
    Ok((outcomes, Commit { revision, changes }))
}

impl Store for Embedded {
    fn objects(&self) -> Result<Vec<StoredObject>, StoreError> {
        let read = self.database.begin_read().map_err(reading)?;
        let table = read.open_table(OBJECTS).map_err(reading)?;
        let mut objects = Vec::new();
        for row in table.iter().map_err(reading)? {
            let (key, value) = row.map_err(reading)?;
            let (kind, name) = key.value();
            let (revision, json) = value.value();
            objects.push(StoredObject {
                kind: kind.to_owned(),
                name: name.to_owned(),
                json: json.to_owned(),
                revision,
            });
        }
        Ok(objects)
    }

    fn object_bytes(&self, kind: &str, name: &str) -> Result<Option<usize>, StoreError> {
        let read = self.database.begin_read().map_err(reading)?;
        let table = read.open_table(OBJECTS).map_err(reading)?;
        let found = table.get((kind, name)).map_err(reading)?;
        Ok(found.map(|object| object.value().1.len()))
    }

    fn commit(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, StoreError> {
        self.noting(self.try_commit(writes))
    }

    fn value(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database.begin_read().map_err(reading)?;
        let table = read.open_table(VALUES).map_err(reading)?;
        let value = table.get((space.as_str(), key)).map_err(reading)?;
        Ok(value.map(|v| v.value().to_vec()))
    }

    fn values(&self, space: Space) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let read = self.database.begin_read().map_err(reading)?;
        let table = read.open_table(VALUES).map_err(reading)?;
        let mut values = Vec::new();
        for row in table.range((space.as_str(), "")..).map_err(reading)? {
            let (key, value) = row.map_err(reading)?;
            if key.value().0 != space.as_str() {
                break;
            }
            values.push((key.value().1.to_owned(), value.value().to_vec()));
        }
        Ok(values)
    }

    fn take(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.noting(self.try_take(space, key))
    }

    fn watch(&self) -> Result<StoreWatch, StoreError> {
        let _order = self.order();
        Ok(StoreWatch {
            objects: self.objects()?,
            commits: self.commits.subscribe(),
        })
    }
}
