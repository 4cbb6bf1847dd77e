//! The verifiers of kernel level and plan find each rule broken once.

use ir::{Buffer, KernelKind, KernelModule, Launch, Place, Plan, ValueId, verify_kernels, verify_plan};
use spec::{Choices, Library, check_text};
use targets::Target;

const SMALL: &str = r#"
extends = "beam"
[dims]
layers = 7
hidden = 16
heads = 4
kv_heads = 2
head_dim = 8
ffn = 24
experts = 8
groups = 4
expert_ffn = 8
picked = 2
vocab = 31
[values]
window = 3
kept_groups = 2
"#;

fn whole() -> (KernelModule, Plan) {
    let model = check_text("small.toml", SMALL, &Library::embedded(), &Choices::default()).model.expect("a model");
    let stages = passes::Stages::compile(model, &passes::Compile::one_device(&Target::load("cpu").expect("a target")))
        .expect("compiles");
    (stages.kernels, stages.plan)
}

fn said(result: Result<(), Vec<ir::VerifyError>>, wanted: &str) -> String {
    result.expect_err(wanted).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn broken_partitions_are_found() {
    let (kernels, _) = whole();
    assert_eq!(verify_kernels(&kernels), Ok(()));
    type Break = fn(&mut KernelModule);
    let cases: [(Break, &str); 7] = [
        (|k| k.entries[0].graphs[1].regions.truncate(20), "is in no region"),
        (
            |k| {
                let again = k.entries[0].graphs[1].regions[3].values.clone();
                k.entries[0].graphs[1].regions[5].values = again;
            },
            "is in two regions",
        ),
        (|k| k.entries[0].graphs[1].regions.swap(0, 1), "which a later region makes"),
        (|k| k.entries[0].graphs[1].regions[0].kind = KernelKind::Rows, "are not those of kind rows"),
        (|k| k.entries[0].graphs[1].regions[2].name = "attention.q".to_owned(), "two regions have this name"),
        (|k| k.entries[0].graphs[1].regions[0].values = vec![ValueId(9999)], "is not in the graph"),
        (|k| drop(k.entries[0].graphs.pop()), "do not begin with `first` and end with `last`"),
    ];
    for (damage, wanted) in cases {
        let mut damaged = kernels.clone();
        damage(&mut damaged);
        let text = said(verify_kernels(&damaged), wanted);
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn broken_plans_are_found() {
    let (kernels, plan) = whole();
    assert_eq!(verify_plan(&plan, &kernels), Ok(()));
    fn bucket(p: &mut Plan) -> &mut ir::BucketPlan {
        &mut p.entries[0].buckets[2]
    }
    type Break = fn(&mut Plan);
    let cases: [(Break, &str); 13] = [
        (|p| p.arena_bytes -= 64, "the largest bucket uses"),
        (|p| bucket(p).shared["x"].offset_bytes += 4, "no multiple of 64"),
        (|p| bucket(p).shared["norm"].offset_bytes -= 64, "overlap"),
        (|p| bucket(p).arena_bytes -= 64, "the arena at"),
        (|p| bucket(p).programs[1].launches.swap(3, 4), "not the regions in order"),
        (|p| drop(bucket(p).programs[1].launches.pop()), "not the regions in order"),
        (|p| bucket(p).programs[1].places.truncate(9), "places for"),
        (
            |p| bucket(p).programs[1].launches.push(Launch::Move { from: ValueId(7), to: "x".to_owned() }),
            "which is no output of the graph",
        ),
        (|p| bucket(p).programs[1].places[0] = Place::Elsewhere, "has no place in the arena"),
        (|p| p.entries[0].instances.swap(0, 6), "instances are not those"),
        (|p| p.entries[0].buckets.swap(0, 3), "do not ascend by tokens"),
        (|p| p.kv[0].head_stride -= 1, "share memory"),
        (|p| p.kv[0].page_stride = u64::MAX, "larger than any memory"),
    ];
    for (damage, wanted) in cases {
        let mut damaged = plan.clone();
        damage(&mut damaged);
        let text = said(verify_plan(&damaged, &kernels), wanted);
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn layouts_that_disagree_with_the_model_are_found() {
    let (kernels, plan) = whole();
    type Break = fn(&mut ir::KvLayout);
    // The small model keeps 2 heads of 8 elements in bf16; each case breaks one thing.
    let cases: [(Break, &str); 12] = [
        (
            |l| (l.heads, l.head_elements, l.token_stride) = (4, 4, 4),
            "4 heads of 4 elements, a key of the model 2 of 8",
        ),
        (|l| (l.heads, l.head_elements) = (1, 16), "1 heads of 16 elements, a key"),
        (|l| l.heads = 1, "1 heads of 8 elements, a value of the model 2 of 8"),
        (|l| l.head_elements = 4, "2 heads of 4 elements, a key of the model 2 of 8"),
        (|l| l.dtype = ir::DType::F32, "it keeps f32, the model stores bf16"),
        (|l| l.token_stride = 0, "share memory"),
        (|l| l.token_stride = l.head_elements - 1, "share memory"),
        (|l| l.v_offset = 0, "share memory"),
        (|l| l.layer_stride -= 1, "share memory"),
        (|l| l.page_stride -= 1, "share memory"),
        (|l| l.page_tokens += 1, "share memory"),
        (|l| l.page_tokens = 0, "hold no token"),
    ];
    for (damage, wanted) in cases {
        for kind in 0..plan.kv.len() {
            let mut damaged = plan.clone();
            damage(&mut damaged.kv[kind]);
            let text = said(verify_plan(&damaged, &kernels), wanted);
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}

#[test]
fn a_value_moved_onto_its_neighbour_is_found() {
    let (kernels, plan) = whole();
    // Every local value of a program, moved down by one cache line: it meets a live neighbour, or it was free to move.
    let program = &plan.entries[0].buckets[3].programs[2];
    let mut found = 0;
    for (index, place) in program.places.iter().enumerate() {
        let Place::Arena(Buffer { offset_bytes, bytes, dtype }) = *place else { continue };
        let mut damaged = plan.clone();
        let moved = Place::Arena(Buffer { offset_bytes: offset_bytes.saturating_sub(64), bytes, dtype });
        damaged.entries[0].buckets[3].programs[2].places[index] = moved;
        found += usize::from(verify_plan(&damaged, &kernels).is_err());
    }
    let local = program.places.iter().filter(|p| matches!(p, Place::Arena(_))).count();
    // First fit leaves no gap below a value, apart from the one in front of address zero.
    assert!(found * 10 > local * 9, "{found} of {local}");
}

/// Numbers of a JSON text replaced at seeded places.
fn damaged(json: &str, seed: u64) -> String {
    let numbers: Vec<(usize, &str)> = json
        .match_indices(|c: char| c.is_ascii_digit())
        .filter(|(at, _)| !json[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '"' | '_')))
        .collect();
    let mut text = json.to_owned();
    let draw = |n: u64, below: usize| (numerics::uniform(seed, n) * below as f32) as usize;
    let mut places: Vec<usize> = (0..1 + draw(0, 3) as u64).map(|i| numbers[draw(i + 1, numbers.len())].0).collect();
    places.sort_unstable();
    for (i, at) in places.into_iter().rev().enumerate() {
        let by = ["0", "1", "7", "63", "4096", "18446744073709551615"][draw(10 + i as u64, 6)];
        text.replace_range(at..=at, by);
    }
    text
}

#[test]
fn damaged_numbers_never_make_a_verifier_panic() {
    let (kernels, plan) = whole();
    let (kernels_json, plan_json) = (serde_json::to_string(&kernels).unwrap(), serde_json::to_string(&plan).unwrap());
    let mut refused = 0;
    for seed in 0..150 {
        if let Ok(kernels) = serde_json::from_str::<KernelModule>(&damaged(&kernels_json, seed)) {
            refused += usize::from(verify_kernels(&kernels).is_err());
            let _ = verify_plan(&plan, &kernels);
        }
        if let Ok(plan) = serde_json::from_str::<Plan>(&damaged(&plan_json, seed)) {
            refused += usize::from(verify_plan(&plan, &kernels).is_err());
        }
    }
    assert!(refused > 100, "{refused}");
}
