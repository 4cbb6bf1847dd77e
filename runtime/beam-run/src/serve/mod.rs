//! `beam-run serve`: loads a model and answers HTTP until told to stop.

mod options;
mod scheduling;

pub use options::EndpointArgs;
pub use scheduling::SchedulingArgs;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::model;
use artifact::Artifact;
use serde_json::{Value, json};
use server::{App, Service};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::Text;
use text::response::ResponseTemplate;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Runs the command.
pub fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let started = Instant::now();
    // What the command line alone has wrong is told before anything is read.
    args.scheduling.agree()?;
    args.scheduling.apart(&args.model.read())?;
    let mut options = args.endpoint.options()?;
    let dir = args.model.model.as_deref().ok_or_else(|| {
        Failure::usage("R0102: serving needs a tokenizer, and `--model` is not given; name the model directory, also beside `--synthetic`")
    })?;
    let artifact = model::artifact(&args.model.artifact)?;
    options.drafts = drafting(args, &artifact)?;
    let drafts = options.drafts.clone();
    let text = text(args, dir, &artifact.kernels.facts.runtime.stop)?;
    let context_tokens = model::context_tokens(&artifact, args.context)?;
    let running = args.max_running.map(|n| n as usize);
    let mut limits = args.scheduling.limits(context_tokens, places(running, &artifact))?;
    limits.draft = args.drafts.limits();
    args.drafts.find_room(&artifact, limits.step_tokens.filter(|_| args.model.draft.is_some()))?;
    let holds = (context_tokens, running.unwrap_or(CACHED_SEQUENCES));
    let no_memory = |text| no_memory(args, text);
    let loading = Instant::now();
    let mut engine =
        args.scheduling.with_host_tier(model::engine_of(&artifact, &args.model, limits, holds, no_memory)?)?;
    let loaded = loading.elapsed();
    if text.tokenizer.vocab() > engine.vocab() {
        let (ids, vocab) = (text.tokenizer.vocab(), engine.vocab());
        return Err(Failure::input(format!(
            "R0103: the tokenizer has {ids} ids and the model {vocab}; tokenizer and artifact must be of one model"
        )));
    }
    let written = text.tokenizer.token_bytes().map_or(0, |tokens| tokens.len());
    engine.set_known_tokens(written.max(text.tokenizer.vocab()));
    let name = args.served_model_name.clone().unwrap_or_else(|| directory_name(dir));
    let log = args.endpoint.log()?;
    let service = Service::logged(engine, args.endpoint.door(), log.clone())
        .map_err(|e| Failure::device(format!("R0301: no thread for the engine: {e}; end other programs")))?;
    let ending = service.clone();
    let app = Arc::new(App::with_options(service, Arc::new(text), name.clone(), options));
    if let Some(tokens) = args.drafts.simulate_acceptance {
        eprintln!(
            "warning: every block commits {tokens} tokens on average, whatever the model says (`--simulate-acceptance`): all answers are meaningless"
        );
    }
    if let Some(problem) = app.cannot_hold() {
        eprintln!("warning: {problem}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::device(format!("R0301: no threads for connections: {e}; end other programs")))?;
    let served = runtime.block_on(async {
        let address = format!("{} port {}", args.host, args.port);
        // An address of brackets and colons is one, too.
        let host = args.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&args.host);
        // A host that nobody knows is the command line's fault; that nothing can listen there is not.
        let known = tokio::net::lookup_host((host, args.port)).await;
        let known: Vec<_> = known.map_err(|e| Failure::usage(cannot_listen(&address, &e)))?.collect();
        let failed = |e: std::io::Error| Failure::output(cannot_listen(&address, &e));
        let listener = TcpListener::bind(&known[..]).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        announce(args, &name, &local.to_string(), context_tokens, (started.elapsed(), &drafts));
        app.service.metrics().weights(artifact.memory.bytes, loaded);
        app.service.metrics().started(started.elapsed());
        let (stop, stop_now) = signals();
        server::serve(listener, app, stop, args.endpoint.grace(), stop_now).await.map_err(failed)
    });
    // What is still running has had its time.
    runtime.shutdown_background();
    if args.scheduling.has_files() {
        // Files of the host tier go with the engine.
        ending.end(LAST_FILES);
    }
    if let Some(log) = log {
        // Nobody waits for an engine that does not come back.
        log.finish(LAST_LINES);
    }
    served
}

/// How many requests run at once; a warning where no step has room for all of them.
fn places(asked: Option<usize>, artifact: &Artifact) -> usize {
    let at_once = device::decoded_at_once(&artifact.plan);
    if let Some(asked) = asked.filter(|asked| *asked > at_once) {
        eprintln!(
            "warning: `--max-running` {asked}: at most {at_once} requests have a token in one step, as the artifact's largest bucket says; the others take turns"
        );
    }
    asked.unwrap_or(at_once)
}

/// What is told where the cache has no memory. Where nobody gave a flag, the command line is not at fault.
fn no_memory(args: &ServeArgs, text: String) -> Failure {
    match (args.max_running, args.context) {
        (None, None) => Failure::input(format!(
            "{text}; say `--max-running` (room for {CACHED_SEQUENCES} is made without it) or `--context`"
        )),
        _ => Failure::usage(format!("{text}; lower `--max-running` or `--context`")),
    }
}

/// What the artifact's drafter does, and a warning where nobody gave it weights.
fn drafting(args: &ServeArgs, artifact: &Artifact) -> Result<Value, Failure> {
    let runs = args.model.draft.is_some();
    args.drafts.agree(artifact, runs)?;
    if artifact.drafter.is_some() && !runs {
        eprintln!("warning: the artifact has a drafter, and `--draft` names no weights for it: nothing is drafted");
    }
    Ok(args.drafts.told(artifact, runs))
}

/// The tokenizer and the templates of a model directory, or those that the command line puts in their place.
fn text(args: &ServeArgs, dir: &Path, stop: &[u32]) -> Result<Text, Failure> {
    let mut text = Text::load(dir, stop).map_err(Failure::input)?;
    if let Some(file) = &args.endpoint.response_template {
        let template =
            ResponseTemplate::from_file(file).map_err(|e| Failure::input(format!("{e} ({})", file.display())))?;
        text.response = Some(Arc::new(template));
    }
    Ok(text)
}

/// How long the way down waits for the engine's last lines in the log.
const LAST_LINES: Duration = Duration::from_secs(2);

/// How long it waits for the engine to end, which removes files of the host tier.
const LAST_FILES: Duration = Duration::from_secs(5);

/// How many of the longest sequences the cache holds where nobody says so.
const CACHED_SEQUENCES: usize = 8;

fn cannot_listen(address: &str, error: &std::io::Error) -> String {
    format!("R0302: cannot listen on {address}: {error}; choose another `--host` or `--port`")
}

/// Says on the output stream where the server listens: whoever started it waits for this line.
fn announce(args: &ServeArgs, name: &str, address: &str, context_tokens: usize, (took, drafts): (Duration, &Value)) {
    let (url, seconds) = (format!("http://{address}"), took.as_secs_f64());
    let line = if args.json {
        let forced = args.drafts.forced();
        json!({"event": "ready", "url": url, "model": name, "context": context_tokens, "seconds": seconds, "drafts": drafts, "forced_acceptance": forced})
            .to_string()
    } else {
        let lengths: Vec<String> = drafts["blocks"].as_array().into_iter().flatten().map(Value::to_string).collect();
        let drafts = match (drafts["runs"].as_bool(), lengths.is_empty()) {
            (Some(true), false) => format!(", drafts in blocks of {}", lengths.join(", ")),
            (Some(_), _) => ", no drafts".to_owned(),
            (None, _) => String::new(),
        };
        format!(
            "listening on {url} (model {name}, context {context_tokens} tokens{drafts}, ready after {seconds:.2} s)"
        )
    };
    let mut out = std::io::stdout().lock();
    // A reader that has gone away misses nothing that matters.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The last part of the path, also of `.` and the like.
fn directory_name(dir: &Path) -> String {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Two futures: the first interrupt or termination, and the second.
fn signals() -> (impl Future<Output = ()> + Send + 'static, impl Future<Output = ()>) {
    let (count, mut first) = watch::channel(0u32);
    let mut second = count.subscribe();
    tokio::spawn(async move {
        loop {
            if next_signal().await.is_err() {
                // No signals on this system: the process is ended from outside.
                std::future::pending::<()>().await;
            }
            count.send_modify(|n| *n += 1);
        }
    });
    let stop = async move {
        let _ = first.wait_for(|n| *n >= 1).await;
    };
    let stop_now = async move {
        let _ = second.wait_for(|n| *n >= 2).await;
    };
    (stop, stop_now)
}

#[cfg(unix)]
async fn next_signal() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn next_signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
