//! Configs of quantised checkpoints and what comes of them: sections of `tests/specs/import/quantised.md`.

use serde_json::{Map, Value};
use spec::{Checked, Choices, Library, Sources, check_path, check_text, import, render};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The bytes of the next fence of a kind.
fn fence(text: &str, from: usize, kind: &str) -> Option<std::ops::Range<usize>> {
    let open = format!("```{kind}\n");
    let start = from + text.get(from..)?.find(&open)? + open.len();
    Some(start..start + text.get(start..)?.find("```")?)
}

/// What the import of a section's files says.
fn outcome(section: &str, folder: &Path) -> String {
    let text = std::fs::read_to_string(root().join("examples/beam-nano/config.json")).expect("config");
    let mut config: Map<String, Value> = serde_json::from_str(&text).expect("config");
    let keys = fence(section, 0, "json").expect("a fence of keys");
    config.extend(serde_json::from_str::<Map<String, Value>>(&section[keys]).expect("keys"));
    let path = folder.join("config.json");
    std::fs::write(&path, format!("{:#}\n", Value::Object(config))).expect("file");
    if let Some(beside) = fence(section, 0, "json hf_quant_config.json") {
        std::fs::write(folder.join("hf_quant_config.json"), &section[beside]).expect("file");
    }
    let library = Library::embedded();
    let (mut sources, mut diagnostics) = (Sources::default(), Vec::new());
    let imported = import(&path, &library, &mut sources, &mut diagnostics);
    let mut said = render(&diagnostics, &sources, false).replace(&format!("{}/", folder.display()), "");
    if let Some(imported) = imported {
        said.push_str(imported.toml.split_once("[stored]\n").expect("what is stored is always said").1);
        // The text and the directory are one spec.
        let read = check_text("imported.toml", &imported.toml, &library, &Choices::default());
        let direct = check_path(folder, &library, &Choices::default());
        assert_eq!(stored(read), stored(direct), "{section}");
    }
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim())
}

/// What the checkpoint keeps, without the place that says so.
fn stored(checked: Checked) -> Option<ir::Stored> {
    let told = render(&checked.diagnostics, &checked.sources, false);
    let stored = checked.model.unwrap_or_else(|| panic!("{told}")).facts.stored;
    stored.map(|stored| ir::Stored { span: None, ..stored })
}

#[test]
fn every_form_of_a_config_is_read_or_refused_by_name() {
    let path = root().join("tests/specs/import/quantised.md");
    let mut page = std::fs::read_to_string(&path).expect("the page");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let starts: Vec<usize> = page.match_indices("\n## ").map(|(at, _)| at).collect();
    assert!(starts.len() > 40, "only {} sections", starts.len());
    let mut wrong = Vec::new();
    // From the last to the first, so that what is written anew moves none of the others.
    for (i, start) in starts.iter().enumerate().rev() {
        let end = starts.get(i + 1).copied().unwrap_or(page.len());
        let section = page[*start..end].to_owned();
        let folder = tempfile::tempdir().expect("folder");
        let actual = outcome(&section, folder.path());
        let refused = section.starts_with("\n## Refused");
        assert_eq!(refused, actual.contains("error["), "{section}\n{actual}");
        assert!(!refused || actual.contains("help: "), "{section}\n{actual}");
        let expected = fence(&page, *start, "text").expect("a fence of text");
        if page[expected.clone()] != actual {
            wrong.push(format!("{section}\nactual\n{actual}"));
            page.replace_range(expected, &actual);
        }
    }
    if update {
        std::fs::write(&path, page).expect("the page");
    }
    assert!(update || wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What a spec with these tables stores, or the first line of what is wrong with it.
fn said(tables: &str, choices: &Choices) -> Result<Option<ir::Stored>, String> {
    let checked = check_text("spec.toml", &format!("extends = \"beam-nano\"\n{tables}"), &Library::embedded(), choices);
    let told = render(&checked.diagnostics, &checked.sources, false);
    if checked.model.is_none() {
        return Err(told.lines().next().unwrap_or("").to_owned());
    }
    assert_eq!(told, "");
    Ok(stored(checked))
}

#[test]
fn a_target_assumes_a_format_where_the_spec_names_none() {
    use ir::{StoredFormat::*, StoredInputs};
    let assume = |format| Choices { assume: Some(format), ..Choices::default() };
    let convert = |format| Choices { convert: true, ..assume(format) };
    assert_eq!(said("", &Choices::default()), Ok(None));
    let assumed = said("", &assume(Nvfp4)).unwrap().expect("assumed");
    assert_eq!((assumed.format, assumed.inputs, &assumed.kv), (Nvfp4, StoredInputs::Block, &None));
    assert_eq!(assumed.plain, [ir::StoredPlain { weight: "head".to_owned(), layers: None }], "the base says so");
    assert_eq!(assumed.names.input.as_deref(), Some("input_scale"));
    let none = "[stored]\nformat = \"none\"\n";
    assert_eq!(said(none, &assume(Fp8)), Ok(None), "what is said is not assumed");
    assert_eq!(said(none, &convert(Fp8)).unwrap().map(|s| s.format), Some(Fp8), "it becomes so while it is loaded");
    let told = said("[stored]\nformat = \"fp8\"\n", &assume(Nvfp4)).unwrap();
    assert_eq!(told.map(|s| s.format), Some(Fp8));
}

#[test]
fn what_is_stored_may_be_said_in_full() {
    let text = "[stored]\nformat = \"nvfp4\"\ninputs = \"plain\"\nplain = { o = [5, 2], q = \"all\" }\n\
                names = { scale = \"s\", global = \"g\" }\nkv = { k_scale = \"a.k\", v_scale = [\"a.v\", \"b.v\"] }\n";
    let whole = said(text, &Choices::default()).unwrap().expect("said");
    let plain = |layers: &[usize]| {
        let o = ir::StoredPlain { weight: "o".to_owned(), layers: Some(layers.to_vec()) };
        [o, ir::StoredPlain { weight: "q".to_owned(), layers: None }]
    };
    assert_eq!(whole.plain, plain(&[2, 5]));
    let names = (whole.names.codes.as_str(), whole.names.scale.as_str(), whole.names.global.as_deref());
    assert_eq!((names, whole.names.input), (("weight", "s", Some("g")), None), "plain inputs have no number");
    let some = said(&format!("{text}numbers = \"some\"\n"), &Choices::default()).unwrap().expect("said");
    assert!(some.some_numbers && !whole.some_numbers);
    let kv = whole.kv.expect("scales");
    assert_eq!((kv.k_scale, kv.v_scale.len()), (vec!["model.layers.{l}.a.k".to_owned()], 2));
    // Of a part of the layers, those that stay are counted anew.
    let some = Choices { layers: Some(vec![0, 2, 3, 5]), ..Choices::default() };
    assert_eq!(said(text, &some).unwrap().expect("said").plain, plain(&[1, 3]));
}

#[test]
fn what_is_wrong_with_stored_formats_is_told() {
    for (table, wanted) in [
        ("format = \"int8\"", "error[B0035]: no format that a checkpoint is stored in"),
        ("format = 8", "error[B0035]: no format that a checkpoint is stored in"),
        ("format = \"fp8\"\ninputs = \"block\"", "error[B0035]: fp8 products take in \"plain\" or \"token\""),
        ("format = \"fp8\"\nplain = { hed = \"all\" }", "error[B0036]: there is no weight `hed`"),
        ("format = \"fp8\"\nplain = { head = [0] }", "error[B0010]: \"all\" is expected"),
        ("format = \"fp8\"\nplain = { o = [99] }", "error[B0036]: there is no such layer"),
        ("format = \"fp8\"\nplain = { o = [-1] }", "error[B0036]: there is no such layer"),
        ("format = \"fp8\"\nplain = { ffn_up = [7] }", "error[B0036]: layer 7 has no weight `ffn_up`"),
        ("format = \"fp8\"\nplain = [\"head\"]", "error[B0010]: a table of weights is expected"),
        ("format = \"fp8\"\nkv = { k_scale = \"k\" }", "error[B0035]: scales of cached rows without `v_scale`"),
        ("format = \"fp8\"\nkv = { k_scale = [] , v_scale = 3 }", "error[B0010]: a tensor name or a list of them"),
        ("format = \"fp8\"\nnames = { global = \"g\" }", "error[B0011]: [stored.names] has no key `global`"),
        ("format = \"nvfp4\"\nnumbers = \"none\"", "error[B0010]: \"all\" or \"some\" is expected"),
        ("formt = \"fp8\"", "error[B0011]: [stored] has no key `formt`"),
    ] {
        let told = said(&format!("[stored]\n{table}\n"), &Choices::default()).expect_err(table);
        assert!(told.starts_with(wanted), "{table}\n{told}");
    }
}

/// The section of the page whose title begins so.
fn section(title: &str) -> String {
    let page = std::fs::read_to_string(root().join("tests/specs/import/quantised.md")).expect("the page");
    let from = page.find(&format!("\n## {title}")).unwrap_or_else(|| panic!("{title}"));
    page[from + 1..].split("\n## ").next().unwrap_or_default().to_owned()
}

/// A file of tensors of which only the header is there; their names and formats.
fn header(folder: &Path, file: &str, tensors: &[(&str, &str)]) {
    let entry = |(name, format): &(&str, &str)| {
        format!("\"{name}\": {{\"dtype\": \"{format}\", \"shape\": [], \"data_offsets\": [0, 0]}}")
    };
    let text = format!("{{{}}}", tensors.iter().map(entry).collect::<Vec<_>>().join(", "));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    std::fs::write(folder.join(file), bytes).expect("file");
}

#[test]
fn tensors_beside_a_config_count_for_more_than_its_lists() {
    let folder = tempfile::tempdir().expect("folder");
    let listed = &section("FP8 as the usual");
    let said = |tensors: &[(&str, &str)]| {
        header(folder.path(), "model.safetensors", tensors);
        outcome(listed, folder.path())
    };
    let (o, q) = ("model.layers.5.self_attn.o_proj", "model.layers.1.self_attn.q_proj");
    let named = |module: &str, end: &str| format!("{module}.{end}");
    let own = "format = \"fp8\"\nplain = { head = \"all\", o = [5] }\n";
    // What the tensors say as well changes nothing.
    assert_eq!(
        said(&[(&named(o, "weight"), "BF16"), (&named(q, "weight"), "F8_E4M3"), (&named(q, "weight_scale"), "F32")]),
        own
    );
    let told =
        said(&[(&named(q, "weight"), "BF16"), (&named(o, "weight"), "F8_E4M3"), (&named(o, "weight_scale"), "BF16")]);
    assert!(
        told.starts_with("warning[B0306]: `model.layers.1.self_attn.q_proj` and 1 more are stored otherwise"),
        "{told}"
    );
    assert!(told.ends_with("plain = { head = \"all\", q = [1] }\n"), "{told}");
    // Many matrices in one tensor are none that a quantiser sees.
    let told = said(&[("model.layers.3.mlp.experts.down_proj", "BF16")]);
    assert!(told.contains("B0306") && told.ends_with("plain = { head = \"all\", o = [5], x_down = [3] }\n"), "{told}");
    // Parts of one weight are still all quantised or none.
    let told = said(&[("model.layers.3.mlp.experts.1.up_proj.weight", "BF16")]);
    assert!(told.starts_with("error[B0412]"), "{told}");
    // In several files, and with one of them missing, when the config alone decides.
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("file");
    header(folder.path(), "a.safetensors", &[(&named(q, "weight"), "F16")]);
    let index = |files: &str| std::fs::write(folder.path().join("model.safetensors.index.json"), files).expect("index");
    index("{\"weight_map\": {\"a\": \"a.safetensors\"}}");
    assert!(outcome(listed, folder.path()).ends_with("plain = { head = \"all\", q = [1], o = [5] }\n"));
    // A spec is compiled without weights: an index without any of its files is one too many, and no more.
    index("{\"weight_map\": {\"a\": \"c.safetensors\", \"b\": \"b.safetensors\"}}");
    assert_eq!(outcome(listed, folder.path()), own);
}

#[test]
fn codes_that_nothing_says_how_to_read_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let (fp8, nvfp4) = (&section("FP8 as the usual"), &section("NVFP4 as the usual"));
    let (q, router) = ("model.layers.1.self_attn.q_proj", "model.layers.3.mlp.gate.weight");
    let [codes, scale] = ["weight", "weight_scale"].map(|end| format!("{q}.{end}"));
    let said = |config: &str, tensors: &[(&str, &str)]| {
        header(folder.path(), "model.safetensors", tensors);
        outcome(config, folder.path())
    };
    let told = said(fp8, &[(&codes, "F8_E4M3")]);
    let first = format!(
        "error[B0416]: `{codes}` is stored as F8_E4M3, and fp8, as the config says, is F8_E4M3 beside `weight_scale`"
    );
    assert!(told.starts_with(&first) && told.contains("help: "), "{told}");
    // A layer in another format.
    let told = said(nvfp4, &[(&codes, "F8_E4M3"), (&scale, "F32")]);
    let first = format!("error[B0416]: `{codes}` is stored as F8_E4M3, and nvfp4, as the config says, is U8 beside");
    assert!(told.starts_with(&first), "{told}");
    // What no product may read in codes, though the config does not list it; with scales it can be multiplied out.
    let told = said(fp8, &[(router, "F8_E4M3")]);
    let first = format!("error[B0416]: `{router}` is stored as F8_E4M3, and the spec keeps W.router in f32");
    assert!(told.starts_with(&first), "{told}");
    let told = said(fp8, &[(router, "F8_E4M3"), (&router.replace("weight", "weight_scale"), "F32")]);
    assert!(told.starts_with("warning[B0310]") && told.contains("--widen") && told.contains("format ="), "{told}");
    // One tensor with two weights, in a form that codes never have.
    let told = said(fp8, &[("model.layers.3.mlp.experts.gate_up_proj", "F8_E4M3")]);
    assert!(told.contains("are read from `….weight` alone") && !told.contains("more"), "{told}");
    // Nothing says that anything is quantised; also where there are several.
    let plain = "## Plain\n```json\n{}\n```\n";
    let o = "model.layers.1.self_attn.o_proj.weight";
    let told = said(plain, &[(&codes, "U8"), (o, "U8")]);
    let first = format!("error[B0416]: `{o}` is stored as U8, and neither quantization_config of config.json nor");
    assert!(told.starts_with(&first) && told.contains("(1 more is like it)"), "{told}");
    let told = said(plain, &[(&codes, "F8_E4M3"), (&scale, "F32")]);
    let first = format!("warning[B0310]: `{codes}` is stored as F8_E4M3, and neither");
    assert!(told.starts_with(&first) && told.ends_with("format = \"none\"\n"), "{told}");
    assert_eq!(said(plain, &[(&codes, "BF16"), ("other.weight", "U8")]), "format = \"none\"\n");
}

#[test]
fn headers_that_cannot_be_read_are_told() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("model.safetensors");
    let told = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("file");
        outcome("## Plain\n```json\n{}\n```\n", folder.path())
    };
    let cut: Vec<u8> = [&90u64.to_le_bytes()[..], b"{\"a\":"].concat();
    for (bytes, fact) in [
        (&b""[..], "the file ends before it"),
        (b"12345", "the file ends before it"),
        (&[255; 8], "its length is given as 18446744073709551615 bytes, and 100000000 are allowed"),
        (&cut, "its length is given as 90 bytes, and the file ends after 5 of them"),
        (b"\x02\0\0\0\0\0\0\0[]", "invalid type"),
    ] {
        let told = told(bytes);
        let first = "warning[B0309]: the header of `model.safetensors` beside the config cannot be read: ";
        assert!(told.starts_with(&format!("{first}{fact}")), "{told}");
        assert!(told.contains("help: ") && told.ends_with("format = \"none\"\n"), "{told}");
    }
    // Beside a config, what is there and no file is no reason to take the checkpoint for a plain one.
    std::fs::remove_file(&file).expect("file");
    std::fs::create_dir(folder.path().join("hf_quant_config.json")).expect("directory");
    let told = outcome("## Plain\n```json\n{}\n```\n", folder.path());
    assert!(told.starts_with("error[B0001]") && told.contains("hf_quant_config.json"), "{told}");
}

#[test]
fn a_byte_order_mark_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let told = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("file");
        let checked = check_path(&folder.path().join(name), &Library::embedded(), &Choices::default());
        assert!(checked.model.is_none());
        render(&checked.diagnostics, &checked.sources, false)
    };
    for name in ["config.json", "spec.toml"] {
        let told = told(name, "\u{feff}{}");
        assert!(told.contains("begins with a byte order mark") && told.contains("help: save it as UTF-8"), "{told}");
    }
}

#[test]
fn an_index_that_its_folder_contradicts_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let config = root().join("examples/beam-nano/config.json");
    let path = folder.path().join("config.json");
    std::fs::copy(config, &path).expect("config");
    header(folder.path(), "a.safetensors", &[]);
    let told = |index: &str| {
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).expect("index");
        let (mut sources, mut diagnostics) = (Sources::default(), Vec::new());
        let imported = import(&path, &Library::embedded(), &mut sources, &mut diagnostics);
        let told = render(&diagnostics, &sources, false);
        assert_eq!(imported.is_none(), told.contains("error["), "{told}");
        // A directory is read the same way.
        let checked = check_path(folder.path(), &Library::embedded(), &Choices::default());
        assert_eq!(checked.model.is_none(), imported.is_none(), "{told}");
        told
    };
    assert_eq!(told("{\"weight_map\": {\"t\": \"a.safetensors\"}}"), "");
    assert_eq!(told("{\"weight_map\": {\"t\": \"c.safetensors\", \"u\": \"b.safetensors\"}}"), "");
    for name in ["../a.safetensors", "/etc/passwd", "x/a.safetensors", "..", "", "a\\\\b", "c:a"] {
        let text = told(&format!("{{\"weight_map\": {{\"model.t\": \"a.safetensors\", \"model.u\": \"{name}\"}}}}"));
        let name = name.replace("\\\\", "\\");
        let first = format!("error[B0415]: `model.safetensors.index.json` puts tensor `model.u` into `{name}`, which");
        assert!(text.starts_with(&first) && text.contains("index.json:1:") && text.contains("help: "), "{text}");
    }
    let text = told("{\"weight_map\": {\"t\": \"a.safetensors\", \"u\": \"b.safetensors\", \"v\": \"b.safetensors\"}}");
    let first = "error[B0415]: `b.safetensors` is not there, and `model.safetensors.index.json` puts 2 tensors into it, such as `u`; 1 of its 2 files are there";
    assert!(text.starts_with(first), "{text}");
    for index in ["", "[]", "{}", "{\"weight_map\": {\"t\": 3}}", "{\"weight_map\": "] {
        let text = told(index);
        assert!(text.starts_with("error[B0415]: `model.safetensors.index.json` is no index"), "{text}");
    }
}

#[test]
fn numbers_that_files_beside_a_config_lack_count_as_one_and_are_told() {
    let folder = tempfile::tempdir().expect("folder");
    let listed = &section("NVFP4 as the usual");
    let q = "model.layers.1.self_attn.q_proj";
    let named = |ends: &[(&'static str, &'static str)]| -> Vec<(String, &'static str)> {
        ends.iter().map(|(end, format)| (format!("{q}.{end}"), *format)).collect()
    };
    let codes = [("weight", "U8"), ("weight_scale", "F8_E4M3"), ("weight_scale_2", "F32")];
    let cached: Vec<(String, &str)> = (0..8)
        .flat_map(|l| [("k_proj.k_scale", l), ("v_proj.v_scale", l)])
        .map(|(end, l)| (format!("model.layers.{l}.self_attn.{end}"), "F32"))
        .collect();
    let said = |tensors: &[(String, &str)]| {
        let tensors: Vec<(&str, &str)> = tensors.iter().map(|(name, format)| (name.as_str(), *format)).collect();
        header(folder.path(), "model.safetensors", &tensors);
        outcome(listed, folder.path())
    };
    let whole = [named(&codes), named(&[("input_scale", "F32")]), cached.clone()].concat();
    let all = said(&whole);
    assert!(!all.contains("B0308") && !all.contains("numbers ="), "{all}");
    let told = said(&[named(&codes), cached.clone()].concat());
    assert!(told.starts_with(&format!("warning[B0308]: `{q}.input_scale` is not in the checkpoint")), "{told}");
    assert!(told.ends_with("numbers = \"some\"\n"), "{told}");
    // A matrix that is stored as it is has no number of inputs.
    let told = said(&[named(&[("weight", "BF16")]), cached.clone()].concat());
    assert!(!told.contains("B0308"), "{told}");
    let told = said(&[&whole[..4], &cached[..14]].concat());
    let first = "warning[B0308]: `model.layers.7.self_attn.k_proj.k_scale` and 1 more are not in the checkpoint";
    assert!(
        told.starts_with(first) && told.contains("kv_cache_scheme") && told.ends_with("numbers = \"some\"\n"),
        "{told}"
    );
}
