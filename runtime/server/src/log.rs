//! What a server writes down of its work: a line for each request that is over, one for each that is turned away, and now and
//! then one about its load. Fields have the names of the metrics.
//!
//! Lines are written by a thread of their own. A reader that is too slow loses lines, and is told how many; it holds nobody up.

use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines that wait to be written; more are lost.
const WAITING: usize = 4096;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `time=… event=… name=value …`
    Text,
    /// One JSON object.
    Json,
}

/// Where lines go. Clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    format: LogFormat,
    lines: SyncSender<String>,
    lost: Arc<AtomicU64>,
    end: Arc<End>,
}

/// Whether the log's thread has ended.
#[derive(Debug, Default)]
struct End {
    is_there: Mutex<bool>,
    comes: Condvar,
}

impl Log {
    /// A log that is written to `out`.
    pub fn to(format: LogFormat, mut out: impl Write + Send + 'static) -> std::io::Result<Log> {
        let (lines, waiting) = sync_channel::<String>(WAITING);
        let end = Arc::new(End::default());
        let own = end.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            for line in waiting {
                // A log that cannot be written is no reason to stop serving.
                let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
            }
            *own.is_there.lock().unwrap_or_else(PoisonError::into_inner) = true;
            own.comes.notify_all();
        })?;
        Ok(Log { format, lines, lost: Arc::default(), end })
    }

    /// Gives this log up and waits until nobody else has it and all its lines are written, or the time is up; whether they are.
    pub fn finish(self, time: Duration) -> bool {
        let end = self.end.clone();
        drop(self);
        let is_there = end.is_there.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = end.comes.wait_timeout_while(is_there, time, |is_there| !*is_there);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Writes a line about `event` with these fields.
    pub(crate) fn write(&self, event: &str, fields: Value) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| rounded(t.as_secs_f64()));
        let mut line = Map::new();
        line.insert("time".into(), json!(time));
        line.insert("event".into(), json!(event));
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            line.insert("lost_lines".into(), json!(lost));
        }
        if self.lines.try_send(self.text(line)).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    fn text(&self, line: Map<String, Value>) -> String {
        match self.format {
            LogFormat::Json => format!("{}\n", Value::Object(line)),
            // Texts keep their quotation marks, so that no client can write lines of its own.
            LogFormat::Text => {
                let words: Vec<String> = line.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{}\n", words.join(" "))
            }
        }
    }
}

/// Seconds to the microsecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64())
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// Takes a line only when it is let; its counter has the lines that have come, taken or not.
    struct Slow(Arc<Mutex<Vec<u8>>>, Receiver<()>, Arc<AtomicU64>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.2.fetch_add(1, Ordering::SeqCst);
            let _ = self.1.recv();
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_reader_loses_lines_and_hears_of_it() {
        let (written, (go, wait)) = (Arc::new(Mutex::new(Vec::new())), channel());
        let come = Arc::new(AtomicU64::new(0));
        let log = Log::to(LogFormat::Json, Slow(written.clone(), wait, come.clone())).unwrap();
        // The first line is in the reader's hands before others follow; else it could leave its place to one of those that are lost.
        log.write("a", json!({}));
        while come.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let lost = 50;
        let more = WAITING + lost;
        for i in 0..more {
            log.write("a", json!({"n": i}));
        }
        assert_eq!(log.lost.load(Ordering::Relaxed), lost as u64);
        drop(go);
        while written.lock().unwrap().iter().filter(|b| **b == b'\n').count() < 1 + WAITING {
            std::thread::yield_now();
        }
        log.write("b", json!({"name": "x\ny"}));
        while !written.lock().unwrap().ends_with(b"}\n") || !written.lock().unwrap().windows(3).any(|w| w == b"\"b\"") {
            std::thread::yield_now();
        }
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!((&last["event"], &last["name"], &last["lost_lines"]), (&json!("b"), &json!("x\ny"), &json!(lost)));
        assert!(last["time"].as_f64().is_some_and(|time| time > 1e9));
    }

    #[test]
    fn whoever_goes_waits_for_the_last_line() {
        let (written, (go, wait)) = (Arc::new(Mutex::new(Vec::new())), channel());
        let log = Log::to(LogFormat::Json, Slow(written.clone(), wait, Arc::default())).unwrap();
        log.write("a", json!({}));
        let other = log.clone();
        assert!(!log.finish(Duration::ZERO));
        other.write("b", json!({}));
        drop(go);
        assert!(other.finish(Duration::from_secs(600)));
        assert_eq!(written.lock().unwrap().iter().filter(|b| **b == b'\n').count(), 2);
    }

    #[test]
    fn text_has_one_line_whatever_a_client_sends() {
        let (lines, _kept) = sync_channel(1);
        let log = Log { format: LogFormat::Text, lines, lost: Arc::default(), end: Arc::default() };
        let Value::Object(fields) = json!({"rid": "a\nb=\"c\"", "n": 1.5}) else { unreachable!() };
        assert_eq!(log.text(fields), "rid=\"a\\nb=\\\"c\\\"\" n=1.5\n");
    }
}
