//! Attention on the matrix units (`attend_tiles.cuh`): a start for each decoding bucket, one for prompts.

use crate::cores::Core;
use crate::region::Draft;
use artifact::{Blocks, Param, Served};
use ir::{KvLayout, RowsPerSequence};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block that decodes.
pub(crate) const DECODE_THREADS: u64 = 128;
/// Threads of a block of a prompt, without and with matrix units of warpgroups.
const PROMPT_THREADS: [u64; 2] = [256, 384];
/// Keys that the warps of a decoding block take in one round.
const ROUND: u64 = 64;
/// Most parts of a context.
const MOST_PARTS: u64 = 64;
/// Query rows of a block of a prompt.
const PROMPT_ROWS: u64 = 128;

/// What an attention is made of.
pub struct Shape<'a> {
    /// Layout of its cache.
    pub layout: &'a KvLayout,
    /// Query heads.
    pub heads: u64,
    /// Query heads of a KV head.
    pub share: u64,
    /// Whether a row sees all positions of its sequence.
    pub sees_all: bool,
    /// Type of the sinks' numbers.
    pub sink_type: &'static str,
}

impl Shape<'_> {
    /// Whether rows of the cache are made of aligned 16-byte pieces, and heads fit the tiles.
    pub fn fits(&self) -> bool {
        let l = self.layout;
        let strides = [l.page_stride, l.layer_stride, l.token_stride, l.head_stride, l.v_offset];
        l.head_elements.is_multiple_of(16) && l.head_elements <= 128 && strides.iter().all(|s| s % 8 == 0)
    }

    fn numbers(&self) -> String {
        let l = self.layout;
        format!("{}, {}, {}, {}, {}", self.heads, self.share, l.head_elements, l.window.unwrap_or(0), self.sees_all)
    }

    fn pitch(&self) -> u64 {
        self.layout.head_elements + 8
    }
}

/// A decoding bucket: token rows that are taken together, blocks along the rows, parts of the context.
struct Decoding {
    group: u64,
    blocks: u64,
    parts: u64,
    tokens: u64,
    rows: RowsPerSequence,
}

/// The starts of an attention, and the bytes of scratch that they share. `params` are those in front of the scratch.
pub fn drafts(
    core: &Core<'_>,
    shape: &Shape<'_>,
    params: Vec<Param>,
    work: usize,
) -> Result<(Vec<Draft>, u64), String> {
    let axis = core.rows_axis().ok_or("an attention without token rows")?;
    let kv_heads = shape.heads / shape.share.max(1);
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    let mut bytes = 0;
    for bucket in core.plan.entries.iter().flat_map(|e| &e.buckets).map(|b| &b.bucket) {
        let group = match bucket.rows {
            RowsPerSequence::One => 1,
            RowsPerSequence::Block(n) => n,
            RowsPerSequence::Ragged => continue,
        };
        if !seen.insert((group, bucket.tokens)) {
            continue;
        }
        let tiles = (group * shape.share).div_ceil(16);
        let blocks = bucket.tokens.div_ceil(group) * tiles * kv_heads;
        let rounds = shape.layout.window.map_or(MOST_PARTS, |w| w.div_ceil(ROUND));
        let parts = (3 * core.machine.blocks / blocks).clamp(1, rounds.clamp(1, MOST_PARTS));
        let part_bytes = 16 * (shape.layout.head_elements + 2) * 4;
        bytes = bytes.max(if parts > 1 { blocks * parts * part_bytes } else { 0 });
        let decoding = Decoding { group, blocks, parts, tokens: bucket.tokens, rows: bucket.rows };
        out.push(decode(core, shape, &decoding, &axis, params.clone(), work));
    }
    out.push(prefill(core, shape, &axis, params));
    Ok((out, bytes))
}

fn signature(core: &Core<'_>, shape: &Shape<'_>, text: &mut String, more: (&str, &str)) {
    let sink = shape.sink_type;
    let _ = writeln!(text, "using Cache = {};", crate::rows::layout_type(shape.layout));
    let _ = writeln!(
        text,
        "extern \"C\" __global__ void __launch_bounds__(Core::THREADS, 1) @NAME@(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const {sink}* sink, const float scale, float* out, const int rows{}) {{\n  Core::run<Cache>(q, pool, steps, {}, slot, at, sink, scale, out, rows{});\n}}",
        more.0,
        core.kv_kind().unwrap_or(0),
        more.1
    );
}

fn decode(core: &Core<'_>, shape: &Shape<'_>, of: &Decoding, axis: &str, params: Vec<Param>, work: usize) -> Draft {
    let mut text = core.header("attend_tiles.cuh");
    let _ = writeln!(text, "using Core = Decode<{}, {}, {}>;", shape.numbers(), of.group, core.ends.bytes);
    text += &core.ends.functions;
    let (reads, read, given) = match &core.before {
        Some(b) => (b.signature.as_str(), b.call.as_str(), b.params.as_slice()),
        None => ("", "Core::AsIs()", [].as_slice()),
    };
    text += core.before.as_ref().map_or("", |b| b.function.as_str());
    let declared = format!(", float* parts, u32* tickets{reads}{}", core.ends.signature);
    signature(core, shape, &mut text, (&declared, &format!(", parts, tickets, {read}, {}", core.ends.call)));
    let bytes = 4 * 2 * 2 * 16 * shape.pitch() * 2;
    let _ = writeln!(text, "static_assert(Core::THREADS == {DECODE_THREADS} && Core::SHARED == {bytes}, \"a block\");");
    let own = [Param::Scratch(work), Param::Tickets];
    let params = params.into_iter().chain(own).chain(given.iter().chain(&core.ends.params).cloned()).collect();
    let fixed = |n| Blocks { rows: None, factor: n, per_block: 1 };
    let mut draft = core.unit(text, DECODE_THREADS, [fixed(of.blocks), fixed(of.parts)], params);
    draft.unit.dynamic_bytes = bytes as u32;
    draft.variants = vec![ir::Variant::Decode, ir::Variant::Only];
    draft.buckets = Some(Served { axis: axis.to_owned(), least: of.tokens, most: of.tokens, rows: Some(of.rows) });
    draft
}

fn prefill(core: &Core<'_>, shape: &Shape<'_>, axis: &str, params: Vec<Param>) -> Draft {
    // Tiles of warpgroups are 64 elements wide; rings of two stages of 64 keys and values there, of five here.
    let elements = shape.layout.head_elements;
    let by_warpgroups = core.machine.has_warpgroups && elements.is_multiple_of(64);
    let (template, name, bytes) = match by_warpgroups {
        true => ("attend_prompt.cuh", "Prompt", 5 * (2 * 64 * elements * 2 + 16)),
        false => ("attend_tiles.cuh", "Prefill", 2 * 2 * 64 * shape.pitch() * 2),
    };
    let threads = PROMPT_THREADS[usize::from(by_warpgroups)];
    let mut text = core.header(template);
    let _ = writeln!(text, "using Core = {name}<{}>;", shape.numbers());
    signature(core, shape, &mut text, ("", ""));
    let _ = writeln!(text, "static_assert(Core::THREADS == {threads} && Core::SHARED == {bytes}, \"a block\");");
    let kv_heads = shape.heads / shape.share.max(1);
    let rows = Blocks { rows: Some(axis.to_owned()), factor: shape.share, per_block: PROMPT_ROWS };
    let grid = [rows, Blocks { rows: None, factor: kv_heads, per_block: 1 }];
    // What decoding ends with stands in kernels of its own here.
    let numbers = |p: Param| if let Param::Checked(of) = p { *of } else { p };
    let mut draft = core.unit(text, threads, grid, params.into_iter().map(numbers).collect());
    draft.unit.dynamic_bytes = bytes as u32;
    draft.unit.stem += "_prompt";
    draft.variants = vec![ir::Variant::Prefill, ir::Variant::Only];
    draft.buckets =
        Some(Served { axis: axis.to_owned(), least: 0, most: u64::MAX, rows: Some(RowsPerSequence::Ragged) });
    draft
}
