//! What NVRTC makes of it: machine code for both architectures, without spills, the same each time.
//!
//! The test needs NVRTC and its disassembler: `pip install nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.2.51` puts them where
//! they are found.

mod common;

use codegen::{Cache, HOW_TO_DISASSEMBLE, HOW_TO_GET_IT, Pool, compile, generate, version};
use codegen::{disassemble, find, find_disassembler, lint};
use common::{compiled, machine};
use std::process::Command;

fn pool() -> Pool {
    Pool { command: Box::new(|| Command::new(env!("CARGO_BIN_EXE_nvrtc-worker"))), workers: 2 }
}

#[test]
fn kernels_become_machine_code_without_spills_and_come_from_the_cache_the_second_time() {
    let nvrtc = find().unwrap_or_else(|| panic!("NVRTC is not found; {HOW_TO_GET_IT}"));
    let compiler = format!("NVRTC {}", version(&nvrtc).expect("a version"));
    let stages = compiled("beam-nano.toml", "h200-bf16");
    let made = generate(&stages.kernels, &stages.plan, machine("h200-bf16"));
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(folder.path());
    let code = compile(&made, "sm_90a", &compiler, &pool(), &cache).expect("machine code");
    assert_eq!(code.kernels.len(), made.sources.len());
    for kernel in &code.kernels {
        assert!(kernel.registers > 8 && kernel.registers <= 255, "{kernel:?}");
        assert!(kernel.shared_bytes <= 48 * 1024, "{kernel:?}");
        // A frame of a few words is the call of a division; an array in it would be hundreds of bytes.
        assert!(kernel.stack_bytes <= 16, "{kernel:?}");
        assert!(code.files[&kernel.cubin()].starts_with(b"\x7fELF"));
    }
    let program = find_disassembler().unwrap_or_else(|| panic!("nvdisasm is not found; {HOW_TO_DISASSEMBLE}"));
    for source in made.sources.iter().filter(|s| s.text.contains("using Core")) {
        let file = folder.path().join(format!("{}.cubin", source.name));
        std::fs::write(&file, &code.files[&format!("kernels/{}.cubin", source.name)]).expect("a file");
        let instructions = disassemble(&program, &file).expect("instructions");
        assert_eq!(lint(&source.text, &instructions), Vec::<String>::new(), "{}", source.name);
    }
    let none = Pool { command: Box::new(|| Command::new("no-such-program")), workers: 1 };
    let again = compile(&made, "sm_90a", &compiler, &none, &cache).expect("all of it from the cache");
    assert_eq!(code, again);
    assert_eq!(code.files, again.files);
    let fresh = compile(&made, "sm_90a", &compiler, &pool(), &Cache::none()).expect("machine code");
    assert!(code.files == fresh.files, "two translations differ");
    // The next architecture has other matrix instructions for products; the rest is the same text.
    let next = generate(&stages.kernels, &stages.plan, machine("gb300-bf16"));
    let same = next.sources.iter().filter(|s| made.sources.contains(s)).count();
    assert!(same > 15, "{same} kernels are the same");
    let next_code = compile(&next, "sm_103a", &compiler, &pool(), &Cache::none()).expect("machine code");
    assert_eq!(next_code.kernels.len(), next.sources.len());
    let error = compile(&made, "sm_90a", "another compiler", &none, &cache).expect_err("no worker").to_string();
    assert!(error.starts_with("K0001"), "{error}");
}

#[test]
fn a_unit_that_does_not_translate_is_told_with_the_log() {
    assert!(find().is_some(), "NVRTC is not found; {HOW_TO_GET_IT}");
    let mut made = codegen::Generated::default();
    let text = "extern \"C\" __global__ void broken(int* p) { *p = nothing; }".to_owned();
    made.sources.push(codegen::Source { name: "broken".to_owned(), text, threads: 32, dynamic_bytes: 0 });
    let error = compile(&made, "sm_90a", "any", &pool(), &Cache::none()).expect_err("an error").to_string();
    assert!(error.starts_with("K0002: kernel `broken`") && error.contains("nothing"), "{error}");
}
