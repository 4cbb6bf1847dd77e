//! `beamc diff`: what an edit did, first as an account of both compilations, then line by line at one level.

use crate::account::{self, Side};
use crate::args::{DiffArgs, SpecArgs};
use crate::failure::Failure;
use crate::{input, show};
use passes::Stages;
use serde_json::json;
use similar::TextDiff;
use std::path::Path;

/// Runs the command.
pub fn diff(args: &DiffArgs) -> Result<String, Failure> {
    let stage = show::stage(&args.stage)?;
    let spec = SpecArgs {
        spec: args.a.clone(),
        target: args.target.clone(),
        mesh: args.mesh.clone(),
        option: args.option.clone(),
        relax: Vec::new(),
        unpack: Vec::new(),
    };
    let first = input::job(&spec, false)?;
    let mesh = first.mesh.clone();
    let second = input::job_on(&args.b, &first.target, mesh.clone(), &args.option, false)?;
    let compiled = |job: &input::Job| {
        Stages::compile(job.model.clone(), &job.compile()).map_err(|e| input::pass_failure(&e, &job.checked))
    };
    let (a, b) = (compiled(&first)?, compiled(&second)?);
    let found = account::account(&Side::new(&a, &first.target)?, &Side::new(&b, &first.target)?);
    let (one, two) = (a.text(stage, false), b.text(stage, false));
    let unified = lines(&one, &two, &args.a, &args.b);
    if args.json {
        let json = json!({
            "stage": args.stage, "mesh": mesh, "equal": one == two, "account": found.json(), "diff": unified,
        });
        return Ok(format!("{json:#}\n"));
    }
    let mut out = found.page();
    if args.brief {
        return Ok(out);
    }
    out += &match one == two {
        true => format!("no difference at the {} level\n", args.stage),
        false => format!("\n{unified}"),
    };
    Ok(out)
}

fn lines(a: &str, b: &str, a_name: &Path, b_name: &Path) -> String {
    let (a_name, b_name) = (a_name.display().to_string(), b_name.display().to_string());
    TextDiff::from_lines(a, b).unified_diff().context_radius(3).header(&a_name, &b_name).to_string()
}
