//! Every command that a document shows is run: fenced `sh` blocks in order, `sh server` blocks in the background until
//! the page ends. `sh tests` is README's test command, which runs this file.
//!
//! Of `cargo run` only the program is run, as the tests have built it: for one package alone cargo joins features of libraries
//! differently, and would compile most of the workspace once more for each.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use suites::{Programs, root};

/// `cargo` of the shell that runs a block; `$PROGRAMS` is the folder of what is built.
const CARGO: &str = r#"cargo() {
    case " $* " in *" --example "*) command cargo "$@"; return ;; esac
    [ "$1 $2" = "run --release" ] || { command cargo "$@"; return; }
    shift 2
    local program=
    while [ "$#" -gt 0 ]; do
        case $1 in
            -q) shift ;;
            -p | --bin) program=$2; shift 2 ;;
            --) shift; break ;;
            *) echo "cargo run: what is $1?" >&2; return 2 ;;
        esac
    done
    "$PROGRAMS/${program:?}" "$@"
}
"#;

/// A shell that will run a block.
fn shell(text: &str) -> Command {
    let mut bash = Command::new("bash");
    let programs = Programs::built().beamc.with_file_name("");
    bash.args(["-ec", &format!("{CARGO}{text}")]).current_dir(root()).env("PROGRAMS", programs);
    bash
}

struct Fence {
    kind: String,
    text: String,
}

fn fences(page: &str) -> Vec<Fence> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```sh") {
            let text: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
            found.push(Fence { kind: info.trim().to_owned(), text: text.join("\n") });
        }
    }
    found
}

/// A shell and all it started, ended when dropped.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("--").arg(format!("-{}", self.0.id())).status();
        let _ = self.0.wait();
    }
}

/// Port of `--port N` in a command.
fn port(text: &str) -> u16 {
    let after = text.split("--port ").nth(1).unwrap_or_else(|| panic!("a server command names its port: {text}"));
    after.split_whitespace().next().and_then(|p| p.parse().ok()).expect("port")
}

/// The page's fences with every port that its servers name replaced by a free one, wherever the page speaks of it.
fn on_free_ports(mut fences: Vec<Fence>) -> Vec<Fence> {
    let named: BTreeSet<u16> = fences.iter().filter(|f| f.kind == "server").map(|f| port(&f.text)).collect();
    // All are held until all are known, so that no two are the same.
    let free: Vec<(u16, TcpListener)> =
        named.into_iter().map(|port| (port, TcpListener::bind(("127.0.0.1", 0)).expect("a free port"))).collect();
    for (old, listener) in &free {
        let new = listener.local_addr().expect("bound").port();
        for fence in &mut fences {
            fence.text = fence.text.replace(&format!("--port {old}"), &format!("--port {new}"));
            fence.text = fence.text.replace(&format!(":{old}"), &format!(":{new}"));
        }
    }
    fences
}

fn start(text: &str) -> Background {
    let port = port(text);
    let mut child = shell(text).process_group(0).spawn().expect("bash starts");
    // The first connection that is accepted says that the server is ready; the compiler may have to finish before.
    loop {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Background(child);
        }
        if let Some(status) = child.try_wait().expect("child") {
            panic!("the server ended with {status}: {text}");
        }
        std::thread::yield_now();
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
}

fn run_page(name: &str) -> usize {
    let page = std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut servers = Vec::new();
    let mut count = 0;
    for fence in on_free_ports(fences(&page)) {
        match fence.kind.as_str() {
            "tests" => continue,
            "server" => servers.push(start(&fence.text)),
            "" => {
                let done = shell(&fence.text).output().expect("bash");
                let text = String::from_utf8_lossy(&done.stderr);
                assert!(
                    done.status.success(),
                    "{name}: {}\n{}\n{text}",
                    fence.text,
                    String::from_utf8_lossy(&done.stdout)
                );
            }
            other => panic!("{name}: a fence of unknown kind `sh {other}`"),
        }
        count += 1;
    }
    count
}

/// What lies in the project's folder and is not named by `.gitignore`.
fn unlisted() -> BTreeSet<String> {
    let ignored = std::fs::read_to_string(root().join(".gitignore")).expect(".gitignore");
    let is_ignored = |name: &str| {
        ignored.lines().filter_map(|l| l.strip_prefix('/')).any(|l| match l.strip_suffix("*/") {
            Some(start) => name.starts_with(start),
            None => name == l,
        })
    };
    let names = std::fs::read_dir(root()).expect("the project").flatten();
    names.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|name| !is_ignored(name)).collect()
}

#[test]
fn every_command_in_a_document_runs() {
    let mut pages = vec!["README.md".to_owned(), "examples/README.md".to_owned()];
    let mut docs: Vec<String> = std::fs::read_dir(root().join("docs"))
        .expect("docs")
        .flatten()
        .map(|e| format!("docs/{}", e.file_name().to_string_lossy()))
        .filter(|n| n.ends_with(".md"))
        .collect();
    docs.sort();
    pages.extend(docs);
    let before = unlisted();
    let count: usize = pages.iter().map(|p| run_page(p)).sum();
    let left: Vec<_> = unlisted().difference(&before).cloned().collect();
    assert!(left.is_empty(), "commands leave {left:?} behind, which .gitignore does not name");
    assert!(count >= 10, "only {count} commands were found");
}
