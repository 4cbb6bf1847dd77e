//! A target as the compiler uses it.

use crate::error::{TargetError, nearest};
use crate::{Hardware, file, reader};
use include_dir::{Dir, include_dir};
use indexmap::IndexMap;
use ir::{Bucket, DType, Facts, Mesh, Order, RowsPerSequence, Scope, StoredFormat};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../model-spec/targets");

/// Names of the built-in targets, ascending.
pub fn names() -> Vec<&'static str> {
    let stems = BUILT_IN.files().filter(|f| f.path().extension().is_some_and(|e| e == "toml"));
    let mut names: Vec<&str> = stems.filter_map(|f| f.path().file_stem()?.to_str()).collect();
    names.sort_unstable();
    names
}

/// What a model is compiled for.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Name.
    pub name: String,
    /// One line for lists.
    pub description: String,
    /// Architecture of the kernels.
    pub arch: String,
    /// Dtype of untyped names, in place of the spec's.
    pub act: Option<DType>,
    /// The order in which the target's matrix products add, where it is one known order; `None` leaves it open.
    pub products: Option<Order>,
    /// Meshes to choose from where none is asked for, in order of preference; empty for one device.
    pub meshes: Vec<Mesh>,
    /// Named ways in which passes may change bits, unless exactness is asked for.
    pub relaxations: Vec<String>,
    /// What is preferred among the options of a spec.
    pub options: Vec<OptionRule>,
    /// Which stored formats may be executed, and how.
    pub formats: Formats,
    /// How KV rows are cached.
    pub kv: Kv,
    /// Shapes that plans are made for.
    pub buckets: Vec<BucketRule>,
    /// What a plan may not exceed.
    pub limits: Limits,
    /// What passes may join into one kernel.
    pub fuse: crate::Fuse,
    /// Facts of the hardware, each with its source.
    pub hardware: Hardware,
}

/// What is preferred for one option of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionRule {
    /// The option.
    pub option: String,
    /// Mesh axes of which one must be in the mesh for the rule to hold; empty for always.
    pub split: Vec<String>,
    /// Alternatives in order of preference; the first that the spec offers is chosen.
    pub prefer: Vec<String>,
}

/// What a target does with weights that a checkpoint keeps in a narrow format. Without a word about it: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// e4m3 codes with a scale for each row.
    pub fp8: FormatUse,
    /// e2m1 codes with scales of blocks.
    pub nvfp4: FormatUse,
    /// The format of the checkpoint where the spec says nothing of it.
    pub assume: Option<StoredFormat>,
    /// Conversions that may be done while a checkpoint is loaded, of [`CONVERSIONS`].
    pub convert: Vec<String>,
}

/// bf16 weights become fp8 while they are loaded.
pub const BF16_TO_FP8: &str = "bf16-to-fp8";

/// Every conversion that [`Formats::convert`] may name.
pub const CONVERSIONS: [&str; 1] = [BF16_TO_FP8];

/// How products with weights of a format are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormatUse {
    /// Codes times codes: inputs are quantised as the checkpoint was made for.
    Native,
    /// Codes are widened; inputs stay as they are.
    Weights,
    /// Not at all.
    #[default]
    Refused,
}

impl FormatUse {
    /// The word in target files.
    pub fn word(self) -> &'static str {
        match self {
            FormatUse::Native => "native",
            FormatUse::Weights => "weights",
            FormatUse::Refused => "refused",
        }
    }
}

impl Formats {
    /// What is done with a format.
    pub fn of(&self, format: StoredFormat) -> FormatUse {
        match format {
            StoredFormat::Fp8 => self.fp8,
            StoredFormat::Nvfp4 => self.nvfp4,
        }
    }

    /// Whether a conversion while loading is allowed.
    pub fn converts(&self, conversion: &str) -> bool {
        self.convert.iter().any(|c| c == conversion)
    }
}

/// How KV rows are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    /// Tokens in a page.
    pub page_tokens: u64,
    /// Format of the rows.
    pub dtype: KvDtype,
}

/// Format of cached rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// That of untyped names.
    Act,
    /// This one.
    Fixed(DType),
}

impl KvDtype {
    /// The format, given that of untyped names.
    pub fn resolve(self, act: DType) -> DType {
        match self {
            KvDtype::Act => act,
            KvDtype::Fixed(dtype) => dtype,
        }
    }
}

/// A shape that every entry, or one, gets a plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRule {
    /// The entry meant; `None` for each.
    pub entry: Option<String>,
    /// Rows per sequence.
    pub rows: RowsPerSequence,
    /// Most token rows.
    pub tokens: u64,
    /// Most sequences.
    pub sequences: u64,
    /// Most wanted rows.
    pub wanted: u64,
}

/// What a plan may not exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of working memory besides weights and caches; `None` for no limit.
    pub arena_bytes: Option<u64>,
}

impl Target {
    /// The built-in target of this name, or the one in the file at this path (which ends in `.toml`).
    pub fn load(name_or_path: &str) -> Result<Target, TargetError> {
        let (text, file) = text_of(name_or_path)?;
        Target::from_text(&text, &file)
    }

    /// A target from the text of its file; `file` names it in errors, and is where files that it extends are looked for.
    pub fn from_text(text: &str, file: &str) -> Result<Target, TargetError> {
        reader::target(file::read(text, file, 0)?, file)
    }

    /// The shapes of an entry, in the order in which a step looks for the first that holds it: ascending by tokens.
    pub fn buckets_of(&self, entry: &str) -> Vec<Bucket> {
        let meant = self.buckets.iter().filter(|rule| rule.entry.as_deref().is_none_or(|e| e == entry));
        let mut buckets: Vec<Bucket> = meant
            .map(|rule| Bucket {
                entry: entry.to_owned(),
                rows: rule.rows,
                tokens: rule.tokens,
                sequences: rule.sequences,
                wanted: rule.wanted,
            })
            .collect();
        buckets.sort_by_key(|b| (b.tokens, matches!(b.rows, RowsPerSequence::Ragged)));
        buckets
    }

    /// What is preferred among the options of a spec on this mesh: per option the first rule that holds there.
    pub fn options_on(&self, mesh: &Mesh) -> IndexMap<String, Vec<String>> {
        let mut chosen = IndexMap::new();
        for rule in &self.options {
            let holds = rule.split.is_empty() || rule.split.iter().any(|axis| mesh.length(axis) > 1);
            if holds && !chosen.contains_key(&rule.option) {
                chosen.insert(rule.option.clone(), rule.prefer.clone());
            }
        }
        chosen
    }

    /// Allows one more named way of changing bits.
    pub fn allow(&mut self, relaxation: &str) -> Result<(), TargetError> {
        reader::relaxation(relaxation, &self.name)?;
        if !self.allows(relaxation) {
            self.relaxations.push(relaxation.to_owned());
        }
        Ok(())
    }

    /// Whether a named way of changing bits is allowed.
    pub fn allows(&self, relaxation: &str) -> bool {
        self.relaxations.iter().any(|r| r == relaxation)
    }

    /// The mesh of a model where none is asked for: the first of the target's on which the weights leave a tenth of a
    /// device's memory to caches and working memory; the last of them if none does.
    pub fn default_mesh(&self, facts: &Facts) -> Mesh {
        let memory = self.hardware.fact("memory_bytes").unwrap_or(f64::INFINITY);
        let fits = |mesh: &&Mesh| weight_bytes(self, facts, mesh) <= 0.9 * memory;
        self.meshes.iter().find(fits).or(self.meshes.last()).cloned().unwrap_or_default()
    }
}

/// Bytes of weights that a rank holds where every axis that may be split is; of those that are stored narrow, without their
/// scales of rows.
fn weight_bytes(target: &Target, facts: &Facts, mesh: &Mesh) -> f64 {
    let parts = |axis: &str| facts.shard.get(axis).map_or(1, |over| mesh.parts(over)).max(1);
    let stored = facts.stored.as_ref().filter(|s| target.formats.of(s.format) != FormatUse::Refused);
    let weight = |w: &ir::Weight| {
        let dtype = |layer: Option<usize>| match stored.filter(|s| s.holds(w, layer)).map(|s| s.format) {
            Some(StoredFormat::Fp8) => DType::E4m3,
            Some(StoredFormat::Nvfp4) => DType::Nvfp4,
            None => w.dtype,
        };
        let bytes = |layer| dtype(layer).bytes_for(w.elements()) as f64;
        let all: f64 = match w.scope {
            Scope::Model => bytes(None),
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, w)).map(|l| bytes(Some(l))).sum(),
        };
        let ranks: f64 = w.axes.iter().flatten().map(|a| parts(&a.name) as f64).product();
        all / ranks
    };
    facts.weights.iter().map(weight).sum()
}

/// The text of a built-in target or of a file, and its path as errors show it.
pub(crate) fn text_of(name_or_path: &str) -> Result<(String, String), TargetError> {
    if name_or_path.ends_with(".toml") {
        let text = file::text(name_or_path).map_err(|why| TargetError {
            code: "T0102",
            place: name_or_path.to_owned(),
            message: format!("the target file cannot be read ({why})"),
            help: "give the path of an existing file, or a name that `beamc targets` lists".to_owned(),
        })?;
        return Ok((text, name_or_path.to_owned()));
    }
    let file = format!("{name_or_path}.toml");
    match BUILT_IN.get_file(&file).and_then(|f| f.contents_utf8()) {
        Some(text) => Ok((text.to_owned(), format!("model-spec/targets/{file}"))),
        None => Err(TargetError {
            code: "T0101",
            place: name_or_path.to_owned(),
            message: "no target has this name".to_owned(),
            help: match nearest(name_or_path, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known are {}; a path ends in `.toml`", names().join(", ")),
            },
        }),
    }
}
