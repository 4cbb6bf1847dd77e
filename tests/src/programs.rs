//! The two programs, built once per test binary in the profile of the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Paths of the built programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The compiler.
    pub beamc: PathBuf,
    /// The runtime.
    pub beam_run: PathBuf,
}

/// What a program printed and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Output stream.
    pub out: String,
    /// Error stream.
    pub err: String,
}

impl Programs {
    /// Builds both programs with the cargo that runs the tests; a second call is free.
    ///
    /// It asks for the whole workspace and one test of it: then features are joined as `cargo test --workspace` joins
    /// them, and what that command has compiled is used again.
    pub fn built() -> &'static Programs {
        static BUILT: OnceLock<Programs> = OnceLock::new();
        BUILT.get_or_init(|| {
            let mut command = Command::new(env!("CARGO"));
            command.current_dir(crate::root()).args(["build", "--quiet", "--workspace", "--bins", "--test", "house"]);
            let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
            if profile == "release" {
                command.arg("--release");
            }
            let status = command.status();
            assert!(status.as_ref().is_ok_and(|s| s.success()), "the programs do not build: {status:?}");
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from);
            let folder = target.join(profile);
            Programs { beamc: folder.join("beamc"), beam_run: folder.join("beam-run") }
        })
    }

    /// Runs the compiler.
    pub fn beamc(&self, args: &[&str]) -> Output {
        run(&self.beamc, args)
    }

    /// Runs the runtime.
    pub fn beam_run(&self, args: &[&str]) -> Output {
        run(&self.beam_run, args)
    }

    /// Compiles a spec or checkpoint directory and returns the artifact's path inside `folder`.
    pub fn compile(&self, spec: &Path, target: &str, folder: &Path) -> PathBuf {
        let artifact = folder.join(format!("artifact-{target}"));
        let done = self.beamc(&["compile", text(spec), "--target", target, "-o", text(&artifact)]);
        assert_eq!(done.code, 0, "compile {}: {}", spec.display(), done.err);
        artifact
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or("path is not UTF-8")
}

fn run(program: &Path, args: &[&str]) -> Output {
    match Command::new(program).args(args).current_dir(crate::root()).output() {
        Ok(done) => Output {
            code: done.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&done.stdout).into_owned(),
            err: String::from_utf8_lossy(&done.stderr).into_owned(),
        },
        Err(e) => Output { code: -1, out: String::new(), err: format!("{}: {e}", program.display()) },
    }
}
