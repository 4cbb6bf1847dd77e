//! Generated kernels on this processor.

#[path = "hosted/mod.rs"]
mod hosted;

use hosted::{Small, Workshop, generated};
use ir::RowsPerSequence::{One, Ragged};

#[test]
fn try_it() {
    let workshop = Workshop::new();
    let nano = Small { spec: "beam-nano.toml", dims: &[], layers: &[] };
    let beam = Small {
        spec: "beam.toml",
        dims: &[
            ("hidden", 256), ("heads", 12), ("kv_heads", 2), ("head_dim", 128), ("ffn", 256), ("experts", 16), ("groups", 4),
            ("expert_ffn", 64), ("picked", 4), ("vocab", 512),
        ],
        layers: &[2, 3, 5],
    };
    let rows = Small { spec: "../benches/rows.toml", dims: &[], layers: &[] };
    for (name, small, mesh, buckets) in [
        ("rows", rows, "dp=2", [(One, 16), (Ragged, 512)]),
        ("rows4", rows, "dp=2,tp=2", [(One, 16), (Ragged, 512)]),
        ("nano", nano, "tp=1", [(One, 16), (Ragged, 512)]),
        ("beam", beam, "tp=1", [(One, 16), (Ragged, 512)]),
        ("beam2", beam, "tp=2", [(One, 16), (Ragged, 512)]),
    ] {
        let begun = std::time::Instant::now();
        let made = generated(small, mesh, &buckets);
        let full: Vec<String> = generated(small, mesh, &[]).1.sources.iter().map(|s| s.name.clone()).collect();
        let names: Vec<String> = made.1.sources.iter().map(|s| s.name.clone()).collect();
        println!("{name}: {} of {} {}", names.len(), full.len(), names.iter().filter(|n| full.contains(n)).count());
        let artifact = workshop.artifact(name, made);
        println!("built {:?}", begun.elapsed());
        let runs = if name == "nano" {
            vec![vec!["--synthetic", "3", "--on-device"], vec!["--model", "examples/beam-nano"]]
        } else {
            vec![vec!["--synthetic", "3", "--on-device"]]
        };
        for args in runs {
            let begun = std::time::Instant::now();
            let (verdicts, started) = workshop.selftest(&artifact, &args);
            println!("ran {:?} {}", begun.elapsed(), started.len());
            for v in verdicts {
                println!("{} {} {} {} {} {:?}", v.is_right, v.region, v.compared, v.no_numbers, v.first, v.kernels);
            }
            println!("not started: {:?}", names.iter().filter(|n| !started.contains(*n)).collect::<Vec<_>>());
        }
    }
    std::mem::forget(workshop);
}
