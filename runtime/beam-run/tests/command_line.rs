//! The command line without a model: help, exit codes, and errors that say what to do.

use std::path::Path;
use std::process::{Command, Output};

const COMMANDS: [&str; 10] =
    ["serve", "generate", "score", "doctor", "selftest", "bench", "tune", "quantise", "parse", "grammar"];

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_beam-run")).args(args).output().unwrap()
}

/// Exit code, output stream, error stream.
fn told(args: &[&str]) -> (i32, String, String) {
    let output = run(args);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_command_has_help_with_an_example_and_json() {
    for command in COMMANDS {
        let (code, help, _) = told(&[command, "--help"]);
        assert_eq!(code, 0, "{command}");
        assert!(help.contains("Example") && help.contains("--json"), "{help}");
    }
    let parts = [&["bench", "model"][..], &["bench", "steps"], &["bench", "agentic"], &["bench", "serve"]];
    for command in COMMANDS.iter().map(std::slice::from_ref).chain(parts).chain([&[][..]]) {
        let (_, help, _) = told(&[command, &["--help"]].concat());
        assert!((1..=5).all(|code| help.contains(&format!("\n  {code}  "))), "{command:?}: {help}");
    }
}

/// Flags of which one takes back what another asks for, or leaves it without effect.
#[test]
fn flags_that_contradict_each_other_are_refused_before_anything_is_read() {
    let score = ["score", "/nowhere", "--tokens", "/nowhere"];
    let model = ["--model", "/nowhere"];
    let seed = ["--synthetic", "1"];
    let cuda = ["--executor", "cuda"];
    let out = ["--out", "/nowhere"];
    let draft = ["--draft", "/nowhere"];
    let cases: [(&[&[&str]], [&str; 2]); 20] = [
        (&[&score, &model, &seed, &out], ["--model", "--synthetic"]),
        (&[&score, &model, &out, &draft], ["--draft", "score"]),
        (&[&score, &seed, &["--compare", "/nowhere", "/nowhere"]], ["--compare", "--synthetic"]),
        (&[&score, &model, &out, &["--compare", "/nowhere", "/nowhere"]], ["--compare", "--out"]),
        (&[&score, &seed, &out, &["--narrow"]], ["--narrow", "--synthetic"]),
        (&[&score, &seed, &out, &["--widen"]], ["--widen", "--synthetic"]),
        (&[&score, &seed, &out, &draft], ["--draft", "--synthetic"]),
        (&[&["selftest", "/nowhere"], &model, &seed], ["--model", "--synthetic"]),
        (&[&["selftest", "/nowhere"], &model, &draft], ["--draft", "selftest"]),
        (&[&["bench", "model", "/nowhere"], &model, &seed], ["--model", "--synthetic"]),
        (&[&["bench", "steps", "/nowhere"], &model, &seed, &cuda], ["--model", "--synthetic"]),
        (&[&["bench", "steps", "/nowhere"], &model, &draft, &cuda], ["--draft", "bench steps"]),
        (&[&["bench", "agentic", "/nowhere"], &model, &seed], ["--model", "--synthetic"]),
        (&[&["bench", "agentic", "/nowhere"], &seed, &["--narrow"]], ["--narrow", "--synthetic"]),
        (&[&["bench", "agentic", "/nowhere"], &seed, &draft], ["--draft", "--synthetic"]),
        (&[&["bench", "agentic", "/nowhere", "--simulate", "x"], &cuda], ["--simulate", "--executor"]),
        (&[&["bench", "agentic", "/nowhere", "--simulate", "x"], &draft], ["--simulate", "--draft"]),
        (&[&["bench", "agentic", "/nowhere", "--simulate", "x", "--narrow"]], ["--simulate", "--narrow"]),
        (
            &[&["serve", "/nowhere"], &model, &["--simulate-acceptance", "2", "--draft-rule", "block"]],
            ["--simulate-acceptance", "--draft-rule"],
        ),
        (&[&["quantise", "--format", "fp8-weights", "--inputs", "narrow"], &model, &out], ["--inputs", "--format"]),
    ];
    for (parts, named) in cases {
        let args = parts.concat();
        let (code, _, error) = told(&args);
        assert!(code == 2 && named.iter().all(|flag| error.contains(flag)), "{args:?}: {code} {error}");
    }
    // A tokenizer, and tokens that end an answer, are read of the directory beside a seed.
    for command in [&["serve", "/nowhere"][..], &["generate", "/nowhere", "--prompt", "a", "--max-tokens", "1"]] {
        let (code, _, error) = told(&[command, &model, &seed].concat());
        assert!(code == 1 && error.contains("A0101"), "{error}");
    }
}

#[test]
fn parts_of_commands_that_are_not_built_say_so_before_anything_is_read() {
    let commands: [&[&str]; 3] = [
        &["serve", "/nowhere", "--model", "/nowhere"],
        &["generate", "/nowhere", "--synthetic", "1", "--tokens", "/nowhere", "--max-tokens", "1"],
        &["score", "/nowhere", "--synthetic", "1", "--tokens", "/nowhere", "--out", "/nowhere"],
    ];
    for command in commands {
        let (code, _, error) = told(&[command, &["--executor", "sim"]].concat());
        assert_eq!(code, 3, "{command:?}: {error}");
        assert!(error.starts_with("error[R0001]") && error.contains("executor `sim`"), "{error}");
    }
}

#[test]
fn a_wrong_command_line_is_usage() {
    let all: [&[&str]; 14] = [
        &[],
        &["nothing"],
        &["serve"],
        &["serve", "artifact"],
        &["serve", "artifact", "--model", "m", "--executor", "tape"],
        &["serve", "artifact", "--model", "m", "--rank-of", "tp=8"],
        &["serve", "artifact", "--model", "m", "--max-running", "0"],
        &["generate", "artifact", "--model", "m", "--max-tokens", "3"],
        &["generate", "artifact", "--model", "m", "--prompt", "a", "--tokens", "b", "--max-tokens", "3"],
        &["serve", "artifact", "--model", "m", "--host-cache-dir", "d"],
        &["bench", "steps", "/nowhere", "--synthetic", "1"],
        &["tune", "artifact", "--model", "m"],
        &["tune", "artifact", "--out", "tuning.json"],
        &["bench", "steps", "/nowhere", "--synthetic", "1", "--executor", "cuda", "--sequences", "1,x"],
    ];
    for args in all {
        assert_eq!(told(args).0, 2, "{args:?}");
    }
}

/// Flags, each of them or a few together.
type Flags<'a> = &'a [&'a [&'a str]];

/// Flags whose values make no sense, and what their refusal says besides the flag.
#[test]
fn values_that_make_no_sense_are_refused_before_anything_is_read() {
    let serve = ["serve", "/nowhere", "--model", "/nowhere"];
    let generate = ["generate", "/nowhere", "--model", "/nowhere", "--prompt", "a"];
    let load = ["bench", "serve", "http://127.0.0.1:9"];
    let sessions = ["bench", "agentic", "/nowhere", "--model", "/nowhere"];
    let cases: [(&[&str], Flags<'_>, &str); 4] = [
        (
            &serve,
            &[
                &["--api-key="],
                &["--admin-api-key= "],
                &["--served-model-name="],
                &["--served-model-name= "],
                &["--host="],
                &["--max-body-bytes", "0"],
                &["--max-body-bytes", "x"],
                &["--allow-origin", "foo"],
                &["--allow-origin", "http://a.example/"],
                &["--allow-origin", "none", "--allow-origin", "http://a.example"],
                &["--context", "0"],
                &["--context", "1"],
                &["--host-cache-gb", "nan"],
                &["--host-cache-gb", "-1"],
                &["--host-cache-gb", "1e9"],
                &["--host-cache-gb", "1", "--no-prefix-cache"],
                &["--host-cache-dir", "d", "--host-cache-gb", "0"],
                &["--host-cache-dir=", "--host-cache-gb", "1"],
                &["--stuck-seconds", "0"],
                &["--stuck-seconds", "18446744073709551615"],
                &["--grace-seconds", "18446744073709551615"],
                &["--max-wait-seconds", "18446744073709551615"],
                &["--max-running", "0"],
                &["--chunked-prefill-size", "0"],
                &["--port", "70000"],
            ],
            "",
        ),
        (
            &generate,
            &[
                &["--max-tokens", "0"],
                &["--max-tokens", "1", "--temperature", "nan"],
                &["--max-tokens", "1", "--temperature=-1"],
                &["--max-tokens", "1", "--top-p", "0"],
                &["--max-tokens", "1", "--top-p", "1.1"],
            ],
            "must be",
        ),
        (&load, &[&["--rate", "0"], &["--rate", "nan"], &["--shared-tokens", "300"], &["--requests", "0"]], ""),
        (
            &sessions,
            &[&["--scale", "0"], &["--scale", "inf"], &["--think-seconds=-1"], &["--host-cache-gb", "nan"]],
            "must be",
        ),
    ];
    for (command, all, says) in cases {
        for flags in all {
            let (code, _, error) = told(&[command, flags].concat());
            let flag = flags.iter().rev().find(|flag| flag.starts_with("--")).unwrap();
            let named = flags.iter().any(|flag| error.contains(flag.split('=').next().unwrap()));
            assert!(code == 2 && named && error.contains(says), "{flag}: {code} {error}");
        }
    }
    // The variable of a key that is there and empty is no key either.
    let command = &mut Command::new(env!("CARGO_BIN_EXE_beam-run"));
    let output = command.args(serve).env("BEAM_RUN_API_KEY", " ").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.starts_with("error[R0106]") && error.contains("BEAM_RUN_API_KEY"),
        "{error}"
    );
}

#[test]
fn wrong_input_is_named_and_never_a_backtrace() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("words.json"), r#"{"tokens": [["a"]]}"#).unwrap();
    std::fs::write(path("tokens.json"), r#"{"tokens": [[1]]}"#).unwrap();
    std::fs::write(path("manifest.json"), "{").unwrap();
    let here = dir.path().to_str().unwrap();
    let cases = [
        (vec!["generate", "/nowhere", "--model", here, "--prompt", "a"], "A0101", 1),
        (vec!["generate", here, "--model", here, "--prompt", "a"], "A0105", 1),
        (vec!["generate", here, "--model", here, "--tokens", "/nowhere"], "R0202", 1),
        // What a flag lacks is the command line's fault.
        (vec!["generate", here, "--synthetic", "1", "--prompt", "a"], "R0204", 2),
        (vec!["serve", here, "--synthetic", "1"], "R0102", 2),
    ];
    for (mut args, code, status) in cases {
        if args[0] == "generate" {
            args.extend(["--max-tokens", "2"]);
        }
        args.push("--json");
        let (exit, out, error) = told(&args);
        assert_eq!(exit, status, "{error}");
        assert!(error.starts_with(&format!("error[{code}]: ")), "{args:?}: {error}");
        assert!(!error.contains("backtrace") && !error.contains("panicked"), "{error}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&json["ok"], &json["error"]["code"]), (&false.into(), &code.into()));
    }
    let words = path("words.json");
    let (exit, _, error) = told(&["generate", here, "--model", here, "--tokens", &words, "--max-tokens", "2"]);
    assert!(exit == 1 && error.contains("R0203") && error.contains("words.json"), "{error}");
    assert!(Path::new(&words).exists());
}

/// What is read stays as it is: an output over it, among it, or through a link of it is refused before anything is opened.
#[test]
fn outputs_are_apart_from_inputs() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let dirs = ["artifact", "model", "draft"];
    dirs.iter().for_each(|dir| std::fs::create_dir(path(dir)).unwrap());
    let read = ["artifact/plan.json", "model/model.safetensors", "blob", "tokens.json", "map.json", "inject.st"];
    read.iter().for_each(|file| std::fs::write(path(file), *file).unwrap());
    #[cfg(unix)]
    std::os::unix::fs::symlink(path("blob"), path("model/model-00002-of-00002.safetensors")).unwrap();
    let (artifact, model, tokens) = (path("artifact"), path("model"), path("tokens.json"));
    let (map, inject, draft) = (path("map.json"), path("inject.st"), path("draft"));
    let score = ["score", &artifact, "--model", &model, "--tokens", &tokens, "--trace", &map, "--inject", &inject];
    let of_model = [&artifact, "--model", &model];
    let serve: Vec<&str> = [&["serve"], &of_model[..], &["--draft", &draft, "--host-cache-gb", "1"]].concat();
    let steps: Vec<&str> = [&["bench", "steps"], &of_model[..], &["--executor", "cuda"]].concat();
    let tune: Vec<&str> = [&["tune"], &of_model[..]].concat();
    let quantise = ["quantise", "--model", &model, "--format", "fp8"];
    let cases: [(&[&str], &str, &str, &str); 12] = [
        (&score, "--out", "model/model.safetensors", "--model"),
        (&score, "--out", "model/new.safetensors", "--model"),
        (&score, "--out", "artifact/plan.json", "ARTIFACT"),
        (&score, "--out", "tokens.json", "--tokens"),
        (&score, "--out", "map.json", "--trace"),
        (&score, "--out", "model/../inject.st", "--inject"),
        (&score, "--out", "blob", "--model"),
        (&serve, "--host-cache-dir", "draft", "--draft"),
        (&steps, "--trace", "artifact/plan.json", "ARTIFACT"),
        (&tune, "--out", "model/tuning.json", "--model"),
        (&quantise, "--out", "model/fp8", "--model"),
        (&quantise, "--out", "model", "--model"),
    ];
    for (args, flag, out, of) in cases {
        let out = path(out);
        let (exit, _, error) = told(&[args, &[flag, &out]].concat());
        let facts = [format!("`{flag} {out}` "), format!("`{of} {}", work.path().display())];
        assert!(exit == 2 && error.starts_with("error[R0722]: "), "{flag} {out}: {exit} {error}");
        assert!(facts.iter().all(|fact| error.contains(fact)) && error.contains("; name a"), "{error}");
    }
    assert!(read.iter().all(|file| std::fs::read_to_string(path(file)).unwrap() == *file));
    assert_eq!(std::fs::read_dir(path("model")).unwrap().count(), if cfg!(unix) { 2 } else { 1 });
}

#[test]
fn doctor_reports_in_both_forms() {
    let (code, text, _) = told(&["doctor"]);
    assert!(code == 0 && text.contains("executors: cpu, cuda, interp") && text.contains("CUDA device: "));
    let json: serde_json::Value = serde_json::from_str(&told(&["doctor", "--json"]).1).unwrap();
    assert_eq!(json["ok"], true);
    assert!(json["fused_multiply_add"].is_boolean() && text.contains("fused multiply-add: "));
}
