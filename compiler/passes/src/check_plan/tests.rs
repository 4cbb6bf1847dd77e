//! Damage that the checker must see, each pair of live values aliased among it.

use crate::testing::{compile_graph_level, two_kind_model};
use crate::{Compile, check_plan, plan, refine, to_kernels};
use ir::{Buffer, KernelModule, Launch, Place, Plan};
use targets::Target;

fn planned(target: &str) -> (KernelModule, Plan) {
    let target = Target::load(target).unwrap();
    let compile = Compile::one_device(&target);
    let module = refine(&compile_graph_level(&two_kind_model()), &compile).unwrap();
    let kernels = to_kernels(&module, &compile).unwrap();
    let plan = plan(&kernels, &compile).unwrap();
    (kernels, plan)
}

fn buffers(plan: &Plan, program: usize) -> Vec<(usize, Buffer)> {
    let places = plan.entries[0].buckets[0].programs[program].places.iter().enumerate();
    let own = places.filter_map(|(i, p)| if let Place::Arena(b) = p { Some((i, *b)) } else { None });
    own.collect()
}

#[test]
fn both_checkers_see_every_pair_that_must_not_share_memory() {
    for target in ["cpu", "h200-bf16"] {
        let (kernels, plan) = planned(target);
        check_plan::check(&plan, &kernels).unwrap();
        let (mut seen, mut allowed) = (0, 0);
        for program in 0..plan.entries[0].buckets[0].programs.len() {
            let all = buffers(&plan, program);
            for (a, _) in &all {
                for (_, place) in all.iter().filter(|(b, _)| b != a) {
                    let mut damaged = plan.clone();
                    let places = &mut damaged.entries[0].buckets[0].programs[program].places;
                    let Place::Arena(own) = &mut places[*a] else { continue };
                    if own.bytes > place.bytes || own.offset_bytes == place.offset_bytes {
                        continue;
                    }
                    own.offset_bytes = place.offset_bytes;
                    let (verified, walked) =
                        (ir::verify_plan(&damaged, &kernels).is_ok(), check_plan::check(&damaged, &kernels).is_ok());
                    // What the verifier lets pass the walk must too; the walk alone knows that an input may end early.
                    assert!(!verified || walked, "{target} program {program}: %{a} at {}", place.offset_bytes);
                    seen += usize::from(!walked);
                    allowed += usize::from(walked);
                }
            }
        }
        assert!(seen > 50 && seen > allowed, "{target}: {seen} seen, {allowed} allowed");
    }
}

#[test]
fn launches_in_another_order_or_left_out_are_seen() {
    let (kernels, plan) = planned("h200-bf16");
    let launches = plan.entries[0].buckets[0].programs[1].launches.len();
    for at in 0..launches {
        let mut damaged = plan.clone();
        damaged.entries[0].buckets[0].programs[1].launches.remove(at);
        assert!(check_plan::check(&damaged, &kernels).is_err(), "launch {at} left out");
        if at + 1 < launches {
            let mut damaged = plan.clone();
            damaged.entries[0].buckets[0].programs[1].launches.swap(at, at + 1);
            let error = check_plan::check(&damaged, &kernels).expect_err("a chain has one order");
            assert_eq!(error.code, "P0601");
        }
    }
}

#[test]
fn early_starts_are_recorded_where_a_kernel_is_before() {
    let (_, plan) = planned("h200-bf16");
    for (index, program) in plan.entries[0].buckets[0].programs.iter().enumerate() {
        for (number, launch) in program.launches.iter().enumerate() {
            if let Launch::Region { dependent, .. } = launch {
                assert_eq!(*dependent, index + number > 0, "program {index} launch {number}");
            }
        }
    }
}
