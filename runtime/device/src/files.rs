//! The host tier in files: copies of cache pages on a disk, moved by a thread of their own.
//!
//! A page is a file. The engine's thread never waits for the disk: what is written is handed over, what is read is asked
//! for all at once and fetched when it is there. A copy that cannot be written, was cut short, has other bytes than were
//! written or does not come while the disk does nothing at all is lost, and whoever needed it computes it again. The folder is the
//! tier's own and goes with it, or with the next tier beside it where its server was killed.

use engine::{HostPage, HostTier, TierError, Transfer};
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Jobs that may wait for the disk; with more the engine is told to come again.
const MOST_JOBS: usize = 1024;

/// How long the disk may do nothing that it was asked for before the copy that is waited for counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a tier that ends waits for its thread, which a disk that hangs does not give back.
const FAREWELL: Duration = Duration::from_secs(2);
/// Between two looks at a thread that is ending.
const LOOK: Duration = Duration::from_millis(1);
/// Held by the server that a folder belongs to.
const LOCK: &str = "lock";
/// What the names of folders begin with.
const PREFIX: &str = "pages-";

/// What the thread is asked for.
enum Job {
    Write { page: HostPage, layer: usize, bytes: Vec<u8> },
    Read { page: HostPage, layer: usize, ask: u64 },
    Forget { page: HostPage },
}

/// A layer that was read, or why it could not be.
type Outcome = Result<Vec<u8>, String>;

/// What was asked for, by which question, and what came of it.
type Answer = ((HostPage, usize), u64, Outcome);

/// Copies in files.
#[derive(Debug)]
pub struct FileTier {
    bytes: u64,
    folder: PathBuf,
    patience: Duration,
    /// `None` once the tier is being dropped.
    jobs: Option<SyncSender<Job>>,
    answers: Receiver<Answer>,
    /// Questions and their answers. A page's number serves another page once it is forgotten, so an answer belongs to one
    /// question only.
    asked: HashMap<(HostPage, usize), (u64, Option<Outcome>)>,
    next_ask: u64,
    /// Jobs that the thread was given, and those that it is through with.
    handed: u64,
    done: Arc<AtomicU64>,
    /// Whether the tier ends, and no job counts any more.
    ends: Arc<AtomicBool>,
    /// How many were done when last looked, and since when.
    heard: (u64, Instant),
    thread: Option<JoinHandle<()>>,
    /// Locked as long as the folder is in use, where files can be.
    _lock: Option<File>,
}

impl FileTier {
    /// Room for so many bytes in a new folder inside `parent`.
    pub fn new(parent: &Path, bytes: u64) -> std::io::Result<FileTier> {
        FileTier::with_patience(parent, bytes, PATIENCE)
    }

    fn with_patience(parent: &Path, bytes: u64, patience: Duration) -> std::io::Result<FileTier> {
        std::fs::create_dir_all(parent)?;
        remove_abandoned(parent);
        let (folder, lock) = claim(parent)?;
        let ((jobs, inbox), (outbox, answers)) = (sync_channel(MOST_JOBS), channel());
        let (done, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut disk = Disk { folder: folder.clone(), pages: HashMap::new(), done: done.clone(), ends: ends.clone() };
        let thread = std::thread::Builder::new().name("host-tier".into()).spawn(move || disk.run(&inbox, &outbox))?;
        Ok(FileTier {
            bytes,
            folder,
            patience,
            jobs: Some(jobs),
            answers,
            asked: HashMap::new(),
            next_ask: 0,
            handed: 0,
            done,
            ends,
            heard: (0, Instant::now()),
            thread: Some(thread),
            _lock: lock,
        })
    }

    /// Whether the disk has not done anything for long of what it was asked for.
    fn is_silent(&mut self) -> bool {
        let (done, now) = (self.done.load(Ordering::Acquire), Instant::now());
        if done != self.heard.0 {
            self.heard = (done, now);
        }
        now.saturating_duration_since(self.heard.1) >= self.patience
    }

    fn silent(&self) -> TierError {
        TierError(format!("the disk has done nothing for {:?}", self.patience))
    }

    /// Hands a job over; false if there is no room for it now. Refused where the disk does none.
    fn hand(&mut self, job: Job) -> Result<bool, TierError> {
        if self.done.load(Ordering::Acquire) == self.handed {
            // It had nothing to do until now.
            self.heard = (self.handed, Instant::now());
        }
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => {
                self.handed += 1;
                Ok(true)
            }
            Some(Err(TrySendError::Full(_))) if self.is_silent() => Err(self.silent()),
            Some(Err(TrySendError::Full(_))) => Ok(false),
            _ => Err(gone()),
        }
    }

    /// Asks for a layer once; false if there is no room to ask now.
    fn ask(&mut self, page: HostPage, layer: usize) -> Result<bool, TierError> {
        if !self.asked.contains_key(&(page, layer)) {
            let ask = self.next_ask;
            if !self.hand(Job::Read { page, layer, ask })? {
                return Ok(false);
            }
            self.next_ask += 1;
            self.asked.insert((page, layer), (ask, None));
        }
        Ok(true)
    }

    fn take_answers(&mut self) {
        while let Ok(answer) = self.answers.try_recv() {
            self.file(answer);
        }
    }

    /// Puts an answer to its question.
    fn file(&mut self, (of, ask, answer): Answer) {
        // Nobody waits any more for what was forgotten on the way.
        if let Some((_, place)) = self.asked.get_mut(&of).filter(|(asked, _)| *asked == ask) {
            *place = Some(answer);
        }
    }
}

fn gone() -> TierError {
    TierError("the thread of the host tier is gone".into())
}

impl HostTier for FileTier {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        let is_taken = self.hand(Job::Write { page, layer, bytes: bytes.to_vec() })?;
        Ok(if is_taken { Transfer::Done } else { Transfer::Later })
    }

    fn prefetch(&mut self, page: HostPage, layer: usize) -> bool {
        // That the thread is gone, or the disk silent, is told when the layer is needed.
        self.ask(page, layer).unwrap_or(true)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        self.ask(page, layer)?;
        self.take_answers();
        match self.asked.get_mut(&(page, layer)).and_then(|(_, answer)| answer.take()) {
            None if !self.is_silent() => Ok(Transfer::Later),
            None => {
                // Whoever asks again asks anew.
                self.asked.remove(&(page, layer));
                Err(self.silent())
            }
            Some(answer) => {
                self.asked.remove(&(page, layer));
                *out = answer.map_err(TierError)?;
                Ok(Transfer::Done)
            }
        }
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        let end = Instant::now() + self.patience;
        while self.read(page, layer, out)? == Transfer::Later {
            // A step does not wait for others' copies, however busy the disk is with them.
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TierError(format!("the disk has had {:?} for it", self.patience)));
            }
            if !self.asked.contains_key(&(page, layer)) {
                std::thread::yield_now();
                continue;
            }
            match self.answers.recv_timeout(left) {
                Ok(answer) => self.file(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(0)
    }

    fn forget(&mut self, page: HostPage) {
        self.take_answers();
        self.asked.retain(|(p, _), _| *p != page);
        // A file that stays is overwritten by the next page of this number, and goes with the folder.
        let _ = self.hand(Job::Forget { page });
    }
}

impl Drop for FileTier {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + FAREWELL;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        // A disk that hangs would keep whoever removes something from it, too; the folder goes with the next tier.
        if thread.is_finished() {
            remove(&self.folder);
        }
    }
}

/// A new folder inside `parent` with its lock, which is held until the file is closed. Servers that share a disk do not share
/// copies: the books of each are in its memory.
fn claim(parent: &Path) -> std::io::Result<(PathBuf, Option<File>)> {
    let mut n = 0u32;
    loop {
        let folder = parent.join(format!("{PREFIX}{}-{n}", std::process::id()));
        n += 1;
        match std::fs::create_dir(&folder) {
            // Processes of two machines may have one number.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
            done => done?,
        }
        let locked = File::create(folder.join(LOCK)).and_then(|file| match file.lock() {
            // Without locks nobody cleans up behind a server that was killed.
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(None),
            done => done.map(|()| Some(file)),
        });
        // Whoever starts at the same time may have taken the folder for an abandoned one before the lock was held.
        match locked {
            Ok(lock) if folder.join(LOCK).is_file() => return Ok((folder, lock)),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound && parent.is_dir() => {}
            Err(e) => {
                remove(&folder);
                return Err(e);
            }
        }
    }
}

/// Removes a tier's folder: pages first, so that what is left when that is cut short still shows that nobody holds it.
fn remove(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.file_name() != LOCK) {
        let _ = std::fs::remove_file(entry.path());
    }
    let _ = std::fs::remove_file(folder.join(LOCK));
    let _ = std::fs::remove_dir(folder);
}

/// Removes folders of servers that were killed: those whose lock nobody holds. What cannot be removed stays.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        if !entry.file_name().to_str().is_some_and(is_ours) {
            continue;
        }
        match File::open(folder.join(LOCK)) {
            // The lock is held until all is gone.
            Ok(lock) => {
                if lock.try_lock().is_ok() {
                    remove(&folder);
                }
            }
            // Without a lock only an empty one goes.
            Err(_) => drop(std::fs::remove_dir(&folder)),
        }
    }
}

/// Whether a folder has a name as tiers give it: process and number.
fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(process, n)| is_number(process) && is_number(n))
}

/// Where a layer lies in its page's file, and what its bytes were.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    bytes: usize,
    sum: u64,
}

/// The thread's side.
struct Disk {
    folder: PathBuf,
    pages: HashMap<HostPage, Vec<Option<Place>>>,
    done: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Disk {
    fn run(&mut self, jobs: &Receiver<Job>, answers: &Sender<Answer>) {
        while let Ok(job) = jobs.recv() {
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            match job {
                Job::Write { page, layer, bytes } => {
                    // A layer that was not written is missed when it is read.
                    if self.write(page, layer, &bytes).is_err()
                        && let Some(place) = self.pages.get_mut(&page).and_then(|layers| layers.get_mut(layer))
                    {
                        *place = None;
                    }
                }
                Job::Read { page, layer, ask } => {
                    if answers.send(((page, layer), ask, self.read(page, layer))).is_err() {
                        return;
                    }
                }
                Job::Forget { page } => {
                    self.pages.remove(&page);
                    let _ = std::fs::remove_file(self.path(page));
                }
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    fn path(&self, page: HostPage) -> PathBuf {
        self.folder.join(page.to_string())
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.path(page);
        let layers = self.pages.entry(page).or_default();
        if layers.len() <= layer {
            layers.resize(layer + 1, None);
        }
        let offset = layers.iter().flatten().map(|place| place.offset + place.bytes as u64).max().unwrap_or(0);
        let mut file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)?;
        if let Some(place) = layers.get_mut(layer) {
            *place = Some(Place { offset, bytes: bytes.len(), sum: sum(bytes) });
        }
        Ok(())
    }

    fn read(&self, page: HostPage, layer: usize) -> Result<Vec<u8>, String> {
        let place = self.pages.get(&page).and_then(|layers| layers.get(layer).copied().flatten());
        let place = place.ok_or_else(|| format!("page {page} has no layer {layer}"))?;
        let path = self.path(page);
        let wrong = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut file = File::open(&path).map_err(wrong)?;
        file.seek(SeekFrom::Start(place.offset)).map_err(wrong)?;
        let mut bytes = vec![0; place.bytes];
        file.read_exact(&mut bytes).map_err(wrong)?;
        match sum(&bytes) == place.sum {
            true => Ok(bytes),
            false => Err(format!("{} has other bytes than were written", path.display())),
        }
    }
}

/// A sum that tells damaged bytes, not a forger's.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks until the disk has answered.
    fn read(tier: &mut FileTier, page: HostPage, layer: usize) -> Result<Vec<u8>, TierError> {
        let mut out = Vec::new();
        while tier.read(page, layer, &mut out)? == Transfer::Later {
            std::thread::yield_now();
        }
        Ok(out)
    }

    #[test]
    fn layers_come_back_as_they_were_written() {
        let place = tempfile::tempdir().unwrap();
        let mut tier = FileTier::new(place.path(), 1000).unwrap();
        for (page, layer) in [(1, 0), (1, 1), (2, 0)] {
            assert_eq!(tier.write(page, layer, &[page as u8 + layer as u8; 33]), Ok(Transfer::Done));
        }
        assert!(tier.prefetch(1, 0) && tier.prefetch(1, 1));
        assert_eq!(read(&mut tier, 1, 1), Ok(vec![2; 33]));
        assert_eq!(read(&mut tier, 1, 0), Ok(vec![1; 33]));
        assert!(read(&mut tier, 1, 2).is_err() && read(&mut tier, 3, 0).is_err());
        tier.forget(1);
        assert!(read(&mut tier, 1, 0).is_err());
        // The number serves another page, whose layers may have other sizes.
        assert_eq!(tier.write(1, 0, &[9; 5]), Ok(Transfer::Done));
        let mut out = Vec::new();
        assert_eq!((tier.read_now(1, 0, &mut out), out.as_slice()), (Ok(0), &[9; 5][..]));
        assert_eq!(read(&mut tier, 2, 0), Ok(vec![2; 33]));
        drop(tier);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "the folder goes with the tier");
    }

    #[test]
    fn damaged_copies_are_lost() {
        let place = tempfile::tempdir().unwrap();
        let mut tier = FileTier::new(place.path(), 1000).unwrap();
        for page in 1..4 {
            assert_eq!(tier.write(page, 0, &[5; 40]), Ok(Transfer::Done));
            assert_eq!(read(&mut tier, page, 0), Ok(vec![5; 40]));
        }
        let file = |page: u32| tier.folder.join(page.to_string());
        std::fs::write(file(1), [5; 39]).unwrap();
        let mut bytes = [5; 40];
        bytes[17] ^= 1;
        std::fs::write(file(2), bytes).unwrap();
        std::fs::remove_file(file(3)).unwrap();
        assert!((1..4).all(|page| read(&mut tier, page, 0).is_err()));
        assert!((1..4).all(|page| tier.read_now(page, 0, &mut Vec::new()).is_err()));
    }

    /// Opening a pipe that nobody writes to hangs as a disk does that is gone.
    #[cfg(unix)]
    #[test]
    fn a_disk_that_hangs_loses_copies_and_keeps_nobody() {
        let place = tempfile::tempdir().unwrap();
        let mut tier = FileTier::with_patience(place.path(), 1000, Duration::from_millis(300)).unwrap();
        for page in [1, 2] {
            assert_eq!(tier.write(page, 0, &[5; 40]), Ok(Transfer::Done));
            while read(&mut tier, page, 0) != Ok(vec![5; 40]) {}
        }
        let file = tier.folder.join("1");
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert_eq!(read(&mut tier, 1, 0), Err(TierError("the disk has done nothing for 300ms".into())));
        assert!(tier.read(2, 0, &mut Vec::new()).is_err(), "it is known by now");
        let refused = (0..2 * MOST_JOBS).map(|layer| tier.write(3, layer, &[5; 40])).find(Result::is_err);
        assert_eq!(refused, Some(Err(tier.silent())), "copies are not waited for either");
        drop(tier);
        // Nobody holds the folder any more, and whoever comes next removes it.
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        drop(FileTier::new(place.path(), 1000).unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_of_servers_that_live_and_of_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let mut first = FileTier::new(place.path(), 1000).unwrap();
        assert_eq!(first.write(1, 0, &[5; 40]), Ok(Transfer::Done));
        for name in ["pages-2024", "pages-x-1", "other-1-1"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join(LOCK), "").unwrap();
        }
        // A start that was cut short leaves an empty folder, a removal one with a lock.
        std::fs::create_dir(place.path().join("pages-1-7")).unwrap();
        std::fs::create_dir(place.path().join("pages-1-8")).unwrap();
        std::fs::write(place.path().join("pages-1-8").join(LOCK), "").unwrap();
        let second = FileTier::new(place.path(), 1000).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 5);
        assert_eq!(read(&mut first, 1, 0), Ok(vec![5; 40]));
        drop((first, second));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 3);
    }
}
