//! From the form of a target file to the target: every value in its range.

use crate::Hardware;
use crate::error::{TargetError, nearest};
use crate::file::{BucketFile, FormatsFile, TargetFile, known_keys};
use crate::target::{BucketRule, CONVERSIONS, FormatUse, Formats, Kv, KvDtype, Limits, OptionRule, Target};
use indexmap::IndexMap;
use ir::{DType, Mesh, Order, RowsPerSequence, StoredFormat};

/// Architectures that can be compiled for.
const ARCHS: [&str; 3] = ["cpu", "sm_90a", "sm_103a"];

/// Named ways of changing bits that passes know.
const RELAXATIONS: [&str; 3] = ["rank-round", "rank-scale", "wire-bf16"];

/// Most rows that a bucket may have: positions and rows are 32-bit integers, and arenas are sized by this number.
const MAX_ROWS: u64 = 1 << 20;

/// The target that a file describes; `file` names it in errors.
pub(crate) fn target(form: TargetFile, file: &str) -> Result<Target, TargetError> {
    Reader { file }.target(form)
}

/// Refuses a name that no pass relaxes by; `place` is who says it.
pub(crate) fn relaxation(name: &str, place: &str) -> Result<(), TargetError> {
    if RELAXATIONS.contains(&name) {
        return Ok(());
    }
    let help = match nearest(name, RELAXATIONS) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", RELAXATIONS.join(", ")),
    };
    let message = format!("no relaxation is called `{name}`");
    Err(TargetError { code: "T0105", place: place.to_owned(), message, help })
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
            Ok(dtype) if dtype.is_float() && !dtype.is_narrow() => Ok(dtype),
            _ => Err(self.error(format!("`{key}` is `{word}`"), "use `f32` or `bf16`")),
        }
    }

    fn target(&self, form: TargetFile) -> Result<Target, TargetError> {
        if !ARCHS.contains(&form.arch.as_str()) {
            let help = format!("known are {}", ARCHS.join(", "));
            return Err(self.error(format!("no compiler for arch `{}` is known", form.arch), &help));
        }
        let act = form.act.as_deref().map(|word| self.dtype("act", word)).transpose()?;
        let products = match form.products.as_deref() {
            None | Some("any") => None,
            Some("serial") => Some(Order::Serial),
            Some("fused") => Some(Order::Fused),
            Some("fold") => Some(Order::Fold),
            Some(word) => {
                let message = format!("`products` is `{word}`");
                return Err(self.error(message, "use `fused`, `serial`, `fold` or `any`"));
            }
        };
        let dtype = match form.kv.dtype.as_str() {
            "act" => KvDtype::Act,
            "e4m3" => KvDtype::Fixed(DType::E4m3),
            "f32" => KvDtype::Fixed(DType::F32),
            "bf16" => KvDtype::Fixed(DType::Bf16),
            word => return Err(self.error(format!("`kv.dtype` is `{word}`"), "use `act`, `f32`, `bf16` or `e4m3`")),
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
            meshes: self.meshes(&form.meshes)?,
            relaxations: self.relaxations(form.relaxations)?,
            options: self.options(form.options)?,
            formats: self.formats(form.formats)?,
            hardware: Hardware::from_file(&form.hardware, self.file)?,
            name: form.name,
            description: form.description,
            arch: form.arch,
            act,
            products,
            kv: Kv { page_tokens: form.kv.page_tokens, dtype },
            buckets,
            limits: Limits { arena_bytes: form.limits.arena_bytes },
            fuse: form.fuse,
        })
    }

    fn meshes(&self, texts: &[String]) -> Result<Vec<Mesh>, TargetError> {
        let mesh =
            |text: &String| Mesh::parse(text).map_err(|e| self.error(format!("`meshes` has `{text}`"), &e.to_string()));
        texts.iter().map(mesh).collect()
    }

    fn relaxations(&self, names: Vec<String>) -> Result<Vec<String>, TargetError> {
        names.iter().try_for_each(|name| relaxation(name, self.file))?;
        Ok(names)
    }

    fn formats(&self, form: FormatsFile) -> Result<Formats, TargetError> {
        let how = |key: &str, word: &Option<String>| match word.as_deref() {
            None => Ok(FormatUse::default()),
            Some(word) => [FormatUse::Native, FormatUse::Weights, FormatUse::Refused]
                .into_iter()
                .find(|u| u.word() == word)
                .ok_or_else(|| {
                    self.error(format!("`formats.{key}` is `{word}`"), "use `native`, `weights` or `refused`")
                }),
        };
        let mut formats =
            Formats { fp8: how("fp8", &form.fp8)?, nvfp4: how("nvfp4", &form.nvfp4)?, ..Formats::default() };
        if let Some(word) = &form.assume {
            let format = StoredFormat::ALL.into_iter().find(|f| f.word() == word);
            let format =
                format.ok_or_else(|| self.error(format!("`formats.assume` is `{word}`"), "use `fp8` or `nvfp4`"))?;
            if formats.of(format) == FormatUse::Refused {
                let help = format!("write {word} = \"native\" or \"weights\" there");
                return Err(self.error(format!("`formats` assumes {word} and refuses it"), &help));
            }
            formats.assume = Some(format);
        }
        for word in &form.convert {
            if !CONVERSIONS.contains(&word.as_str()) {
                let help = format!("known are {}", CONVERSIONS.join(", "));
                return Err(self.error(format!("no conversion is called `{word}`"), &help));
            }
        }
        formats.convert = form.convert;
        Ok(formats)
    }

    /// `option = ["a", "b"]`, or a list of rules `{ split = ["tp"], prefer = ["a", "b"] }`.
    fn options(&self, form: IndexMap<String, toml::Value>) -> Result<Vec<OptionRule>, TargetError> {
        let mut rules = Vec::new();
        for (option, value) in form {
            let wrong = || {
                let help = "write `option = [\"preferred\", \"next\"]`, or rules such as `{ split = [\"tp\"], prefer = [\"preferred\"] }`";
                self.error(format!("`options.{option}` is {value}"), help)
            };
            let items = value.as_array().ok_or_else(wrong)?;
            if let Some(prefer) = words(&value) {
                rules.push(OptionRule { option: option.clone(), split: Vec::new(), prefer });
                continue;
            }
            for item in items {
                let table = item.as_table().ok_or_else(wrong)?;
                known_keys(table, &format!("options.{option}"), &["split", "prefer"], self.file)?;
                let split = table.get("split").map_or(Some(Vec::new()), words).ok_or_else(wrong)?;
                let prefer = table.get("prefer").and_then(words).ok_or_else(wrong)?;
                rules.push(OptionRule { option: option.clone(), split, prefer });
            }
        }
        Ok(rules)
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

/// The items of a list of texts.
fn words(value: &toml::Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}
