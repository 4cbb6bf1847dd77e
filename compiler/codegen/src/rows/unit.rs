//! Row kernels as units: one alone, or several that read nothing of each other side by side in one start.

use super::RowKernel;
pub use super::tile::Ends;
use artifact::Blocks;
use std::fmt::Write;

/// Most kernels of one start.
const MOST_PARTS: usize = 8;

/// Kernels by start: those that may run side by side are together.
pub fn grouped(kernels: Vec<RowKernel>) -> Vec<Vec<RowKernel>> {
    let mut groups: Vec<Vec<RowKernel>> = Vec::new();
    for kernel in kernels {
        let fits = |group: &&mut Vec<RowKernel>| {
            let same = |other: &RowKernel| {
                other.is_apart && other.threads == kernel.threads && other.grid[0].rows == kernel.grid[0].rows
            };
            kernel.is_apart && group.len() < MOST_PARTS && group.iter().all(same)
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push(kernel),
            None => groups.push(vec![kernel]),
        }
    }
    groups
}

/// The text of a start; its entry is called `@NAME@`.
pub fn text(parts: &[RowKernel]) -> String {
    let threads = parts.iter().map(|p| p.threads).max().unwrap_or(1);
    let entry =
        |signature: &str| format!("extern \"C\" __global__ void __launch_bounds__({threads}) @NAME@({signature}) {{\n");
    if let [only] = parts {
        let RowKernel { head, constants, signature, body, .. } = only;
        return format!("{head}#include \"cache.cuh\"\n\n{constants}{}{body}}}\n", entry(&signature.join(", ")));
    }
    let mut text: String = parts.iter().map(|p| p.head.as_str()).collect();
    text += "#include \"cache.cuh\"\n\n";
    let (mut all, mut calls) = (Vec::new(), String::new());
    for (number, part) in parts.iter().enumerate() {
        let signature = part.signature.join(", ");
        let _ = writeln!(
            text,
            "namespace part{number} {{\n{}DEVICE void run({signature}) {{\n{}}}\n}}",
            part.constants, part.body
        );
        let _ =
            writeln!(calls, "  if (blockIdx.y == {number}) part{number}::run({});", arguments(part, number).join(", "));
        all.extend(part.signature.iter().map(|s| format!("{s}_{number}")));
    }
    text + &entry(&all.join(", ")) + &calls + "}\n"
}

/// A parameter's name is its last word; here it gets the part's number.
fn arguments(part: &RowKernel, number: usize) -> Vec<String> {
    let names = part.signature.iter().map(|s| s.rsplit(' ').next().unwrap_or_default());
    names.map(|n| format!("{n}_{number}")).collect()
}

/// What the kernel of a core ends with, from strands in its tile; nothing where there are none.
pub fn ends(parts: &[RowKernel]) -> Ends {
    let mut ends = Ends { call: "Nothing()".to_owned(), ..Ends::default() };
    let (mut calls, mut members, mut given) = (String::new(), String::new(), Vec::new());
    for (number, part) in parts.iter().enumerate() {
        ends.head += &part.head;
        let signature: String = part.signature.iter().map(|s| format!(", {s}")).collect();
        let _ = writeln!(
            ends.functions,
            "namespace part{number} {{\n{}template <class Tile> DEVICE void run(const Tile& tile{signature}) {{\n{}}}\n}}",
            part.constants, part.body
        );
        // Strands use the same shared memory, one after the other.
        if part.tile_bytes > 0 && parts.iter().take(number).any(|p| p.tile_bytes > 0) {
            calls += " tile.meet();";
        }
        let names = arguments(part, number);
        let arguments: String = names.iter().map(|a| format!(", {a}")).collect();
        let _ = write!(calls, " part{number}::run(tile{arguments});");
        members.extend(part.signature.iter().map(|s| format!("  {s}_{number};\n")));
        given.extend(names);
        ends.signature.extend(part.signature.iter().map(|s| format!(", {s}_{number}")));
        ends.params.extend(part.params.iter().cloned());
        ends.bytes = ends.bytes.max(part.tile_bytes);
    }
    if !parts.is_empty() {
        let _ = writeln!(
            ends.functions,
            "struct Ends {{\n{members}  template <class Tile> DEVICE void operator()(const Tile& tile) const {{{calls} }}\n}};"
        );
        ends.call = format!("Ends{{{}}}", given.join(", "));
    }
    ends
}

/// Blocks of a start: those of the part that has most, and a row of them for each part.
pub fn grid(parts: &[RowKernel]) -> [Blocks; 2] {
    let share = |b: &Blocks, of: &Blocks| b.factor * of.per_block;
    let mut most = parts.first().map(|p| p.grid[0].clone()).unwrap_or(Blocks { rows: None, factor: 1, per_block: 1 });
    for part in parts {
        let other = &part.grid[0];
        if share(other, &most) > share(&most, other) {
            most = other.clone();
        }
    }
    [most, Blocks { rows: None, factor: parts.len() as u64, per_block: 1 }]
}
