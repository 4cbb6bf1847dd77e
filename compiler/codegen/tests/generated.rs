//! What is generated: every region of every spec of the repository has kernels, and the text of some is pinned.

mod common;

use artifact::{Alternative, Product, Tuning};
use codegen::{Generated, Tune, generate, generate_tuned};
use common::{compiled, machine, on_mesh};
use std::collections::{BTreeMap, BTreeSet};

fn generated(spec: &str) -> Generated {
    let stages = compiled(spec, "h200-bf16");
    generate(&stages.kernels, &stages.plan, machine("h200-bf16"))
}

#[test]
fn every_region_of_every_spec_has_kernels() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-spec");
    let mut count = 0;
    for place in ["", "variants/"] {
        let files = std::fs::read_dir(folder.join(place)).expect("specs").flatten();
        for file in files.filter(|f| f.path().extension().is_some_and(|e| e == "toml")) {
            let spec = format!("{place}{}", file.file_name().to_string_lossy());
            // A drafter is no program of its own: no executor runs it yet.
            if std::fs::read_to_string(file.path()).expect("a spec").contains("\ntarget = ") {
                continue;
            }
            let made = generated(&spec);
            assert!(made.missing.is_empty(), "{spec}: {:?}", made.missing);
            assert!(made.sources.len() > 15, "{spec} has {} kernels", made.sources.len());
            count += 1;
        }
    }
    assert!(count >= 20, "only {count} specs were looked at");
}

/// Layers of a rank start what those of one device do: sums over ranks stand in the kernels that norm what they sum.
#[test]
fn ranks_have_kernels_for_what_they_exchange() {
    let starts = |made: &Generated| -> Vec<usize> {
        let graphs = made.entries.iter().flatten();
        graphs.map(|g| g.regions.iter().map(|r| r.starts.len()).sum()).collect()
    };
    for (spec, mesh) in [("beam-nano.toml", "tp=2"), ("beam.toml", "tp=4"), ("beam.toml", "tp=8")] {
        let stages = on_mesh(spec, "h200-bf16", mesh);
        let made = generate(&stages.kernels, &stages.plan, machine("h200-bf16"));
        assert!(made.missing.is_empty(), "{spec} on {mesh}: {:?}", made.missing);
        let (own, alone) = (starts(&made), starts(&generated(spec)));
        let layers = 1..own.len() - 1;
        assert!(layers.clone().all(|i| own[i] <= alone[i]), "{spec} on {mesh}: {own:?} starts, {alone:?} alone");
        let seams = made.sources.iter().filter(|s| s.text.contains("seam.cuh")).count();
        assert!(seams >= 4, "{spec} on {mesh}: {seams} kernels exchange");
    }
    let stages = on_mesh("beam-nano.toml", "h200-bf16", "tp=2");
    let made = generate(&stages.kernels, &stages.plan, machine("h200-bf16"));
    let named = |stem: &str| made.sources.iter().find(|s| s.name.starts_with(stem)).expect("a kernel of this name");
    insta::assert_snapshot!("seam", named("next_norm_seam").text);
    insta::assert_snapshot!("ids_of_a_rank", named("norm_seam").text);
    insta::assert_snapshot!("logits_of_ranks", named("result_whole_gather").text);
}

#[test]
fn the_same_text_is_one_kernel_whichever_regions_start_it() {
    let made = generated("beam-nano.toml");
    let names: BTreeSet<&str> = made.sources.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names.len(), made.sources.len());
    let starts = made.entries.iter().flatten().flat_map(|g| &g.regions).map(|r| r.starts.len()).sum::<usize>();
    assert!(starts > made.sources.len() + 10, "{starts} starts of {} kernels", made.sources.len());
    assert_eq!(made, generated("beam-nano.toml"), "two generations differ");
}

/// Where they are to be timed, a product has a kernel for every number of shares; what was measured decides among them.
#[test]
fn products_are_packed_to_be_timed_and_take_what_was_measured() {
    let (stages, machine) = (compiled("llama.toml", "h200-bf16"), machine("h200-bf16"));
    let made =
        |tuning: Option<&Tuning>, packs| generate_tuned(&stages.kernels, &stages.plan, machine, Tune { tuning, packs });
    let alternatives = |made: &Generated| -> Vec<Alternative> {
        made.entries.iter().flatten().flat_map(|g| &g.regions).flat_map(|r| r.alternatives.clone()).collect()
    };
    let starts = |made: &Generated| -> Vec<usize> {
        made.entries.iter().flatten().flat_map(|g| &g.regions).map(|r| r.starts.len()).collect()
    };
    let (plain, packed) = (made(None, false), made(None, true));
    assert_eq!((alternatives(&plain), starts(&plain)), (Vec::new(), starts(&packed)));
    let mut shares: BTreeMap<Product, BTreeSet<u64>> = BTreeMap::new();
    for a in alternatives(&packed) {
        shares.entry(a.product).or_default().insert(a.shares);
    }
    assert!(shares.len() >= 10, "{shares:?}");
    assert!(shares.values().all(|all| all.iter().copied().eq(1..=all.len() as u64)), "{shares:?}");
    assert!(shares.values().all(|all| all.len() == 8), "{shares:?}");
    // As if more shares always took longer, and less.
    for slope in [1.0, -1.0] {
        let of = |(product, all): (&Product, &BTreeSet<u64>)| {
            all.iter().map(|n| ((*product, *n), vec![slope * *n as f64])).collect::<Vec<_>>()
        };
        let tuning = Tuning::of("sm_90a", "a device", shares.iter().flat_map(of).collect());
        let tuned = made(Some(&tuning), false);
        assert_eq!(starts(&tuned), starts(&plain));
        let kept = made(Some(&tuning), true);
        for a in alternatives(&kept).iter().filter(|a| a.shares == if slope > 0.0 { 1 } else { 8 }) {
            assert!(kept.entries.iter().flatten().flat_map(|g| &g.regions).any(|r| {
                r.starts.get(a.start).is_some_and(|s| s.kernel == a.kernel) && r.alternatives.contains(a)
            }));
        }
        let names = |made: &Generated| made.sources.iter().map(|s| s.name.clone()).collect::<BTreeSet<_>>();
        assert!(names(&tuned).is_subset(&names(&packed)) && names(&tuned) != names(&plain));
    }
}

/// Tokens are chosen from the whole logits of a row, on every rank.
#[test]
fn logits_have_kernels_that_choose_from_them() {
    for (spec, mesh, vocab) in [("beam-nano.toml", "tp=2", 2048u64), ("beam.toml", "tp=8", 151_936)] {
        let stages = on_mesh(spec, "h200-bf16", mesh);
        let made = generate(&stages.kernels, &stages.plan, machine("h200-bf16"));
        let choice = made.choice.as_ref().expect("kernels that choose");
        assert_eq!((choice.vocab, choice.parts), (vocab, vocab.div_ceil(8192)));
        for ((kernel, parameters), stem) in choice.kernels().into_iter().zip(["best", "weigh", "select", "place"]) {
            let source = &made.sources[kernel];
            assert!(source.name.starts_with(&format!("choice_{stem}_")), "{}", source.name);
            let signature = source.text.split("__global__").nth(1).and_then(|t| t.split('{').next()).expect("an entry");
            assert_eq!(signature.matches(',').count() + 1, parameters, "{signature}");
        }
    }
}

/// Kernels whose text shows what the generator does: a table read and a norm, a rotation stored in the cache, a
/// selection behind a product, gate and up in one tile, attention with a window.
#[test]
fn the_text_of_kernels() {
    let made = generated("beam-nano.toml");
    for stem in ["norm_rows", "sparse_w_route", "dense_h_matmul", "attention_o_attend", "choice_select"] {
        let source = made.sources.iter().find(|s| s.name.starts_with(stem)).expect("a kernel of this name");
        insta::assert_snapshot!(stem, source.text);
    }
    let rotation = made.sources.iter().find(|s| s.text.contains("cell0") || s.text.contains("cell1"));
    insta::assert_snapshot!("rotation_and_store", rotation.expect("a kernel that stores").text);
}
