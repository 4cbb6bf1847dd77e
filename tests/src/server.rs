//! A served artifact on a free port of the loopback, ended when dropped.

use crate::Programs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running server.
pub struct Served {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
}

impl Served {
    /// Starts `beam-run serve` and waits for the line that says where it listens.
    ///
    /// # Panics
    /// If the program ends before it listens.
    pub fn start(artifact: &Path, model: &Path, more: &[&str]) -> Served {
        let mut command = Command::new(&Programs::built().beam_run);
        command.arg("serve").arg(artifact).arg("--model").arg(model).args(["--port", "0"]).args(more);
        let mut child = command
            .current_dir(crate::root())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|e| panic!("beam-run does not start: {e}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap_or_else(|| panic!("no output stream"))).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(at) = line.find("http://") {
                let url = line[at..].split_whitespace().next().unwrap_or("").trim_end_matches('/').to_owned();
                // The rest of the output is read away, so that the server never waits for its reader.
                std::thread::spawn(move || lines.for_each(drop));
                return Served { child, url };
            }
        }
        panic!("the server ended before it listened: {:?}", child.wait());
    }

    /// Posts JSON and returns status and body.
    ///
    /// # Panics
    /// If the server does not answer with JSON.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut answer = agent
            .post(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .send(body.to_string())
            .unwrap_or_else(|e| panic!("{path}: {e}"));
        let text = answer.body_mut().read_to_string().unwrap_or_else(|e| panic!("{path}: {e}"));
        let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}: {text}"));
        (answer.status().as_u16(), json)
    }
}

impl Served {
    /// Gets a text.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn get(&self, path: &str) -> String {
        let mut answer = ureq::get(format!("{}{path}", self.url)).call().unwrap_or_else(|e| panic!("{path}: {e}"));
        answer.body_mut().read_to_string().unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Asks for a stream, reads the beginning of the answer and goes away.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn leave(&self, path: &str, body: &serde_json::Value) {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap_or_else(|e| panic!("{host}: {e}"));
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut beginning = [0; 64];
        stream.read_exact(&mut beginning).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
