//! How a weight lies on disk: `"name.{axis}.weight"`, `"name[:, 0:width]"`.

use ir::{Axis, DiskForm, Extent};
use std::collections::HashMap;

/// Parses one disk form. `axes` are the weight's axes grouped by disk dimension; `prefix` stands before the name.
/// The full shape of a tensor that is sliced is completed later, when all weights are known.
pub(crate) fn parse(
    text: &str,
    prefix: &str,
    axes: &[Vec<Axis>],
    numbers: &HashMap<String, f64>,
) -> Result<DiskForm, String> {
    let (name, slice) = match text.split_once('[') {
        None => (text, None),
        Some((name, rest)) => {
            let inner = rest.strip_suffix(']').ok_or("a slice ends with `]`")?;
            (name, Some(inner))
        }
    };
    let tensor = format!("{prefix}{name}");
    let spread = placeholders(&tensor)?.into_iter().filter(|p| p != "l").collect::<Vec<_>>();
    let lengths: Vec<u64> = axes.iter().map(|g| length(g)).collect();
    for (i, axis) in spread.iter().enumerate() {
        let leading = axes.get(i).is_some_and(|g| g.len() == 1 && &g[0].name == axis);
        if !leading {
            return Err(format!("`{{{axis}}}` must be the weight's axis number {}, and it is not", i + 1));
        }
    }
    let rest = &lengths[spread.len()..];
    let (slice, shape) = match slice {
        None => (None, rest.to_vec()),
        Some(inner) => {
            let ranges: Vec<&str> = inner.split(',').map(str::trim).collect();
            if ranges.len() > rest.len() {
                return Err(format!("the slice has {} dimensions, the tensor {}", ranges.len(), rest.len()));
            }
            let mut parts = Vec::new();
            for (i, have) in rest.iter().enumerate() {
                let start = range_start(ranges.get(i).copied().unwrap_or(":"), *have, numbers)?;
                parts.push([start, *have]);
            }
            let shape = parts.iter().map(|[start, len]| start.saturating_add(*len)).collect();
            (Some(parts), shape)
        }
    };
    Ok(DiskForm { tensor, spread, slice, shape, layout: ir::DiskLayout::Plain })
}

fn length(group: &[Axis]) -> u64 {
    group.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 }).fold(1, u64::saturating_mul)
}

/// Names between `{` and `}`.
fn placeholders(text: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}').ok_or("`{` without `}`")?;
        found.push(name.to_owned());
        rest = tail;
    }
    Ok(found)
}

/// Start of `:`, `a:b`, `a:` or `:b`; a given end must agree with the length.
fn range_start(range: &str, length: u64, numbers: &HashMap<String, f64>) -> Result<u64, String> {
    let (start, end) = range.split_once(':').ok_or_else(|| format!("`{range}` is not a range such as 0:width"))?;
    let number = |text: &str| -> Result<Option<u64>, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        match text.parse::<u64>().ok().or_else(|| numbers.get(text).map(|x| *x as u64)) {
            Some(n) => Ok(Some(n)),
            None => Err(format!("`{text}` is neither a number nor a dimension")),
        }
    };
    let start = number(start)?.unwrap_or(0);
    if let Some(end) = number(end)?
        && end != start.saturating_add(length)
    {
        return Err(format!("the range `{range}` has {} entries, the axis {length}", end.saturating_sub(start)));
    }
    Ok(start)
}

/// Two weights that are slices of one tensor tell each other its full shape.
pub(crate) fn complete_shapes<'a>(forms: impl Iterator<Item = &'a mut DiskForm>) {
    let mut forms: Vec<&mut DiskForm> = forms.filter(|f| f.slice.is_some()).collect();
    let mut full: HashMap<String, Vec<u64>> = HashMap::new();
    for form in &forms {
        let slot = full.entry(form.tensor.clone()).or_insert_with(|| form.shape.clone());
        for (have, new) in slot.iter_mut().zip(&form.shape) {
            *have = (*have).max(*new);
        }
    }
    for form in &mut forms {
        if let Some(shape) = full.get(&form.tensor)
            && shape.len() == form.shape.len()
        {
            form.shape = shape.clone();
        }
    }
}
