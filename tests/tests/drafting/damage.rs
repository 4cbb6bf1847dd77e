//! Damage to what binds a drafter to its model: each fact is changed by itself, in an artifact whose files agree with their
//! hashes, and loading says which.

use super::{compiled, drafter};
use artifact::{Artifact, Drafter};
use ir::{Buffer, KvKind, KvLayout, Place};
use std::path::Path;
use suites::nano;

/// What is changed, what of it, and what loading must say.
type Damage = (&'static str, fn(&mut Artifact), &'static str);

fn own(artifact: &mut Artifact) -> &mut Drafter {
    artifact.drafter.as_mut().expect("a drafter")
}

/// The rows that the model leaves, in the artifact's only place for them.
fn place(artifact: &Artifact) -> (String, Buffer) {
    let entry = &artifact.plan.entries[0];
    let name = entry.captures[0].place.clone();
    let buffer = entry.buckets[0].shared[&name];
    (name, buffer)
}

/// Where the drafter's shortest blocks read these rows.
fn readers(artifact: &mut Artifact) -> impl Iterator<Item = &mut Buffer> {
    let (_, buffer) = place(artifact);
    let buckets = own(artifact).blocks[0].plan.entries.iter_mut().flat_map(|e| e.buckets.iter_mut());
    buckets.flat_map(|b| b.shared.values_mut()).filter(move |own| **own == buffer)
}

/// The drafter's cache kind in facts and plans of all lengths of block, which agree afterwards as before.
fn kinds(artifact: &mut Artifact, change: fn(&mut KvKind, &mut KvLayout)) {
    for block in &mut own(artifact).blocks {
        let kinds = block.kernels.facts.kv.iter_mut().zip(&mut block.plan.kv);
        kinds.for_each(|(kind, layout)| change(kind, layout));
    }
}

fn lives_in(artifact: &mut Artifact, home: &str) {
    for block in &mut own(artifact).blocks {
        block.kernels.facts.kv.iter_mut().for_each(|kind| kind.lives_in = Some(home.to_owned()));
        block.plan.kv.iter_mut().for_each(|layout| layout.lives_in = Some(home.to_owned()));
    }
}

/// Of the rows that the model leaves for its drafter: `captures.rs` of the verifier.
const LEFT: [Damage; 8] = [
    ("no rows are left", |a| a.plan.entries[0].captures.clear(), "other rows for a drafter than the model exports"),
    ("other layers", |a| a.plan.entries[0].captures[0].layers[0] = 0, "other rows for a drafter"),
    (
        "no place in a bucket",
        |a| {
            let (name, _) = place(a);
            a.plan.entries[0].buckets[1].shared.shift_remove(&name);
        },
        "has no place",
    ),
    (
        "another place in a bucket",
        |a| {
            let (name, _) = place(a);
            let bucket = a.plan.entries[0].buckets.last_mut().expect("a bucket");
            bucket.shared[&name].offset_bytes += 64;
        },
        "another place than in other buckets",
    ),
    (
        "a place that is too small",
        |a| {
            let (name, _) = place(a);
            a.plan.entries[0].buckets.iter_mut().for_each(|b| b.shared[&name].bytes = 64);
        },
        "does not hold its rows",
    ),
    (
        "something else is written there",
        |a| {
            let (_, buffer) = place(a);
            let programs = a.plan.entries[0].buckets[0].programs.iter_mut();
            let mut places = programs.flat_map(|p| &mut p.places);
            let written = places.find_map(|p| if let Place::Arena(b) = p { Some(b) } else { None });
            written.expect("a value").offset_bytes = buffer.offset_bytes;
        },
        "a value is written to the place of",
    ),
    ("a layer that there is not", |a| *last_layer(a) = 99, "layer 99"),
    ("layers that do not ascend", |a| a.kernels.facts.exports[0].layers.reverse(), "do not ascend"),
];

fn last_layer(artifact: &mut Artifact) -> &mut usize {
    artifact.plan.entries[0].captures[0].layers[2] = 99;
    artifact.kernels.facts.exports[0].layers.last_mut().expect("a layer")
}

/// Of the drafter against its model: `Drafter::check`.
const BOUND: [Damage; 12] = [
    ("lengths in another order", |a| own(a).blocks.reverse(), "do not ascend"),
    ("another length", |a| own(a).blocks[0].tokens = 3, "3 rows is for another length"),
    (
        "other weights of one length",
        |a| {
            own(a).blocks[0].kernels.facts.weights.pop();
        },
        "no weight `target.head`",
    ),
    (
        "other rows than the model leaves",
        |a| own(a).blocks.iter_mut().for_each(|b| b.kernels.facts.captures[0].layers[0] = 3),
        "other rows than the model exports",
    ),
    ("rows are read from a smaller place", |a| readers(a).for_each(|own| own.bytes -= 64), "its shared place"),
    ("rows are read elsewhere", |a| readers(a).for_each(|own| own.offset_bytes += 64), "its shared place"),
    ("a home that there is not", |a| lives_in(a, "nowhere"), "lives in `nowhere`, which the model does not have"),
    ("another home", |a| lives_in(a, "sliding"), "other pages than `sliding`"),
    (
        "another slot",
        |a| {
            kinds(a, |kind, layout| {
                kind.shared_slots -= 1;
                layout.first -= layout.layer_stride;
            });
        },
        "other pages than `full`",
    ),
    ("a page of another length", |a| kinds(a, |_, layout| layout.page_tokens *= 2), "share memory"),
    (
        "a lent weight of another length",
        |a| {
            let axis = a.kernels.facts.weights.iter().find(|w| w.name == "embed").expect("a weight").axes[1].clone();
            let facts = own(a).blocks.iter_mut().map(|block| &mut block.kernels.facts);
            let lent = facts.flat_map(|f| f.weights.iter_mut().filter(|w| w.borrowed && w.name.ends_with("embed")));
            lent.for_each(|w| w.axes[0] = axis.clone());
        },
        "target.embed",
    ),
    (
        "weights that do not lie as the model's",
        |a| own(a).memory.pieces.truncate(1),
        "`drafter` does not hold together",
    ),
];

fn refused(artifact: &Artifact, (what, change, says): Damage, work: &Path) {
    let mut damaged = artifact.clone();
    change(&mut damaged);
    let out = work.join("damaged");
    drop(std::fs::remove_dir_all(&out));
    match damaged.write(&out, &[]).map_err(|e| e.to_string()) {
        Ok(_) => {
            let error = Artifact::load(&out).map(drop).expect_err(what).to_string();
            assert!(error.contains(says), "{what}: {error}");
            println!("{what}: {error}");
        }
        Err(error) => panic!("{what} is not written: {error}"),
    }
}

#[test]
fn damage_between_a_model_and_its_drafter_is_found() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = compiled(&nano(), &drafter(), work.path());
    LEFT.into_iter().chain(BOUND).for_each(|damage| refused(&artifact, damage, work.path()));
}
