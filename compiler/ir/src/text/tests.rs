//! `parse ∘ print = id` on random modules, and no panic on damaged text.

use super::{parse_kernels, parse_module, print_kernels, print_module};
use crate::*;
use indexmap::IndexMap;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-z_][a-z0-9_.#]{0,6}",
        1 => "[0-9]{1,3}",
        1 => Just("1e".to_owned()),
        1 => Just("rows".to_owned()),
        1 => ".{0,6}",
    ]
}

fn axis() -> impl Strategy<Value = Axis> {
    let named = prop_oneof![Just("T".to_owned()), Just("hidden".to_owned()), Just("half".to_owned()), name()];
    let extent = prop_oneof![(1u64..9).prop_map(Extent::Fixed), Just(Extent::Rows)];
    (named, extent).prop_map(|(name, extent)| Axis { name, extent })
}

fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::ALL.to_vec())
}

fn tensor() -> impl Strategy<Value = TensorType> {
    (dtype(), vec(axis(), 0..4), option::of(name())).prop_map(|(dtype, axes, indexes)| TensorType {
        dtype,
        axes,
        indexes,
    })
}

fn ty() -> impl Strategy<Value = Type> {
    let leaf = prop_oneof![8 => tensor().prop_map(Type::Tensor), 1 => Just(Type::Cache)];
    leaf.prop_recursive(2, 6, 3, |inner| vec(inner, 0..3).prop_map(Type::Tuple))
}

fn f32_number() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("NaN never equals itself", |x| !x.is_nan())
}

fn f64_number() -> impl Strategy<Value = f64> {
    any::<u64>().prop_map(f64::from_bits).prop_filter("NaN never equals itself", |x| !x.is_nan())
}

fn const_expr() -> impl Strategy<Value = ConstExpr> {
    let leaf = prop_oneof![f64_number().prop_map(ConstExpr::Num), Just(ConstExpr::Layer)];
    leaf.prop_recursive(4, 12, 2, |inner| {
        let unary = proptest::sample::select(vec![ConstUnary::Neg, ConstUnary::Sqrt]);
        let binary = proptest::sample::select(vec![
            ConstBinary::Add,
            ConstBinary::Sub,
            ConstBinary::Mul,
            ConstBinary::Div,
            ConstBinary::Pow,
        ]);
        prop_oneof![
            (unary, inner.clone()).prop_map(|(op, a)| ConstExpr::Unary(op, Box::new(a))),
            (binary, inner.clone(), inner).prop_map(|(op, a, b)| ConstExpr::Binary(op, Box::new(a), Box::new(b))),
        ]
    })
}

fn order() -> impl Strategy<Value = Order> {
    let leaf = proptest::sample::select(vec![Order::Any, Order::Fold, Order::Serial, Order::Fused]);
    leaf.prop_recursive(3, 3, 1, |inner| {
        (any::<u64>(), inner).prop_map(|(parts, inner)| Order::Split { parts, inner: Box::new(inner) })
    })
}

fn kv() -> impl Strategy<Value = KvRef> {
    prop_oneof![name().prop_map(KvRef::Kind), name().prop_map(KvRef::ByColumn)]
}

fn packed() -> impl Strategy<Value = WeightRef> {
    let of_layer = (0..9usize, name()).prop_map(|(layer, name)| WeightRef::OfLayer { layer, name });
    let part = prop_oneof![name().prop_map(WeightRef::Model), name().prop_map(WeightRef::Layer), of_layer];
    (name(), vec(part, 0..3)).prop_map(|(into, parts)| WeightRef::Packed { into, parts })
}

fn leaf_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        name().prop_map(Op::Input),
        name().prop_map(|n| Op::Weight(WeightRef::Model(n))),
        name().prop_map(|n| Op::Weight(WeightRef::Layer(n))),
        name().prop_map(|n| Op::Weight(WeightRef::FirstLayer(n))),
        (name(), name()).prop_map(|(layer, last)| Op::Weight(WeightRef::Next { layer, last })),
        packed().prop_map(Op::Weight),
        vec(f32_number(), 0..4).prop_map(Op::Literal),
        const_expr().prop_map(Op::Scalar),
    ]
}

fn row_op() -> impl Strategy<Value = Op> {
    let reduce = proptest::sample::select(vec![ReduceOp::Sum, ReduceOp::Max]);
    let what = proptest::sample::select(vec![TopWhat::Values, TopWhat::Ids]);
    prop_oneof![
        proptest::sample::select(Unary::ALL.to_vec()).prop_map(|(f, _)| Op::Unary(f)),
        proptest::sample::select(Binary::ALL.to_vec()).prop_map(|(f, _)| Op::Binary(f)),
        Just(Op::Fma),
        Just(Op::Select),
        dtype().prop_map(Op::Round),
        (reduce, name(), order()).prop_map(|(op, axis, order)| Op::Reduce { op, axis, order }),
        (any::<u64>(), name(), name(), what).prop_map(|(k, axis, into, what)| Op::Top { k, axis, into, what }),
        (any::<u64>(), name()).prop_map(|(k, axis)| Op::InTop { k, axis }),
        vec(name(), 0..3).prop_map(|over| Op::BlockRound { over }),
        name().prop_map(|axis| Op::Gather { axis }),
        (name(), any::<u64>(), any::<u64>(), option::of(name())).prop_map(|(axis, start, len, into)| Op::Slice {
            axis,
            start,
            len,
            into
        }),
        name().prop_map(|into| Op::Concat { into }),
        name().prop_map(|axis| Op::Split { axis }),
        name().prop_map(|into| Op::Merge { into }),
        (name(), name()).prop_map(|(from, to)| Op::Rename { from, to }),
    ]
}

fn other_op() -> impl Strategy<Value = Op> {
    let mask = proptest::sample::select(vec![Mask::Causal, Mask::All]);
    prop_oneof![
        (vec(name(), 0..3), order()).prop_map(|(contract, order)| Op::Linear { contract, order }),
        (name(), order()).prop_map(|(axis, order)| Op::Dot { axis, order }),
        (kv(), any::<bool>()).prop_map(|(kv, scratch)| Op::Store { kv, scratch }),
        (name(), any::<u64>()).prop_map(|(axis, by)| Op::Shift { axis, by }),
        proptest::sample::select(WalkWhat::ALL.to_vec()).prop_map(|what| Op::Walk { what }),
        Just(Op::Probs),
        accept(),
        (kv(), mask, const_expr(), order()).prop_map(|(kv, mask, scale, order)| Op::Attend { kv, mask, scale, order }),
        (vec(name(), 0..3), order()).prop_map(|(over, order)| Op::AllReduce { over, order }),
        (name(), vec(name(), 0..3), name()).prop_map(|(axis, over, into)| Op::AllGather { axis, over, into }),
        (name(), vec(name(), 0..3), name()).prop_map(|(axis, over, into)| Op::ReduceScatter { axis, over, into }),
        (name(), vec(name(), 0..3)).prop_map(|(axis, over)| Op::Own { axis, over }),
        name().prop_map(Op::Call),
        (name(), vec((name(), name()), 0..3)).prop_map(|(column, arms)| Op::Match { column, arms }),
        (name(), 0usize..9).prop_map(|(block, carried)| Op::Layers { block, carried }),
        (0usize..9).prop_map(Op::Item),
    ]
}

fn accept() -> impl Strategy<Value = Op> {
    let rule = proptest::sample::select(AcceptRule::ALL.to_vec());
    let what = proptest::sample::select(AcceptWhat::ALL.to_vec());
    (rule, what).prop_map(|(rule, what)| Op::Accept { rule, what })
}

/// Operations with arbitrary operands: the text form does not ask whether they make sense.
fn graph() -> impl Strategy<Value = Graph> {
    let op = prop_oneof![2 => leaf_op(), 3 => row_op(), 2 => other_op()];
    let node = (op, ty(), option::of(name()), vec(any::<proptest::sample::Index>(), 0..3));
    let outputs = vec((name(), any::<proptest::sample::Index>()), 0..3);
    (vec(node, 0..12), outputs, vec(any::<proptest::sample::Index>(), 0..3)).prop_map(|(nodes, outputs, inputs)| {
        let mut builder = GraphBuilder::new();
        for (i, (op, ty, wanted, operands)) in nodes.into_iter().enumerate() {
            let leaf = op.is_leaf() || i == 0;
            let operands: Vec<ValueId> =
                if leaf { Vec::new() } else { operands.iter().map(|o| ValueId(o.index(i) as u32)).collect() };
            let id = builder.add(op, &operands, ty, None);
            if let Some(wanted) = wanted {
                builder.name(id, &wanted);
            }
        }
        let mut graph = builder.finish();
        if !graph.is_empty() {
            let len = graph.len();
            graph.outputs = outputs.into_iter().map(|(n, v)| (n, ValueId(v.index(len) as u32))).collect();
            graph.inputs = inputs.into_iter().map(|v| ValueId(v.index(len) as u32)).collect();
        }
        graph
    })
}

fn fixed_axis() -> impl Strategy<Value = Axis> {
    (prop_oneof![Just("hidden".to_owned()), name()], 1u64..9).prop_map(|(n, x)| Axis::fixed(n, x))
}

fn layout() -> impl Strategy<Value = DiskLayout> {
    prop_oneof![
        3 => Just(DiskLayout::Plain),
        1 => name().prop_map(|scales| DiskLayout::Nibbles { scales }),
        1 => vec(name(), 0..3).prop_map(|also| DiskLayout::Same { also }),
        1 => vec(name(), 0..3).prop_map(|also| DiskLayout::Largest { also }),
        1 => proptest::sample::select(vec![DiskLayout::Number, DiskLayout::RowCodes, DiskLayout::RowScales]),
    ]
}

fn weight() -> impl Strategy<Value = Weight> {
    let form = (name(), vec(name(), 0..2), option::of(vec(any::<[u64; 2]>(), 0..3)), vec(any::<u64>(), 0..3), layout())
        .prop_map(|(tensor, spread, slice, shape, layout)| DiskForm { tensor, spread, slice, shape, layout });
    let when = option::of((name(), name()).prop_map(|(column, kind)| When { column, kind }));
    let scope = proptest::sample::select(vec![Scope::Model, Scope::Layer]);
    let axes = vec(vec(fixed_axis(), 1..3), 0..3);
    let first = (name(), scope, axes, dtype(), any::<[bool; 3]>());
    (first, when, option::of(vec(0usize..9, 0..6)), option::of(f32_number()), vec(form, 0..3)).prop_map(
        |((name, scope, axes, dtype, [pinned, quant, borrowed]), when, only, absent, disk)| Weight {
            name,
            scope,
            axes,
            dtype,
            pinned,
            when,
            only,
            absent,
            disk,
            quant,
            borrowed,
            span: None,
        },
    )
}

fn stored() -> impl Strategy<Value = Stored> {
    let plain = (name(), option::of(vec(0usize..9, 0..6))).prop_map(|(weight, layers)| StoredPlain { weight, layers });
    let names = (name(), name(), option::of(name()), option::of(name()))
        .prop_map(|(codes, scale, global, input)| StoredNames { codes, scale, global, input });
    let kv = (vec(name(), 0..3), vec(name(), 0..3)).prop_map(|(k_scale, v_scale)| StoredKv { k_scale, v_scale });
    let format = proptest::sample::select(StoredFormat::ALL.to_vec());
    let inputs = proptest::sample::select(StoredInputs::ALL.to_vec());
    (format, inputs, vec(plain, 0..3), option::of(kv), names, any::<bool>()).prop_map(
        |(format, inputs, plain, kv, names, some_numbers)| Stored {
            format,
            inputs,
            plain,
            kv,
            names,
            some_numbers,
            span: None,
        },
    )
}

fn kinds() -> impl Strategy<Value = LayerKinds> {
    vec((name(), name()), 0..3).prop_map(|pairs| pairs.into_iter().collect())
}

fn facts() -> impl Strategy<Value = Facts> {
    let dims = vec((name(), 1u64..9), 0..4).prop_map(|d| d.into_iter().collect::<IndexMap<_, _>>());
    let products = vec((name(), vec(name(), 0..3)), 0..3).prop_map(|d| d.into_iter().collect::<IndexMap<_, _>>());
    let shard = vec((name(), vec(name(), 0..3)), 0..3).prop_map(|d| d.into_iter().collect::<IndexMap<_, _>>());
    let options = vec((name(), name()), 0..3).prop_map(|d| d.into_iter().collect::<IndexMap<_, _>>());
    let schedule = vec((kinds(), 1usize..4), 0..3)
        .prop_map(|runs| runs.into_iter().flat_map(|(k, n)| std::iter::repeat_n(k, n)).collect::<Vec<_>>());
    let kv = (name(), vec(0usize..9, 0..4), vec(fixed_axis(), 0..3), vec(fixed_axis(), 0..3), option::of(any::<u64>()))
        .prop_map(|(name, layers, k, v, window)| KvKind {
            name,
            layers,
            k,
            v,
            window,
            lives_in: None,
            shared_slots: 0,
        });
    let kv = (kv, option::of(name()), 0u64..3).prop_map(|(kind, lives_in, shared_slots)| KvKind {
        lives_in,
        shared_slots,
        ..kind
    });
    let capture = || {
        (name(), name(), name(), vec(0usize..9, 0..4)).prop_map(|(name, entry, value, layers)| Capture {
            name,
            entry,
            value,
            layers,
        })
    };
    let runtime =
        (option::of(any::<u64>()), vec(any::<u32>(), 0..3), option::of(any::<u32>()), option::of(any::<u32>()))
            .prop_map(|(context, stop, start, pad)| RuntimeFacts { context, stop, start, pad });
    let first = (name(), dtype(), dims, products, shard, options, schedule);
    (
        first,
        vec(weight(), 0..3),
        vec(kv, 0..3),
        option::of(stored()),
        [vec(capture(), 0..3), vec(capture(), 0..3)],
        runtime,
        vec(name(), 0..2),
    )
        .prop_map(
            |(
                (name, act, dims, products, shard, options, schedule),
                weights,
                kv,
                stored,
                [captures, exports],
                runtime,
                files,
            )| {
                Facts {
                    name,
                    act,
                    dims,
                    products,
                    shard,
                    options,
                    schedule,
                    weights,
                    kv,
                    stored,
                    captures,
                    exports,
                    runtime,
                    files,
                }
            },
        )
}

fn entry() -> impl Strategy<Value = Entry> {
    let classes = vec((name(), kinds(), graph()), 0..3);
    let instances = vec((0usize..6, any::<proptest::sample::Index>()), 0..6);
    (name(), graph(), classes, instances, graph()).prop_map(|(name, first, classes, instances, last)| {
        let mut unique = Vec::new();
        for (name, kinds, graph) in classes {
            if unique.iter().all(|c: &Class| c.name != name) {
                unique.push(Class { name, kinds, graph });
            }
        }
        let instances = instances
            .into_iter()
            .filter(|_| !unique.is_empty())
            .map(|(layer, class)| Instance { layer, class: class.index(unique.len()) })
            .collect();
        Entry { name, first, classes: unique, instances, last }
    })
}

fn placement() -> impl Strategy<Value = Placement> {
    vec((name(), vec(name(), 0..3)), 1..3).prop_map(|axes| axes.into_iter().collect())
}

fn sharding() -> impl Strategy<Value = Sharding> {
    let mesh = vec((name(), 1u64..5), 0..3)
        .prop_map(|axes| axes.into_iter().collect::<IndexMap<_, _>>())
        .prop_map(|axes| Mesh::new(axes).expect("few ranks"));
    let scope = proptest::sample::select(vec![Scope::Model, Scope::Layer]);
    let weight = (scope, name(), placement()).prop_map(|(scope, name, axes)| PlacedWeight { scope, name, axes });
    let kv = vec((name(), placement()), 0..3).prop_map(|kv| kv.into_iter().collect::<IndexMap<_, _>>());
    (mesh, vec(weight, 0..3), kv, option::of(placement())).prop_map(|(mesh, weights, kv, rows)| Sharding {
        mesh,
        weights,
        kv,
        rows: rows.unwrap_or_default(),
    })
}

fn module() -> impl Strategy<Value = Module> {
    (facts(), option::of(sharding()), vec(name(), 0..2), vec(entry(), 0..3))
        .prop_map(|(facts, sharding, relaxations, entries)| Module { facts, sharding, relaxations, entries })
}

/// A graph with its operations in regions, in any order; the text form does not ask whether that could run.
fn kernel_graph() -> impl Strategy<Value = KernelGraph> {
    let kind = proptest::sample::select(KernelKind::ALL.to_vec());
    let regions = vec((name(), kind), 1..4);
    (name(), kinds(), graph(), regions, vec(any::<proptest::sample::Index>(), 12)).prop_map(
        |(name, kinds, graph, names, homes)| {
            let count = names.len();
            let mut regions: Vec<Region> =
                names.into_iter().map(|(name, kind)| Region { name, kind, values: Vec::new() }).collect();
            for (id, home) in graph.ids().zip(homes).filter(|(id, _)| !graph.node(*id).op.is_leaf()) {
                regions[home.index(count)].values.push(id);
            }
            KernelGraph { name, kinds, graph, regions }
        },
    )
}

fn kernel_module() -> impl Strategy<Value = KernelModule> {
    let entry = (name(), vec(kernel_graph(), 2..5), vec((0usize..6, any::<proptest::sample::Index>()), 0..6));
    let entry = entry.prop_map(|(name, mut graphs, instances)| {
        for (i, graph) in graphs.iter_mut().enumerate() {
            graph.name.push_str(&format!(".{i}"));
        }
        let classes = graphs.len() - 1;
        let instances =
            instances.into_iter().map(|(layer, class)| Instance { layer, class: class.index(classes) }).collect();
        KernelEntry { name, graphs, instances }
    });
    let layout = prop_oneof![
        Just(Layout::RowMajor),
        any::<[u64; 2]>().prop_map(|[parts, granule]| Layout::Interleaved { parts, granule }),
    ];
    let weight = prop_oneof![packed(), name().prop_map(WeightRef::Layer), name().prop_map(WeightRef::Model)];
    let layouts = vec((weight, layout).prop_map(|(weight, layout)| WeightLayout { weight, layout }), 0..3);
    (module(), layouts, vec(entry, 0..3)).prop_map(|(module, layouts, entries)| KernelModule {
        facts: module.facts,
        sharding: module.sharding,
        relaxations: module.relaxations,
        layouts,
        entries,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn printing_and_parsing_gives_the_module_back(module in module()) {
        let text = print_module(&module, false);
        let back = parse_module(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&back, &module, "{}", text);
        prop_assert_eq!(print_module(&back, false), text);
    }

    #[test]
    fn kernels_come_back_from_their_text(module in kernel_module()) {
        let text = print_kernels(&module, false);
        let back = parse_kernels(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&back, &module, "{}", text);
        prop_assert_eq!(print_kernels(&back, false), text);
    }

    #[test]
    fn damaged_kernels_are_an_error_or_a_module_but_never_a_panic(
        module in kernel_module(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = print_kernels(&module, false).into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(found) = parse_kernels(&String::from_utf8_lossy(&bytes)) {
            let _ = crate::verify_kernels(&found);
        }
    }

    #[test]
    fn json_gives_the_module_back(module in module()) {
        let text = serde_json::to_string(&module).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let back: Module = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(back, module);
    }

    #[test]
    fn damaged_text_is_an_error_or_a_module_but_never_a_panic(
        module in module(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = print_module(&module, false).into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = parse_module(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _ = parse_module(&text);
    }
}

#[test]
fn nesting_is_bounded() {
    let split = "module m act f32 entry e { graph first () -> () { %x: f32[] = dot over n order ".to_owned()
        + &"split 2 ".repeat(100_000);
    assert!(parse_module(&split).unwrap_err().message.contains("`split` with its parts"));
    for (open, head) in [("(", "%x: "), ("(", "%x: f32[] = scalar "), ("neg(", "%x: f32[] = scalar ")] {
        let deep = open.repeat(100_000);
        let text = format!("module m act f32 entry e {{ graph first () -> () {{ {head}{deep}");
        let error = parse_module(&text).unwrap_err();
        assert!(error.message.contains("nested deeper"), "{error}");
    }
}

#[test]
fn errors_point_at_the_place() {
    let text = "module m\nact f32\nentry e {\n  graph first () -> () {\n    %x: f32[T] = input x\n  }\n";
    let error = parse_module(text).unwrap_err();
    assert_eq!((error.line, error.column), (5, 13), "{error}");
    assert_eq!(error.message, "axis `T` has no length; add it to `axes`, or write `T=…`");
    let error = parse_module("module m act f32 layers 0-99999999999: a = b").unwrap_err();
    assert!(error.message.contains("at most 65536 layers"), "{error}");
}
