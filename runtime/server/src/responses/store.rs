//! Responses that can be asked for later, and that later requests continue: so many and so many bytes, the oldest go first.
//!
//! A response keeps its own items and points at the one that it continues, so a conversation of many requests is held once.
//! What a response still needs counts until the response itself is gone. Items are found by their ids without a search.

use engine::RequestId;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Items, shared by all that refer to them.
pub(super) type Items = Vec<Arc<Value>>;

/// Stored responses.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    most: usize,
    most_bytes: usize,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<String, Entry>,
    /// Ids, the oldest first.
    order: VecDeque<String>,
    /// The items of every id, the newest last, each with the number of its response.
    items: HashMap<String, Vec<(u64, Arc<Value>)>>,
    /// Responses so far.
    count: u64,
}

/// One response.
struct Entry {
    number: u64,
    /// The response object; its items are in the node.
    head: Arc<Map<String, Value>>,
    node: Arc<Node>,
    running: Option<Running>,
    /// Ids of its items, each once.
    ids: Vec<String>,
    _weight: Weight,
}

/// The items that one response added to a conversation.
pub(super) struct Node {
    previous: Option<Arc<Node>>,
    input: Arc<Items>,
    output: Items,
    /// About how many bytes the whole conversation has.
    bytes: usize,
    _weight: Weight,
}

/// A response that is being made.
#[derive(Clone)]
pub(super) struct Running {
    /// What the engine knows it as.
    pub requests: Vec<RequestId>,
    pub making: Making,
}

/// Whether a response is being made, was given up or is over: whichever of the latter comes first, stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Making(Arc<AtomicU8>);

impl Making {
    const GOES_ON: u8 = 0;
    const CANCELLED: u8 = 1;
    const OVER: u8 = 2;

    /// Gives the response up; false if it is over.
    pub fn cancel(&self) -> bool {
        self.leave(Making::CANCELLED) != Making::OVER
    }

    /// Nothing more is made of it; true if it was given up before.
    pub fn end(&self) -> bool {
        self.leave(Making::OVER) == Making::CANCELLED
    }

    /// Goes on to another state, unless it has left the first one already; the state that it had.
    fn leave(&self, to: u8) -> u8 {
        match self.0.compare_exchange(Making::GOES_ON, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(state) | Err(state) => state,
        }
    }
}

/// What a response that is asked for by name may be.
pub(super) enum Found {
    Done(Arc<Node>),
    Running,
    Missing,
}

/// Bytes that count until they are dropped.
struct Weight(usize, Arc<AtomicUsize>);

impl Weight {
    fn new(bytes: usize, total: &Arc<AtomicUsize>) -> Weight {
        total.fetch_add(bytes, Ordering::Relaxed);
        Weight(bytes, total.clone())
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Drop for Node {
    /// One after the other, as a long conversation would be a deep recursion.
    fn drop(&mut self) {
        let mut next = self.previous.take();
        while let Some(node) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.previous.take());
        }
    }
}

impl Node {
    /// All items of the conversation up to here, the oldest first.
    pub fn items(self: &Arc<Node>) -> Items {
        let mut items = self.input();
        items.extend(self.output.iter().cloned());
        items
    }

    /// About how many bytes they have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The items that the response was made from, the oldest first.
    fn input(&self) -> Items {
        let mut chain = Vec::new();
        let mut next = self.previous.as_ref();
        while let Some(node) = next {
            chain.push(node);
            next = node.previous.as_ref();
        }
        let earlier = chain.iter().rev().flat_map(|node| node.input.iter().chain(&node.output));
        earlier.chain(self.input.iter()).cloned().collect()
    }
}

impl Inner {
    /// Makes items of a response known by their ids.
    fn know(&mut self, id: &str, items: &[Arc<Value>]) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        for item in items {
            let Some(name) = item.get("id").and_then(Value::as_str) else { continue };
            let known = self.items.entry(name.to_owned()).or_default();
            match known.last_mut().filter(|(number, _)| *number == entry.number) {
                Some((_, place)) => *place = item.clone(),
                None => {
                    known.push((entry.number, item.clone()));
                    entry.ids.push(name.to_owned());
                }
            }
        }
    }

    /// Takes a response away.
    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        for name in &entry.ids {
            let Some(known) = self.items.get_mut(name) else { continue };
            known.retain(|(number, _)| *number != entry.number);
            if known.is_empty() {
                self.items.remove(name);
            }
        }
        Some(entry)
    }
}

impl Store {
    /// A store of at most so many responses and bytes; of none if either is 0.
    pub fn new(most: usize, most_bytes: usize) -> Store {
        Store { inner: Mutex::default(), most, most_bytes, bytes: Arc::default() }
    }

    /// Whether anything is stored at all.
    pub fn is_on(&self) -> bool {
        self.most > 0 && self.most_bytes > 0
    }

    /// How many responses and bytes are stored.
    #[cfg(test)]
    pub fn load(&self) -> (usize, usize) {
        (self.lock().entries.len(), self.bytes.load(Ordering::Relaxed))
    }

    /// A defect in one request must not take the others' responses along.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response that begins.
    pub(super) fn begin(
        &self,
        id: &str,
        head: Map<String, Value>,
        previous: Option<Arc<Node>>,
        input: Arc<Items>,
        running: Running,
    ) {
        let node = self.node(previous, input.clone(), Vec::new());
        let weight = Weight::new(object_bytes(&head), &self.bytes);
        let mut inner = self.lock();
        let number = inner.count;
        inner.count += 1;
        let (head, running, ids) = (Arc::new(head), Some(running), Vec::new());
        inner.entries.insert(id.to_owned(), Entry { number, head, node, running, ids, _weight: weight });
        inner.order.push_back(id.to_owned());
        inner.know(id, &input);
        self.shrink(inner);
    }

    /// The same response when it is over. One that was deleted or had to go meanwhile does not come back.
    pub(super) fn finish(&self, id: &str, mut head: Map<String, Value>) {
        let output = match head.insert("output".into(), json!([])) {
            Some(Value::Array(output)) => output.into_iter().map(Arc::new).collect(),
            _ => Items::new(),
        };
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get_mut(id) else { return };
        entry.node = self.node(entry.node.previous.clone(), entry.node.input.clone(), output.clone());
        entry._weight = Weight::new(object_bytes(&head), &self.bytes);
        entry.head = Arc::new(head);
        entry.running = None;
        inner.know(id, &output);
        self.shrink(inner);
    }

    fn node(&self, previous: Option<Arc<Node>>, input: Arc<Items>, output: Items) -> Arc<Node> {
        let own: usize = input.iter().chain(&output).map(|item| bytes(item) + KNOWN_BYTES).sum();
        let bytes = previous.as_ref().map_or(0, |node| node.bytes).saturating_add(own);
        Arc::new(Node { previous, input, output, bytes, _weight: Weight::new(own, &self.bytes) })
    }

    /// Lets the oldest go until the rest fits. What is being made stays, so that it can be found and given up; there are no
    /// more of these than requests that may run and wait.
    fn shrink(&self, mut inner: MutexGuard<'_, Inner>) {
        while inner.entries.len() > self.most || self.bytes.load(Ordering::Relaxed) > self.most_bytes {
            let is_over = |id: &String| inner.entries.get(id).is_none_or(|entry| entry.running.is_none());
            let Some(oldest) = inner.order.iter().position(is_over) else { break };
            let Some(id) = inner.order.remove(oldest) else { break };
            inner.remove(&id);
        }
    }

    /// The response object.
    pub(super) fn get(&self, id: &str) -> Option<Value> {
        let (head, node) = {
            let inner = self.lock();
            let entry = inner.entries.get(id)?;
            (entry.head.clone(), entry.node.clone())
        };
        let mut head = Map::clone(&head);
        head.insert("output".into(), node.output.iter().map(|item| Value::clone(item)).collect());
        Some(Value::Object(head))
    }

    /// The items that a response was made from, the oldest first.
    pub(super) fn input(&self, id: &str) -> Option<Items> {
        let node = self.lock().entries.get(id)?.node.clone();
        Some(node.input())
    }

    /// What a later response continues.
    pub(super) fn find(&self, id: &str) -> Found {
        match self.lock().entries.get(id) {
            None => Found::Missing,
            Some(entry) if entry.running.is_some() => Found::Running,
            Some(entry) => Found::Done(entry.node.clone()),
        }
    }

    /// The newest item of this id.
    pub(super) fn item(&self, id: &str) -> Option<Arc<Value>> {
        Some(self.lock().items.get(id)?.last()?.1.clone())
    }

    /// Marks a response that is being made as given up; `None` if there is none, or if it is over.
    pub(super) fn cancel(&self, id: &str) -> Option<Running> {
        let mut inner = self.lock();
        let entry = inner.entries.get_mut(id)?;
        let running = entry.running.clone().filter(|running| running.making.cancel())?;
        Arc::make_mut(&mut entry.head).insert("status".into(), json!("cancelled"));
        Some(running)
    }

    /// Forgets a response; `None` if there is none, else what still runs of it.
    pub(super) fn delete(&self, id: &str) -> Option<Option<Running>> {
        let mut inner = self.lock();
        let entry = inner.remove(id)?;
        inner.order.retain(|other| other != id);
        Some(entry.running)
    }
}

/// About how many bytes it takes to know an item by its id.
const KNOWN_BYTES: usize = 128;

/// About how many bytes of memory a value takes.
pub(super) fn bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(bytes).sum(),
            Value::Object(map) => object_bytes(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

fn object_bytes(map: &Map<String, Value>) -> usize {
    // A key, its hash and its place in the index.
    map.iter().map(|(key, value)| size_of::<String>() + 16 + key.len() + bytes(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Running {
        Running { requests: Vec::new(), making: Making::default() }
    }

    fn previous(store: &Store, id: &str) -> Option<Arc<Node>> {
        match store.find(id) {
            Found::Done(node) => Some(node),
            _ => None,
        }
    }

    fn add(store: &Store, id: &str, after: Option<&str>, text: &str) {
        let previous = after.and_then(|id| self::previous(store, id));
        let input = Arc::new(vec![Arc::new(json!({"id": format!("in_{id}"), "text": text}))]);
        let head = |output: Value| json!({"id": id, "output": output}).as_object().unwrap().clone();
        store.begin(id, head(json!([])), previous, input, running());
        store.finish(id, head(json!([{"id": format!("out_{id}")}])));
    }

    #[test]
    fn a_conversation_is_held_once_and_read_in_order() {
        let store = Store::new(10, 1 << 20);
        add(&store, "a", None, "1");
        add(&store, "b", Some("a"), "2");
        let ids = |items: Items| items.iter().map(|i| i["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(ids(previous(&store, "b").unwrap().items()), ["in_a", "out_a", "in_b", "out_b"]);
        assert_eq!(ids(store.input("b").unwrap()), ["in_a", "out_a", "in_b"]);
        assert_eq!(store.get("a").unwrap()["output"], json!([{"id": "out_a"}]));
        assert!(store.item("out_a").is_some() && store.item("x").is_none());
        // What it continues may be forgotten.
        assert!(store.delete("a").is_some() && store.delete("a").is_none());
        assert_eq!(ids(previous(&store, "b").unwrap().items()).len(), 4);
        assert!(store.delete("b").is_some());
        assert_eq!(store.load(), (0, 0));
    }

    #[test]
    fn the_oldest_go_by_count_and_by_bytes() {
        let store = Store::new(3, 1 << 20);
        for id in ["a", "b", "c", "d"] {
            add(&store, id, None, "x");
        }
        assert!(store.get("a").is_none() && store.get("d").is_some() && store.load().0 == 3);
        let store = Store::new(1000, 4000);
        for i in 0..100 {
            add(&store, &i.to_string(), None, &"x".repeat(1000));
            assert!(store.load().1 <= 4000);
        }
        assert!(store.get("99").is_some() && store.get("0").is_none());
        // One that is larger than all is not kept.
        add(&store, "huge", None, &"x".repeat(5000));
        assert!(store.get("huge").is_none() && store.load() == (0, 0));
    }

    #[test]
    fn what_is_being_made_stays_whoever_else_comes() {
        let store = Store::new(2, 1 << 20);
        store.begin("mine", Map::new(), None, Arc::default(), running());
        for i in 0..10 {
            add(&store, &i.to_string(), None, "x");
        }
        assert!(matches!(store.find("mine"), Found::Running) && store.load().0 == 2);
        store.finish("mine", Map::new());
        add(&store, "other", None, "x");
        add(&store, "another", None, "x");
        assert!(matches!(store.find("mine"), Found::Missing));
    }

    #[test]
    fn long_conversations_stay_inside_the_limits_and_end_without_recursion() {
        let store = Store::new(4, 100 << 20);
        add(&store, "0", None, "x");
        for i in 1..100_000 {
            add(&store, &i.to_string(), Some(&(i - 1).to_string()), "x");
        }
        let (count, bytes) = store.load();
        assert!(count == 4 && bytes > 100_000 * 8 && bytes <= 100 << 20);
        store.delete("99996").and(store.delete("99997")).and(store.delete("99998")).and(store.delete("99999"));
        assert_eq!(store.load(), (0, 0));
    }

    #[test]
    fn what_was_deleted_while_it_ran_does_not_come_back() {
        let store = Store::new(3, 1 << 20);
        store.begin("a", Map::new(), None, Arc::default(), running());
        assert!(matches!(store.find("a"), Found::Running));
        let cancelled = store.cancel("a").unwrap();
        assert!(cancelled.making.end(), "it stays given up");
        assert_eq!(store.get("a").unwrap()["status"], "cancelled");
        assert!(store.delete("a").unwrap().is_some());
        store.finish("a", Map::new());
        assert!(store.get("a").is_none() && matches!(store.find("a"), Found::Missing));
        assert_eq!(store.load(), (0, 0));
    }

    #[test]
    fn an_item_is_found_by_its_id_as_long_as_a_response_has_it() {
        let store = Store::new(10, 1 << 20);
        let item = |text: &str| Arc::new(json!({"id": "same", "text": text}));
        for (id, text) in [("a", "1"), ("b", "2")] {
            let input = Arc::new(vec![item("older"), item(text)]);
            store.begin(id, Map::new(), None, input, running());
            store.finish(id, Map::new());
        }
        let text = || store.item("same").map(|item| item["text"].clone());
        assert_eq!(text(), Some(json!("2")), "the newest");
        assert!(store.delete("b").is_some());
        assert_eq!(text(), Some(json!("1")));
        assert!(store.delete("a").is_some());
        assert_eq!(text(), None);
        assert!(store.lock().items.is_empty(), "nothing of them is kept");
    }

    #[test]
    fn a_response_is_given_up_or_over_and_never_both() {
        let making = Making::default();
        assert!(making.cancel() && making.cancel() && making.end() && making.cancel());
        let making = Making::default();
        assert!(!making.end() && !making.cancel() && !making.end());
        let store = Store::new(3, 1 << 20);
        let begun = running();
        store.begin("a", Map::new(), None, Arc::default(), begun.clone());
        // It ends at this moment, and is not stored yet.
        assert!(!begun.making.end());
        assert!(store.cancel("a").is_none() && store.get("a").unwrap().get("status").is_none());
    }
}
