//! Counts and times of a server, and their text in Prometheus' exposition format.

use engine::{DraftCounts, Scheduler, Usage};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper bounds of the latency histograms, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// HTTP statuses are counted by their hundreds.
const STATUS_CLASSES: usize = 6;

/// What a request goes through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// It waits for room.
    Queue,
    /// Its prompt is read.
    Prompt,
    /// Its answer is written.
    Answer,
}

/// Names of the stages, in their order.
const STAGES: [&str; 3] = ["queue", "prefill", "decode"];

/// A distribution of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One per bound, and one for what is longer than all.
    counts: [AtomicU64; SECONDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let place = SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(SECONDS.len());
        if let Some(count) = self.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    fn sum_seconds(&self) -> f64 {
        self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Everything that is counted. All of it may be read and written from any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    running: AtomicUsize,
    queued: AtomicUsize,
    cache_tokens: AtomicUsize,
    free_tokens: AtomicUsize,
    evictable_tokens: AtomicUsize,
    window_tokens: AtomicUsize,
    window_used_tokens: AtomicUsize,
    window_evictable_tokens: AtomicUsize,
    headroom_thousandths: AtomicUsize,
    host_tokens: AtomicUsize,
    host_used_tokens: AtomicUsize,
    cache_bytes: AtomicUsize,
    preempted: AtomicU64,
    evicted_tokens: AtomicU64,
    backed_up_tokens: AtomicU64,
    loaded_tokens: AtomicU64,
    dropped_tokens: AtomicU64,
    /// `None` without a drafter.
    drafts: Mutex<Option<DraftCounts>>,
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
    stages: [Histogram; STAGES.len()],
    /// Tokens in a thousand seconds, lately.
    rate: AtomicU64,
    idle_micros: AtomicU64,
    /// Since when there is nothing to do.
    resting: Mutex<Option<Instant>>,
    pub(crate) grammars: AtomicU64,
    pub(crate) grammar_timeouts: AtomicU64,
    pub(crate) grammar_refusals: AtomicU64,
    pub(crate) grammar_hits: AtomicU64,
    pub(crate) grammar_queue_time: Histogram,
    pub(crate) grammar_time: Histogram,
    grammar_waiting: AtomicUsize,
    http_requests: AtomicU64,
    http_active: AtomicUsize,
    http_responses: [AtomicU64; STATUS_CLASSES],
    startup_micros: AtomicU64,
    weight_bytes: AtomicU64,
    weight_load_micros: AtomicU64,
    evictions: Histogram,
    loads_back: Histogram,
}

/// A request that waits for a grammar.
pub(crate) struct WaitsForGrammar<'a>(&'a AtomicUsize);

impl Drop for WaitsForGrammar<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// The engine's load: requests, and the cache in tokens, by what keeps everything and what has a window.
    pub(crate) fn load(&self, scheduler: &Scheduler) {
        let (kv, counts) = (scheduler.kv(), scheduler.counts());
        let (pages, page_tokens) = (kv.pages(), kv.pages().page_tokens());
        let set = |gauge: &AtomicUsize, n: usize| gauge.store(n, Ordering::Relaxed);
        let count = |counter: &AtomicU64, n: u64| counter.store(n, Ordering::Relaxed);
        set(&self.running, scheduler.running());
        set(&self.queued, scheduler.waiting());
        set(&self.cache_tokens, kv.total_pages() * page_tokens);
        set(&self.free_tokens, kv.free_pages() * page_tokens);
        set(&self.evictable_tokens, kv.cached_pages() * page_tokens);
        let window = (0..pages.kinds()).find(|k| pages.window(*k).is_some());
        let (all, used, evictable) = window.map_or((0, 0, 0), |k| (pages.capacity(k), pages.used(k), kv.evictable(k)));
        set(&self.window_tokens, all * page_tokens);
        set(&self.window_used_tokens, used.saturating_sub(evictable) * page_tokens);
        set(&self.window_evictable_tokens, evictable * page_tokens);
        set(&self.headroom_thousandths, scheduler.headroom() as usize);
        count(&self.preempted, counts.preempted);
        count(&self.evicted_tokens, kv.evicted_pages() * page_tokens as u64);
        let host = kv.host_use();
        let tokens = |n: u64| n * page_tokens as u64;
        count(&self.backed_up_tokens, tokens(host.backed_up_pages));
        count(&self.loaded_tokens, tokens(host.loaded_pages));
        count(&self.dropped_tokens, tokens(host.dropped_pages));
        let page_bytes: u64 = (0..pages.kinds()).map(|k| pages.page_bytes(k)).sum();
        set(&self.host_tokens, (tokens(host.total_bytes) / page_bytes.max(1)) as usize);
        set(&self.host_used_tokens, (tokens(host.used_bytes) / page_bytes.max(1)) as usize);
        set(&self.cache_bytes, pages.bytes().1 as usize);
        if scheduler.facts().draft.is_some() {
            *self.drafts.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts.draft);
        }
    }

    /// A request found the queue full.
    pub(crate) fn turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has waited so long.
    pub(crate) fn left_queue(&self, waited: Duration) {
        self.queue.add(waited);
        self.stage(Stage::Queue, waited);
    }

    /// A request has gone through a stage.
    pub(crate) fn stage(&self, stage: Stage, took: Duration) {
        if let Some(histogram) = self.stages.get(stage as usize) {
            histogram.add(took);
        }
    }

    /// Tokens generated since the start.
    pub(crate) fn generated(&self) -> u64 {
        self.generation_tokens.load(Ordering::Relaxed)
    }

    /// So many tokens a second were generated lately.
    pub(crate) fn rate(&self, tokens_per_second: f64) {
        self.rate.store((tokens_per_second * 1e3) as u64, Ordering::Relaxed);
    }

    /// There is nothing to do from now on.
    pub(crate) fn rests(&self, now: Instant) {
        self.resting().get_or_insert(now);
    }

    /// There is something to do.
    pub(crate) fn wakes(&self, now: Instant) {
        let mut resting = self.resting();
        if let Some(since) = resting.take() {
            self.idle_micros.fetch_add((now - since).as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// Time without anything to do, the present pause included.
    fn idle_seconds(&self, now: Instant) -> f64 {
        let resting = self.resting();
        let before = Duration::from_micros(self.idle_micros.load(Ordering::Relaxed));
        (before + resting.map_or(Duration::ZERO, |since| now - since)).as_secs_f64()
    }

    fn resting(&self) -> MutexGuard<'_, Option<Instant>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the log says of the load.
    pub(crate) fn load_fields(&self) -> Value {
        let now = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let share = |part: usize, all: usize| (part as f64 / all.max(1) as f64 * 1e4).round() / 1e4;
        let all = now(&self.cache_tokens);
        json!({
            "num_running_reqs": now(&self.running),
            "num_queue_reqs": now(&self.queued),
            "num_retracted_reqs": total(&self.preempted),
            "token_usage": share(all.saturating_sub(now(&self.free_tokens)), all),
            "swa_token_usage": share(now(&self.window_used_tokens), now(&self.window_tokens)),
            "gen_throughput": total(&self.rate) as f64 / 1e3,
            "cache_hit_rate": share(total(&self.cached_tokens) as usize, total(&self.prompt_tokens) as usize),
            "hicache_host_used_tokens": now(&self.host_used_tokens),
        })
    }

    /// A token of a request that came at `since`, whose token before came at `last`.
    pub(crate) fn token(&self, since: Instant, last: Option<Instant>, now: Instant) {
        match last {
            None => self.first_token.add(now - since),
            Some(last) => self.inter_token.add(now - last),
        }
        self.generation_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that came at `since` is over; `is_given_up` if neither it nor its answer's text ended it.
    pub(crate) fn finished(&self, since: Instant, now: Instant, is_given_up: bool, usage: &Usage) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if is_given_up {
            self.aborted.fetch_add(1, Ordering::Relaxed);
        }
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        self.whole.add(now - since);
        if let Some(tokens) = u32::try_from(usage.completion_tokens).ok().filter(|n| *n > 0) {
            self.per_token.add((now - since) / tokens);
        }
    }

    /// A request waits for a grammar until what this returns is dropped.
    pub(crate) fn waits_for_grammar(&self) -> WaitsForGrammar<'_> {
        self.grammar_waiting.fetch_add(1, Ordering::Relaxed);
        WaitsForGrammar(&self.grammar_waiting)
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

    /// Bytes of the weights on a device, and how long they took to get there.
    pub fn weights(&self, bytes: u64, took: Duration) {
        self.weight_bytes.store(bytes, Ordering::Relaxed);
        self.weight_load_micros.store(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// How long evictions and loads from the host took, in nanoseconds.
    pub(crate) fn durations(&self, evictions: &mut Vec<u64>, loads_back: &mut Vec<u64>) {
        evictions.drain(..).for_each(|ns| self.evictions.add(Duration::from_nanos(ns)));
        loads_back.drain(..).for_each(|ns| self.loads_back.add(Duration::from_nanos(ns)));
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
        let drafts = *self.drafts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(drafts) = drafts {
            draft_text(&drafts, &mut page);
        }
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        page.counter("num_requests_total", "requests that have ended", total(&self.requests));
        page.counter("num_aborted_requests_total", "requests that were given up", total(&self.aborted));
        page.counter(
            "num_rejected_requests_total",
            "requests that found the queue full or waited too long",
            total(&self.turned_away),
        );
        page.counter("prompt_tokens_total", "prompt tokens of ended requests", total(&self.prompt_tokens));
        page.counter("cached_tokens_total", "prompt tokens found in the cache", total(&self.cached_tokens));
        page.counter("generation_tokens_total", "tokens generated", total(&self.generation_tokens));
        let (cached, prompt) = (total(&self.cached_tokens), total(&self.prompt_tokens));
        page.head("cache_hit_rate", "gauge", "share of prompt tokens found in the cache since the start");
        page.sample("cache_hit_rate", "", if prompt > 0.0 { cached / prompt } else { 0.0 });
        page.histogram("queue_time_seconds", "from arrival to the first step", &self.queue);
        page.histogram("time_to_first_token_seconds", "from arrival to the first token", &self.first_token);
        page.histogram("inter_token_latency_seconds", "between two tokens of one request", &self.inter_token);
        page.histogram("request_time_per_output_token_seconds", "request time by its tokens", &self.per_token);
        page.histogram("e2e_request_latency_seconds", "from arrival to the end", &self.whole);
        page.head("per_stage_req_latency_seconds", "histogram", "what requests spend waiting, reading and writing");
        for (stage, histogram) in STAGES.iter().zip(&self.stages) {
            page.buckets("per_stage_req_latency_seconds", &format!("stage=\"{stage}\""), histogram);
        }
        page.head(
            "gen_throughput",
            "gauge",
            "tokens a second over the last second of work, 0 while there is nothing to do",
        );
        page.sample("gen_throughput", "", total(&self.rate) / 1e3);
        page.counter("scheduler_idle_seconds_total", "time without anything to do", self.idle_seconds(Instant::now()));
        page.counter("num_grammar_total", "grammars asked for", total(&self.grammars));
        page.counter("num_grammar_cache_hit_total", "grammars that were kept from before", total(&self.grammar_hits));
        page.counter("num_grammar_timeout_total", "grammars that took too long", total(&self.grammar_timeouts));
        page.counter("num_grammar_aborted_total", "grammars that were refused", total(&self.grammar_refusals));
        page.histogram(
            "grammar_queue_time_seconds",
            "from asking for a grammar to a place among those that are compiled",
            &self.grammar_queue_time,
        );
        page.histogram("grammar_compilation_time_seconds", "compiling a grammar that was not kept", &self.grammar_time);
        page.counter("http_requests_total", "HTTP requests", total(&self.http_requests));
        page.head("http_responses_total", "counter", "HTTP responses by the hundreds of their status");
        for (class, count) in self.http_responses.iter().enumerate().skip(1) {
            page.sample("http_responses_total", &format!("status=\"{class}xx\""), total(count));
        }
        page.gauge("http_requests_active", "HTTP requests without an answer", self.http_active.load(Ordering::Relaxed));
        page.head("weight_memory_usage_gb", "gauge", "memory of the weights on a device, in 10^9 bytes");
        page.sample("weight_memory_usage_gb", "", total(&self.weight_bytes) / 1e9);
        page.head("weight_load_duration_seconds", "gauge", "reading and preparing the weights");
        page.sample("weight_load_duration_seconds", "", total(&self.weight_load_micros) / 1e6);
        page.histogram("eviction_duration_seconds", "making room by one eviction", &self.evictions);
        page.histogram("load_back_duration_seconds", "a prefix on its way back from the host", &self.loads_back);
        page.head("startup_time_seconds", "gauge", "from the start to listening");
        page.sample("startup_time_seconds", "", total(&self.startup_micros) / 1e6);
        page.out
    }

    fn load_text(&self, page: &mut Page) {
        let now = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        let (all, free) = (now(&self.cache_tokens), now(&self.free_tokens));
        page.gauge("num_running_reqs", "requests that run", now(&self.running));
        page.gauge("num_queue_reqs", "requests that wait", now(&self.queued));
        page.gauge("num_grammar_queue_reqs", "requests that wait for a grammar", now(&self.grammar_waiting));
        page.gauge("max_total_num_tokens", "tokens that the cache holds", all);
        page.gauge("kv_available_tokens", "tokens of the cache that are free", free);
        page.gauge("kv_used_tokens", "tokens of the cache that requests hold", all.saturating_sub(free));
        page.gauge(
            "kv_evictable_tokens",
            "tokens of the cache that are kept and can be had",
            now(&self.evictable_tokens),
        );
        page.head("token_usage", "gauge", "share of the cache that requests hold");
        page.sample("token_usage", "", all.saturating_sub(free) as f64 / all.max(1) as f64);
        page.head("full_token_usage", "gauge", "the same of layers that keep everything");
        page.sample("full_token_usage", "", all.saturating_sub(free) as f64 / all.max(1) as f64);
        let (window, used) = (now(&self.window_tokens), now(&self.window_used_tokens));
        let evictable = now(&self.window_evictable_tokens);
        page.gauge("max_total_num_tokens_swa", "tokens that layers with a window could hold alone", window);
        page.gauge("swa_available_tokens", "those that are free or can be had", window.saturating_sub(used));
        page.gauge("swa_evictable_tokens", "those that are kept and can be had", evictable);
        page.gauge("swa_used_tokens", "those that requests hold", used);
        page.head("swa_token_usage", "gauge", "share of them that requests hold");
        page.sample("swa_token_usage", "", used as f64 / window.max(1) as f64);
        page.head("new_token_ratio", "gauge", "share of possible answers for which room is set aside");
        page.sample("new_token_ratio", "", now(&self.headroom_thousandths) as f64 / 1e3);
        page.head("kv_cache_memory_usage_gb", "gauge", "memory of the cache, in 10^9 bytes");
        page.sample("kv_cache_memory_usage_gb", "", now(&self.cache_bytes) as f64 / 1e9);
        page.gauge("hicache_host_total_tokens", "tokens that the host may keep", now(&self.host_tokens));
        page.gauge("hicache_host_used_tokens", "tokens that the host keeps", now(&self.host_used_tokens));
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        page.counter("num_retracted_reqs", "times a request gave its pages to others", total(&self.preempted));
        page.counter("evicted_tokens_total", "tokens that were kept and are gone", total(&self.evicted_tokens));
        page.counter(
            "hicache_backup_tokens_total",
            "tokens by kind written to the host",
            total(&self.backed_up_tokens),
        );
        page.counter("load_back_tokens_total", "tokens by kind read back from the host", total(&self.loaded_tokens));
        page.counter(
            "hicache_dropped_tokens_total",
            "tokens by kind whose copies were lost",
            total(&self.dropped_tokens),
        );
    }
}

/// What became of drafts.
fn draft_text(drafts: &DraftCounts, page: &mut Page) {
    page.head(
        "spec_accept_length",
        "gauge",
        "tokens that a verified block leaves on average, the model's own included",
    );
    page.sample("spec_accept_length", "", drafts.length());
    page.head("spec_accept_rate", "gauge", "share of verified drafts that stand");
    page.sample("spec_accept_rate", "", drafts.rate());
    page.counter("spec_verify_calls_total", "blocks verified, each of one request", drafts.verified as f64);
    page.counter("spec_draft_steps_total", "steps of the drafter", drafts.steps as f64);
    page.counter("spec_draft_tokens_total", "drafts verified", drafts.drafted as f64);
    page.counter("spec_accepted_tokens_total", "drafts that stand", drafts.accepted as f64);
    page.counter("spec_committed_tokens_total", "tokens that verified blocks left", drafts.committed as f64);
    // Slots behind those of the longest block that was verified say nothing.
    let longest = drafts.slots.iter().rposition(|slot| slot.0 > 0).map_or(0, |last| last + 1);
    let reached = drafts.slots.map(|slot| slot.0);
    let stood = drafts.slots.map(|slot| slot.1);
    for (name, help, counts) in [
        ("spec_reached_drafts_total", "drafts that all drafts before them let be reached, by slot", reached),
        ("spec_accepted_drafts_total", "those of them that stand, by slot", stood),
    ] {
        page.head(name, "counter", help);
        for (slot, count) in counts.into_iter().take(longest).enumerate() {
            page.sample(name, &format!("position=\"{}\"", slot + 1), count as f64);
        }
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
        self.buckets(name, "", histogram);
    }

    fn buckets(&mut self, name: &str, label: &str, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let comma = if label.is_empty() { "" } else { "," };
        let mut reached = 0;
        let bounds = SECONDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            reached += count.load(Ordering::Relaxed);
            self.sample(&bucket, &format!("{label}{comma}le=\"{bound}\""), reached as f64);
        }
        self.sample(&format!("{name}_sum"), label, histogram.sum_seconds());
        self.sample(&format!("{name}_count"), label, reached as f64);
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

    #[test]
    fn a_pause_that_lasts_is_counted_once() {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(metrics.idle_seconds(at(1)), 0.0);
        metrics.rests(at(1));
        metrics.rests(at(2));
        assert_eq!(metrics.idle_seconds(at(4)), 3.0);
        metrics.wakes(at(5));
        metrics.wakes(at(6));
        assert_eq!(metrics.idle_seconds(at(9)), 4.0);
    }

    /// Every name that the dashboard asks for is on the page.
    #[test]
    fn the_dashboard_knows_the_names() {
        let metrics = Metrics::default();
        *metrics.drafts.lock().unwrap() = Some(DraftCounts::default());
        let page = metrics.text("beam_run_", "m");
        let known: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../../docs/dashboard.json")).unwrap();
        let mut asked = 0;
        for target in dashboard["panels"].as_array().unwrap().iter().flat_map(|p| p["targets"].as_array().unwrap()) {
            let text = target["expr"].as_str().unwrap();
            for name in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| w.starts_with("beam_run_")) {
                let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                assert!(known.contains(&name), "{name}");
                asked += 1;
            }
        }
        assert!(asked > 20, "{asked}");
    }
}
