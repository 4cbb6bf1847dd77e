//! What two runs left, number by number; and where the first difference comes from.

use super::trial::{Program, Record, Trial};
use interp::{Data, Hooks, InterpError, Outputs, Site, Tensor};
use ir::{Module, Span};
use std::cell::Cell;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

/// Two runs compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Numbers compared: results and cache contents.
    pub values: u64,
    /// Of them, numbers that differ in bits.
    pub moved: u64,
    /// Differences between finite numbers that are no longer equal.
    sizes: Vec<f32>,
    /// The first difference, in the order results before cache.
    pub first: Option<Difference>,
}

/// A number that a pass changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Entry.
    pub entry: String,
    /// Seed of weights and inputs.
    pub seed: u64,
    /// Step, counted from 0; the cache is compared after the last.
    pub step: usize,
    /// What was compared: a result or a part of the cache.
    pub compared: String,
    /// Number before and after.
    pub numbers: (f32, f32),
    /// The first named value that differs inside, where the two levels have names in common.
    pub origin: Option<Origin>,
}

/// A named value inside a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Name of the value.
    pub value: String,
    /// The layer that runs, or the graph before or after the layers.
    pub place: Place,
    /// Where the spec says so.
    pub span: Option<Span>,
}

/// Which graph of an entry runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Before the layers.
    First,
    /// A layer.
    Layer(usize),
    /// After the layers.
    Last,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::First => f.write_str("before the layers"),
            Place::Layer(layer) => write!(f, "layer {layer}"),
            Place::Last => f.write_str("after the layers"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "`{}` {}, ", origin.value, origin.place)?;
        }
        let (a, b) = self.numbers;
        write!(
            f,
            "{} of `{}` in step {} with seed {}: {a:e} became {b:e}",
            self.compared, self.entry, self.step, self.seed
        )
    }
}

/// Whether the results of one step are the same.
pub(super) fn same_outputs(a: &Outputs, b: &Outputs) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((n, x), (m, y))| n == m && x.same(y))
}

/// Compares two runs of one trial.
pub(super) fn compare(trial: &Trial, before: &Record, after: &Record) -> Comparison {
    let mut all = Comparison::default();
    let difference = |step: usize, compared: String, numbers| Difference {
        entry: trial.entry.clone(),
        seed: trial.seed,
        step,
        compared,
        numbers,
        origin: None,
    };
    for (step, (a, b)) in before.results.iter().zip(&after.results).enumerate() {
        for (name, x) in a {
            let what = |numbers| difference(step, format!("result `{name}`"), numbers);
            match b.get(name) {
                Some(y) if x.axes() == y.axes() && x.dtype() == y.dtype() => {
                    all.numbers(&numbers(x), &numbers(y), what);
                }
                _ => all.numbers(&numbers(x), &[], what),
            }
        }
    }
    let last = before.results.len().saturating_sub(1);
    for ((kind, layer, sequence), a) in &before.cache {
        let b = after.cache.get(&(kind.clone(), *layer, *sequence)).map_or(&[][..], |rows| rows);
        for (part, pick) in [("position", 0), ("key", 1), ("value", 2)] {
            let flat = |rows: &[(i32, Vec<f32>, Vec<f32>)]| -> Vec<f32> {
                match pick {
                    0 => rows.iter().map(|r| r.0 as f32).collect(),
                    1 => rows.iter().flat_map(|r| r.1.iter().copied()).collect(),
                    _ => rows.iter().flat_map(|r| r.2.iter().copied()).collect(),
                }
            };
            let what = |numbers| {
                difference(
                    last,
                    format!("a {part} cached as `{kind}` for sequence {sequence} by layer {layer}"),
                    numbers,
                )
            };
            all.numbers(&flat(a), &flat(b), what);
        }
    }
    all
}

impl Record {
    /// Numbers that are infinite or NaN.
    pub fn not_finite(&self) -> u64 {
        let results = self.results.iter().flat_map(|r| r.values()).flat_map(|t| numbers(t));
        let cached = self.cache.values().flatten().flat_map(|(_, k, v)| k.iter().chain(v).copied());
        results.chain(cached).filter(|x| !x.is_finite()).count() as u64
    }
}

/// The same record with every -0 a 0: the sign of a zero says in which order terms cancelled.
pub(super) fn without_signs_of_zeros(record: &Record) -> Result<Record, InterpError> {
    let mut plain = Record::default();
    for outputs in &record.results {
        let mut step = Outputs::new();
        for (name, tensor) in outputs {
            let data = match tensor.data() {
                Data::F32(v) => Data::F32(v.iter().map(|x| x + 0.0).collect()),
                other => other.clone(),
            };
            step.insert(name.clone(), Tensor::new(tensor.axes().to_vec(), tensor.dtype(), data)?.into());
        }
        plain.results.push(step);
    }
    let numbers = |v: &[f32]| v.iter().map(|x| x + 0.0).collect::<Vec<f32>>();
    for (key, rows) in &record.cache {
        plain.cache.insert(key.clone(), rows.iter().map(|(at, k, v)| (*at, numbers(k), numbers(v))).collect());
    }
    Ok(plain)
}

impl Comparison {
    /// The middle and the largest of the differences; the largest alone would tell of one selection that fell otherwise.
    pub(super) fn sizes(&self) -> (f32, f32) {
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable_by(f32::total_cmp);
        let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        (middle, sizes.last().copied().unwrap_or(0.0))
    }

    /// Adds what another pair of runs showed.
    pub(super) fn join(&mut self, other: Comparison) {
        self.values += other.values;
        self.moved += other.moved;
        self.sizes.extend(other.sizes);
        if self.first.is_none() {
            self.first = other.first;
        }
    }

    /// Compares lists of numbers; one that is missing counts as moved.
    fn numbers(&mut self, a: &[f32], b: &[f32], what: impl Fn((f32, f32)) -> Difference) {
        let n = a.len().max(b.len());
        self.values += n as u64;
        for i in 0..n {
            let (x, y) = (a.get(i).copied(), b.get(i).copied());
            if let (Some(x), Some(y)) = (x, y)
                && numerics::same_bits(x, y)
            {
                continue;
            }
            let (x, y) = (x.unwrap_or(f32::NAN), y.unwrap_or(f32::NAN));
            self.moved += 1;
            if (x - y).is_finite() {
                self.sizes.push((x - y).abs());
            }
            if self.first.is_none() {
                self.first = Some(what((x, y)));
            }
        }
    }
}

/// All elements as numbers.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.data() {
        Data::F32(v) => v.clone(),
        // Integers of a step are small enough to be told apart as f32.
        Data::I32(v) => v.iter().map(|i| *i as f32).collect(),
        Data::Bool(v) => v.iter().map(|b| f32::from(u8::from(*b))).collect(),
    }
}

/// Finds the first named value of `after` that `before` does not have: by graph and name between flat graphs, by bits
/// where `before` is a model, whose names are those of its blocks.
pub(super) fn origin(trial: &Trial, before: Program<'_>, after: &Module) -> Option<Origin> {
    let watch = |program: Program<'_>| {
        let step = Cell::new(0);
        let mut tap = Tap { step: &step, at: 0, previous: None, seen: Vec::new() };
        // A level that stops half way has still shown its values.
        let _ = trial.run(program, &mut tap, |done, _| {
            step.set(done + 1);
            true
        });
        tap.seen
    };
    let (old, new) = (watch(before), watch(Program::Module(after)));
    let known: HashMap<(usize, Place, &str), (u64, u64)> =
        old.iter().map(|s| ((s.step, s.place, s.name.as_str()), (s.shape, s.bits))).collect();
    let bits: HashSet<(usize, u64)> = old.iter().map(|s| (s.step, s.bits)).collect();
    let differs = |s: &&Seen| match before {
        Program::Model(_) => !bits.contains(&(s.step, s.bits)),
        Program::Module(_) | Program::Kernels(_) | Program::Plan(..) => {
            // Of a value that is spread a rank shows a part, which is no difference.
            known.get(&(s.step, s.place, s.name.as_str())).is_some_and(|(shape, b)| *shape == s.shape && *b != s.bits)
        }
    };
    let found = new.iter().find(differs)?;
    let entry = after.entries.iter().find(|e| e.name == trial.entry)?;
    let graph = match found.place {
        Place::First => &entry.first,
        Place::Layer(layer) => {
            let instance = entry.instances.iter().find(|i| i.layer == layer)?;
            &entry.classes.get(instance.class)?.graph
        }
        Place::Last => &entry.last,
    };
    let span = graph.find(&found.name).and_then(|id| graph.node(id).span);
    Some(Origin { value: found.name.clone(), place: found.place, span })
}

/// A named value as a run showed it.
struct Seen {
    step: usize,
    place: Place,
    name: String,
    /// Axes and lengths; the format may change, and is seen in the elements.
    shape: u64,
    /// These and the elements.
    bits: u64,
}

/// Collects named values.
struct Tap<'t> {
    /// The step that runs.
    step: &'t Cell<usize>,
    /// The step of the latest value.
    at: usize,
    /// Where the latest value stood, to tell the graphs before and after the layers apart.
    previous: Option<Place>,
    seen: Vec<Seen>,
}

impl Hooks for Tap<'_> {
    fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
        if self.at != self.step.get() {
            (self.at, self.previous) = (self.step.get(), None);
        }
        let place = match (site.layer, self.previous) {
            (Some(layer), _) => Place::Layer(layer),
            (None, Some(Place::Layer(_) | Place::Last)) => Place::Last,
            (None, _) => Place::First,
        };
        self.previous = Some(place);
        let mut hasher = DefaultHasher::new();
        value.axes().hash(&mut hasher);
        let shape = hasher.finish();
        for x in numbers(value) {
            let x = if x.is_nan() { f32::NAN } else { x };
            x.to_bits().hash(&mut hasher);
        }
        self.seen.push(Seen { step: self.at, place, name: site.name.to_owned(), shape, bits: hasher.finish() });
    }
}
