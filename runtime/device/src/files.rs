//! The host tier in files: copies of cache pages on a disk, moved by a thread of their own.
//!
//! A page is a file. The engine's thread never waits for the disk: what is written is handed over, what is read is asked
//! for all at once and fetched when it is there. A copy that cannot be written, was cut short or has other bytes than were
//! written is lost, and whoever needed it computes it again. The folder is the tier's own and goes with it.

use engine::{HostPage, HostTier, TierError, Transfer};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Jobs that may wait for the disk; with more the engine is told to come again.
const MOST_JOBS: usize = 1024;

/// How long a step waits for a layer before the copy counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// `None` once the tier is being dropped.
    jobs: Option<SyncSender<Job>>,
    answers: Receiver<Answer>,
    /// Questions and their answers. A page's number serves another page once it is forgotten, so an answer belongs to one
    /// question only.
    asked: HashMap<(HostPage, usize), (u64, Option<Outcome>)>,
    next_ask: u64,
    thread: Option<JoinHandle<()>>,
}

impl FileTier {
    /// Room for so many bytes in a new folder inside `parent`.
    pub fn new(parent: &Path, bytes: u64) -> std::io::Result<FileTier> {
        std::fs::create_dir_all(parent)?;
        // Servers that share a disk do not share copies: the books of each are in its memory.
        let folder = (0u32..)
            .map(|n| parent.join(format!("pages-{}-{n}", std::process::id())))
            .find(|folder| !folder.exists())
            .unwrap_or_else(|| parent.join("pages"));
        std::fs::create_dir(&folder)?;
        let ((jobs, inbox), (outbox, answers)) = (sync_channel(MOST_JOBS), channel());
        let mut disk = Disk { folder: folder.clone(), pages: HashMap::new() };
        let thread = std::thread::Builder::new().name("host-tier".into()).spawn(move || disk.run(&inbox, &outbox))?;
        Ok(FileTier {
            bytes,
            folder,
            jobs: Some(jobs),
            answers,
            asked: HashMap::new(),
            next_ask: 0,
            thread: Some(thread),
        })
    }

    /// Hands a job over; false if there is no room for it now.
    fn hand(&self, job: Job) -> Result<bool, TierError> {
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => Ok(true),
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
        // That the thread is gone is told when the layer is needed.
        self.ask(page, layer).unwrap_or(true)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        self.ask(page, layer)?;
        self.take_answers();
        match self.asked.get_mut(&(page, layer)).and_then(|(_, answer)| answer.take()) {
            None => Ok(Transfer::Later),
            Some(answer) => {
                self.asked.remove(&(page, layer));
                *out = answer.map_err(TierError)?;
                Ok(Transfer::Done)
            }
        }
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        let end = Instant::now() + PATIENCE;
        while self.read(page, layer, out)? == Transfer::Later {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TierError(format!("the disk has said nothing for {} s", PATIENCE.as_secs())));
            }
            // With no room to ask, the disk has enough to do and need not say anything.
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
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has nothing more to do either.
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
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
}

impl Disk {
    fn run(&mut self, jobs: &Receiver<Job>, answers: &Sender<Answer>) {
        while let Ok(job) = jobs.recv() {
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
}
