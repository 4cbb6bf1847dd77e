//! Every diagnostic code with what `beamc explain` says about it.

/// One code.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The code, such as `B0241`.
    pub code: &'static str,
    /// The condition in a few words.
    pub title: &'static str,
    /// What it means and what to do.
    pub text: &'static str,
}

/// The explanation of a code.
pub fn explain(code: &str) -> Option<&'static Code> {
    CODES.iter().find(|c| c.code.eq_ignore_ascii_case(code))
}

const fn code(code: &'static str, title: &'static str, text: &'static str) -> Code {
    Code { code, title, text }
}

/// All codes, ascending.
pub static CODES: &[Code] = &[
    code(
        "B0001",
        "a file cannot be read",
        "The path does not name a readable UTF-8 file of a sensible size. A spec is a .toml file, or a directory that holds a config.json.",
    ),
    code(
        "B0002",
        "not TOML",
        "The file breaks TOML's grammar at the marked place. Block text belongs between ''' and '''.",
    ),
    code(
        "B0003",
        "a value without meaning",
        "Specs hold numbers, texts, truth values, lists and tables. Dates, infinities and integers beyond 64 bits have no meaning.",
    ),
    code(
        "B0005",
        "unknown base",
        "`extends` names a file beside the spec (NAME.toml, or a path that ends in .toml) or a spec built into the compiler.",
    ),
    code(
        "B0006",
        "bases go in a circle",
        "Following `extends` did not end. A base may not lead back to a spec that extends it.",
    ),
    code("B0007", "unknown table", "The top level of a spec has a fixed set of tables; docs/language.md lists them."),
    code("B0008", "not a table", "A name that must be a table, written [name], has another kind of value."),
    code(
        "B0009",
        "block text in another form",
        "[blocks] holds one key, text, quoted with ''' so that positions in it are positions in the file.",
    ),
    code("B0010", "another kind of value", "The key takes another kind of value than the one written."),
    code("B0011", "unknown key", "The table has no such key. Nothing in a spec is ignored in silence."),
    code(
        "B0012",
        "no dtype of untyped names",
        "[model] act says which dtype an untyped name rounds to: bf16 or f32. A target may replace it.",
    ),
    code(
        "B0013",
        "a dimension out of range",
        "Dimensions are whole numbers from 0 to 2^40, layers from 1 to 4096. A dimension of 0 says that the model has none of these: nothing that is used may have it.",
    ),
    code("B0014", "no number of layers", "[dims] layers = N is needed by the schedule."),
    code(
        "B0015",
        "factors of an unknown axis",
        "[axes] splits dimensions of [dims] into factors; the name on the left must be one of them.",
    ),
    code(
        "B0016",
        "factors not understood",
        "A product axis is written \"outer.inner\". At most one factor may be new; its length follows from the others.",
    ),
    code("B0017", "a dimension that its factors do not divide", "The known factors must divide the dimension."),
    code("B0018", "one name, two meanings", "A name is a dimension or a value, not both."),
    code("B0019", "a schedule of another length", "A schedule list has one kind per layer."),
    code(
        "B0020",
        "a schedule rule not understood",
        "A rule is `kind if condition else kind`; conditions compare numbers made of l, dimensions, + - * % with == != < <= > >=, joined by and, or, not.",
    ),
    code(
        "B0021",
        "a condition not understood",
        "Conditions on a layer's kind are written \"column == kind\", on one of [values] \"value == true\", false, none or number.",
    ),
    code("B0022", "unknown schedule column", "The condition names a column that [schedule] does not have."),
    code("B0023", "unknown axis", "Axes are the dimensions of [dims] and the factors of [axes]."),
    code(
        "B0024",
        "an impossible size",
        "A weight that a layer has, and a row of a cache, has between 1 and 2^60 elements.",
    ),
    code("B0025", "an axis twice", "Two axes of one value may not share a name, since values are aligned by name."),
    code(
        "B0026",
        "cache rows not understood",
        "A cache kind names the axes of its key and value rows: heads and elements, the same for both.",
    ),
    code("B0027", "unknown value", "The text names no entry of [values]."),
    code(
        "B0028",
        "an impossible window",
        "A window counts positions, the query's own included: a whole number from 1.",
    ),
    code("B0029", "an incomplete weight", "A weight needs its axes and its name on disk."),
    code(
        "B0030",
        "one tensor for all layers",
        "A layer weight's disk name must contain {l}, usually through prefix in [layer].",
    ),
    code(
        "B0031",
        "a disk name not understood",
        "Disk names may hold {l}, {axis} for leading axes spread over several tensors, and one slice such as [:, 0:width].",
    ),
    code(
        "B0032",
        "a requirement that does not hold",
        "The spec states in [require] what its mathematics needs of dims and values, and a number breaks it.",
    ),
    code(
        "B0033",
        "a requirement not understood",
        "A condition of [require] compares numbers made of dimensions, values and members of groups, with + - * % and == != < <= > >=, joined by and, or, not.",
    ),
    code(
        "B0034",
        "unknown kind",
        "A condition compares a column of [schedule] with a kind that no layer has, that the column's rule does not name, and that the text has no arm for.",
    ),
    code(
        "B0035",
        "a stored format not understood",
        "[stored] says in which format a checkpoint keeps matrices: \"fp8\" (inputs plain or per token), \"nvfp4\" (inputs plain or in blocks) or \"none\".",
    ),
    code(
        "B0036",
        "a plain weight that there is not",
        "`plain` of [stored] lists matrices that a quantised checkpoint keeps as they are declared: weights of the spec, and layers that have them.",
    ),
    code(
        "B0038",
        "a target that does not fit",
        "A drafter's spec names the spec of its target, in [model]. It is a file beside the spec or built in, has no errors, and has the lengths, cache kinds and weights that the drafter takes from it; where both name an axis of a borrowed weight, its lengths agree.",
    ),
    code(
        "B0039",
        "rows that cannot be captured",
        "[capture] names rows of the target: a value that the layers of one of its entries hand on, and layers that the target has, ascending.",
    ),
    code("B0090", "not supported yet", "The language has this construct on paper and this build does not compile it."),
    code("B0101", "no block text", "A spec, or a base it extends, has [blocks] text with at least one entry."),
    code(
        "B0102",
        "unknown std function",
        "`use std.name` takes functions of the std text that comes with the compiler.",
    ),
    code(
        "B0103",
        "unexpected text",
        "The grammar expects something else at the marked place; docs/language.md has it on one page.",
    ),
    code(
        "B0104",
        "too complicated",
        "Text nested very deep, hundreds of operators in a row, or functions that call one another through more than 64 levels, are refused. Give a part a name; write an inner function into the one that calls it.",
    ),
    code("B0105", "unknown dtype", "Dtypes of this build are f32, bf16, i32 and bool."),
    code(
        "B0106",
        "a function defined twice",
        "Functions of a derived spec replace those of its base by name; inside one text a name is used once.",
    ),
    code("B0201", "no entry", "An entry is what can be run. A model has at least `forward`."),
    code(
        "B0202",
        "too large",
        "The spec makes more blocks or operations than any model needs; usually a function that calls others many times over.",
    ),
    code(
        "B0203",
        "no row positions",
        "store and attend work at the position of each row. They use the entry's parameter pos: i32[T] unless `at` is given.",
    ),
    code("B0204", "an unreachable statement", "Nothing runs after return or yield."),
    code("B0205", "yield of several values", "A loop yields one value; run two loops for two."),
    code("B0206", "names and values do not match", "An assignment needs one value for each name."),
    code(
        "B0207",
        "a format that cannot change",
        "Only float formats round into each other; indices and truth values keep theirs.",
    ),
    code("B0208", "declared axes differ", "The axes written in the text are not those of the value."),
    code(
        "B0209",
        "integer arithmetic that would round",
        "Positions, ids and numbers made of them are exact in f32 and not in bf16. An untyped name would round them; write the type.",
    ),
    code("B0211", "an axis of two lengths", "Two operands have an axis of one name and different lengths."),
    code(
        "B0212",
        "an absent axis",
        "The operation runs along an axis that the value does not have, not even as a factor of a product axis.",
    ),
    code(
        "B0213",
        "no fixed innermost axis",
        "Without `over`, an operation runs along the innermost axis, which must have a fixed length.",
    ),
    code(
        "B0221",
        "an entry parameter without a type",
        "Entries are called from outside, so their parameters say axes, and a dtype unless it is the block's.",
    ),
    code("B0222", "no result", "A function ends with return."),
    code("B0223", "another number of results", "A function returns as many values as it declares after ->."),
    code("B0224", "another number of arguments", "The call and the declaration differ in the number of arguments."),
    code(
        "B0225",
        "recursion",
        "Functions may not call themselves, directly or through others: a block is a finite computation.",
    ),
    code(
        "B0226",
        "an argument of another kind",
        "`const` parameters take constants; caches are not passed to functions.",
    ),
    code(
        "B0231",
        "a match on something else",
        "match chooses by a layer's kind (l.column), a value that may be \"none\", or an option (options.name).",
    ),
    code(
        "B0232",
        "return inside an arm",
        "Arms that a layer's kind chooses become blocks; their last line is their value.",
    ),
    code("B0233", "an arm without a value", "If one arm has a value, all have."),
    code("B0234", "a layer loop in another place", "`for l in layers` stands directly in an entry."),
    code("B0235", "a carried name changes its type", "What a layer leaves under a name is what the next layer takes."),
    code("B0236", "no arm for a kind", "A match covers every kind that can occur."),
    code("B0237", "arms of different types", "All arms of a match leave the same types."),
    code(
        "B0238",
        "an arm that rebinds something else than a tensor",
        "Arms chosen by a layer's kind become blocks; only tensors leave a block.",
    ),
    code("B0241", "unknown name", "The name is no local, dimension or value. Functions see only their parameters."),
    code("B0242", "no parts", "Only the layer, W, kv, options and groups of values have parts after a dot."),
    code("B0243", "unknown column", "The layer has kinds only in the columns of [schedule]."),
    code("B0244", "unknown part", "The group has no member of that name."),
    code(
        "B0245",
        "a layer weight outside a layer",
        "Weights of [layer.weights] exist where a layer runs: in the loop and in functions called from it.",
    ),
    code(
        "B0246",
        "a weight that may be absent",
        "The weight has a `when` condition, and here the layer may be of another kind.",
    ),
    code("B0247", "not a number", "The operation takes tensors or numbers."),
    code("B0248", "truth value or number", "Arithmetic takes numbers; `where` is decided by truth values."),
    code("B0249", "remainder at run time", "% works on constants."),
    code(
        "B0250",
        "a power at run time",
        "x ** c exists for c = 2, 0.5, -0.5 and -1, which correctly rounded operations express.",
    ),
    code(
        "B0251",
        "several indices",
        "One index at a time; it applies to the first axis, or to the axis that the index belongs to.",
    ),
    code("B0252", "a wrong index", "An index is a constant, or an integer tensor that selects along the axis."),
    code("B0253", "a kind without a cache", "kv[l.column] needs a cache kind named like each kind of the column."),
    code(
        "B0254",
        "an index out of range",
        "A constant index is a whole number below the length of the axis, and a shift one up to it.",
    ),
    code(
        "B0255",
        "a rename to another length",
        "`as` gives an axis a new name; if the name is a dimension, lengths must agree.",
    ),
    code("B0256", "a loop over another number of values", "`for a, b in x, y` has one name per value."),
    code("B0257", "a loop along two axes", "Values walked together have the same innermost axis."),
    code("B0258", "a loop without yield", "A loop's body ends with yield."),
    code("B0259", "a yield that does not depend on the loop", "The same value for every step belongs before the loop."),
    code("B0260", "nothing to index", "A single number has no axis."),
    code(
        "B0261",
        "named arguments of a function",
        "Functions of the spec take positional arguments; only builtins have named ones.",
    ),
    code(
        "B0262",
        "unknown function",
        "The name is neither a function of the spec, nor one brought in by `use`, nor a builtin.",
    ),
    code("B0263", "unknown named argument", "The builtin has no argument of that name."),
    code(
        "B0264",
        "`over` without an axis",
        "`over = axis` takes the bare name of an axis, and `order` of a sum `any` or `fold`.",
    ),
    code(
        "B0265",
        "a reduction over rows",
        "Rows of a step stay apart: no operation mixes them except attention through the cache.",
    ),
    code("B0266", "a reduction over the loop's axis", "Inside for … yield one index is seen at a time."),
    code("B0267", "a run-time count", "How many entries top takes is a constant."),
    code("B0268", "a count out of range", "top takes between one and all entries of the axis."),
    code("B0269", "no halves", "halves and turn need an innermost axis declared as \"2.half\" in [axes]."),
    code("B0270", "no whole for two halves", "concat joins two halves into the axis declared as \"2.half\" in [axes]."),
    code(
        "B0271",
        "a running total in a loop",
        "Steps of for … yield do not see each other, so a name from outside cannot be assigned inside.",
    ),
    code(
        "B0281",
        "nothing to contract",
        "linear contracts the axes that end both x and the weight; at least one must.",
    ),
    code(
        "B0282",
        "an axis twice in a product",
        "The product would have one axis from x and one of the same name from the weight. Rename one with `as`.",
    ),
    code("B0283", "no cache", "store takes a cache kind, attend the result of a store."),
    code(
        "B0284",
        "a cache row of other axes",
        "What is stored must have the axes that [kv] declares, and one row axis.",
    ),
    code("B0285", "positions in another form", "`at` takes one i32 per row."),
    code("B0286", "no mask", "attend's third argument is causal or all."),
    code(
        "B0287",
        "no scale",
        "attend's scores are multiplied by a constant `scale`, usually n ** -0.5 for n elements a head.",
    ),
    code(
        "B0288",
        "heads that do not fit",
        "Queries have axes rows, heads, elements; heads is a multiple of the cache's heads and elements are the cache's.",
    ),
    code(
        "B0289",
        "a sink of another shape",
        "The sink of an attention has one number for each query head: the query's axes but its rows and its last one.",
    ),
    code(
        "B0290",
        "a cache that a layer does not keep",
        "A layer stores rows in a cache kind whose `layers` in [kv] leaves that layer out.",
    ),
    code(
        "B0291",
        "a typed constant of the layer",
        "`const c: f32` is computed once; a number that depends on the layer has no type and rounds where it is used.",
    ),
    code(
        "B0292",
        "no function of constants",
        "Constants use + - * / ** % comparisons, sqrt, abs, exp, log, sin, cos, iota, min, max, where.",
    ),
    code("B0293", "a constant from run-time values", "A const is known when the spec is compiled."),
    code("B0294", "constant vectors of different axes", "Constant vectors combine entry by entry."),
    code("B0295", "iota along something else", "iota counts along a dimension of moderate length."),
    code("B0296", "a layer number too complicated", "Numbers that depend on the layer use + - * / ** and sqrt."),
    code(
        "B0297",
        "operands of a block's operation do not fit",
        "`shift`, `walk`, `probs` and `accept` want the axes and formats that docs/ops.md states. An expression rounds to the block's dtype where it becomes an operand: give it a name of type f32.",
    ),
    code(
        "B0301",
        "warning: an unused weight",
        "The checkpoint's tensor would be loaded for nothing. Remove the weight, or set it to \"none\" in a spec that extends its base.",
    ),
    code(
        "B0302",
        "warning: a narrowing name",
        "An untyped name holds the block's dtype. Here everything under it is f32, so precision is lost that the author may want. Write the type to settle it, or [lints] narrowing = false.",
    ),
    code(
        "B0303",
        "warning: a value that nothing takes",
        "The last line of the layer loop computes a value without binding it.",
    ),
    code(
        "B0304",
        "warning: an entry that nothing reads",
        "A dimension, value, option, schedule column, cache kind or function of your file that no text uses. Usually a misspelt name of the base.",
    ),
    code(
        "B0305",
        "warning: an exclusion that names nothing",
        "The list of what a quantised checkpoint leaves unquantised has an entry that is no module of the model. Usually a part that the model does not have; else a misspelt name, and the module it means is taken for quantised.",
    ),
    code(
        "B0306",
        "warning: tensors that are stored otherwise than the config says",
        "Where tensors stand beside a config, a matrix is quantised if its tensors are: codes with scales, or floats. Quantisers leave what is no linear module to them, such as experts in one tensor, and do not list it.",
    ),
    code(
        "B0307",
        "warning: a value that a checkpoint must give",
        "A value of the spec is \"required\": no default would be right. The spec is read with 0 in its place, and is compiled only when a spec that extends it, or a checkpoint's config, gives the number.",
    ),
    code(
        "B0308",
        "warning: numbers that a checkpoint lacks",
        "The config says that inputs, or cached rows, become codes under numbers of the checkpoint, and the files beside it lack some. They are 1 then, and `[stored]` says numbers = \"some\". Elsewhere such a checkpoint is refused when it is loaded.",
    ),
    code(
        "B0309",
        "warning: a file of tensors that cannot be read",
        "Headers of files beside a config say what is quantised. Where one cannot be read, the config alone counts; the weights themselves cannot be loaded from such a file.",
    ),
    code(
        "B0310",
        "warning: codes that are to be multiplied out",
        "A tensor beside the config holds codes with scales, and the config says nothing of it, or the spec keeps that weight as it is. It is loaded with `--widen` only, which multiplies codes and scales out.",
    ),
    code("B0401", "not a config", "config.json must be a JSON object."),
    code("B0402", "unknown architecture", "No spec built into the compiler has this model_type and architecture."),
    code(
        "B0403",
        "a quantised checkpoint that is not read",
        "Read are compressed-tensors `float-quantized` (e4m3, a scale per row; inputs per token or unquantised) and ModelOpt `NVFP4` and `W4A16_NVFP4`, with cached rows in e4m3 or unquantised. What says something else, or nothing known, is named.",
    ),
    code(
        "B0404",
        "a case the base spec does not compute",
        "The base's [import] table demands another setting of this key.",
    ),
    code("B0405", "a dtype that cannot be imported", "Values are stored as bfloat16 or float32."),
    code(
        "B0406",
        "not a number in the config",
        "The base's [import] table reads a number, or for a value also true, false or null, from this key.",
    ),
    code("B0407", "not a list of kinds", "The base's [import] table reads one kind per layer from this key."),
    code("B0408", "not token ids", "The base's [import] table reads a number or a list of token ids from this key."),
    code(
        "B0409",
        "a key without meaning",
        "Every key of a config must be used, demanded or ignored by the base's [import] table, so that nothing changes the model in silence.",
    ),
    code(
        "B0410",
        "a word that chooses nothing",
        "The base's [import.options] table lets this key choose among the alternatives of one of [options], and has no such alternative.",
    ),
    code(
        "B0411",
        "a pattern that names nothing",
        "Lists of a quantisation config hold module names and patterns: `re:` and a regular expression for compressed-tensors, `*` for ModelOpt. An entry of `targets` names at least one module.",
    ),
    code(
        "B0412",
        "a weight of which only parts are quantised",
        "A weight that is spread over many tensors, such as experts, is one value: all its parts are quantised, or none.",
    ),
    code(
        "B0413",
        "a matrix that the spec keeps plain",
        "The targets of a quantisation config name a module whose weight the spec pins to a dtype or marks `quant = false`.",
    ),
    code(
        "B0414",
        "two configs that disagree",
        "quantization_config in config.json and the file hf_quant_config.json beside it say the same twice: algorithm, inputs, exclusions. What only one of them says holds; where both speak, they must agree.",
    ),
    code(
        "B0415",
        "an index that its folder contradicts",
        "model.safetensors.index.json says which file of the same folder each tensor is in. It must be JSON with such a weight_map, its files plain names, and all of them there, unless none is: a spec is compiled without weights.",
    ),
    code(
        "B0416",
        "tensors in codes that nothing describes",
        "A tensor beside the config holds codes of a quantised matrix without scales, or in another format than the config says. No product could read it.",
    ),
    code("B0999", "a defect of the compiler", "Please report the spec that leads here."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_are_unique() {
        assert!(CODES.windows(2).all(|w| w[0].code < w[1].code));
    }
}
