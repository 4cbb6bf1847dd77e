//! `beamc diff`: two specs at one level, as a unified diff of their texts.

use crate::args::{DiffArgs, SpecArgs};
use crate::failure::Failure;
use crate::show::stage_text;
use similar::TextDiff;

/// Runs the command.
pub fn diff(args: &DiffArgs) -> Result<String, Failure> {
    let text = |spec: &std::path::Path| {
        let spec = SpecArgs { spec: spec.to_owned(), target: args.target.clone(), mesh: None };
        stage_text(&spec, &args.stage, false, args.json)
    };
    let (a, b) = (text(&args.a)?, text(&args.b)?);
    let (a_name, b_name) = (args.a.display().to_string(), args.b.display().to_string());
    let diff = TextDiff::from_lines(&a, &b);
    let unified = diff.unified_diff().context_radius(3).header(&a_name, &b_name).to_string();
    if args.json {
        let json = serde_json::json!({ "stage": args.stage, "equal": a == b, "diff": unified });
        return Ok(format!("{json:#}\n"));
    }
    Ok(if a == b { format!("no difference at the {} level\n", args.stage) } else { unified })
}
