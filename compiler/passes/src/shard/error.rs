//! What keeps a model from lying on a mesh.

use crate::PassError;
use ir::{Facts, Mesh, Span, Weight, WeightRef};

/// A mesh axis that the spec gives nothing to.
pub(super) fn unknown_mesh_axis(axis: &str, mesh: &Mesh, facts: &Facts) -> PassError {
    let mut known: Vec<&str> =
        facts.shard.values().flatten().map(String::as_str).filter(|w| *w != super::axes::OR_REPLICATE).collect();
    known.sort_unstable();
    known.dedup();
    let help = if known.is_empty() {
        format!("say in `[shard]` which axes are spread, for example `heads = [\"{axis}\"]`")
    } else {
        format!("`[shard]` names {}; use one of these, or give an axis to `{axis}` there", known.join(", "))
    };
    PassError {
        code: "P0501",
        message: format!("the mesh {mesh} has the axis `{axis}`, over which the spec spreads nothing"),
        help,
        span: None,
    }
}

/// A mesh axis over which nothing can lie, although the spec names it.
pub(super) fn idle_mesh_axis(axis: &str, mesh: &Mesh, facts: &Facts) -> PassError {
    let wished: Vec<String> =
        facts.shard.iter().filter(|(_, over)| over.iter().any(|o| o == axis)).map(|(a, _)| format!("`{a}`")).collect();
    PassError {
        code: "P0501",
        message: format!(
            "the mesh {mesh} has the axis `{axis}`, and {}, which the spec spreads over it, is needed whole by every rank",
            wished.join(", ")
        ),
        help: format!(
            "leave `{axis}` out of the mesh, or give it an axis of weights in `[shard]` that products sum or leave"
        ),
        span: None,
    }
}

/// A length that does not come out even.
pub(super) fn uneven(weight: &Weight, axis: &str, n: u64, over: &[String], mesh: &Mesh, shared: bool) -> PassError {
    let parts = mesh.parts(over);
    let help = if !shared && n > 0 && parts.is_multiple_of(n) {
        format!(
            "use at most {n} ranks along {}, or let ranks share: `{axis} = [\"{}\", \"or-replicate\"]`",
            over.join("."),
            over.join("\", \"")
        )
    } else {
        let divides = |p: &u64| n.is_multiple_of(*p) || (shared && n > 0 && p.is_multiple_of(n));
        let fits: Vec<String> = (1..=n.clamp(16, 64)).filter(divides).map(|p| p.to_string()).collect();
        let rule = if shared { "divides it or is a multiple of it" } else { "divides it" };
        format!("use a number of ranks along {} that {rule}: {}", over.join("."), fits.join(", "))
    };
    PassError {
        code: "P0502",
        message: format!(
            "`{axis}` of weight `{}` has {n} entries, and the mesh {mesh} spreads it over {parts} ranks",
            weight.name
        ),
        help,
        span: weight.span,
    }
}

/// Two axes of one weight over one mesh axis.
pub(super) fn one_mesh_axis(reference: &WeightRef, a: &str, b: &str, over: &[String]) -> PassError {
    let name = match reference {
        WeightRef::Model(name)
        | WeightRef::Layer(name)
        | WeightRef::FirstLayer(name)
        | WeightRef::OfLayer { name, .. } => name.as_str(),
        WeightRef::Next { layer, .. } => layer.as_str(),
        WeightRef::Packed { into, .. } => into.as_str(),
    };
    PassError {
        code: "P0503",
        message: format!(
            "weight `{name}` has the axes `{a}` and `{b}`, and both are spread over `{}`",
            over.join(", ")
        ),
        help: "give each of them mesh axes of its own in `[shard]`, or leave one whole".to_owned(),
        span: None,
    }
}

/// Rows of all ranks where a rank's own are needed, or the other way round.
pub(super) fn rows_apart(what: &str, rows: &[String], span: Option<Span>) -> PassError {
    let over = rows.join(", ");
    PassError {
        code: "P0505",
        message: format!("token rows are spread over {over}, and {what}"),
        help: format!(
            "spread a weight over none of {over}, or over all of them first, as in `ffn = [\"{}\", \"tp\"]`, and only axes \
             that are summed away again",
            rows.join("\", \"")
        ),
        span,
    }
}

/// Query heads and cached heads on different ranks.
pub(super) fn heads_apart(
    heads: &str,
    over: &[String],
    cached: &str,
    kept: &[String],
    span: Option<Span>,
) -> PassError {
    let list = |over: &[String]| {
        if over.is_empty() { "whole on every rank".to_owned() } else { format!("spread over {}", over.join(", ")) }
    };
    let help = match over.is_empty() {
        // Something looks at all query heads at once, so no rank may have a part of them.
        true => format!(
            "leave `{cached}` out of `[shard]` too, or use a mesh without {}: nothing that is spread may combine all of `{heads}`",
            kept.join(", ")
        ),
        false => format!("spread both alike in `[shard]`: `{cached} = [{}, \"or-replicate\"]`", quoted(over)),
    };
    PassError {
        code: "P0504",
        message: format!(
            "query heads `{heads}` are {}, and the heads `{cached}` that they read are {}",
            list(over),
            list(kept)
        ),
        help,
        span,
    }
}

/// Words as items of a TOML list.
fn quoted(words: &[String]) -> String {
    words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", ")
}

/// A row of nvfp4 whose parts are no whole blocks.
pub(super) fn blocks_apart(axis: &str, length: u64, mesh: &Mesh, parts: u64, span: Option<Span>) -> PassError {
    let block = ir::DType::BLOCK;
    let blocks = length / block;
    let fits: Vec<String> = (1..=blocks.min(64)).filter(|n| blocks.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    PassError {
        code: "P0506",
        message: format!(
            "rows along `{axis}` have {length} elements in blocks of {block}, and the mesh {mesh} cuts them into {parts} parts"
        ),
        help: format!("cut them into a number of parts that leaves whole blocks: {}", fits.join(", ")),
        span,
    }
}
