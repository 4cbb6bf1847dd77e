//! `linear`: dense products, and products in which each row picks its slice of the weight.

use super::matmul::{Terms, multiply, multiply_by, multiply_picked};
use super::nest::{Nest, Shape, lengths, strides_along};
use super::panels::Panels;
use super::{KernelResult, Launching};
use crate::threads::{self, Company};
use crate::view::{Target, View};
use ir::Order;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::cell::Cell;
use std::sync::Arc;

/// A product kernel.
#[derive(Debug)]
pub(crate) struct Linear {
    /// Contracted elements.
    k: usize,
    /// Outputs per picked slice, or in all.
    n: usize,
    order: Order,
    /// For every order but `fold`.
    terms: Terms,
    grouped: Option<Grouped>,
}

/// How a result's rows find their x and their slice.
#[derive(Debug)]
struct Grouped {
    slices: usize,
    /// Products of n outputs in a row of the result.
    per_row: usize,
    /// Strides from one row of the step to the next in x and ids.
    row_strides: [usize; 2],
    nest: Nest<2>,
    axis: String,
}

impl Linear {
    /// Prepares the kernel; `ids` selects along w's first axis.
    pub fn new(
        contract: &[String],
        order: &Order,
        x: &Shape,
        w: &Shape,
        ids: Option<&Shape>,
        out: &Shape,
    ) -> Result<Linear, String> {
        if let Order::Split { .. } = order {
            return Err(format!("a product in the order `{order}`, which this executor does not have"));
        }
        let ends_with = |s: &Shape| {
            s.axes.len() >= contract.len()
                && s.axes[s.axes.len() - contract.len()..].iter().map(|(n, _)| n).eq(contract)
        };
        if !ends_with(x) || !ends_with(w) || w.rows.is_some() {
            return Err(format!("a product over {contract:?}, which do not end both operands"));
        }
        let k: usize = x.axes[x.axes.len() - contract.len()..].iter().map(|(_, n)| n).product();
        let kept = &w.axes[..w.axes.len() - contract.len()];
        let kept = if ids.is_some() {
            kept.get(1..).ok_or("a product that picks slices of a weight without such an axis")?
        } else {
            kept
        };
        let n: usize = kept.iter().map(|(_, n)| n).product();
        let whole = |row: usize, part: usize| part > 0 && row.is_multiple_of(part);
        if !whole(out.row, n) || !whole(x.row, k) || !whole(w.row, n * k) {
            return Err(format!("a product of {k} terms and {n} outputs that its operands do not have"));
        }
        let grouped = match ids {
            None if w.row == n * k && out.row / n == x.row / k => None,
            None => return Err(format!("a product of {} weights into {} outputs per row", w.row, out.row)),
            Some(ids) => {
                let (axis, slices) = w.axes[0].clone();
                let leading = &out.axes[..out.axes.len() - kept.len()];
                let rows = out.rows.as_deref();
                let strides = [strides_along(leading, x), strides_along(leading, ids)];
                let nest = Nest::of_elements(&lengths(leading), strides);
                Some(Grouped {
                    slices,
                    per_row: out.row / n,
                    row_strides: [x.row_stride(rows), ids.row_stride(rows)],
                    nest,
                    axis,
                })
            }
        };
        Ok(Linear { k, n, terms: Terms::of(order), order: order.clone(), grouped })
    }

    /// Outputs, terms and slices of the weight as one matrix of n · slices rows.
    pub fn matrix(&self) -> (usize, usize, usize) {
        (self.n, self.k, self.grouped.as_ref().map_or(1, |g| g.slices))
    }

    /// Whether the weight should be packed for this kernel.
    pub fn packs(&self) -> bool {
        self.order != Order::Fold
    }

    /// Terms of one output.
    pub fn length(&self) -> usize {
        self.k
    }

    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        let mut scratch = SCRATCH.take();
        let shared = launch.company.is_nobody() && rayon::current_num_threads() > 1;
        let result = match out {
            // Threads share out, and definitions give, numbers that are rounded when all are there.
            Target::Bf16(bits) if shared || launch.panels.is_none() => {
                let mut wide = std::mem::take(&mut scratch.unrounded);
                wide.resize(bits.len(), 0.0);
                let result = self.run_with(launch, operands, Target::F32(&mut wide), &mut scratch);
                numerics::encode_bf16(&wide, bits);
                scratch.unrounded = wide;
                result
            }
            Target::F32(_) | Target::Bf16(_) => self.run_with(launch, operands, out, &mut scratch),
            _ => Err("a product whose result is no float".to_owned()),
        };
        SCRATCH.set(scratch);
        result
    }

    fn run_with(
        &self,
        launch: &Launching<'_>,
        operands: &[View<'_>],
        out: Target<'_>,
        scratch: &mut Scratch,
    ) -> KernelResult {
        let mut wide = std::mem::take(&mut scratch.wide);
        let x = match operands[0] {
            View::F32(x) => x,
            other => widen(other, &mut wide),
        };
        let products = out.len() / self.n;
        let mut found = Ok(());
        match &self.grouped {
            Some(grouped) => found = grouped.places(products, operands[2], scratch),
            None if launch.panels.is_none() => scratch.dense(products, self.k),
            None => {}
        }
        let result = found.and_then(|()| match (launch.panels, out) {
            (Some(panels), out) if self.grouped.is_some() => {
                self.grouped(x, panels, out, launch.company, scratch);
                Ok(())
            }
            (Some(panels), out) => {
                let multiplications = products * self.n * self.k;
                match (launch.team.filter(|team| threads::shares_awake(multiplications, team)), out) {
                    (Some(team), Target::F32(out)) if products > 1 => multiply_by(team, x, panels, self.terms, out),
                    (_, out) => multiply(x, panels, 0, self.terms, out, launch.company),
                }
                Ok(())
            }
            (None, Target::F32(out)) => {
                self.by_definition(x, &scratch.slices, &scratch.offsets, operands[1], out);
                Ok(())
            }
            (None, _) => Err("a product by definition whose result is not f32".to_owned()),
        });
        scratch.wide = wide;
        result
    }

    /// Products by slice, so that rows that share one read it together.
    fn grouped(&self, x: &[f32], panels: &Arc<Panels>, out: Target<'_>, company: Company, scratch: &mut Scratch) {
        let (n, k) = (self.n, self.k);
        let Scratch { offsets, slices, starts, order, .. } = scratch;
        by_slice(slices, starts, order);
        begin_with_slice(company.begins(order.len()), slices, order);
        let out = match out {
            Target::F32(out) if company.is_nobody() && threads::shares(slices.len() * n * k, slices.len()) => {
                return self.grouped_by_threads(x, panels, out, [offsets, slices, order]);
            }
            out => out,
        };
        let runs = order.chunk_by(|a, b| slices[*a] == slices[*b]).map(|run| (slices[run[0]], run));
        multiply_picked(x, panels, self.terms, out, offsets, runs);
    }

    /// The same, slices shared out among threads.
    fn grouped_by_threads(
        &self,
        x: &[f32],
        panels: &Arc<Panels>,
        out: &mut [f32],
        [offsets, slices, order]: [&[usize]; 3],
    ) {
        let (n, k) = (self.n, self.k);
        let runs: Vec<&[usize]> = order.chunk_by(|a, b| slices[*a] == slices[*b]).collect();
        let products = runs.par_iter().map(|run| {
            let mut rows = Vec::with_capacity(run.len() * k);
            run.iter().for_each(|r| rows.extend_from_slice(&x[offsets[*r]..offsets[*r] + k]));
            let mut product = vec![0.0; run.len() * n];
            multiply(&rows, panels, slices[run[0]], self.terms, Target::F32(&mut product), Company::Nobody);
            product
        });
        let products: Vec<Vec<f32>> = products.collect();
        for (run, product) in runs.iter().zip(products) {
            for (r, values) in run.iter().zip(product.chunks_exact(n)) {
                out[r * n..(r + 1) * n].copy_from_slice(values);
            }
        }
    }

    /// The definition, for a weight that is not packed: same bits, one output at a time.
    fn by_definition(&self, x: &[f32], slices: &[usize], offsets: &[usize], w: View<'_>, out: &mut [f32]) {
        let (n, k) = (self.n, self.k);
        out.chunks_mut(n).enumerate().for_each(|(r, out)| {
            let mut wide = vec![0.0; k];
            let x = &x[offsets[r]..offsets[r] + k];
            for (j, out) in out.iter_mut().enumerate() {
                let w = w.numbers((slices[r] * n + j) * k, k, &mut wide);
                *out = match self.order {
                    Order::Fold => numerics::fold_by(k, |i| x[i] * w[i]),
                    _ => self.terms.sum(k, |i| (x[i], w[i])),
                };
            }
        });
    }
}

/// Kept from launch to launch by every thread.
#[derive(Default)]
struct Scratch {
    wide: Vec<f32>,
    unrounded: Vec<f32>,
    /// Offset in x and slice of the weight of every product.
    offsets: Vec<usize>,
    slices: Vec<usize>,
    /// Products by slice, and where each slice's begin.
    starts: Vec<usize>,
    order: Vec<usize>,
}

thread_local! {
    /// Taken while in use: a thread that waits for others may run another launch meanwhile.
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch {
            wide: Vec::new(),
            unrounded: Vec::new(),
            offsets: Vec::new(),
            slices: Vec::new(),
            starts: Vec::new(),
            order: Vec::new(),
        })
    };
}

impl Scratch {
    /// One slice, row after row of `k` terms.
    fn dense(&mut self, products: usize, k: usize) {
        self.offsets.clear();
        self.offsets.extend((0..products).map(|r| r * k));
        self.slices.clear();
        self.slices.resize(products, 0);
    }
}

/// Numbers of the products, those of a slice together and ascending.
fn by_slice(slices: &[usize], starts: &mut Vec<usize>, order: &mut Vec<usize>) {
    starts.clear();
    starts.resize(slices.iter().max().map_or(0, |s| s + 2), 0);
    slices.iter().for_each(|s| starts[s + 1] += 1);
    (1..starts.len()).for_each(|s| starts[s] += starts[s - 1]);
    order.clear();
    order.resize(slices.len(), 0);
    for (product, slice) in slices.iter().enumerate() {
        order[starts[*slice]] = product;
        starts[*slice] += 1;
    }
}

/// Puts the slice that has the product at some place first; those before it come last.
fn begin_with_slice(place: usize, slices: &[usize], order: &mut [usize]) {
    if place > 0 {
        let slice = slices[order[place]];
        order.rotate_left(order.partition_point(|product| slices[*product] < slice));
    }
}

/// All elements as binary32.
fn widen<'s>(view: View<'_>, wide: &'s mut Vec<f32>) -> &'s [f32] {
    struct Widen<'a>(View<'a>, &'a mut [f32]);
    impl WithSimd for Widen<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            self.0.numbers(0, self.1.len(), self.1);
        }
    }
    let n = view.len();
    if wide.len() < n {
        wide.resize(n, 0.0);
    }
    pulp::Arch::new().dispatch(Widen(view, &mut wide[..n]));
    &wide[..n]
}

impl Grouped {
    /// Finds offset in x and slice of the weight of every product.
    fn places(&self, products: usize, ids: View<'_>, scratch: &mut Scratch) -> Result<(), String> {
        let Scratch { offsets, slices, .. } = scratch;
        offsets.clear();
        slices.clear();
        let mut fault = None;
        for r in 0..products / self.per_row {
            self.nest.each(self.row_strides.map(|s| s * r), |[x, id]| {
                let index = ids.integer(id);
                offsets.push(x);
                slices.push(index as usize);
                if usize::try_from(index).map_or(true, |i| i >= self.slices) {
                    fault = Some(index);
                }
            });
        }
        match fault {
            Some(index) => Err(format!("index {index} along `{}`, which has {} elements", self.axis, self.slices)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every product is there once and slices stay together, whichever comes first.
    #[test]
    fn any_slice_may_come_first() {
        let slices = [3, 0, 3, 7, 0, 1, 7, 7];
        for place in 0..slices.len() {
            let (mut starts, mut order) = (Vec::new(), Vec::new());
            by_slice(&slices, &mut starts, &mut order);
            let first = slices[order[place]];
            begin_with_slice(place, &slices, &mut order);
            assert_eq!(slices[order[0]], first);
            let runs: Vec<&[usize]> = order.chunk_by(|a, b| slices[*a] == slices[*b]).collect();
            assert_eq!(runs.len(), 4, "{order:?}");
            assert!(runs.iter().all(|run| run.is_sorted()), "{order:?}");
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..slices.len()).collect::<Vec<_>>());
        }
    }
}
