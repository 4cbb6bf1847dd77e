//! Recipes against a checkpoint: for every weight the bytes it consists of, or what is wrong.

use super::bits::{Bits, float};
use super::error::{Problem, quoted};
use super::header::FileDType;
use super::load::{LoadOptions, resident};
use super::open::{Checkpoint, Found};
use super::scales;
use super::stored::{Stored, Unread, is_float, is_in_codes, same_shape};
use super::weights::Conversion;
use artifact::{RecipeForm, WeightRecipe};
use ir::{DType, DiskLayout};
use std::collections::{BTreeMap, HashSet};

/// A weight whose parts are all present and of the right shape.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) recipe: &'a WeightRecipe,
    pub(super) form: &'a RecipeForm,
    pub(super) values: Values<'a>,
}

/// What elements are made of.
#[derive(Debug)]
pub(super) enum Values<'a> {
    /// One per tensor of the form, in row-major order of the spread axes.
    Of(Vec<Bits<'a>>),
    /// Numbers, each the value of as many elements as any other.
    Numbers(Vec<f32>),
    /// The scales of rows of floats, one tensor after the other, and how long a row is.
    RowScales(Vec<Found<'a>>, usize),
}

/// The format of codes and of blocks' scales.
const E4M3: &str = "F8_E4M3";

/// Whether a form of a weight of that format is read from a file's format.
fn reads(form: &RecipeForm, dtype: DType, file: &FileDType) -> bool {
    match (&form.layout, dtype) {
        (DiskLayout::Plain, DType::E4m3) => file.is(E4M3),
        (DiskLayout::Plain, DType::E5m2) => file.is("F8_E5M2"),
        (DiskLayout::Nibbles { .. }, _) => file.is("U8"),
        _ => is_float(file),
    }
}

/// The formats that a form is read from, in words.
fn words(form: &RecipeForm, dtype: DType) -> &'static str {
    match (&form.layout, dtype) {
        (DiskLayout::Plain, DType::E4m3) => E4M3,
        (DiskLayout::Plain, DType::E5m2) => "F8_E5M2",
        (DiskLayout::Nibbles { .. }, _) => "U8",
        _ => "F32, BF16 or F16",
    }
}

/// Shape of a tensor in a file.
fn file_shape(form: &RecipeForm) -> Vec<u64> {
    with_columns(form, if matches!(form.layout, DiskLayout::Nibbles { .. }) { 2 } else { 1 })
}

/// Shape of the tensor of its blocks' scales.
fn scaled_shape(form: &RecipeForm) -> Vec<u64> {
    with_columns(form, DType::BLOCK)
}

fn with_columns(form: &RecipeForm, divisor: u64) -> Vec<u64> {
    let mut shape = form.shape.clone();
    if let Some(columns) = shape.last_mut() {
        *columns /= divisor;
    }
    shape
}

/// What is to be read, and the conversions that it takes.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) sources: Vec<Source<'a>>,
    pub(super) conversions: Vec<Conversion>,
}

/// Matches every recipe with the checkpoint.
pub(super) fn resolve<'a>(
    recipes: &'a [WeightRecipe],
    checkpoint: &'a Checkpoint,
    options: &LoadOptions,
) -> Result<Resolved<'a>, Vec<Problem>> {
    let mut matcher = Matcher {
        checkpoint,
        narrow: options.narrow,
        widen: options.widen,
        cached_codes: options.cached_codes,
        claimed: HashSet::new(),
        problems: checkpoint.problems().to_vec(),
        missing: Vec::new(),
        ways: BTreeMap::new(),
    };
    let sources: Vec<Source> = recipes.iter().filter_map(|recipe| matcher.source(recipe)).collect();
    matcher.report_extra(&options.ignored);
    match matcher.problems.is_empty() {
        true => Ok(Resolved { sources, conversions: matcher.ways.into_values().collect() }),
        false => Err(matcher.problems),
    }
}

struct Matcher<'a> {
    checkpoint: &'a Checkpoint,
    narrow: bool,
    widen: bool,
    cached_codes: bool,
    claimed: HashSet<String>,
    problems: Vec<Problem>,
    /// Positions of `Missing` in `problems` with the name looked for.
    missing: Vec<(usize, String)>,
    /// By file format, resident format, whether bits are lost, and whether scales are multiplied in.
    ways: BTreeMap<(FileDType, DType, bool, bool), Conversion>,
}

/// A form with its tensors' names and which of them are there.
struct Candidate<'a> {
    form: &'a RecipeForm,
    names: Vec<String>,
    found: Vec<Option<Found<'a>>>,
    /// Tensors of blocks' scales, one for each.
    beside: Vec<String>,
    beside_found: Vec<Option<Found<'a>>>,
}

impl<'a> Candidate<'a> {
    fn present(&self) -> usize {
        self.found.iter().flatten().count()
    }

    /// Whether the first tensor that is there is in a format that the form is read from.
    fn reads(&self, dtype: DType) -> bool {
        self.found.iter().flatten().next().is_some_and(|found| reads(self.form, dtype, &found.entry.dtype))
    }

    fn first_present(&self) -> &str {
        let at = self.found.iter().position(Option::is_some).unwrap_or(0);
        self.names.get(at).unwrap_or(&self.form.tensor)
    }
}

impl<'a> Matcher<'a> {
    fn source(&mut self, recipe: &'a WeightRecipe) -> Option<Source<'a>> {
        if let Err(fact) = recipe.check() {
            self.problems.push(Problem::Recipe { fact: quoted(&fact) });
            return None;
        }
        let mut candidates = Vec::new();
        for form in &recipe.forms {
            match self.candidate(form) {
                Some(candidate) => candidates.push(candidate),
                None => {
                    self.problems.push(Problem::Recipe {
                        fact: format!("{} is spread over more than {MOST_PARTS} tensors", recipe.title()),
                    });
                    return None;
                }
            }
        }
        for name in candidates.iter().flat_map(|c| c.names.iter().chain(&c.beside)) {
            self.claimed.insert(name.clone());
        }
        let lost = candidates.iter().any(|c| c.names.iter().any(|name| self.checkpoint.is_lost(name)));
        let (mut present, absent): (Vec<Candidate>, Vec<Candidate>) =
            candidates.into_iter().partition(|c| c.present() > 0);
        // A tensor may be what two forms mean; its own format says which.
        if present.len() > 1 {
            if !present.iter().any(|c| c.reads(recipe.dtype)) {
                self.refuse_all(recipe, &present);
                return None;
            }
            present.retain(|c| c.reads(recipe.dtype));
        }
        // What codes are scaled by is not made of the codes.
        if let [codes] = present.as_slice()
            && codes.form.layout == DiskLayout::RowScales
            && !codes.reads(recipe.dtype)
            && let Some(scales) = absent.iter().find(|c| c.form.layout.is_plain())
            && let Some(found) = codes.found.iter().flatten().next()
        {
            self.alone(recipe, scales.first_present(), *found);
            return None;
        }
        if let [one, other, ..] = present.as_slice() {
            let (one, other) = (quoted(one.first_present()), quoted(other.first_present()));
            self.problems.push(Problem::Ambiguous { weight: recipe.title(), one, other });
            return None;
        }
        match (present.pop(), recipe.absent, recipe.forms.first()) {
            (Some(candidate), ..) => self.accept(recipe, candidate),
            (None, ..) if lost => None,
            (None, Some(value), Some(form)) => Some(Source { recipe, form, values: Values::Numbers(vec![value]) }),
            (None, ..) => {
                self.report_missing(recipe, &absent);
                None
            }
        }
    }

    fn candidate(&self, form: &'a RecipeForm) -> Option<Candidate<'a>> {
        let parts = form.tensors().filter(|n| *n <= MOST_PARTS)?;
        let mut names: Vec<String> = (0..parts).map(|i| form.tensor_name(i)).collect();
        let mut beside = Vec::new();
        match &form.layout {
            DiskLayout::Nibbles { scales } => beside.extend((0..parts).map(|i| form.filled(scales, i))),
            DiskLayout::Same { also } | DiskLayout::Largest { also } => {
                names.extend(also.iter().flat_map(|name| (0..parts).map(|i| form.filled(name, i))));
            }
            _ => {}
        }
        let find = |names: &[String]| names.iter().map(|name| self.checkpoint.find(name)).collect();
        Some(Candidate { form, found: find(&names), beside_found: find(&beside), names, beside })
    }

    /// The one form that is there: complete, of the right shapes and of formats that may be read?
    fn accept(&mut self, recipe: &'a WeightRecipe, candidate: Candidate<'a>) -> Option<Source<'a>> {
        let before = self.problems.len();
        let form = candidate.form;
        let is_number =
            matches!(form.layout, DiskLayout::Number | DiskLayout::Largest { .. } | DiskLayout::Same { .. });
        // Where numbers may be absent, single ones may, too.
        let absent = recipe.absent.filter(|_| is_number);
        let tensors = match absent {
            Some(_) => candidate.found.iter().flatten().copied().collect(),
            None => self.complete(recipe, &candidate.names, &candidate.found),
        };
        let beside = self.complete_beside(recipe, &candidate);
        let mut bits = Vec::with_capacity(tensors.len());
        for (at, found) in tensors.iter().enumerate() {
            bits.extend(self.check_tensor(recipe, form, *found, beside.get(at).copied()));
        }
        let intact = tensors.iter().chain(&beside).all(|found| found.entry.intact);
        let all = match absent {
            Some(_) => !candidate.names.iter().any(|name| self.checkpoint.is_lost(name)),
            None => tensors.len() == candidate.names.len(),
        };
        let whole = intact && all && beside.len() == candidate.beside.len();
        if !whole || self.problems.len() != before {
            return None;
        }
        if is_number {
            self.problems.extend(tensors.iter().filter_map(|found| scales::wrong_number(recipe, *found)));
            if self.problems.len() != before {
                return None;
            }
        }
        let number = |found: &Option<Found>| found.map_or(absent.unwrap_or(1.0), |found| float(found, 0));
        let numbers = || candidate.found.iter().map(number).collect::<Vec<f32>>();
        let values = match &form.layout {
            DiskLayout::Number => Values::Numbers(numbers()),
            DiskLayout::Largest { .. } => {
                let slices = form.tensors().map_or(1, |n| n as usize);
                Values::Numbers(vec![self.one(recipe, &candidate, &numbers(), slices)?])
            }
            DiskLayout::Same { .. } => Values::Numbers(vec![self.one(recipe, &candidate, &numbers(), 1)?]),
            DiskLayout::RowScales => {
                Values::RowScales(tensors, form.shape.last().map_or(1, |columns| *columns as usize))
            }
            DiskLayout::Plain | DiskLayout::Nibbles { .. } | DiskLayout::RowCodes => Values::Of(bits),
        };
        Some(Source { recipe, form, values })
    }

    /// The tensors of a list that are there; reports those that are not.
    fn complete(&mut self, recipe: &WeightRecipe, names: &[String], found: &[Option<Found<'a>>]) -> Vec<Found<'a>> {
        let (total, present) = (names.len(), found.iter().flatten().count());
        if let Some(what) = scales::divides(recipe) {
            let lost = |name: &&String| self.checkpoint.is_lost(name);
            let gone = || names.iter().zip(found).filter(|(_, found)| found.is_none()).map(|(name, _)| name);
            if let Some(first) = gone().find(|name| !lost(name)) {
                self.problems.push(Problem::NoNumber {
                    weight: recipe.title(),
                    what,
                    absent: total - present,
                    total,
                    looked_for: quoted(first),
                });
            }
            return found.iter().flatten().copied().collect();
        }
        for (name, _) in names.iter().zip(found).filter(|(_, found)| found.is_none()) {
            if !self.checkpoint.is_lost(name) {
                self.problems.push(Problem::Missing {
                    weight: recipe.title(),
                    looked_for: quoted(name),
                    hint: format!(", though {present} of its {total} tensors are"),
                });
            }
        }
        found.iter().flatten().copied().collect()
    }

    /// The scales of blocks that are there; reports those that are not.
    fn complete_beside(&mut self, recipe: &WeightRecipe, candidate: &Candidate<'a>) -> Vec<Found<'a>> {
        let all = candidate.beside.iter().zip(&candidate.beside_found).zip(&candidate.found);
        for ((name, scales), codes) in all {
            if let (None, Some(codes)) = (scales, codes) {
                self.alone(recipe, name, *codes);
            }
        }
        candidate.beside_found.iter().flatten().copied().collect()
    }

    /// Refuses codes without a tensor that they need.
    fn alone(&mut self, recipe: &WeightRecipe, looked_for: &str, codes: Found<'a>) {
        if self.checkpoint.is_lost(looked_for) {
            return;
        }
        self.problems.push(Problem::Alone {
            weight: recipe.title(),
            looked_for: quoted(looked_for),
            tensor: quoted(&codes.entry.name),
            file: quoted(codes.file),
            found: codes.entry.dtype.to_string(),
        });
    }

    /// The one number of products that share their input, each of so many slices: the largest of its slices' is a product's.
    fn one(&mut self, recipe: &WeightRecipe, candidate: &Candidate, numbers: &[f32], slices: usize) -> Option<f32> {
        let largest = |product: usize| {
            let of_product = numbers.iter().enumerate().skip(product * slices).take(slices);
            of_product.fold(None, |best: Option<(usize, f32)>, (at, x)| match best {
                Some(best) if best.1 >= *x => Some(best),
                _ => Some((at, *x)),
            })
        };
        let (first, number) = largest(0)?;
        let mut others = (1..numbers.len() / slices.max(1)).filter_map(largest);
        let Some((other, differs)) = others.find(|(_, x)| x.to_bits() != number.to_bits()) else {
            return Some(number);
        };
        let name = |at: usize| quoted(candidate.names.get(at).unwrap_or(&candidate.form.tensor));
        let of = |at: usize, number: f32| {
            let absent = candidate.found.get(at).is_some_and(Option::is_none);
            let absent = if absent { " (as it is not in the checkpoint)" } else { "" };
            let largest = if slices > 1 { format!(" (the largest of {slices})") } else { String::new() };
            format!("{number}{absent}{largest}")
        };
        self.problems.push(Problem::Different {
            weight: recipe.title(),
            one: name(first),
            of_one: of(first, number),
            other: name(other),
            of_other: of(other, differs),
        });
        None
    }

    /// What the bytes of a tensor are, if they may be read as the form has them.
    fn check_tensor(
        &mut self,
        recipe: &WeightRecipe,
        form: &RecipeForm,
        found: Found<'a>,
        beside: Option<Found<'a>>,
    ) -> Option<Bits<'a>> {
        let columns = form.shape.last().map_or(1, |n| *n as usize);
        if let Some(stored) = self.stored(recipe, form, found) {
            self.claimed.extend(stored.tensors().iter().map(|found| found.entry.name.clone()));
            self.convert(recipe, form, found, (recipe.dtype == DType::Bf16, true));
            return Some(Bits::widened(stored, columns));
        }
        if !reads(form, recipe.dtype, &found.entry.dtype) {
            self.refuse_format(recipe, form, found);
            return None;
        }
        let expected = file_shape(form);
        let of_scales = beside.map(|scales| (scales, scaled_shape(form)));
        for (found, expected) in std::iter::once((found, expected)).chain(of_scales) {
            let lenient = recipe.pinned && recipe.dtype == DType::F32 || !form.layout.is_plain();
            if found.entry.shape != expected && !(lenient && same_shape(&found.entry.shape, &expected)) {
                self.problems.push(Problem::Shape {
                    weight: recipe.title(),
                    tensor: quoted(&found.entry.name),
                    file: quoted(found.file),
                    found: found.entry.shape.iter().take(16).copied().collect(),
                    expected,
                });
                return None;
            }
        }
        let from = &found.entry.dtype;
        let narrows = matches!((from, recipe.dtype), (FileDType::F32 | FileDType::F16, DType::Bf16));
        if narrows && !recipe.pinned && !self.narrow {
            let (weight, tensor, file) = (recipe.title(), quoted(&found.entry.name), quoted(found.file));
            self.problems.push(Problem::Narrowing {
                weight,
                tensor,
                file,
                found: from.to_string(),
                resident: recipe.dtype,
            });
            return None;
        }
        self.convert(recipe, form, found, (narrows || form.layout == DiskLayout::RowCodes, false));
        match (&form.layout, beside) {
            (DiskLayout::Nibbles { .. }, Some(scales)) if scales.entry.dtype.is(E4M3) => {
                Some(Bits::Blocks { codes: found, scales, number: None })
            }
            (DiskLayout::Nibbles { .. }, Some(scales)) => {
                self.refuse(recipe, scales, E4M3.to_owned());
                None
            }
            (DiskLayout::RowCodes, _) => Some(Bits::Rows { floats: found, columns }),
            _ => Some(Bits::Plain(found)),
        }
    }

    /// The matrix that a tensor and its siblings store, where a weight is kept wider and may be made so.
    fn stored(&self, recipe: &WeightRecipe, form: &RecipeForm, found: Found<'a>) -> Option<Stored<'a>> {
        let wide = form.layout.is_plain() && !recipe.dtype.is_narrow() && !is_float(&found.entry.dtype);
        if !wide || !self.widen {
            return None;
        }
        Stored::of(self.checkpoint, found, &form.shape)
    }

    fn refuse_format(&mut self, recipe: &WeightRecipe, form: &RecipeForm, found: Found<'a>) {
        let plain = form.layout.is_plain() && !recipe.dtype.is_narrow();
        let stored = Stored::of(self.checkpoint, found, &form.shape);
        // What belongs to it is told with it.
        let tensors = stored.iter().flat_map(Stored::tensors);
        self.claimed.extend(tensors.map(|found| found.entry.name.clone()));
        match (stored, Stored::lacks(self.checkpoint, found, &form.shape)) {
            (Some(_), _) if plain => self.problems.push(Problem::Stored {
                weight: recipe.title(),
                tensor: quoted(&found.entry.name),
                file: quoted(found.file),
                found: found.entry.dtype.to_string(),
                resident: recipe.dtype,
            }),
            (None, Some(lacking)) if plain => self.alone(recipe, &lacking, found),
            _ => self.refuse(recipe, found, words(form, recipe.dtype).to_owned()),
        }
    }

    /// Refuses what no form is read from, by its first tensor.
    fn refuse_all(&mut self, recipe: &WeightRecipe, present: &[Candidate<'a>]) {
        let Some(found) = present.iter().flat_map(|c| c.found.iter().flatten()).next() else { return };
        let of_it = |c: &&Candidate| c.found.iter().flatten().any(|f| f.entry.name == found.entry.name);
        let mut expected: Vec<&str> = present.iter().filter(of_it).map(|c| words(c.form, recipe.dtype)).collect();
        expected.dedup();
        for stored in present.iter().filter_map(|c| Stored::of(self.checkpoint, *found, &c.form.shape)) {
            self.claimed.extend(stored.tensors().iter().map(|found| found.entry.name.clone()));
        }
        self.refuse(recipe, *found, expected.join(", or "));
    }

    fn refuse(&mut self, recipe: &WeightRecipe, found: Found<'a>, expected: String) {
        self.problems.push(Problem::Format {
            weight: recipe.title(),
            tensor: quoted(&found.entry.name),
            file: quoted(found.file),
            found: found.entry.dtype.to_string(),
            expected,
        });
    }

    /// Counts a conversion.
    fn convert(&mut self, recipe: &WeightRecipe, form: &RecipeForm, found: Found<'a>, (lossy, unscaled): (bool, bool)) {
        let from = found.entry.dtype.clone();
        let to = if form.layout == DiskLayout::RowCodes { recipe.dtype } else { resident(recipe.dtype) };
        let way = self.ways.entry((from.clone(), to, lossy, unscaled));
        let way = way.or_insert(Conversion { from, to, lossy, unscaled, tensors: 0, elements: 0 });
        way.tensors += 1;
        way.elements = way.elements.saturating_add(form.elements_per_tensor().unwrap_or(0));
    }

    fn report_missing(&mut self, recipe: &WeightRecipe, absent: &[Candidate]) {
        let mut names: Vec<String> = absent.iter().map(|c| quoted(c.names.first().unwrap_or(&c.form.tensor))).collect();
        // Forms may differ in what they make of a tensor alone.
        let mut told = HashSet::new();
        names.retain(|name| told.insert(name.clone()));
        if let Some(what) = scales::divides(recipe) {
            let total = absent.first().map_or(0, |c| c.names.len());
            let (weight, looked_for) = (recipe.title(), names.join("` or `"));
            self.problems.push(Problem::NoNumber { weight, what, absent: total, total, looked_for });
            return;
        }
        if let Some(name) = names.first() {
            self.missing.push((self.problems.len(), name.clone()));
        }
        self.problems.push(Problem::Missing {
            weight: recipe.title(),
            looked_for: names.join("` or `"),
            hint: String::new(),
        });
    }

    /// Tensors that nobody claims; they are also what a missing one may have been meant by.
    fn report_extra(&mut self, ignored: &[String]) {
        let mut extra: Vec<(&str, &super::TensorEntry)> = self
            .checkpoint
            .tensors()
            .filter(|(_, t)| !self.claimed.contains(&t.name) && !ignored.iter().any(|p| matches(p, &t.name)))
            .filter(|(_, t)| match self.unread(t) {
                Some(Unread::OfInputs) => false,
                Some(Unread::OfCachedRows) => self.cached_codes,
                None => true,
            })
            .collect();
        extra.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        extra.dedup_by(|a, b| a.1.name == b.1.name);
        for (at, looked_for) in self.missing.iter().take(MOST_HINTS) {
            let nearest = extra
                .iter()
                .map(|(_, t)| (strsim::normalized_levenshtein(looked_for, &quoted(&t.name)), &t.name))
                .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)));
            if let (Some((likeness, name)), Some(Problem::Missing { hint, .. })) = (nearest, self.problems.get_mut(*at))
                && likeness >= 0.75
            {
                *hint = format!("; the nearest unused name is `{}`", quoted(name));
            }
        }
        let problem = |(file, t): (&str, &super::TensorEntry)| {
            let (tensor, file) = (quoted(&t.name), quoted(file));
            if self.unread(t).is_some() {
                // Codes without a number are those under 1.
                let found = self.checkpoint.find(&t.name);
                let number = found.map(|found| float(found, 0)).filter(|number| *number != 1.0)?;
                return Some(Problem::Unread { tensor, file, number: number.to_string() });
            }
            let (dtype, shape) = (t.dtype.to_string(), t.shape.iter().take(16).copied().collect());
            Some(Problem::Extra { tensor, file, dtype, shape })
        };
        let problems: Vec<Problem> = extra.into_iter().filter_map(problem).collect();
        self.problems.extend(problems);
    }

    /// Which number that may be there unread a tensor is: of the inputs of a module in codes, or of cached rows of a module
    /// whose weights are read.
    fn unread(&self, t: &super::TensorEntry) -> Option<Unread> {
        let (module, unread) = Unread::of(&t.name, &t.shape).filter(|_| is_float(&t.dtype))?;
        let is_there = match unread {
            Unread::OfInputs => is_in_codes(self.checkpoint, module),
            Unread::OfCachedRows => self.claimed.iter().any(|name| name.starts_with(module)),
        };
        is_there.then_some(unread)
    }
}

/// Most tensors that one weight may be spread over.
const MOST_PARTS: u64 = 1 << 20;
/// As many hints as problems are shown: a nearest name costs a walk over all unused ones.
const MOST_HINTS: usize = 20;

/// Whether a name matches a pattern in which `*` stands for any text. Linear but for the stars, never recursive.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut tail = None;
    for part in parts {
        if let Some(middle) = tail.replace(part) {
            match rest.split_once(middle) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
    }
    match tail {
        Some(last) => rest.ends_with(last),
        None => rest.is_empty(),
    }
}
