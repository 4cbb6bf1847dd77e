//! What machine code must show: matrix instructions where a template multiplies on the matrix units, and nothing that stops a whole
//! device, or leaves the registers, in the loops around them.
//!
//! The text is that of `nvdisasm -c`. A loop is what stands between a label and a jump back to it; the innermost loops that hold matrix
//! instructions are looked at.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What tests say where the disassembler is missing.
pub const HOW_TO_DISASSEMBLE: &str =
    "install it with `pip install nvidia-cuda-nvdisasm==13.2.51`, or set BEAM_NVDISASM to the program";

/// Matrix instructions by the templates that hold one of them: the sums of routes are binary64 on the matrix units for many rows, apart
/// for few.
const MATRIX: [(&str, &[&str]); 6] = [
    ("Stream<", &["HGMMA"]),
    ("Prompt<", &["HGMMA"]),
    ("Decode<", &["HMMA"]),
    ("Prefill<", &["HMMA"]),
    ("Tiles<", &["HMMA"]),
    ("Product<bf16, float, double", &["DMMA", "DFMA"]),
];
/// What has no place in a loop of matrix instructions: fences of the whole device, caches thrown away, memory of a thread.
const COSTLY: [&str; 7] = ["MEMBAR.SC.GPU", "MEMBAR.ALL.GPU", "MEMBAR.SC.SYS", "ERRBAR", "CCTL.IVALL", "LDL", "STL"];

/// Where the disassembler is: the environment, a toolkit, or the package of a Python.
pub fn find_disassembler() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("BEAM_NVDISASM") {
        return Some(PathBuf::from(given)).filter(|p| p.is_file());
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]).map(|t| t.join("bin"));
    let packages = crate::find::packages().into_iter().filter_map(|lib| lib.parent().map(|p| p.join("bin")));
    toolkits.chain(packages).map(|folder| folder.join("nvdisasm")).find(|program| program.is_file())
}

/// The instructions of machine code.
///
/// # Errors
/// What the program said.
pub fn disassemble(program: &Path, cubin: &Path) -> Result<String, String> {
    let answer = Command::new(program).arg("-c").arg(cubin).output().map_err(|e| e.to_string())?;
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

/// What is wrong with the instructions of a kernel, whose text is `unit`; nothing where all is well.
pub fn lint(unit: &str, instructions: &str) -> Vec<String> {
    let lines: Vec<&str> = instructions.lines().collect();
    let mut found = Vec::new();
    for (template, instructions) in MATRIX {
        let is_one = |line: &&str| instructions.iter().any(|instruction| has(line, instruction));
        let is_core = unit.lines().any(|l| l.starts_with("using Core = ") && l.contains(template));
        if !is_core {
            continue;
        }
        let holds = |range: &(usize, usize)| lines[range.0..=range.1].iter().any(is_one);
        let named = instructions.join(" or ");
        if !lines.iter().any(is_one) {
            found.push(format!("`{template}…>` is there, and no {named}"));
        }
        for range in loops(&lines).iter().filter(|r| holds(r)) {
            let inner = |r: &&(usize, usize)| *r != range && range.0 <= r.0 && r.1 <= range.1 && holds(r);
            if loops(&lines).iter().any(|r| inner(&r)) {
                continue;
            }
            for line in &lines[range.0..=range.1] {
                if let Some(costly) = COSTLY.iter().find(|c| has(line, c)) {
                    found.push(format!("{costly} in a loop of {named}: {}", line.trim()));
                }
            }
        }
    }
    found
}

/// Whether a line is this instruction, whatever its modifiers.
fn has(line: &str, instruction: &str) -> bool {
    let mut words = line.split_whitespace().filter(|w| !w.starts_with("/*") && !w.starts_with('@'));
    words
        .next()
        .is_some_and(|w| w == instruction || w.strip_prefix(instruction).is_some_and(|rest| rest.starts_with('.')))
}

/// Lines of loops: first and last. A loop's end is tested where it jumps back; what jumps back always stands apart, behind the
/// rest, and returns to where threads that wait or that parted go on: that is no loop.
fn loops(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut labels = HashMap::new();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
            labels.insert(label, number);
        }
        if let Some(first) = tested_target(line).and_then(|label| labels.get(label)) {
            found.push((*first, number));
        }
    }
    found
}

/// Where a line jumps to if a condition holds.
fn tested_target(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("BRA")?;
    let is_tested = before.contains('@') || rest.starts_with(" P") || rest.starts_with(" !P") || rest.starts_with(" U");
    Some(rest.split_once("`(")?.1.split_once(')')?.0).filter(|_| is_tested)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "using Core = Stream<1, 2>;\n";

    fn code(inside: &str, outside: &str) -> String {
        format!(
            ".L_x_1:\n /*0010*/ {outside} ;\n.L_x_2:\n /*0020*/ HGMMA.64x16x16.F32.BF16 R24, gdesc[UR16], R24 ;\n /*0030*/ {inside} ;\n /*0040*/ @P1 BRA `(.L_x_2) ;\n /*0050*/ @!P0 BRA `(.L_x_1) ;\n"
        )
    }

    #[test]
    fn fences_and_local_memory_count_only_in_the_innermost_loop_of_products() {
        assert_eq!(lint(UNIT, &code("IADD R1, R1, R2", "MEMBAR.SC.GPU")), Vec::<String>::new());
        for costly in ["MEMBAR.ALL.GPU", "ERRBAR", "@P0 STL.128 [R1], R4", "CCTL.IVALL"] {
            assert_eq!(lint(UNIT, &code(costly, "NOP")).len(), 1, "{costly}");
        }
    }

    #[test]
    fn the_way_back_of_threads_that_waited_is_no_loop() {
        let inside = " /*0008*/ @!P0 BRA `(.L_x_9) ;\n.L_x_1:\n /*0010*/ HGMMA.64x16x16 R24 ;\n /*0020*/ EXIT ;";
        let apart = ".L_x_9:\n /*0030*/ MEMBAR.SC.GPU ;\n /*0040*/ BRA `(.L_x_1) ;\n";
        assert_eq!(lint(UNIT, &format!("{inside}\n{apart}")), Vec::<String>::new());
        let looping = apart.replace("BRA", "@P1 BRA");
        assert_eq!(lint(UNIT, &format!("{inside}\n{looping}")).len(), 1);
    }

    #[test]
    fn a_template_of_matrix_units_has_their_instructions() {
        assert_eq!(lint(UNIT, " /*0010*/ FFMA R1, R2, R3, R4 ;\n").len(), 1);
        assert_eq!(
            lint("using Core = Product<float, float, float, 1>;\n", " /*0010*/ FFMA R1 ;\n"),
            Vec::<String>::new()
        );
        // Another instruction whose name only begins alike.
        assert_eq!(lint(UNIT, " /*0010*/ HGMMAX R1 ;\n").len(), 1);
    }
}
