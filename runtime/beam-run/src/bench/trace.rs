//! A timeline as Perfetto and Chrome read it: JSON of trace events, a process for each case, a track for its kernels and one for what they belong to.

use device::Timed;
use serde_json::{Value, json};

/// Tracks of a case.
const KERNELS: u32 = 1;
const GRAPHS: u32 = 2;

/// Events so far.
#[derive(Default)]
pub struct Trace {
    events: Vec<Value>,
    cases: u32,
}

impl Trace {
    /// The same with the starts of one case, end to end from 0 on.
    pub fn with(mut self, case: &str, starts: &[Timed]) -> Trace {
        self.cases += 1;
        let process = self.cases;
        let named = |what: &str, track: u32, name: &str| json!({ "ph": "M", "name": what, "pid": process, "tid": track, "args": { "name": name } });
        self.events.push(named("process_name", KERNELS, case));
        self.events.push(named("thread_name", KERNELS, "kernels"));
        self.events.push(named("thread_name", GRAPHS, "graphs"));
        let mut at = 0.0;
        let mut graph: Option<(&str, f64)> = None;
        for start in starts {
            let (own, region) = start.region.split_once(' ').unwrap_or((&start.region, ""));
            if let Some((name, since)) = graph.filter(|(name, _)| *name != own) {
                self.events.push(event(process, GRAPHS, name, (since, at), json!({})));
                graph = None;
            }
            graph = graph.or(Some((own, at)));
            let end = at + f64::from(start.micros);
            let about = json!({ "graph": own, "region": region });
            self.events.push(event(process, KERNELS, &start.kernel, (at, end), about));
            at = end;
        }
        if let Some((name, since)) = graph {
            self.events.push(event(process, GRAPHS, name, (since, at), json!({})));
        }
        self
    }

    /// The file.
    pub fn json(&self) -> String {
        json!({ "traceEvents": self.events, "displayTimeUnit": "ns" }).to_string()
    }
}

/// Something that took its time, in microseconds.
fn event(process: u32, track: u32, name: &str, (start, end): (f64, f64), about: Value) -> Value {
    json!({ "ph": "X", "name": name, "pid": process, "tid": track, "ts": start, "dur": end - start, "args": about })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_stand_end_to_end_under_their_graphs() {
        let start =
            |region: &str, kernel: &str, micros| Timed { region: region.to_owned(), kernel: kernel.to_owned(), micros };
        let starts = [start("first x", "a", 2.0), start("layer y", "b", 3.0), start("layer z", "c", 0.5)];
        let trace: Value = serde_json::from_str(&Trace::default().with("one", &starts).json()).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let of = |track: u32| {
            let shown = events.iter().filter(move |e| e["ph"] == "X" && e["tid"] == track);
            shown.map(|e| format!("{} {} {}", e["name"], e["ts"], e["dur"]).replace('"', "")).collect::<Vec<_>>()
        };
        assert_eq!(of(KERNELS), ["a 0.0 2.0", "b 2.0 3.0", "c 5.0 0.5"]);
        assert_eq!(of(GRAPHS), ["first 0.0 2.0", "layer 2.0 3.5"]);
        assert!(events.iter().any(|e| e["args"]["name"] == "one") && events.iter().any(|e| e["args"]["region"] == "z"));
    }
}
