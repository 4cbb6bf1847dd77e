//! A worker process of the CUDA compiler, for tests; `beamc` starts itself as one.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(nvrtc) = codegen::find() else {
        eprintln!("NVRTC is not found; {}", codegen::HOW_TO_GET_IT);
        return ExitCode::FAILURE;
    };
    match codegen::serve(&nvrtc, std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
