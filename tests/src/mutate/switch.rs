//! Putting switches into a file's syntax tree.

use super::Mutant;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, ExprBinary, ExprMethodCall, ImplItemFn, ItemFn, ItemMod, Stmt};

/// Methods whose calls, as statements, only tidy up or report.
const HARMLESS: [&str; 4] = ["reserve", "clone_from", "reserve_exact", "shrink_to_fit"];

/// The visitor of one file.
pub(super) struct Switch<'a> {
    file: &'a str,
    function: String,
    all: &'a mut Vec<Mutant>,
}

impl<'a> Switch<'a> {
    pub fn new(file: &'a str, all: &'a mut Vec<Mutant>) -> Self {
        Switch { file, function: String::new(), all }
    }

    /// A number for a new mutant.
    fn add(&mut self, from: &impl ToTokens, to: &TokenStream) -> usize {
        let text = |tokens: TokenStream| tokens.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let (file, function) = (self.file.to_owned(), self.function.clone());
        let mut new = Mutant { file, function, from: text(from.to_token_stream()), to: text(to.clone()), nth: 0 };
        let is_like =
            |m: &&Mutant| (&m.file, &m.function, &m.from, &m.to) == (&new.file, &new.function, &new.from, &new.to);
        new.nth = self.all.iter().filter(is_like).count();
        self.all.push(new);
        self.all.len() - 1
    }

    /// `now` for an expression, with `wrong` in its place where the mutant is on.
    fn either(&mut self, old: &Expr, wrong: TokenStream, now: &Expr) -> Expr {
        let id = self.add(old, &wrong);
        // Parentheses: what begins a block as a statement may begin differently as an expression.
        syn::parse_quote! { (if crate::mutant::on(#id) { (#wrong) } else { (#now) }) }
    }
}

/// Whether a chain of conditions binds names, and so cannot be an ordinary expression.
fn binds(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(b) => binds(&b.left) || binds(&b.right),
        _ => false,
    }
}

/// What is put in place of an operator.
fn turned(op: &BinOp) -> Option<Vec<BinOp>> {
    Some(match op {
        BinOp::Lt(_) => vec![syn::parse_quote!(<=)],
        BinOp::Le(_) => vec![syn::parse_quote!(<)],
        BinOp::Gt(_) => vec![syn::parse_quote!(>=)],
        BinOp::Ge(_) => vec![syn::parse_quote!(>)],
        BinOp::Eq(_) => vec![syn::parse_quote!(!=)],
        BinOp::Ne(_) => vec![syn::parse_quote!(==)],
        BinOp::Add(_) => vec![syn::parse_quote!(-)],
        BinOp::Sub(_) => vec![syn::parse_quote!(+)],
        BinOp::And(_) => vec![syn::parse_quote!(||)],
        BinOp::Or(_) => vec![syn::parse_quote!(&&)],
        _ => return None,
    })
}

/// A call of one argument with another method in its place, or without it.
fn other_call(call: &ExprMethodCall) -> Option<TokenStream> {
    let (receiver, arguments) = (&call.receiver, &call.args);
    let other = match (call.method.to_string().as_str(), arguments.len()) {
        ("min", 1) => "max",
        ("max", 1) => "min",
        ("saturating_sub", 1) => return Some(quote! { #receiver }),
        ("first", 0) => "last",
        ("last", 0) => "first",
        ("div_ceil", 1) => return Some(quote! { ((#receiver) / (#arguments)) }),
        _ => return None,
    };
    let other = syn::Ident::new(other, call.method.span());
    Some(quote! { #receiver.#other(#arguments) })
}

/// Whether leaving a statement out still compiles: a call whose value nobody uses, or a count.
fn may_go(expr: &Expr) -> bool {
    match expr {
        Expr::MethodCall(call) => !HARMLESS.contains(&call.method.to_string().as_str()),
        Expr::Binary(b) => {
            matches!(b.op, BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitAndAssign(_) | BinOp::BitOrAssign(_))
        }
        Expr::Assign(assign) => {
            matches!(*assign.left, Expr::Field(_) | Expr::Unary(_) | Expr::Index(_) | Expr::Tuple(_))
        }
        _ => false,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let text = a.to_token_stream().to_string();
        text.contains("test") || text.contains("cfg")
    })
}

/// Functions that only check or report: what they get wrong is no defect of the engine.
fn is_report(name: &str) -> bool {
    name.starts_with("check") || name == "count" || name == "evicted_pages" || name == "running_tokens"
}

impl VisitMut for Switch<'_> {
    fn visit_item_mod_mut(&mut self, item: &mut ItemMod) {
        if !is_test(&item.attrs) {
            visit_mut::visit_item_mod_mut(self, item);
        }
    }

    fn visit_item_fn_mut(&mut self, item: &mut ItemFn) {
        self.function = item.sig.ident.to_string();
        visit_mut::visit_block_mut(self, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut ImplItemFn) {
        self.function = item.sig.ident.to_string();
        if !is_report(&self.function) {
            visit_mut::visit_block_mut(self, &mut item.block);
        }
    }

    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}

    fn visit_type_mut(&mut self, _: &mut syn::Type) {}

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        let old = stmt.clone();
        visit_mut::visit_stmt_mut(self, stmt);
        if let Stmt::Expr(expr, Some(_)) = &old
            && may_go(expr)
        {
            let id = self.add(expr, &quote! { nothing });
            let now = stmt.clone();
            *stmt = syn::parse_quote! { if !crate::mutant::on(#id) { #now } };
        }
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let old = expr.clone();
        visit_mut::visit_expr_mut(self, expr);
        match &old {
            Expr::Binary(ExprBinary { left, op, right, .. }) if !binds(&old) => {
                for other in turned(op).unwrap_or_default() {
                    let wrong = quote! { (#left) #other (#right) };
                    *expr = self.either(&old, wrong, &expr.clone());
                }
            }
            Expr::MethodCall(call) => {
                if let Some(wrong) = other_call(call) {
                    *expr = self.either(&old, wrong, &expr.clone());
                }
            }
            Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Not(_)) => {
                let inner = &unary.expr;
                *expr = self.either(&old, quote! { #inner }, &expr.clone());
            }
            _ => {}
        }
    }
}
