//! The drafter of a model: a second model in the same artifact, and what binds it to the first.
//!
//! | file | content |
//! |---|---|
//! | `drafter/block8/kernels.json`, `plan.json` | its programs for blocks of 8 rows; so for each length of block |
//! | `drafter/weights.json` | recipes of its own weights, in a checkpoint of its own |
//! | `drafter/copies.json` | recipes of weights of the model that it keeps a copy of, in the model's checkpoint |
//! | `drafter/memory.json` | where both lie on a rank |
//! | `drafter/ir/*.txt` | its levels as readable text, of the longest block |

use crate::memory::WeightMemory;
use crate::recipe::{WeightRecipe, recipes};
use crate::{Artifact, weight_memory};
use ir::{Buffer, Capture, Captured, Facts, KernelModule, KvLayout, Place, Plan, RowsPerSequence, Sharding};
use ir::{Placement, Scope};
use serde::{Deserialize, Serialize};

/// Folder of a drafter's files.
pub const DRAFTER: &str = "drafter";

/// A drafter, compiled with its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafter {
    /// Its programs by length of block, ascending.
    pub blocks: Vec<DrafterBlock>,
    /// How its own weights lie in its checkpoint.
    pub recipes: Vec<WeightRecipe>,
    /// Weights of the model that it reads and that a rank of it holds another part of than the model's: how they lie in the
    /// model's checkpoint. All other borrowed weights are read where the model's lie.
    pub copies: Vec<WeightRecipe>,
    /// Where its own weights and the copies lie on a rank.
    pub memory: WeightMemory,
}

/// A drafter's programs for blocks of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterBlock {
    /// Rows of a block, the token that is already known among them.
    pub tokens: u64,
    /// Facts, graphs and regions.
    pub kernels: KernelModule,
    /// Launches and memory.
    pub plan: Plan,
}

/// What a manifest says of a drafter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a drafter")]
pub struct DrafterEntry {
    /// Name of the drafter.
    pub model: String,
    /// Parameters of its own.
    pub parameters: u64,
    /// Lengths of its blocks, ascending.
    pub blocks: Vec<u64>,
}

/// Path of a file of a block.
pub(crate) fn path_of(tokens: u64, file: &str) -> String {
    format!("{DRAFTER}/block{tokens}/{file}")
}

impl DrafterBlock {
    /// Programs and their length of block, which their plan states.
    pub fn new(kernels: KernelModule, plan: Plan) -> Result<DrafterBlock, String> {
        match rows(&plan) {
            Some(tokens) if tokens >= 2 => Ok(DrafterBlock { tokens, kernels, plan }),
            _ => Err(format!("no entry of `{}` runs blocks of rows", kernels.facts.name)),
        }
    }
}

impl Drafter {
    /// The drafter of a model; the text of an error names what does not fit.
    pub fn new(blocks: Vec<DrafterBlock>, model: &KernelModule) -> Result<Drafter, String> {
        let longest = blocks.last().ok_or("a drafter has programs for at least one length of block")?;
        let kernels = &longest.kernels;
        let all = recipes(&kernels.facts);
        let borrowed = |r: &WeightRecipe| kernels.facts.weight(r.scope, &r.name).is_some_and(|w| w.borrowed);
        let (lent, own): (Vec<WeightRecipe>, Vec<WeightRecipe>) = all.into_iter().partition(borrowed);
        let copies: Vec<WeightRecipe> = lent.into_iter().filter(|r| !lies_alike(&r.name, kernels, model)).collect();
        let placed: Vec<WeightRecipe> = own.iter().chain(&copies).cloned().collect();
        let memory = weight_memory(kernels, &placed)?;
        memory.check(&placed)?;
        Ok(Drafter { blocks, recipes: own, copies, memory })
    }

    /// The programs with the longest block; all lengths have the same weights, caches and captures.
    pub fn longest(&self) -> Option<&DrafterBlock> {
        self.blocks.last()
    }

    /// Cache kinds that have pages of their own.
    pub fn own_kinds(&self) -> impl Iterator<Item = &KvLayout> {
        self.longest().into_iter().flat_map(|b| &b.plan.kv).filter(|kind| kind.lives_in.is_none())
    }

    pub(crate) fn entry(&self) -> Option<DrafterEntry> {
        let facts = &self.longest()?.kernels.facts;
        Some(DrafterEntry {
            model: facts.name.clone(),
            parameters: facts.parameters(),
            blocks: self.blocks.iter().map(|b| b.tokens).collect(),
        })
    }

    /// Checks that drafter and model belong to each other; the text names the two facts in conflict.
    pub(crate) fn check(&self, model: &Artifact) -> Result<(), String> {
        let longest = self.longest().ok_or("it has no length of block")?;
        let facts = &longest.kernels.facts;
        let ascend = self.blocks.windows(2).all(|w| w[0].tokens < w[1].tokens);
        if !ascend {
            return Err("its lengths of block do not ascend".to_owned());
        }
        for block in &self.blocks {
            let own = &block.kernels.facts;
            if (&own.weights, &own.kv, &own.captures) != (&facts.weights, &facts.kv, &facts.captures) {
                let (a, b) = (block.tokens, longest.tokens);
                return Err(format!("blocks of {a} and of {b} rows have other weights, caches or captures"));
            }
            if rows(&block.plan) != Some(block.tokens) {
                return Err(format!("the plan for blocks of {} rows is for another length", block.tokens));
            }
            for capture in &facts.captures {
                captured_alike(capture, block, &model.plan)?;
            }
        }
        if facts.captures != model.kernels.facts.exports {
            return Err("it captures other rows than the model exports".to_owned());
        }
        for (at, kind) in longest.plan.kv.iter().enumerate() {
            cached_alike(kind, &model.plan)?;
            let mut others = longest.plan.kv.iter().take(at).filter(|k| k.lives_in.is_some());
            if let Some(other) = others.find(|other| other.lives_in == kind.lives_in) {
                return Err(format!("caches `{}` and `{}` live in the same pages", other.kind, kind.kind));
            }
        }
        self.borrowed_alike(facts, &longest.kernels, model)
    }

    fn borrowed_alike(&self, facts: &Facts, kernels: &KernelModule, model: &Artifact) -> Result<(), String> {
        for weight in facts.weights.iter().filter(|w| w.borrowed) {
            let name = own_name(&weight.name);
            let lent = model.kernels.facts.weight(weight.scope, name);
            let lent = lent.ok_or_else(|| format!("it borrows W.{name}, which the model does not have"))?;
            if lent.axes != weight.axes || lent.dtype != weight.dtype {
                return Err(format!("it borrows W.{name} as {}, the model has {}", weight.ty(), lent.ty()));
            }
            let copied = self.copies.iter().any(|r| r.name == weight.name);
            if !copied && !lies_alike(&weight.name, kernels, &model.kernels) {
                return Err(format!("a rank holds another part of W.{name} for it than for the model, and no copy"));
            }
        }
        Ok(())
    }
}

impl Artifact {
    /// Layouts of every cache kind that has pages: the model's, then those of its drafter that live in none of them.
    pub fn kv(&self) -> Vec<KvLayout> {
        self.plan.kv.iter().chain(self.drafter.iter().flat_map(Drafter::own_kinds)).cloned().collect()
    }
}

/// Name of a borrowed weight in the model that it belongs to.
pub fn own_name(borrowed: &str) -> &str {
    borrowed.strip_prefix("target.").unwrap_or(borrowed)
}

/// Whether a rank holds the same part of a weight for both.
fn lies_alike(borrowed: &str, drafter: &KernelModule, model: &KernelModule) -> bool {
    let none = Placement::new();
    let place = |sharding: Option<&Sharding>, name: &str| {
        sharding.and_then(|s| s.weight(Scope::Model, name)).unwrap_or(&none).clone()
    };
    place(drafter.sharding.as_ref(), borrowed) == place(model.sharding.as_ref(), own_name(borrowed))
}

/// The place of captured rows is that of the model, in every bucket, and nothing else is in front of its end.
fn captured_alike(capture: &Capture, block: &DrafterBlock, model: &Plan) -> Result<(), String> {
    let name = Captured::place_of(&capture.name);
    let place = model.entries.iter().flat_map(|e| &e.buckets).find_map(|b| b.shared.get(&name).copied());
    let place = place.ok_or_else(|| format!("the model leaves no `{name}`"))?;
    let end = place.offset_bytes.saturating_add(place.bytes);
    let before = |b: &Buffer| b.offset_bytes < end && place.offset_bytes < b.offset_bytes.saturating_add(b.bytes);
    let mut read = false;
    for bucket in block.plan.entries.iter().flat_map(|e| &e.buckets) {
        for (value, buffer) in bucket.shared.iter().filter(|(_, b)| before(b)) {
            if *buffer != place {
                return Err(format!("`{value}` of bucket {} lies over `{name}`", bucket.bucket));
            }
            read = true;
        }
        let local = bucket.programs.iter().flat_map(|p| &p.places);
        let mut local = local.filter_map(|p| if let Place::Arena(b) = p { Some(b) } else { None });
        if local.any(|b| before(b) && *b != place) {
            return Err(format!("a value of bucket {} lies over `{name}`", bucket.bucket));
        }
    }
    if read { Ok(()) } else { Err(format!("it reads no `{name}`")) }
}

/// Rows of the blocks that a plan has buckets for.
fn rows(plan: &Plan) -> Option<u64> {
    let buckets = plan.entries.iter().flat_map(|e| &e.buckets);
    buckets.filter_map(|b| if let RowsPerSequence::Block(n) = b.bucket.rows { Some(n) } else { None }).max()
}

/// A kind that lives in one of the model's has its pages, behind the model's own layers; any other has a name of its own.
fn cached_alike(kind: &KvLayout, model: &Plan) -> Result<(), String> {
    let Some(home) = &kind.lives_in else {
        let known = model.kv.iter().any(|k| k.kind == kind.kind);
        return if known { Err(format!("cache `{}` is one of the model's", kind.kind)) } else { Ok(()) };
    };
    let host = model.kv.iter().find(|k| k.kind == *home && k.lives_in.is_none());
    let host = host.ok_or_else(|| format!("cache `{}` lives in `{home}`, which the model does not have", kind.kind))?;
    let page = |k: &KvLayout| (k.page_tokens, k.page_stride, k.layer_stride, k.token_stride, k.head_stride);
    let row = |k: &KvLayout| (k.v_offset, k.heads, k.head_elements, k.dtype);
    let slots = (host.layers.len() as u64).checked_sub(kind.layers.len() as u64);
    let first = slots.and_then(|slots| slots.checked_mul(host.layer_stride));
    if page(kind) != page(host) || row(kind) != row(host) || first != Some(kind.first) {
        return Err(format!("cache `{}` has other pages than `{home}`, in which it lives", kind.kind));
    }
    Ok(())
}
