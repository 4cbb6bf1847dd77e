//! Target files: reading, choosing, and what is refused.

use crate::*;
use ir::{DType, Mesh, RowsPerSequence};

const SMALL: &str = "name = 'x'\ndescription = 'd'\narch = 'cpu'\nkv = { page_tokens = 16, dtype = 'act' }\n";
const RAGGED: &str = "[[bucket]]\nrows = 'ragged'\ntokens = 64\nsequences = 8\n";

fn error(text: &str) -> String {
    Target::from_text(text, "x.toml").unwrap_err().to_string()
}

#[test]
fn every_built_in_target_loads_under_its_own_name() {
    assert!(names().len() >= 12 && names().is_sorted(), "{:?}", names());
    for name in names() {
        let target = Target::load(name).unwrap();
        assert_eq!(target.name, name);
        let buckets = target.buckets_of("forward");
        assert!(buckets.is_sorted_by_key(|b| b.tokens) && !buckets.is_empty());
    }
}

#[test]
fn the_targets_differ_in_act_only() {
    let (plain, wide) = (Target::load("cpu").unwrap(), Target::load("cpu-f32").unwrap());
    assert_eq!((plain.act, wide.act), (None, Some(DType::F32)));
    assert_eq!(plain.kv.dtype.resolve(DType::Bf16), DType::Bf16);
    assert_eq!((plain.buckets, plain.options, plain.kv), (wide.buckets, wide.options, wide.kv));
}

/// What each built-in target does with the public formats; a target without a word about them refuses both.
#[test]
fn formats_of_the_built_in_targets() {
    let shown: String = names()
        .into_iter()
        .map(|name| {
            let target = Target::load(name).unwrap();
            let (f, act) = (&target.formats, target.act.map_or("act", DType::word));
            let assume = f.assume.map_or("nothing", ir::StoredFormat::word);
            let kv = target.kv.dtype.resolve(DType::F32);
            let (fp8, nvfp4) = (f.fp8.word(), f.nvfp4.word());
            format!("{name}: {act}, fp8 {fp8}, nvfp4 {nvfp4}, assumes {assume}, kv {kv}, {}\n", f.convert.join(" "))
        })
        .collect();
    let wanted = "\
cpu: act, fp8 weights, nvfp4 weights, assumes nothing, kv f32, \n\
cpu-f32: f32, fp8 weights, nvfp4 weights, assumes nothing, kv f32, \n\
cpu-f32-fp8: f32, fp8 native, nvfp4 weights, assumes fp8, kv f32, bf16-to-fp8\n\
cpu-f32-kv8: f32, fp8 weights, nvfp4 weights, assumes nothing, kv e4m3, \n\
cpu-f32-nvfp4: f32, fp8 weights, nvfp4 native, assumes nvfp4, kv f32, \n\
cpu-fp8: act, fp8 native, nvfp4 weights, assumes fp8, kv f32, bf16-to-fp8\n\
cpu-nvfp4: act, fp8 weights, nvfp4 native, assumes nvfp4, kv f32, \n\
gb300-bf16: act, fp8 refused, nvfp4 refused, assumes nothing, kv f32, \n\
gb300-fp8: act, fp8 native, nvfp4 refused, assumes fp8, kv f32, bf16-to-fp8\n\
gb300-nvfp4: act, fp8 native, nvfp4 native, assumes nvfp4, kv f32, \n\
h200-bf16: act, fp8 refused, nvfp4 refused, assumes nothing, kv f32, \n\
h200-fp8: act, fp8 native, nvfp4 refused, assumes fp8, kv f32, bf16-to-fp8\n\
h200-nvfp4: act, fp8 native, nvfp4 weights, assumes nvfp4, kv f32, \n";
    assert_eq!(shown, wanted);
}

#[test]
fn a_target_may_extend_another() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    write("base.toml", &format!("{SMALL}limits = {{ arena_bytes = 4096 }}\n{RAGGED}"));
    let mine = "extends = 'base.toml'\nname = 'mine'\nkv = { dtype = 'e4m3' }\nformats = { nvfp4 = 'weights' }\n";
    let mine = Target::load(&write("mine.toml", mine)).unwrap();
    assert_eq!((mine.name.as_str(), mine.description.as_str()), ("mine", "d"));
    assert_eq!(mine.kv, Kv { page_tokens: 16, dtype: KvDtype::Fixed(DType::E4m3) });
    assert_eq!((mine.buckets.len(), mine.limits.arena_bytes), (1, Some(4096)), "what is not said is the base's");
    assert_eq!((mine.formats.nvfp4, mine.formats.fp8), (FormatUse::Weights, FormatUse::Refused));
    let list = "extends = 'h200-bf16'\nname = 'x'\n[[bucket]]\nrows = 'ragged'\ntokens = 8\n";
    assert_eq!(Target::load(&write("list.toml", list)).unwrap().buckets.len(), 1, "a list replaces the base's");
    for (name, text, wanted) in [
        ("circle.toml", "extends = 'circle.toml'\n", "8 targets extend each other, and `circle.toml` is one more"),
        (
            "none.toml",
            "extends = 'h200-bf61'\n",
            "`extends` names `h200-bf61`, and no target has this name; did you mean `h200-bf16`?",
        ),
        ("two.toml", "extends = ['a', 'b']\n", "`extends` is [\"a\", \"b\"]; name one target"),
        ("gone.toml", "extends = 'gone/x.toml'\n", "`extends` names `gone/x.toml`, and the target file cannot be read"),
        ("key.toml", "extends = 'base.toml'\nlimit = 3\n", "no key of a target file is called `limit`"),
        ("kind.toml", "extends = 'base.toml'\nkv = { page_tokens = 'many' }\n", "kind.toml: invalid type"),
    ] {
        let text = Target::load(&write(name, text)).unwrap_err().to_string();
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn a_near_miss_is_suggested() {
    let text = Target::load("cpu-f23").unwrap_err().to_string();
    assert_eq!(text, "T0101: cpu-f23: no target has this name; did you mean `cpu-f32`?");
    let text = error(&format!("{SMALL}limit = {{ arena_bytes = 1 }}\n"));
    assert_eq!(text, "T0104: x.toml: no key of a target file is called `limit`; did you mean `limits`?");
    let text = error(&format!("{SMALL}[[bucket]]\nrow = 'one'\ntokens = 1\n"));
    assert_eq!(text, "T0104: x.toml: no key of a target file is called `row` in `bucket`; did you mean `rows`?");
}

#[test]
fn values_out_of_range_name_both_facts() {
    for (bucket, wanted) in [
        ("rows = 'one'\ntokens = 0", "T0105: x.toml: a bucket has 0 tokens; use 1 to 1048576"),
        ("rows = 3\ntokens = 8", "a bucket of 8 tokens has 3 rows per sequence; make tokens a multiple of the rows"),
        ("rows = 'ragged'\ntokens = 8\nsequences = 9", "a bucket of 8 tokens has 9 sequences; use 1 to 8"),
        ("rows = 'ragged'\ntokens = 8\nwanted = 9", "a bucket of 8 tokens has 9 wanted rows; use 1 to 8"),
        ("rows = 'two'\ntokens = 8", "`rows` of a bucket is \"two\""),
        ("rows = 'ragged'\ntokens = 64", "two buckets have 64 tokens and the same rows; keep one of them"),
        ("rows = 'one'\ntokens = -1", "T0103: x.toml:"),
    ] {
        let text = error(&format!("{SMALL}{RAGGED}[[bucket]]\n{bucket}\n"));
        assert!(text.contains(wanted), "{text}");
    }
    assert!(error(SMALL).contains("no bucket has ragged rows"));
    assert!(error("name = ").starts_with("T0103: x.toml:1:"));
    let int8 = SMALL.replace("'act'", "'int8'");
    assert!(error(&format!("{int8}{RAGGED}")).contains("`kv.dtype` is `int8`; use `act`, `f32`, `bf16` or `e4m3`"));
    assert!(error(&format!("act = 'i32'\n{SMALL}{RAGGED}")).contains("`act` is `i32`; use `f32` or `bf16`"));
}

#[test]
fn a_path_names_a_file_of_the_same_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, format!("{SMALL}{RAGGED}[[bucket]]\nentry = 'draft'\nrows = 4\ntokens = 16\n")).unwrap();
    let target = Target::load(path.to_str().unwrap()).unwrap();
    assert_eq!(target.buckets_of("forward").len(), 1);
    let draft = target.buckets_of("draft");
    assert_eq!(draft.len(), 2);
    assert_eq!((draft[0].rows, draft[0].sequences), (RowsPerSequence::Block(4), 4));
    assert!(Target::load("nowhere.toml").unwrap_err().to_string().starts_with("T0102: nowhere.toml: "));
}

#[test]
fn device_targets_have_the_facts_that_floors_need() {
    for name in names().into_iter().filter(|name| !name.starts_with("cpu")) {
        let target = Target::load(name).unwrap();
        let hardware = target.hardware;
        let native = |format, key| (target.formats.of(format) == FormatUse::Native).then_some(key);
        let native = [native(ir::StoredFormat::Fp8, "flops_fp8"), native(ir::StoredFormat::Nvfp4, "flops_fp4")];
        let always = ["memory_bytes", "read_bytes_per_second", "flops_bf16", "flops_f32", "link_bytes_per_second"];
        for key in always.into_iter().chain(native.into_iter().flatten()) {
            assert!(hardware.fact(key).is_some_and(|v| v > 0.0), "{name}: {key}");
        }
        assert!(hardware.facts.values().all(|f| f.source.len() > 10));
    }
    assert!(Target::load("cpu").unwrap().hardware.facts.is_empty());
}

#[test]
fn options_follow_the_mesh() {
    let target = Target::load("h200-bf16").unwrap();
    let combine = |mesh: &str| target.options_on(&Mesh::parse(mesh).unwrap())["combine"].clone();
    assert_eq!(combine("tp=1"), ["library"]);
    assert_eq!(combine("tp=2"), ["single"]);
    assert_eq!(combine("ep=4"), ["single"]);
    assert_eq!(combine("dp=2"), ["library"]);
    let mut target = target.clone();
    assert!(target.allows("rank-round") && !target.allows("wire-bf16"));
    target.allow("wire-bf16").unwrap();
    target.allow("wire-bf16").unwrap();
    assert_eq!(target.relaxations, ["rank-round", "wire-bf16"]);
    assert!(target.allow("wire").unwrap_err().to_string().contains("known are rank-round"));
    assert_eq!(Target::load("cpu").unwrap().options_on(&Mesh::single())["combine"], ["library"]);
}

#[test]
fn hardware_and_meshes_are_checked() {
    for (line, wanted) in [
        (
            "hardware = { memory_byte = { value = 1, source = 's' } }",
            "`memory_byte` in `hardware`; did you mean `memory_bytes`?",
        ),
        ("hardware = { memory_bytes = { valu = 1 } }", "`valu` in `hardware`; did you mean `value`?"),
        (
            "hardware = { memory_bytes = { value = -1, source = 's' } }",
            "`hardware.memory_bytes` is -1; give a positive number of byte",
        ),
        ("hardware = { memory_bytes = { value = 1, source = '' } }", "`hardware.memory_bytes` has no source"),
        ("meshes = ['tp']", "`meshes` has `tp`"),
        ("formats = { fp8 = 'natve' }", "`formats.fp8` is `natve`; use `native`, `weights` or `refused`"),
        ("formats = { nvpf4 = 'native' }", "`nvpf4` in `formats`; did you mean `nvfp4`?"),
        ("formats = { assume = 'int8' }", "`formats.assume` is `int8`; use `fp8` or `nvfp4`"),
        ("formats = { fp8 = 'native', assume = 'nvfp4' }", "assumes nvfp4 and refuses it; write nvfp4 = \"native\""),
        ("formats = { convert = ['bf16-to-fp4'] }", "no conversion is called `bf16-to-fp4`; known are bf16-to-fp8"),
        ("relaxations = ['rank-rond']", "no relaxation is called `rank-rond`; did you mean `rank-round`?"),
        ("fuse = { row = true }", "`row` in `fuse`; did you mean `rows`?"),
        ("options = { a = [{ prefers = ['x'] }] }", "`prefers` in `options.a`; did you mean `prefer`?"),
        ("options = { a = 'x' }", "`options.a` is \"x\""),
    ] {
        let text = error(&format!("{line}\n{SMALL}{RAGGED}"));
        assert!(text.contains(wanted), "{text}");
    }
}
