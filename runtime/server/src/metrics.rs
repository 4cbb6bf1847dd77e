//! Counts and times of a server, and their text in Prometheus' exposition format.

use engine::{FinishReason, Usage};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the latency histograms, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// HTTP statuses are counted by their hundreds.
const STATUS_CLASSES: usize = 6;

/// A distribution of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One per bound, and one for what is longer than all.
    counts: [AtomicU64; SECONDS.len() + 1],
    sum_micros: AtomicU64,
}

impl Histogram {
    pub fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let place = SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(SECONDS.len());
        if let Some(count) = self.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    fn sum_seconds(&self) -> f64 {
        self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// Everything that is counted. All of it may be read and written from any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    running: AtomicUsize,
    queued: AtomicUsize,
    cache_tokens: AtomicUsize,
    free_tokens: AtomicUsize,
    requests: AtomicU64,
    aborted: AtomicU64,
    turned_away: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    queue: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    pub(crate) grammars: AtomicU64,
    pub(crate) grammar_timeouts: AtomicU64,
    pub(crate) grammar_refusals: AtomicU64,
    pub(crate) grammar_time: Histogram,
    http_requests: AtomicU64,
    http_active: AtomicUsize,
    http_responses: [AtomicU64; STATUS_CLASSES],
    startup_micros: AtomicU64,
}

impl Metrics {
    /// The engine's load: requests, and cache in tokens.
    pub(crate) fn load(&self, running: usize, queued: usize, cache_tokens: usize, free_tokens: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
        self.cache_tokens.store(cache_tokens, Ordering::Relaxed);
        self.free_tokens.store(free_tokens, Ordering::Relaxed);
    }

    /// A request found the queue full.
    pub(crate) fn turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has waited so long.
    pub(crate) fn left_queue(&self, waited: Duration) {
        self.queue.add(waited);
    }

    /// A token of a request that came at `since`, whose token before came at `last`.
    pub(crate) fn token(&self, since: Instant, last: Option<Instant>, now: Instant) {
        match last {
            None => self.first_token.add(now - since),
            Some(last) => self.inter_token.add(now - last),
        }
        self.generation_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that came at `since` is over.
    pub(crate) fn finished(&self, since: Instant, now: Instant, reason: &FinishReason, usage: &Usage) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if *reason == FinishReason::Aborted {
            self.aborted.fetch_add(1, Ordering::Relaxed);
        }
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        self.whole.add(now - since);
        if let Some(tokens) = u32::try_from(usage.completion_tokens).ok().filter(|n| *n > 0) {
            self.per_token.add((now - since) / tokens);
        }
    }

    /// A request of any route begins.
    pub(crate) fn http_begins(&self) {
        self.http_requests.fetch_add(1, Ordering::Relaxed);
        self.http_active.fetch_add(1, Ordering::Relaxed);
    }

    /// Its response's head is written.
    pub(crate) fn http_ends(&self, status: u16) {
        self.http_active.fetch_sub(1, Ordering::Relaxed);
        if let Some(count) = self.http_responses.get(usize::from(status / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How long the server took until it listened.
    pub fn started(&self, took: Duration) {
        self.startup_micros.store(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Requests that wait for room.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Requests that run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// In how many seconds a place in the queue may be free: as long as requests took so far, shared by those that run.
    pub(crate) fn retry_after_seconds(&self) -> u64 {
        let mean = self.whole.sum_seconds() / self.whole.count().max(1) as f64;
        let wait = mean * self.queued().max(1) as f64 / self.running().max(1) as f64;
        (wait.ceil() as u64).clamp(1, 60)
    }

    /// Prometheus' text format, version 0.0.4. Names begin with `prefix`; every sample has the label `model_name`.
    pub(crate) fn text(&self, prefix: &str, model: &str) -> String {
        let label = format!("model_name=\"{}\"", escaped(model));
        let mut page = Page { out: String::new(), prefix, label };
        self.load_text(&mut page);
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        page.counter("num_requests_total", "requests that have ended", total(&self.requests));
        page.counter("num_aborted_requests_total", "requests that were given up", total(&self.aborted));
        page.counter("num_rejected_requests_total", "requests that found the queue full", total(&self.turned_away));
        page.counter("prompt_tokens_total", "prompt tokens of ended requests", total(&self.prompt_tokens));
        page.counter("cached_tokens_total", "prompt tokens found in the cache", total(&self.cached_tokens));
        page.counter("generation_tokens_total", "tokens generated", total(&self.generation_tokens));
        page.histogram("queue_time_seconds", "from arrival to the first step", &self.queue);
        page.histogram("time_to_first_token_seconds", "from arrival to the first token", &self.first_token);
        page.histogram("inter_token_latency_seconds", "between two tokens of one request", &self.inter_token);
        page.histogram("request_time_per_output_token_seconds", "request time by its tokens", &self.per_token);
        page.histogram("e2e_request_latency_seconds", "from arrival to the end", &self.whole);
        page.counter("num_grammar_total", "grammars asked for", total(&self.grammars));
        page.counter("num_grammar_timeout_total", "grammars that took too long", total(&self.grammar_timeouts));
        page.counter("num_grammar_aborted_total", "grammars that were refused", total(&self.grammar_refusals));
        page.histogram("grammar_compilation_time_seconds", "compiling or finding a grammar", &self.grammar_time);
        page.counter("http_requests_total", "HTTP requests", total(&self.http_requests));
        page.head("http_responses_total", "counter", "HTTP responses by the hundreds of their status");
        for (class, count) in self.http_responses.iter().enumerate().skip(1) {
            page.sample("http_responses_total", &format!("status=\"{class}xx\""), total(count));
        }
        page.gauge("http_requests_active", "HTTP requests without an answer", self.http_active.load(Ordering::Relaxed));
        page.head("startup_time_seconds", "gauge", "from the start to listening");
        page.sample("startup_time_seconds", "", total(&self.startup_micros) / 1e6);
        page.out
    }

    fn load_text(&self, page: &mut Page) {
        let now = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        let (all, free) = (now(&self.cache_tokens), now(&self.free_tokens));
        page.gauge("num_running_reqs", "requests that run", now(&self.running));
        page.gauge("num_queue_reqs", "requests that wait", now(&self.queued));
        page.gauge("max_total_num_tokens", "tokens that the cache holds", all);
        page.gauge("kv_available_tokens", "tokens of the cache that are free", free);
        page.gauge("kv_used_tokens", "tokens of the cache that are taken", all.saturating_sub(free));
        page.head("token_usage", "gauge", "share of the cache that is taken");
        page.sample("token_usage", "", all.saturating_sub(free) as f64 / all.max(1) as f64);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A page of metrics in the making. Writing to a string cannot fail.
struct Page<'a> {
    out: String,
    prefix: &'a str,
    label: String,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {0}{name} {help}\n# TYPE {0}{name} {kind}", self.prefix);
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let comma = if more.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "{}{name}{{{}{comma}{more}}} {value}", self.prefix, self.label);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "counter", help);
        self.sample(name, "", value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.head(name, "gauge", help);
        self.sample(name, "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut reached = 0;
        let bounds = SECONDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            reached += count.load(Ordering::Relaxed);
            self.sample(&bucket, &format!("le=\"{bound}\""), reached as f64);
        }
        self.sample(&format!("{name}_sum"), "", histogram.sum_seconds());
        self.sample(&format!("{name}_count"), "", reached as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_labels_escaped() {
        let metrics = Metrics::default();
        let start = Instant::now();
        metrics.token(start, None, start + Duration::from_millis(15));
        metrics.token(start, None, start + Duration::from_secs(1000));
        let text = metrics.text("x_", "a\"b");
        for line in [
            "# TYPE x_time_to_first_token_seconds histogram",
            "x_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.01\"} 0",
            "x_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.02\"} 1",
            "x_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"300\"} 1",
            "x_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 2",
            "x_time_to_first_token_seconds_sum{model_name=\"a\\\"b\"} 1000.015",
            "x_generation_tokens_total{model_name=\"a\\\"b\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
