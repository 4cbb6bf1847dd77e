//! From checkpoint to memory: on every rank, each element of the example checkpoint lies exactly once in its group's
//! memory, through the packing, interleaving and splitting that passes chose.

mod compiled;

use artifact::{RecipeForm, WeightRecipe, recipes, weight_memory};
use compiled::compiled;
use std::collections::BTreeMap;
use suites::nano;

/// Elements of every tensor of a checkpoint, by name.
fn tensors() -> BTreeMap<String, usize> {
    let bytes = std::fs::read(nano().join("model.safetensors")).expect("checkpoint");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("header");
    let tensor = |(name, entry): (&String, &serde_json::Value)| {
        let shape = entry.get("shape")?.as_array()?;
        Some((name.clone(), shape.iter().map(|n| n.as_u64().expect("length") as usize).product()))
    };
    header.as_object().expect("object").iter().filter_map(tensor).collect()
}

/// The form that the checkpoint holds.
fn form<'a>(recipe: &'a WeightRecipe, tensors: &BTreeMap<String, usize>) -> &'a RecipeForm {
    let present = |form: &&RecipeForm| tensors.contains_key(&form.tensor_name(0));
    recipe.forms.iter().find(present).unwrap_or_else(|| panic!("{} is not in the checkpoint", recipe.title()))
}

/// For every tensor, how many ranks hold each element. Fails if one rank holds an element twice.
fn holders(mesh: &str) -> BTreeMap<String, Vec<u8>> {
    let kernels = compiled("beam-nano.toml", "h200-bf16", mesh, true).kernels;
    let recipes = recipes(&kernels.facts);
    let memory = weight_memory(&kernels, &recipes).expect("places");
    memory.check(&recipes).expect("placed once");
    assert!(memory.pieces.iter().any(|p| p.parts.len() > 1), "nothing is packed");
    assert!(memory.pieces.iter().any(|p| p.interleave.is_some()), "nothing is interleaved");
    let tensors = tensors();
    let empty = || -> BTreeMap<String, Vec<u8>> { tensors.iter().map(|(n, len)| (n.clone(), vec![0; *len])).collect() };
    let mut all = empty();
    for rank in 0..memory.mesh.ranks() {
        let mut own = empty();
        for piece in &memory.pieces {
            let forms: Vec<&RecipeForm> = piece
                .parts
                .iter()
                .map(|part| {
                    let same =
                        |r: &&WeightRecipe| (r.scope, r.layer, &r.name) == (piece.scope, piece.layer, &part.weight);
                    form(recipes.iter().find(same).expect("recipe"), &tensors)
                })
                .collect();
            for element in 0..piece.elements().expect("countable") {
                let (part, at) = piece.source(&memory.mesh, rank, element).expect("a source");
                let (tensor, at) = forms[part].locate(at).expect("a place on disk");
                own.get_mut(&forms[part].tensor_name(tensor)).expect("tensor")[at as usize] += 1;
            }
        }
        for (name, counts) in own {
            let sums = all.get_mut(&name).expect("tensor");
            for (sum, count) in sums.iter_mut().zip(counts) {
                assert!(count <= 1, "{name} lies twice on rank {rank} of {mesh:?}");
                *sum += count;
            }
        }
    }
    all
}

#[test]
fn one_device_holds_every_element_once() {
    for (name, counts) in holders("") {
        assert!(counts.iter().all(|n| *n == 1), "{name} is not whole");
    }
}

#[test]
fn ranks_hold_equal_shares_and_nothing_is_lost() {
    let mut shares: BTreeMap<u8, usize> = BTreeMap::new();
    for (name, counts) in holders("tp=2,ep=2") {
        assert!(counts.iter().all(|n| *n == counts[0] && *n > 0), "{name} is held unevenly");
        *shares.entry(counts[0]).or_default() += counts.len();
    }
    // Experts are cut by both axes, attention and the dense layers by one, norms and the router by none.
    assert_eq!(shares.keys().copied().collect::<Vec<u8>>(), [1, 2, 4]);
}
