//! Warnings about what the text never reads.

use super::Elab;
use crate::Diagnostic;
use ir::{Scope, Span};
use std::collections::BTreeSet;

/// More warnings of this kind than are ever shown are not looked for.
const MOST_TOLD: usize = 100;

impl Elab<'_> {
    /// Warns of entries of the tables, and of functions, that nothing reads: usually a misspelt name in a derived spec.
    pub(super) fn unread_names(&mut self) {
        let (facts, resolved) = (&self.resolved.facts, &self.resolved);
        let mut read = self.read.clone();
        let weights = facts.weights.iter().flat_map(|w| w.axes.iter().flatten());
        let rows = facts.kv.iter().flat_map(|k| k.k.iter().chain(&k.v));
        read.extend(weights.chain(rows).map(|a| ("dims", a.name.clone())));
        for (product, factors) in &facts.products {
            read.extend(factors.iter().chain([product]).map(|f| ("dims", f.clone())));
        }
        read.insert(("dims", "layers".to_owned()));
        read.extend(facts.weights.iter().filter_map(|w| Some(("schedule", w.when.as_ref()?.column.clone()))));
        read.extend(resolved.named_elsewhere.iter().cloned());
        let own = |span: &Span| span.file == 0;
        let mut unread: Vec<(&str, &str, Span)> = Vec::new();
        unread.extend(resolved.dim_spans.iter().map(|(n, s)| ("dims", n.as_str(), *s)));
        unread.extend(resolved.values.iter().map(|(n, (s, _))| ("values", n.as_str(), *s)));
        unread.extend(resolved.option_spans.iter().map(|(n, (s, _))| ("options", n.as_str(), *s)));
        unread.extend(resolved.column_spans.iter().map(|(n, s)| ("schedule", n.as_str(), *s)));
        unread.extend(resolved.kv_spans.iter().map(|(n, s)| ("kv", n.as_str(), *s)));
        let functions = self.program.functions.iter().filter(|f| f.kind != crate::ast::FunctionKind::Entry);
        unread.extend(functions.map(|f| ("blocks", f.name.text.as_str(), f.name.span)));
        unread.retain(|(table, name, span)| own(span) && !read.contains(&(*table, (*name).to_owned())));
        unread.sort_by_key(|(_, _, span)| span.start);
        let mut found = Vec::new();
        // Rules name kinds and `l` beside dimensions: only entries of the table itself could be meant.
        let is_entry = |table: &str, name: &str| match table {
            "dims" => facts.dims.contains_key(name) && name.parse::<u64>().is_err(),
            "values" => resolved.values.contains_key(name),
            "options" => resolved.option_spans.contains_key(name),
            "schedule" => resolved.column_spans.contains_key(name),
            "kv" => resolved.kv_spans.contains_key(name),
            _ => true,
        };
        unread.truncate(MOST_TOLD);
        for (table, name, span) in unread {
            let known = read.iter().filter(|(t, n)| *t == table && is_entry(table, n)).map(|(_, n)| n.as_str());
            let known: BTreeSet<&str> = known.collect();
            let d = Diagnostic::warning("B0304", format!("nothing reads `{name}` of [{table}]"));
            found.push(d.at(span, "changes nothing").nearest(name, known));
        }
        found.into_iter().for_each(|d| self.warn(d));
    }

    /// Warns of weights that no block reads although some layer has them.
    pub(super) fn unused_weights(&mut self) {
        let facts = &self.resolved.facts;
        let mut found = Vec::new();
        for w in &facts.weights {
            let present = w.scope == Scope::Model || (0..facts.layers()).any(|l| facts.layer_has(l, w));
            if present && !self.used.contains(&(w.scope, w.name.clone())) {
                let mut d = Diagnostic::warning("B0301", format!("no block reads the weight `{}`", w.name))
                    .help(format!("remove it, or write {} = \"none\" in a spec that extends its base", w.name));
                if let Some(span) = w.span {
                    d = d.at(span, "declared here");
                }
                found.push(d);
            }
        }
        found.into_iter().for_each(|d| self.warn(d));
    }
}
