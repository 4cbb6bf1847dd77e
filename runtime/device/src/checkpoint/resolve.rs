//! Recipes against a checkpoint: for every weight the bytes it consists of, or what is wrong.

use super::error::{Problem, quoted};
use super::header::FileDType;
use super::open::{Checkpoint, Found};
use super::weights::Conversion;
use artifact::{RecipeForm, WeightRecipe};
use ir::DType;
use std::collections::{BTreeMap, HashSet};

/// A weight whose parts are all present and of the right shape.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) recipe: &'a WeightRecipe,
    pub(super) form: &'a RecipeForm,
    /// One per tensor of the form, in row-major order of the spread axes.
    pub(super) tensors: Vec<Found<'a>>,
}

/// What is to be read, and the conversions that it takes.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) sources: Vec<Source<'a>>,
    pub(super) conversions: Vec<Conversion>,
}

/// Matches every recipe with the checkpoint. `ignored` are patterns (`*` stands for anything) of tensors that belong
/// to no weight and may be there.
pub(super) fn resolve<'a>(
    recipes: &'a [WeightRecipe],
    checkpoint: &'a Checkpoint,
    narrow: bool,
    ignored: &[String],
) -> Result<Resolved<'a>, Vec<Problem>> {
    let mut matcher = Matcher {
        checkpoint,
        narrow,
        claimed: HashSet::new(),
        problems: checkpoint.problems().to_vec(),
        missing: Vec::new(),
        ways: BTreeMap::new(),
    };
    let sources: Vec<Source> = recipes.iter().filter_map(|recipe| matcher.source(recipe)).collect();
    matcher.report_extra(ignored);
    match matcher.problems.is_empty() {
        true => Ok(Resolved { sources, conversions: matcher.ways.into_values().collect() }),
        false => Err(matcher.problems),
    }
}

struct Matcher<'a> {
    checkpoint: &'a Checkpoint,
    narrow: bool,
    claimed: HashSet<String>,
    problems: Vec<Problem>,
    /// Positions of `Missing` in `problems` with the name looked for.
    missing: Vec<(usize, String)>,
    /// By file format, resident format, and whether bits are lost.
    ways: BTreeMap<(FileDType, DType, bool), Conversion>,
}

/// A form with its tensors' names and which of them are there.
struct Candidate<'a> {
    form: &'a RecipeForm,
    names: Vec<String>,
    found: Vec<Option<Found<'a>>>,
}

impl<'a> Candidate<'a> {
    fn present(&self) -> usize {
        self.found.iter().flatten().count()
    }

    fn first_present(&self) -> String {
        let at = self.found.iter().position(Option::is_some).unwrap_or(0);
        quoted(self.names.get(at).unwrap_or(&self.form.tensor))
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
        for name in candidates.iter().flat_map(|c| &c.names) {
            self.claimed.insert(name.clone());
        }
        let lost = candidates.iter().any(|c| c.names.iter().any(|name| self.checkpoint.is_lost(name)));
        let mut present: Vec<Candidate> = Vec::new();
        let mut absent: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            if candidate.present() > 0 { present.push(candidate) } else { absent.push(candidate) }
        }
        if let [one, other, ..] = present.as_slice() {
            let (one, other) = (one.first_present(), other.first_present());
            self.problems.push(Problem::Ambiguous { weight: recipe.title(), one, other });
            return None;
        }
        match present.pop() {
            Some(candidate) => self.accept(recipe, candidate),
            None if lost => None,
            None => {
                self.report_missing(recipe, &absent);
                None
            }
        }
    }

    fn candidate(&self, form: &'a RecipeForm) -> Option<Candidate<'a>> {
        let parts = form.tensors().filter(|n| *n <= MOST_PARTS)?;
        let names: Vec<String> = (0..parts).map(|i| form.tensor_name(i)).collect();
        let found = names.iter().map(|name| self.checkpoint.find(name)).collect();
        Some(Candidate { form, names, found })
    }

    /// The one form that is there: complete, of the right shapes and of formats that may be read?
    fn accept(&mut self, recipe: &'a WeightRecipe, candidate: Candidate<'a>) -> Option<Source<'a>> {
        let before = self.problems.len();
        let mut complete = true;
        let total = candidate.names.len();
        let present = candidate.present();
        let mut tensors = Vec::with_capacity(total);
        for (name, found) in candidate.names.iter().zip(&candidate.found) {
            match found {
                Some(found) => {
                    self.check_tensor(recipe, candidate.form, *found);
                    complete &= found.entry.intact;
                    tensors.push(*found);
                }
                None => {
                    complete = false;
                    if !self.checkpoint.is_lost(name) {
                        self.problems.push(Problem::Missing {
                            weight: recipe.title(),
                            looked_for: quoted(name),
                            hint: format!(", though {present} of its {total} tensors are"),
                        });
                    }
                }
            }
        }
        (complete && self.problems.len() == before).then_some(Source { recipe, form: candidate.form, tensors })
    }

    fn check_tensor(&mut self, recipe: &WeightRecipe, form: &RecipeForm, found: Found<'a>) {
        let entry = found.entry;
        let (weight, tensor, file) = (recipe.title(), quoted(&entry.name), quoted(found.file));
        let lossy = match (&entry.dtype, recipe.dtype) {
            (FileDType::Other(_), _) => {
                let found = entry.dtype.to_string();
                self.problems.push(Problem::Format { weight, tensor, file, found });
                return;
            }
            (FileDType::F32 | FileDType::F16, DType::Bf16) => true,
            _ => false,
        };
        if entry.shape != form.shape {
            self.problems.push(Problem::Shape {
                weight,
                tensor,
                file,
                found: entry.shape.iter().take(16).copied().collect(),
                expected: form.shape.clone(),
            });
            return;
        }
        if lossy && !recipe.pinned && !self.narrow {
            let found = entry.dtype.to_string();
            self.problems.push(Problem::Narrowing { weight, tensor, file, found, resident: recipe.dtype });
            return;
        }
        let (from, to) = (entry.dtype.clone(), recipe.dtype);
        let way = self.ways.entry((from.clone(), to, lossy));
        let way = way.or_insert(Conversion { from, to, lossy, tensors: 0, elements: 0 });
        way.tensors += 1;
        way.elements = way.elements.saturating_add(form.elements_per_tensor().unwrap_or(0));
    }

    fn report_missing(&mut self, recipe: &WeightRecipe, absent: &[Candidate]) {
        let names: Vec<String> = absent.iter().map(|c| quoted(c.names.first().unwrap_or(&c.form.tensor))).collect();
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
        self.problems.extend(extra.into_iter().map(|(file, t)| Problem::Extra {
            tensor: quoted(&t.name),
            file: quoted(file),
            dtype: t.dtype.to_string(),
            shape: t.shape.iter().take(16).copied().collect(),
        }));
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
