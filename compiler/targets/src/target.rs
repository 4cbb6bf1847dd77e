//! A target as the compiler uses it.

use crate::error::{TargetError, nearest};
use crate::file::{self, BucketFile, TargetFile};
use include_dir::{Dir, include_dir};
use indexmap::IndexMap;
use ir::{Bucket, DType, Order, RowsPerSequence};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../model-spec/targets");

/// Architectures that kernels exist for.
const ARCHS: [&str; 1] = ["cpu"];

/// Most rows that a bucket may have: positions and rows are 32-bit integers, and arenas are sized by this number.
const MAX_ROWS: u64 = 1 << 20;

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
    /// Per option of a spec, alternatives in order of preference; the first that the spec offers is chosen.
    pub options: IndexMap<String, Vec<String>>,
    /// How KV rows are cached.
    pub kv: Kv,
    /// Shapes that plans are made for.
    pub buckets: Vec<BucketRule>,
    /// What a plan may not exceed.
    pub limits: Limits,
    /// Peak numbers of the hardware, for reports.
    pub peaks: Vec<Peak>,
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

/// A peak number of the hardware and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// What it measures, such as `memory read`.
    pub what: String,
    /// The number.
    pub value: f64,
    /// Its unit, such as `byte/s`.
    pub unit: String,
    /// Where it comes from.
    pub source: String,
}

impl Target {
    /// The built-in target of this name, or the one in the file at this path (which ends in `.toml`).
    pub fn load(name_or_path: &str) -> Result<Target, TargetError> {
        if name_or_path.ends_with(".toml") {
            let text = std::fs::read_to_string(name_or_path).map_err(|e| TargetError {
                code: "T0102",
                place: name_or_path.to_owned(),
                message: format!("the target file cannot be read ({e})"),
                help: "give the path of an existing file, or a name that `beamc targets` lists".to_owned(),
            })?;
            return Target::from_text(&text, name_or_path);
        }
        let file = format!("{name_or_path}.toml");
        match BUILT_IN.get_file(&file).and_then(|f| f.contents_utf8()) {
            Some(text) => Target::from_text(text, &format!("model-spec/targets/{file}")),
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

    /// A target from the text of its file; `file` names it in errors.
    pub fn from_text(text: &str, file: &str) -> Result<Target, TargetError> {
        let form = file::read(text, file)?;
        Reader { file }.target(form)
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
}

struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    fn error(&self, message: String, help: &str) -> TargetError {
        TargetError { code: "T0105", place: self.file.to_owned(), message, help: help.to_owned() }
    }

    fn dtype(&self, key: &str, word: &str) -> Result<DType, TargetError> {
        match word.parse::<DType>() {
            Ok(dtype) if dtype.is_float() => Ok(dtype),
            _ => Err(self.error(format!("`{key}` is `{word}`"), "use `f32` or `bf16`")),
        }
    }

    fn target(&self, form: TargetFile) -> Result<Target, TargetError> {
        if !ARCHS.contains(&form.arch.as_str()) {
            let help = format!("known are {}", ARCHS.join(", "));
            return Err(self.error(format!("there are no kernels for arch `{}`", form.arch), &help));
        }
        let act = form.act.as_deref().map(|word| self.dtype("act", word)).transpose()?;
        let products = match form.products.as_deref() {
            None | Some("any") => None,
            Some("serial") => Some(Order::Serial),
            Some("fold") => Some(Order::Fold),
            Some(word) => {
                let message = format!("`products` is `{word}`");
                return Err(self.error(message, "use `serial`, `fold` or `any`"));
            }
        };
        let dtype = match form.kv.dtype.as_str() {
            "act" => KvDtype::Act,
            word => KvDtype::Fixed(self.dtype("kv.dtype", word)?),
        };
        if form.kv.page_tokens == 0 || form.kv.page_tokens > MAX_ROWS {
            let message = format!("`kv.page_tokens` is {}", form.kv.page_tokens);
            return Err(self.error(message, &format!("use 1 to {MAX_ROWS}, 16 for example")));
        }
        let buckets = form.bucket.into_iter().map(|b| self.bucket(b)).collect::<Result<Vec<_>, _>>()?;
        for (i, rule) in buckets.iter().enumerate() {
            let same = |other: &&BucketRule| {
                let entries = (&other.entry, &rule.entry);
                let both = matches!(entries, (None, _) | (_, None)) || entries.0 == entries.1;
                both && other.rows == rule.rows && other.tokens == rule.tokens
            };
            if buckets.iter().take(i).any(|other| same(&other)) {
                let message = format!("two buckets have {} tokens and the same rows", rule.tokens);
                return Err(self.error(message, "keep one of them"));
            }
        }
        if !buckets.iter().any(|b| b.rows == RowsPerSequence::Ragged) {
            let help = "add one, for example `[[bucket]]` with `rows = \"ragged\"`, `tokens = 64`, `sequences = 8`";
            return Err(self.error("no bucket has ragged rows, so no prompt could be read".to_owned(), help));
        }
        Ok(Target {
            name: form.name,
            description: form.description,
            arch: form.arch,
            act,
            products,
            options: form.options,
            kv: Kv { page_tokens: form.kv.page_tokens, dtype },
            buckets,
            limits: Limits { arena_bytes: form.limits.arena_bytes },
            peaks: form
                .peak
                .into_iter()
                .map(|p| Peak { what: p.what, value: p.value, unit: p.unit, source: p.source })
                .collect(),
        })
    }

    /// `rows = "one"` has as many sequences as tokens, a block bucket one sequence per block; a ragged one says how many.
    fn bucket(&self, form: BucketFile) -> Result<BucketRule, TargetError> {
        let tokens = form.tokens;
        if tokens == 0 || tokens > MAX_ROWS {
            return Err(self.error(format!("a bucket has {tokens} tokens"), &format!("use 1 to {MAX_ROWS}")));
        }
        let (rows, most) = match &form.rows {
            toml::Value::String(word) if word == "one" => (RowsPerSequence::One, tokens),
            toml::Value::String(word) if word == "ragged" => (RowsPerSequence::Ragged, tokens),
            toml::Value::Integer(n) => match u64::try_from(*n) {
                Ok(n) if n > 0 && tokens.is_multiple_of(n) => (RowsPerSequence::Block(n), tokens / n),
                _ => {
                    let message = format!("a bucket of {tokens} tokens has {n} rows per sequence");
                    return Err(self.error(message, "make tokens a multiple of the rows"));
                }
            },
            other => {
                let message = format!("`rows` of a bucket is {other}");
                return Err(self.error(message, "use \"one\", \"ragged\", or the number of rows in a block"));
            }
        };
        let sequences = form.sequences.unwrap_or(most);
        if sequences == 0 || sequences > most {
            let message = format!("a bucket of {tokens} tokens has {sequences} sequences");
            return Err(self.error(message, &format!("use 1 to {most}")));
        }
        let wanted = form.wanted.unwrap_or(tokens);
        if wanted == 0 || wanted > tokens {
            let message = format!("a bucket of {tokens} tokens has {wanted} wanted rows");
            return Err(self.error(message, &format!("use 1 to {tokens}")));
        }
        Ok(BucketRule { entry: form.entry, rows, tokens, sequences, wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "name = 'x'\ndescription = 'd'\narch = 'cpu'\nkv = { page_tokens = 16, dtype = 'act' }\n";
    const RAGGED: &str = "[[bucket]]\nrows = 'ragged'\ntokens = 64\nsequences = 8\n";

    fn error(text: &str) -> String {
        Target::from_text(text, "x.toml").unwrap_err().to_string()
    }

    #[test]
    fn every_built_in_target_loads_under_its_own_name() {
        assert_eq!(names(), ["cpu", "cpu-f32"]);
        for name in names() {
            let target = Target::load(name).unwrap();
            assert_eq!(target.name, name);
            let buckets = target.buckets_of("forward");
            assert!(buckets.is_sorted_by_key(|b| b.tokens) && !buckets.is_empty());
        }
    }

    #[test]
    fn the_targets_differ_in_act_only() {
        let (plain, wide) = (Target::load("cpu").unwrap(), Target::load("cpu-f32").unwrap());
        assert_eq!((plain.act, wide.act), (None, Some(DType::F32)));
        assert_eq!(plain.kv.dtype.resolve(DType::Bf16), DType::Bf16);
        assert_eq!((plain.buckets, plain.options, plain.kv), (wide.buckets, wide.options, wide.kv));
    }

    #[test]
    fn a_near_miss_is_suggested() {
        let text = Target::load("cpu-f23").unwrap_err().to_string();
        assert_eq!(text, "T0101: cpu-f23: no target has this name; did you mean `cpu-f32`?");
        let text = error(&format!("{SMALL}limit = {{ arena_bytes = 1 }}\n"));
        assert_eq!(text, "T0104: x.toml: no key of a target file is called `limit`; did you mean `limits`?");
        let text = error(&format!("{SMALL}[[bucket]]\nrow = 'one'\ntokens = 1\n"));
        assert_eq!(text, "T0104: x.toml: no key of a target file is called `row` in `bucket`; did you mean `rows`?");
    }

    #[test]
    fn values_out_of_range_name_both_facts() {
        for (bucket, wanted) in [
            ("rows = 'one'\ntokens = 0", "T0105: x.toml: a bucket has 0 tokens; use 1 to 1048576"),
            (
                "rows = 3\ntokens = 8",
                "a bucket of 8 tokens has 3 rows per sequence; make tokens a multiple of the rows",
            ),
            ("rows = 'ragged'\ntokens = 8\nsequences = 9", "a bucket of 8 tokens has 9 sequences; use 1 to 8"),
            ("rows = 'ragged'\ntokens = 8\nwanted = 9", "a bucket of 8 tokens has 9 wanted rows; use 1 to 8"),
            ("rows = 'two'\ntokens = 8", "`rows` of a bucket is \"two\""),
            ("rows = 'ragged'\ntokens = 64", "two buckets have 64 tokens and the same rows; keep one of them"),
            ("rows = 'one'\ntokens = -1", "T0103: x.toml:"),
        ] {
            let text = error(&format!("{SMALL}{RAGGED}[[bucket]]\n{bucket}\n"));
            assert!(text.contains(wanted), "{text}");
        }
        assert!(error(SMALL).contains("no bucket has ragged rows"));
        assert!(error("name = ").starts_with("T0103: x.toml:1:"));
        assert!(error(&format!("act = 'i32'\n{SMALL}{RAGGED}")).contains("`act` is `i32`; use `f32` or `bf16`"));
    }

    #[test]
    fn a_path_names_a_file_of_the_same_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, format!("{SMALL}{RAGGED}[[bucket]]\nentry = 'draft'\nrows = 4\ntokens = 16\n")).unwrap();
        let target = Target::load(path.to_str().unwrap()).unwrap();
        assert_eq!(target.buckets_of("forward").len(), 1);
        let draft = target.buckets_of("draft");
        assert_eq!(draft.len(), 2);
        assert_eq!((draft[0].rows, draft[0].sequences), (RowsPerSequence::Block(4), 4));
        assert!(Target::load("nowhere.toml").unwrap_err().to_string().starts_with("T0102: nowhere.toml: "));
    }
}
