//! What a step costs on the host: the engine over an executor that computes nothing. `cargo bench -p engine --features toy`.
//!
//! The bound for 256 requests is 25 µs + 0.3 µs a request = 102 µs on one core; docs/engine.md has what was measured.

#![allow(missing_docs, reason = "the functions that the macros of the benchmark make have none")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::Event;
use engine::toy::answering;
use std::time::{Duration, Instant};

/// Steps after which an engine is made anew: its answers end some time.
const STEPS: u64 = 1500;

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for requests in [1usize, 64, 256] {
        group.throughput(Throughput::Elements(requests as u64));
        group.bench_function(BenchmarkId::from_parameter(requests), |b| {
            b.iter_custom(|wanted| {
                let (mut took, mut left) = (Duration::ZERO, wanted);
                while left > 0 {
                    let mut engine = answering(requests, 4096).expect("engine");
                    let mut events: Vec<Event> = Vec::with_capacity(4 * requests);
                    let n = left.min(STEPS);
                    let start = Instant::now();
                    for _ in 0..n {
                        engine.step();
                        engine.drain_events(&mut events);
                        events.clear();
                    }
                    took += start.elapsed();
                    left -= n;
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
