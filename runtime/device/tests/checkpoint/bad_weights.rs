//! Intact files that do not hold the model: each problem with file, tensor and both facts, all in one run.

use super::common::*;
use ir::DType;
use safetensors::Dtype;

#[test]
fn a_missing_tensor_is_named_with_the_nearest_there_is() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[bf16s("disk.scale", &[1], &[1.0])]);
    assert_eq!(
        refused(temp.path(), &[plain("scales", &[1]), plain("other_thing", &[1])]),
        [
            "W0301: W.scales is missing: `disk.scales` is not in the checkpoint; the nearest unused name is `disk.scale`",
            "W0301: W.other_thing is missing: `disk.other_thing` is not in the checkpoint",
            "W0306: `disk.scale` (BF16 [1]) in `model.safetensors` belongs to no weight of the model",
        ]
    );
}

#[test]
fn a_missing_weight_names_every_form_it_could_have() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[]);
    assert_eq!(
        refused(temp.path(), &[experts()]),
        ["W0301: W.experts is missing: `disk.experts.0.w` or `disk.packed` is not in the checkpoint"]
    );
}

#[test]
fn one_missing_expert_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let tensors: Vec<T> = [0, 2].map(|e| bf16s(&format!("disk.experts.{e}.w"), &[2, 4], &count(0, 8))).to_vec();
    single(temp.path(), &tensors);
    assert_eq!(
        refused(temp.path(), &[experts()]),
        ["W0301: W.experts is missing: `disk.experts.1.w` is not in the checkpoint, though 2 of its 3 tensors are"]
    );
}

#[test]
fn a_misshapen_tensor_is_told_with_both_shapes() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[bf16s("disk.a", &[3, 2], &count(0, 6)), bf16s("disk.b", &[6], &count(0, 6))]);
    assert_eq!(
        refused(temp.path(), &[plain("a", &[2, 3]), plain("b", &[6, 1])]),
        [
            "W0302: `disk.a` in `model.safetensors` has shape [3, 2], W.a needs [2, 3]",
            "W0302: `disk.b` in `model.safetensors` has shape [6], W.b needs [6, 1]",
        ]
    );
}

#[test]
fn two_forms_at_once_are_ambiguous() {
    let temp = tempfile::tempdir().unwrap();
    let one = bf16s("disk.experts.1.w", &[2, 4], &count(0, 8));
    single(temp.path(), &[one, bf16s("disk.packed", &[3, 4, 4], &count(0, 48))]);
    assert_eq!(
        refused(temp.path(), &[experts()]),
        ["W0305: W.experts is there twice: as `disk.experts.1.w` and as `disk.packed`"]
    );
}

#[test]
fn quantised_formats_are_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let bytes = |name: &str, dtype| T { name: name.to_owned(), dtype, shape: vec![4], bytes: vec![0; 4] };
    single(temp.path(), &[bytes("disk.a", Dtype::F8_E4M3), bytes("disk.b", Dtype::U8)]);
    let mut pinned = plain("b", &[4]);
    (pinned.pinned, pinned.dtype) = (true, DType::F32);
    let told = refused(temp.path(), &[plain("a", &[4]), pinned]);
    assert_eq!(
        told[0],
        "W0303: `disk.a` in `model.safetensors` is stored as F8_E4M3, W.a is read from F32, BF16 or F16"
    );
    assert!(told[1].contains("stored as U8"));
}

#[test]
fn narrowing_names_both_formats() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[f32s("disk.a", &[1], &[1.0])]);
    assert_eq!(
        refused(temp.path(), &[plain("a", &[1])]),
        ["W0304: `disk.a` in `model.safetensors` is stored as F32, W.a is resident as bf16: a narrower format"]
    );
}

#[test]
fn every_kind_of_problem_is_told_in_one_run_and_the_list_is_cut() {
    let temp = tempfile::tempdir().unwrap();
    let mut tensors: Vec<T> = (0..30).map(|i| bf16s(&format!("extra.{i:02}"), &[1], &[1.0])).collect();
    tensors.push(bf16s("disk.shape", &[2], &[1.0, 1.0]));
    tensors.push(f32s("disk.narrow", &[1], &[1.0]));
    single(temp.path(), &tensors);
    let errors = load(temp.path(), &[plain("gone", &[1]), plain("narrow", &[1]), plain("shape", &[1])]).unwrap_err();
    let codes: Vec<&str> = errors.problems().iter().map(|p| p.code()).collect();
    assert_eq!(codes[..4], ["W0302", "W0301", "W0304", "W0306"]);
    assert_eq!(codes.len(), 33);
    let text = errors.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[20], "and 13 more");
    assert_eq!(lines.iter().filter(|l| l.starts_with("W0")).count(), 20);
    assert_eq!(lines.iter().filter(|l| l.starts_with("  help: ")).count(), 2);
}

#[test]
fn recipes_that_mean_nothing_are_refused_before_memory_is_taken() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[]);
    let huge = plain("huge", &[1 << 40, 1 << 40]);
    let mut spread = experts();
    spread.shape = vec![1 << 30];
    spread.forms.truncate(1);
    spread.forms[0].spread[0].1 = 1 << 30;
    spread.forms[0].shape = vec![1];
    let told = refused(temp.path(), &[huge, spread]);
    assert!(told.iter().all(|t| t.starts_with("W0307")), "{told:?}");
}
