//! What a drafter's text reads of its target: weights that it borrows, and dimensions.

use super::Elab;
use super::value::{Val, WeightVal};
use crate::Diagnostic;
use crate::ast::Ident;
use crate::stop::{Res, refuse};
use ir::{ConstExpr, Extent, Scope, Weight, WeightRef};

impl Elab<'_> {
    /// `target.W.name`, `target.dims.name`, up to the part that was asked for.
    pub(super) fn target_field(&mut self, root: &str, field: &Ident) -> Res<Val> {
        let Some(target) = self.resolved.target.clone() else {
            return refuse(
                Diagnostic::error("B0038", "the text reads a target, and the spec names none")
                    .at(field.span, "asked of the target")
                    .help("write target = \"spec.toml\" in [model], the spec of the model that is drafted for"),
            );
        };
        let unknown = |what: &str, known: Vec<&str>| {
            Diagnostic::error("B0038", format!("the target `{}` has no {what} `{}`", target.name, field.text))
                .at(field.span, "unknown")
                .nearest(&field.text, known)
        };
        match (root, field.text.as_str()) {
            ("target", "W" | "dims") => Ok(Val::Root(format!("target.{}", field.text))),
            ("target", _) => refuse(unknown("part", vec!["W", "dims"])),
            ("target.dims", name) => match target.dims.get(name) {
                Some(n) => Ok(Val::Const(ConstExpr::Num(*n as f64))),
                None => refuse(unknown("dimension", target.dims.keys().map(String::as_str).collect())),
            },
            (_, name) => match target.weight(Scope::Model, name) {
                Some(weight) => self.borrow(weight.clone(), field),
                None => {
                    let known = target.weights.iter().filter(|w| w.scope == Scope::Model);
                    refuse(unknown("weight of the whole model", known.map(|w| w.name.as_str()).collect()))
                }
            },
        }
    }

    /// A weight of the target's, under a name of its own.
    fn borrow(&mut self, weight: Weight, field: &Ident) -> Res<Val> {
        let facts = &self.resolved.facts;
        for axis in weight.axes.iter().flatten() {
            let (Some(here), Extent::Fixed(there)) = (facts.dims.get(&axis.name), axis.extent) else { continue };
            if *here != there {
                return refuse(
                    Diagnostic::error(
                        "B0038",
                        format!(
                            "the target's `{}` has {there} entries along `{}`, this spec says {here}",
                            weight.name, axis.name
                        ),
                    )
                    .at(field.span, "borrowed here")
                    .note(self.resolved.dim_spans.get(&axis.name).copied(), format!("{here} here"))
                    .help("a drafter belongs to one target: its width and vocabulary are the target's"),
                );
            }
        }
        let name = format!("target.{}", weight.name);
        if facts.weight(Scope::Model, &name).is_none() {
            let dtype = if weight.pinned { weight.dtype } else { facts.act };
            let borrowed = Weight { name: name.clone(), dtype, borrowed: true, span: None, ..weight };
            self.resolved.facts.weights.push(borrowed);
        }
        self.used.insert((Scope::Model, name.clone()));
        let Some(found) = self.resolved.facts.weight(Scope::Model, &name) else { return Ok(Val::Unknown) };
        Ok(Val::Weight(WeightVal { reference: WeightRef::Model(name), ty: found.ty(), chosen: None }))
    }

    /// Says which values a checkpoint must still give.
    pub(super) fn missing_values(&mut self) {
        for (name, span) in self.resolved.missing.clone() {
            self.warn(
                Diagnostic::warning("B0307", format!("nothing gives the value `{name}` yet"))
                    .at(span, "required")
                    .help(format!(
                        "write {name} = N in a spec that extends this one, or import the checkpoint's config"
                    )),
            );
        }
    }
}
