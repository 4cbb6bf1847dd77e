//! Text forms of the IR.
//!
//! The graph, sharded and kernel levels print as text that parses back to the same module; the other levels print for
//! reading and travel as JSON. One value stands on one line: its name, its type, the operation with everything that matters about it
//! (what it rounds to, in which order it sums), its operands.
//!
//! ```text
//! module "nano"
//! act bf16
//! dim hidden = 64
//! layers 0-3: attn = sliding
//! weight layer norm: bf16[hidden] quant
//!   disk "layers.{l}.norm.weight" shape [64]
//! entry forward {
//!   graph first (%tokens) -> (x = %x) {
//!     axes T = rows
//!     %tokens: i32<vocab>[T] = input tokens
//!     %1: bf16[vocab, hidden] = weight model embed
//!     %x: bf16[T, hidden] = gather over vocab (%1, %tokens)
//!   }
//!   class sliding {attn = sliding} (%x) -> (x = %2) {
//!     …
//!   }
//!   instances 0-3: sliding
//!   graph last (%x) -> (result = %z) {
//!     …
//!   }
//! }
//! ```
//!
//! * `%name` is a value with a name, `%12` one without. A name outside `[A-Za-z0-9_.#]` stands in quotes, as a JSON string.
//! * An axis stands without its length where the length is that of the header's `dim` or of the graph's `axes`; elsewhere `name=length`.
//! * `;` starts a comment up to the end of the line; the printer uses it for spans, as `file start-end` in bytes.
//! * The kernel level has `layout` lines before the entries, and in a graph first the leaves and then the regions, in the order
//!   in which they run. A named value whose number is not that of its line, counted from 0, has `at number` before it.
//! * A weight may have `only` and `absent`, a form on disk what its bytes are, and the header what the checkpoint keeps in narrow
//!   formats (`stored.rs`).
//! * Layout is free: the parser needs no line breaks.

mod lex;
mod name;
mod parse;
mod parse_facts;
mod parse_kernels;
mod parse_op;
mod print;
mod print_stages;
mod stored;

pub use lex::ParseError;
pub use parse::parse_module;
pub use parse_kernels::parse_kernels;
pub use print::{print_graph, print_module};
pub use print_stages::{print_kernels, print_model, print_plan};

#[cfg(test)]
mod tests;
