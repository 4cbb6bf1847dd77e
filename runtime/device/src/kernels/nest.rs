//! Loop nests over named axes: strides resolved once, the innermost axes merged into one contiguous run.

use ir::{Extent, TensorType};

/// Axes of a value as kernels see them: at most one row axis, which stands first, then axes of known length.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Name of the row axis.
    pub rows: Option<String>,
    /// Other axes with their lengths.
    pub axes: Vec<(String, usize)>,
    /// Elements per row.
    pub row: usize,
}

impl Shape {
    /// The shape of a type, or why it is none that kernels run.
    pub fn of(ty: &TensorType) -> Result<Shape, String> {
        let mut rows = None;
        let mut axes = Vec::new();
        for (i, axis) in ty.axes.iter().enumerate() {
            match axis.extent {
                Extent::Rows if i == 0 => rows = Some(axis.name.clone()),
                Extent::Rows => return Err(format!("{ty}, with row axis `{}` not standing first", axis.name)),
                Extent::Fixed(n) => {
                    let n = usize::try_from(n).map_err(|_| format!("{ty}, too large to address"))?;
                    axes.push((axis.name.clone(), n));
                }
            }
        }
        let row = axes.iter().try_fold(1usize, |n, (_, len)| n.checked_mul(*len));
        let row = row.filter(|n| *n <= isize::MAX as usize / 8).ok_or_else(|| format!("{ty}, too large to address"))?;
        Ok(Shape { rows, axes, row })
    }

    /// Elements from an index of the row axis `name` to the next; 0 if the value lacks it.
    pub fn row_stride(&self, name: Option<&str>) -> usize {
        if self.rows.is_some() && self.rows.as_deref() == name { self.row } else { 0 }
    }

    /// Elements from an index of an axis to the next; 0 if the value lacks it.
    pub fn stride(&self, name: &str) -> usize {
        match self.axes.iter().position(|(n, _)| n == name) {
            Some(at) => self.axes[at + 1..].iter().map(|(_, len)| len).product(),
            None => 0,
        }
    }

    /// Length of an axis.
    pub fn length(&self, name: &str) -> Option<usize> {
        self.axes.iter().find(|(n, _)| n == name).map(|(_, len)| *len)
    }
}

/// One loop outside the run: its length and each operand's stride.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loop<const N: usize> {
    pub len: usize,
    pub strides: [usize; N],
}

/// How an operand lies along the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Element after element.
    Contiguous,
    /// One element for the whole run.
    Constant,
}

/// Loops over the fixed axes of a result with the offsets of N operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nest<const N: usize> {
    /// Outer loops, outermost first.
    pub loops: Vec<Loop<N>>,
    /// Elements of the innermost run.
    pub run: usize,
    /// Operands along the run.
    pub along: [Along; N],
}

impl<const N: usize> Nest<N> {
    /// The nest over `axes`, given each operand's stride per axis.
    pub fn new(axes: &[usize], strides: [Vec<usize>; N]) -> Nest<N> {
        let mut along: [Option<Along>; N] = [None; N];
        let mut run = 1;
        let mut outer = axes.len();
        for at in (0..axes.len()).rev() {
            if axes[at] != 1 {
                let step: [Option<Along>; N] = std::array::from_fn(|i| match strides[i][at] {
                    0 => Some(Along::Constant),
                    s if s == run => Some(Along::Contiguous),
                    _ => None,
                });
                if (0..N).any(|i| step[i].is_none() || along[i].is_some_and(|a| Some(a) != step[i])) {
                    break;
                }
                along = step;
            }
            run *= axes[at];
            outer = at;
        }
        let loops = (0..outer)
            .filter(|at| axes[*at] != 1)
            .map(|at| Loop { len: axes[at], strides: std::array::from_fn(|i| strides[i][at]) })
            .collect();
        Nest { loops, run, along: along.map(|a| a.unwrap_or(Along::Constant)) }
    }

    /// The nest that visits every element alone, for bodies that look at more than a run.
    pub fn of_elements(axes: &[usize], strides: [Vec<usize>; N]) -> Nest<N> {
        let loops = (0..axes.len())
            .filter(|at| axes[*at] != 1)
            .map(|at| Loop { len: axes[at], strides: std::array::from_fn(|i| strides[i][at]) })
            .collect();
        Nest { loops, run: 1, along: [Along::Constant; N] }
    }

    /// Whether operand `i` is visited in whole, aligned groups of `len` elements, if it begins so.
    pub fn aligned(&self, i: usize, len: usize) -> bool {
        self.along[i] == Along::Contiguous
            && self.run.is_multiple_of(len)
            && self.loops.iter().all(|l| l.strides[i].is_multiple_of(len))
    }

    /// Calls `body` for every run of a row, with the operands' offsets, in the result's order.
    #[inline(always)]
    pub fn each(&self, mut offsets: [usize; N], mut body: impl FnMut([usize; N])) {
        let (inner, outer) = match self.loops.split_last() {
            Some((inner, outer)) => (inner.clone(), outer),
            None => return body(offsets),
        };
        let mut at = vec![0; outer.len()];
        loop {
            for _ in 0..inner.len {
                body(offsets);
                (0..N).for_each(|i| offsets[i] += inner.strides[i]);
            }
            (0..N).for_each(|i| offsets[i] -= inner.strides[i] * inner.len);
            let mut depth = outer.len();
            loop {
                if depth == 0 {
                    return;
                }
                depth -= 1;
                let level = &outer[depth];
                (0..N).for_each(|i| offsets[i] += level.strides[i]);
                at[depth] += 1;
                if at[depth] < level.len {
                    break;
                }
                at[depth] = 0;
                (0..N).for_each(|i| offsets[i] -= level.strides[i] * level.len);
            }
        }
    }
}

/// Strides of an operand along the axes of a result.
pub(crate) fn strides_along(axes: &[(String, usize)], operand: &Shape) -> Vec<usize> {
    axes.iter().map(|(name, _)| operand.stride(name)).collect()
}

/// Lengths alone.
pub(crate) fn lengths(axes: &[(String, usize)]) -> Vec<usize> {
    axes.iter().map(|(_, len)| *len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_and_constant_axes_merge_and_others_stay_loops() {
        // Result [2, 3, 4]: one operand dense, one lacking the outer axis, one lacking the inner ones.
        let nest = Nest::new(&[2, 3, 4], [vec![12, 4, 1], vec![0, 4, 1], vec![1, 0, 0]]);
        assert_eq!(nest.run, 12);
        assert_eq!(nest.loops, [Loop { len: 2, strides: [12, 0, 1] }]);
        assert_eq!(nest.along, [Along::Contiguous, Along::Contiguous, Along::Constant]);
        let mut seen = Vec::new();
        nest.each([0; 3], |o| seen.push(o));
        assert_eq!(seen, [[0, 0, 0], [12, 0, 1]]);
    }

    #[test]
    fn a_transposed_operand_leaves_single_elements() {
        let nest = Nest::new(&[2, 3], [vec![3, 1], vec![1, 2]]);
        assert_eq!((nest.run, nest.loops.len()), (1, 2));
        let mut seen = Vec::new();
        nest.each([0; 2], |o| seen.push(o[1]));
        assert_eq!(seen, [0, 2, 4, 1, 3, 5]);
    }
}
