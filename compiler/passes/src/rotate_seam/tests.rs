//! Which values rotate, and what the graphs then look like.

use crate::testing::{text, two_kind_model};
use crate::{lower, lower_step_by_step};

#[test]
fn dbg() {
    for s in lower_step_by_step(&two_kind_model()).unwrap() {
        println!("======== {}", s.pass.name);
        for (n, g) in s.module.entries[0].graphs() {
            println!("{n}\n{}", text(g));
        }
    }
    println!("{:?}", lower(&two_kind_model()).unwrap().notes);
    let t = targets::Target::load("cpu").unwrap();
    let s = crate::Stages::compile(two_kind_model(), &t).unwrap();
    println!("{}", s.text(crate::Stage::Plan, false));
}
