//! Counts while this host cannot reach its controller: who called whom how often, what was refused and why. It is kept in files of the state directory, and sent when the line is back.
//!
//! While the controller is there, sidecars tell it themselves. This looks at their counters all the same, because a line
//! that is dead is only noticed after a while, and what was counted since would be in nobody's sums.

mod counters;
mod ledger;

use crate::failure::{OrFail, Result};
use crate::http;
use crate::proxies::SHORT_METRICS;
use crate::remove_tree::remove_tree;
use crate::supervise::context::Context;
use crate::supervise::state::RunState;
use counters::Counters;
use ledger::{Ledger, Pair};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};
use tulle_api::away::Sums;
use tulle_api::v1::AwayPiece;
use tulle_model::samples::{self, MetricSample};

/// Between two looks while the controller is there.
const EVERY: Duration = Duration::from_secs(20);
/// While it is not. A supervisor that is killed loses so much.
const EVERY_AWAY: Duration = Duration::from_secs(10);
/// A dead line is noticed within this time, in seconds: what was counted in it counts as while it was dead. The kernel
/// takes 40 s, and twice as long if something was sent meanwhile; then nothing answers for ten.
const NOTICED: i64 = 90;
/// Bytes of all files together.
const MAX_BYTES: u64 = 8 << 20;
/// Files, each of which is of one time away.
const MAX_FILES: usize = 64;
/// Longest wait for the answer to one piece, and the pause after it: what is urgent goes first.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
const ADMIN_TIME: Duration = Duration::from_secs(2);

/// Counts, keeps and sends for as long as the host is up.
pub(super) async fn keep(context: Rc<Context>) {
    let directory = context.paths.away();
    let mut keeper = Keeper {
        files: Files { directory },
        counters: Counters::default(),
        lately: VecDeque::new(),
        now: None,
        context,
    };
    if let Err(failure) = keeper.files.seal_all() {
        tracing::warn!("{failure}");
    }
    keeper.run().await;
}

/// Removes all that is kept: it was counted in a mesh of which this host is no more.
pub(super) fn forget(directory: &Path) -> Result<()> {
    remove_tree(directory).or_fail(|| format!("cannot remove {}", directory.display()))
}

struct Keeper {
    context: Rc<Context>,
    files: Files,
    counters: Counters,
    /// The latest counts: from when until when.
    lately: VecDeque<(i64, i64, BTreeMap<Pair, Sums>)>,
    /// The sums of now, while the controller is away.
    now: Option<Ledger>,
}

impl Keeper {
    async fn run(&mut self) {
        let mut away = self.context.line.away();
        let mut last = seconds();
        loop {
            let every = match self.now.is_some() {
                true => EVERY_AWAY,
                false => EVERY,
            };
            tokio::select! {
                () = sleep(every) => {}
                _ = away.changed() => {}
            }
            let is_away = *away.borrow_and_update();
            let time = seconds();
            let counted = self.counters.advance(scrape(&self.context).await);
            self.lately.push_back((last, time, counted));
            last = time;
            if let Err(failure) = self.note(is_away, time) {
                tracing::warn!("{failure}");
            }
            if !is_away && let Err(failure) = self.send().await {
                tracing::debug!("{failure}");
            }
        }
    }

    fn note(&mut self, is_away: bool, time: i64) -> Result<()> {
        if is_away && self.now.is_none() {
            let begin = self.lately.front().map_or(time, |(from, ..)| *from);
            self.now = Some(Ledger::begin(begin));
        }
        let Some(ledger) = &mut self.now else {
            while self
                .lately
                .front()
                .is_some_and(|(_, until, _)| *until < time - NOTICED)
            {
                self.lately.pop_front();
            }
            return Ok(());
        };
        for (_, until, counted) in self.lately.drain(..) {
            ledger.add(until, &counted);
        }
        if is_away {
            return self.files.write(ledger);
        }
        ledger.is_sealed = true;
        let ended = self.now.take();
        ended.map_or(Ok(()), |ledger| self.files.write(&ledger))
    }

    /// Sends what is kept, the oldest first.
    async fn send(&self) -> Result<()> {
        for file in self.files.all()? {
            let mut ledger = match Ledger::read(&file) {
                Ok(Ok(ledger)) => ledger,
                Ok(Err(why)) => {
                    give_up(&file, &why)?;
                    continue;
                }
                // It is tried again, and keeps no other back.
                Err(failure) => {
                    tracing::warn!("{failure}");
                    continue;
                }
            };
            if !ledger.is_empty() {
                let pieces = ledger.take_pieces(&file)?;
                self.send_one(&ledger, pieces).await?;
            }
            remove(&file)?;
        }
        Ok(())
    }

    async fn send_one(&self, ledger: &Ledger, pieces: Vec<AwayPiece>) -> Result<()> {
        let mut objects = self.context.objects.clone();
        for piece in pieces {
            let what = || "cannot tell the controller what was counted meanwhile".to_owned();
            let answer = timeout(PATIENCE, objects.report_away(piece)).await;
            answer.or_fail(what)?.or_fail(what)?;
            sleep(PAUSE).await;
        }
        tracing::info!(
            from = ledger.from,
            until = ledger.until,
            "told the controller what was counted while it was away"
        );
        Ok(())
    }
}

fn remove(file: &Path) -> Result<()> {
    std::fs::remove_file(file).or_fail(|| format!("cannot remove {}", file.display()))
}

/// Removes a file that has no ledger.
fn give_up(file: &Path, why: &serde_json::Error) -> Result<()> {
    tracing::warn!(file = %file.display(), "no counts of a time without the controller: {why}; the file is given up");
    remove(file)
}

/// Whether room is to be made elsewhere: the controller has a part of it and needs the rest, or it cannot be read now.
fn stays(file: &Path) -> bool {
    match Ledger::read(file) {
        Ok(Ok(ledger)) => ledger.is_begun,
        Ok(Err(_)) => false,
        Err(_) => true,
    }
}

/// The files, by the time that they are of.
struct Files {
    directory: PathBuf,
}

impl Files {
    /// All files, the oldest first.
    fn all(&self) -> Result<Vec<PathBuf>> {
        let what = || format!("cannot read {}", self.directory.display());
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).or_fail(what),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.or_fail(what)?.path();
            if path.extension().is_some_and(|e| e == "json") {
                files.push(path);
            }
        }
        // Their names are times of as many digits.
        files.sort_unstable();
        Ok(files)
    }

    fn write(&self, ledger: &Ledger) -> Result<()> {
        let what = || format!("cannot make {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).or_fail(what)?;
        let file = self.directory.join(format!("{}.json", ledger.period));
        ledger.write(&file)?;
        self.make_room()
    }

    /// Sums the oldest up for as long as all together are too much.
    fn make_room(&self) -> Result<()> {
        let all = self.all()?;
        let mut surplus = all.len().saturating_sub(MAX_FILES);
        let mut files = Vec::new();
        for file in all {
            if surplus == 0 || stays(&file) {
                files.push(file);
                continue;
            }
            tracing::warn!(file = %file.display(), "too many times without the controller; the oldest is given up");
            remove(&file)?;
            surplus -= 1;
        }
        let size = |file: &PathBuf| std::fs::metadata(file).map_or(0, |m| m.len());
        let mut bytes: u64 = files.iter().map(size).sum();
        for file in &files {
            if bytes <= MAX_BYTES {
                break;
            }
            bytes -= size(file).min(bytes);
            match Ledger::read(file) {
                Ok(Ok(mut ledger)) => {
                    if !ledger.is_begun && ledger.sum_up() {
                        ledger.write(file)?;
                    }
                    bytes += size(file);
                }
                // It would be left out when it is to be sent.
                Ok(Err(why)) => give_up(file, &why)?,
                Err(failure) => {
                    tracing::warn!("{failure}");
                    bytes += size(file);
                }
            }
        }
        Ok(())
    }

    /// Ends what an earlier process has begun.
    fn seal_all(&self) -> Result<()> {
        for file in self.all()? {
            // One that cannot be read is left out when it is to be sent.
            let Ok(Ok(mut ledger)) = Ledger::read(&file) else {
                continue;
            };
            if !ledger.is_sealed {
                ledger.is_sealed = true;
                ledger.write(&file)?;
            }
        }
        Ok(())
    }
}

/// The counters of all proxies of this host that answer.
async fn scrape(context: &Context) -> Vec<(i32, Vec<MetricSample>)> {
    let Ok(Some(state)) = RunState::read(&context.paths) else {
        return Vec::new();
    };
    let sidecars = state.workloads.iter().filter_map(|w| w.sidecar.as_ref());
    let mut asked = Vec::new();
    for sidecar in sidecars {
        let Some(id) = sidecar.process.id else {
            continue;
        };
        let socket = sidecar.admin_socket.clone();
        asked.push(tokio::task::spawn_blocking(move || {
            let answer = http::get_unix(&socket, SHORT_METRICS, ADMIN_TIME).ok()?;
            (answer.status == 200).then(|| (id.pid, samples::parse(&answer.text())))
        }));
    }
    let mut all = Vec::new();
    for answer in asked {
        all.extend(answer.await.ok().flatten());
    }
    all
}

fn seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a time away. With long names they are 240 KB.
    const PAIRS: usize = 400;

    fn files(directory: &Path) -> Files {
        Files {
            directory: directory.to_owned(),
        }
    }

    /// The begin of a time away, one a day.
    fn begin(number: i64) -> i64 {
        1_700_000_000 + number * 24 * 3600
    }

    fn ledger(number: i64) -> Ledger {
        let mut ledger = Ledger::begin(begin(number));
        let long = "x".repeat(240);
        let sums = Sums {
            requests: 1,
            ..Sums::default()
        };
        let counted: BTreeMap<Pair, Sums> = (0..PAIRS)
            .map(|i| {
                let name = format!("{i}{long}");
                ((name.clone(), name), sums.clone())
            })
            .collect();
        ledger.add(begin(number) + 60, &counted);
        ledger
    }

    fn read(file: &Path) -> Ledger {
        Ledger::read(file).unwrap().unwrap()
    }

    /// Bytes of all files.
    fn bytes(files: &Files) -> u64 {
        let all = files.all().unwrap();
        all.iter().map(|f| f.metadata().unwrap().len()).sum()
    }

    /// Pairs that are told apart, and requests of all.
    fn told(ledger: &Ledger) -> (usize, u64) {
        let pieces = ledger.pieces();
        let edges = pieces.iter().flat_map(|p| &p.edges);
        let sums = edges.clone().filter_map(|e| e.sums.as_ref());
        let rest = pieces.iter().filter_map(|p| p.rest.as_ref());
        (edges.count(), sums.chain(rest).map(|s| s.requests).sum())
    }

    #[test]
    fn all_times_together_are_within_their_bound_and_the_newest_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        let (surplus, most) = (6, i64::try_from(MAX_FILES).unwrap());
        for number in 0..surplus + most {
            files.write(&ledger(number)).unwrap();
            assert!(bytes(&files) <= MAX_BYTES, "{number}");
        }
        // None is summed up before it has to be.
        let bytes = bytes(&files);
        assert!(bytes > MAX_BYTES / 10 * 9, "{bytes}");
        let kept = files.all().unwrap();
        let kept: Vec<Ledger> = kept.iter().map(|f| read(f)).collect();
        let begins: Vec<i64> = kept.iter().map(|k| k.from).collect();
        let newest: Vec<i64> = (surplus..surplus + most).map(begin).collect();
        assert_eq!(begins, newest, "the oldest were given up");
        // The sums of each are right, and the pairs are those of the newest.
        let told: Vec<(usize, u64)> = kept.iter().map(told).collect();
        assert!(told.iter().all(|(_, requests)| *requests == PAIRS as u64));
        let whole: Vec<bool> = told.iter().map(|(pairs, _)| *pairs == PAIRS).collect();
        assert!(whole.is_sorted(), "{whole:?}");
        assert_eq!((whole.first(), whole.last()), (Some(&false), Some(&true)));
        assert!(told.iter().all(|(pairs, _)| [0, PAIRS].contains(pairs)));
    }

    #[test]
    fn a_file_that_cannot_be_read_takes_no_room_from_others() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        let broken = directory.path().join(format!("{}-1.json", begin(0)));
        let length = usize::try_from(MAX_BYTES).unwrap();
        std::fs::write(&broken, vec![b'x'; length]).unwrap();
        files.write(&ledger(1)).unwrap();
        assert!(!broken.exists());
        assert_eq!(read(&files.all().unwrap()[0]), ledger(1));
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        // A directory cannot be read as a file, by root neither.
        let unread = directory.path().join(format!("{}-1.json", begin(0)));
        std::fs::create_dir(&unread).unwrap();
        let most = i64::try_from(MAX_FILES).unwrap();
        for number in 1..=most {
            files.write(&ledger(number)).unwrap();
        }
        let all = files.all().unwrap();
        assert_eq!((all.len(), &all[0]), (MAX_FILES, &unread));
        assert!(bytes(&files) <= MAX_BYTES);
        // Room was made elsewhere.
        assert_eq!(read(&all[1]).from, begin(2));
        assert_eq!(told(&read(&all[1])), (0, PAIRS as u64));
    }

    /// A time away as the controller keeps it: each piece counts once, by its number, and in order.
    #[derive(Default)]
    struct Kept {
        next: u32,
        pieces: u32,
        requests: u64,
    }

    impl Kept {
        fn add(&mut self, piece: &AwayPiece) {
            if piece.piece < self.next {
                return;
            }
            assert_eq!(piece.piece, self.next);
            if self.next == 0 {
                self.pieces = piece.pieces;
            }
            self.next += 1;
            let sums = piece.edges.iter().filter_map(|e| e.sums.as_ref());
            let requests = sums.chain(piece.rest.as_ref()).map(|s| s.requests);
            self.requests += requests.sum::<u64>();
        }
    }

    #[test]
    fn a_time_that_was_sent_in_part_is_told_whole() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path());
        files.write(&ledger(0)).unwrap();
        let oldest = files.all().unwrap().remove(0);
        let mut kept = Kept::default();
        let pieces = read(&oldest).take_pieces(&oldest).unwrap();
        assert_eq!(pieces.len(), 8);
        for piece in &pieces[..3] {
            kept.add(piece);
        }
        // The line breaks, often, and there is neither room for all nor a place for each.
        for number in 1..=i64::try_from(MAX_FILES).unwrap() {
            files.write(&ledger(number)).unwrap();
            assert!(bytes(&files) <= MAX_BYTES, "{number}");
        }
        let all = files.all().unwrap();
        assert_eq!((all.len(), &all[0]), (MAX_FILES, &oldest));
        assert_eq!(told(&read(&all[1])), (0, PAIRS as u64), "room was made");
        let again = read(&oldest).take_pieces(&oldest).unwrap();
        assert_eq!(again, pieces);
        for piece in &again {
            kept.add(piece);
        }
        assert_eq!(
            (kept.next, kept.pieces, kept.requests),
            (8, 8, PAIRS as u64)
        );
        // A time that is told in one piece needs no mark: its sums are those of the piece.
        let mut small = read(&all[1]);
        assert_eq!(small.take_pieces(&all[1]).unwrap().len(), 1);
        assert!(!small.is_begun && !read(&all[1]).is_begun);
    }

    #[test]
    fn nothing_is_kept_for_another_mesh() {
        let directory = tempfile::tempdir().unwrap();
        let away = directory.path().join("host-away");
        forget(&away).unwrap();
        let files = files(&away);
        files.write(&ledger(1)).unwrap();
        std::fs::write(away.join("1-1.new"), "{").unwrap();
        forget(&away).unwrap();
        assert!(!away.exists());
        assert_eq!(files.all().unwrap(), Vec::<PathBuf>::new());
    }
}
