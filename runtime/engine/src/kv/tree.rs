//! The prefix tree: pages of finished work by the tokens that led to them.
//!
//! A node is one page: its parent's tokens and its own are what its keys and values were computed from. Everything that a
//! page has of its own (memory, windows, a copy on the host, when it was last used, who holds it) is therefore a
//! node's own, and nothing ever has to be split or merged.
//!
//! ```text
//!   namespace ─ page ─ page ─ page ─ page*      * window kept: the end of a turn
//!                         └── page ─ page*        the others are tombstones of their windows
//! ```
//!
//! A boundary behind page `n` can be continued if all its pages are there and every window reaches back from it without
//! a gap. Pages are there on the device, or on the host where a tier keeps them.

use super::pages::Pages;
use crate::VirtualPage;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Names a node.
pub(crate) type NodeId = u32;

/// Names a page on the host.
pub type HostPage = u32;

/// What requests share cached work with: those of the same adapter and salt, under the same weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Adapter and its version, if any.
    pub adapter: Option<Arc<str>>,
    /// The client's own salt, if any.
    pub salt: Option<Arc<str>>,
}

/// A namespace under one version of the weights.
type Root = (Namespace, u64);

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    root: Root,
    tokens: Arc<[u32]>,
    children: HashMap<Arc<[u32]>, NodeId>,
    /// Children with a page on the device, and with one on the host.
    on_device: u32,
    on_host: u32,
    page: Option<VirtualPage>,
    /// By kind: whether the tree holds the window of `page`.
    windows: Vec<bool>,
    /// By kind: the copy on the host, if it is complete.
    host: Vec<Option<HostPage>>,
    used: u64,
    window_used: u64,
    /// When it was given its page.
    born: u64,
    is_live: bool,
}

/// What a prefix has in the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Nodes of the pages that can be continued from, from the first page on.
    pub path: Vec<NodeId>,
    /// Pages of the prefix that are there in full; more than `path` where windows are missing.
    pub whole: usize,
}

/// Cached pages by prefix.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    roots: HashMap<Root, HashMap<Arc<[u32]>, NodeId>>,
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// Node by virtual page.
    by_page: HashMap<VirtualPage, NodeId>,
    /// Nodes on the device without children there that nobody else holds, oldest use first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes on the device that nobody else holds.
    loose: BTreeSet<NodeId>,
    /// By kind: nodes with a window that nobody else holds, oldest use first.
    windows: Vec<BTreeSet<(u64, NodeId)>>,
    /// Nodes on the host without children there, oldest use first.
    host_leaves: BTreeSet<(u64, NodeId)>,
    clock: u64,
    weights: u64,
    /// Tokens whose pages were evicted, since birth.
    pub evicted_pages: u64,
}

impl Tree {
    /// An empty tree for so many KV kinds.
    pub fn new(kinds: usize) -> Self {
        Tree { windows: vec![BTreeSet::new(); kinds], ..Tree::default() }
    }

    /// Pages on the device that could be freed at once, and windows of a kind.
    pub fn evictable(&self, kind: usize, is_window: bool) -> usize {
        if is_window { self.windows.get(kind).map_or(0, BTreeSet::len) } else { self.loose.len() }
    }

    /// What is cached from now on belongs to other weights.
    pub fn next_weights(&mut self) {
        self.weights += 1;
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id as usize).filter(|n| n.is_live)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id as usize).filter(|n| n.is_live)
    }

    /// A node's page on the device.
    pub fn page(&self, id: NodeId) -> Option<VirtualPage> {
        self.node(id).and_then(|n| n.page)
    }

    /// When a node was given the page that it has.
    pub fn born(&self, id: NodeId) -> Option<u64> {
        self.node(id).filter(|n| n.page.is_some()).map(|n| n.born)
    }

    /// Whether the device has a node's window of a kind.
    pub fn has_window(&self, id: NodeId, kind: usize) -> bool {
        self.node(id).is_some_and(|n| n.windows.get(kind).copied().unwrap_or(false))
    }

    /// A node's copy on the host.
    pub fn host(&self, id: NodeId, kind: usize) -> Option<HostPage> {
        self.node(id).and_then(|n| n.host.get(kind).copied().flatten())
    }

    fn child(&self, at: Option<NodeId>, root: &Root, tokens: &[u32]) -> Option<NodeId> {
        match at {
            Some(id) => self.node(id)?.children.get(tokens).copied(),
            None => self.roots.get(root)?.get(tokens).copied(),
        }
    }

    /// The longest boundary of at most `most` tokens that can be continued.
    pub fn find(&self, namespace: &Namespace, tokens: &[u32], most: usize, pages: &Pages, found: &mut Found) {
        found.path.clear();
        let root = (namespace.clone(), self.weights);
        let (mut at, mut usable) = (None, 0);
        let mut runs = vec![0usize; pages.kinds()];
        let is_window: Vec<bool> = (0..pages.kinds()).map(|k| pages.window(k).is_some()).collect();
        for run in tokens.chunks_exact(pages.page_tokens()).take(most / pages.page_tokens()) {
            let Some(id) = self.child(at, &root, run) else { break };
            let Some(node) = self.node(id) else { break };
            // A window that somebody is loading or moving through is not there for others yet.
            let unbound = |k: usize| node.page.is_none_or(|page| pages.physical(k, page) < 0);
            let on_host = |k: usize| node.host.get(k).is_some_and(Option::is_some) && unbound(k);
            let from_host =
                node.host.iter().any(Option::is_some) && (0..pages.kinds()).all(|k| is_window[k] || on_host(k));
            if node.page.is_none() && !from_host {
                break;
            }
            for (k, run) in runs.iter_mut().enumerate() {
                let there = node.windows.get(k).copied().unwrap_or(false) || on_host(k);
                *run = if there { *run + 1 } else { 0 };
            }
            found.path.push(id);
            let n = found.path.len();
            let boundary = n * pages.page_tokens();
            let intact = |k: usize| !is_window[k] || runs[k] >= n - pages.first_page(k, boundary).min(n);
            if (0..pages.kinds()).all(intact) {
                usable = n;
            }
            at = Some(id);
        }
        found.whole = found.path.len();
        found.path.truncate(usable);
    }

    /// Marks a found prefix as used just now; its windows only as far as they reach back from its end.
    pub fn use_path(&mut self, path: &[NodeId], pages: &Pages) {
        self.clock += 1;
        let clock = self.clock;
        let boundary = path.len() * pages.page_tokens();
        let window_from =
            (0..pages.kinds()).filter(|k| pages.window(*k).is_some()).map(|k| pages.first_page(k, boundary)).min();
        for (i, id) in path.iter().enumerate() {
            self.forget(*id);
            if let Some(node) = self.node_mut(*id) {
                node.used = clock;
                if window_from.is_some_and(|from| i >= from) {
                    node.window_used = clock;
                }
            }
            self.refresh(*id, pages);
        }
    }

    /// Takes a node's place in the orders away before what they sort by changes.
    fn forget(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(id as usize) else { return };
        let (used, window_used) = (node.used, node.window_used);
        self.leaves.remove(&(used, id));
        self.host_leaves.remove(&(used, id));
        self.loose.remove(&id);
        self.windows.iter_mut().for_each(|w| {
            w.remove(&(window_used, id));
        });
    }

    /// Puts a node where its state says that it belongs.
    fn refresh(&mut self, id: NodeId, pages: &Pages) {
        self.forget(id);
        let Some(node) = self.nodes.get(id as usize).filter(|n| n.is_live) else { return };
        if let Some(page) = node.page {
            let is_loose = pages.holders(page) == 1;
            if is_loose {
                self.loose.insert(id);
                if node.on_device == 0 {
                    self.leaves.insert((node.used, id));
                }
            }
            for (k, order) in self.windows.iter_mut().enumerate() {
                if node.windows.get(k).copied().unwrap_or(false) && pages.window_holders(k, page) == 1 {
                    order.insert((node.window_used, id));
                }
            }
        }
        if node.host.iter().any(Option::is_some) && node.on_host == 0 {
            self.host_leaves.insert((node.used, id));
        }
    }

    /// Somebody else has taken or released this page.
    pub fn touched(&mut self, page: VirtualPage, pages: &Pages) {
        if let Some(id) = self.by_page.get(&page).copied() {
            self.refresh(id, pages);
        }
    }

    /// Follows or makes the node behind `at`. A new one, or one that is only on the host, takes `page` over.
    pub fn enter(
        &mut self,
        namespace: &Namespace,
        at: Option<NodeId>,
        tokens: &[u32],
        page: VirtualPage,
        pages: &mut Pages,
    ) -> NodeId {
        let root = (namespace.clone(), self.weights);
        let id = match self.child(at, &root, tokens) {
            Some(id) => id,
            None => self.grow(root, at, tokens),
        };
        if self.page(id).is_none() {
            self.give_page(id, page, pages);
        }
        id
    }

    /// Gives a node without one a page on the device.
    pub fn give_page(&mut self, id: NodeId, page: VirtualPage, pages: &mut Pages) {
        pages.hold(page);
        self.clock += 1;
        let clock = self.clock;
        self.forget(id);
        let parent = self.node_mut(id).and_then(|node| {
            node.page = Some(page);
            node.used = clock;
            node.born = clock;
            node.parent
        });
        self.by_page.insert(page, id);
        self.refresh(id, pages);
        if let Some(parent) = parent {
            if let Some(node) = self.node_mut(parent) {
                node.on_device += 1;
            }
            self.refresh(parent, pages);
        }
    }

    fn grow(&mut self, root: Root, parent: Option<NodeId>, tokens: &[u32]) -> NodeId {
        let tokens: Arc<[u32]> = tokens.into();
        let kinds = self.windows.len();
        let node = Node {
            parent,
            root: root.clone(),
            tokens: tokens.clone(),
            children: HashMap::new(),
            on_device: 0,
            on_host: 0,
            page: None,
            windows: vec![false; kinds],
            host: vec![None; kinds],
            used: self.clock,
            window_used: self.clock,
            born: 0,
            is_live: true,
        };
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.nodes.get_mut(id as usize) {
                    *place = node;
                }
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        };
        match parent.and_then(|p| self.node_mut(p)) {
            Some(parent) => parent.children.insert(tokens, id),
            None => self.roots.entry(root).or_default().insert(tokens, id),
        };
        id
    }

    /// Keeps the window of a node's page, if the page has it and the tree does not hold it already.
    pub fn keep_window(&mut self, id: NodeId, kind: usize, pages: &mut Pages) {
        let Some(page) = self.page(id).filter(|p| pages.physical(kind, *p) >= 0) else { return };
        self.clock += 1;
        let clock = self.clock;
        self.forget(id);
        if let Some(node) = self.node_mut(id) {
            node.window_used = clock;
            if let Some(window) = node.windows.get_mut(kind).filter(|w| !**w) {
                *window = true;
                pages.hold_window(kind, page);
            }
        }
        self.refresh(id, pages);
    }

    /// Writes down that the host has a complete copy; gives the copy back if the node is gone or has one.
    pub fn set_host(&mut self, id: NodeId, kind: usize, copy: HostPage, pages: &Pages) -> Option<HostPage> {
        let had = self.node(id).is_some_and(|n| n.host.iter().any(Option::is_some));
        let Some(node) = self.node_mut(id) else { return Some(copy) };
        let parent = node.parent;
        match node.host.get_mut(kind) {
            Some(place @ None) => *place = Some(copy),
            _ => return Some(copy),
        }
        self.refresh(id, pages);
        if let Some(parent) = parent.filter(|_| !had) {
            if let Some(node) = self.node_mut(parent) {
                node.on_host += 1;
            }
            self.refresh(parent, pages);
        }
        None
    }

    /// Frees something on the device: the window or the leaf that was used longest ago. With `only`, memory of that kind
    /// alone helps. False if all is in use.
    pub fn evict(&mut self, only: Option<usize>, pages: &mut Pages) -> bool {
        let is_window = |k: usize| pages.window(k).is_some();
        let windows = (0..self.windows.len()).filter(|k| only.is_none_or(|only| only == *k));
        let window = windows.filter_map(|k| Some((*self.windows[k].first()?, k))).min();
        let leaf = self.leaves.first().copied().filter(|_| only.is_none_or(|k| !is_window(k)));
        match (window, leaf) {
            (Some(((used, id), kind)), leaf) if leaf.is_none_or(|(leaf_used, _)| used <= leaf_used) => {
                self.drop_window(id, kind, pages);
                true
            }
            (_, Some((_, id))) => {
                self.drop_page(id, pages);
                true
            }
            _ => false,
        }
    }

    /// Makes a tombstone. A leaf without its window is no boundary, so it goes as a whole, unless the host has it.
    fn drop_window(&mut self, id: NodeId, kind: usize, pages: &mut Pages) {
        self.forget(id);
        let page = self.page(id);
        if let (Some(window), Some(page)) = (self.node_mut(id).and_then(|n| n.windows.get_mut(kind)), page) {
            *window = false;
            pages.release_window(kind, page);
        }
        self.refresh(id, pages);
        let is_leaf = self.node(id).is_some_and(|n| n.on_device == 0 && n.host.get(kind).copied().flatten().is_none());
        if is_leaf && page.is_some_and(|p| pages.holders(p) == 1) {
            self.drop_page(id, pages);
        }
    }

    /// Takes a node's page from the device, windows first.
    fn drop_page(&mut self, id: NodeId, pages: &mut Pages) {
        self.forget(id);
        let Some(node) = self.node_mut(id) else { return };
        let (Some(page), parent) = (node.page.take(), node.parent) else { return };
        for kind in 0..pages.kinds() {
            if node.windows.get_mut(kind).is_some_and(std::mem::take) {
                pages.release_window(kind, page);
            }
        }
        pages.release(page);
        self.by_page.remove(&page);
        self.evicted_pages += 1;
        self.refresh(id, pages);
        if let Some(parent) = parent {
            if let Some(node) = self.node_mut(parent) {
                node.on_device = node.on_device.saturating_sub(1);
            }
            self.refresh(parent, pages);
        }
        self.prune(id);
    }

    /// Removes a node that has neither memory nor children, and then its parent likewise.
    fn prune(&mut self, id: NodeId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let Some(node) = self.node(id) else { return };
            let is_empty = node.page.is_none() && node.children.is_empty() && node.host.iter().all(Option::is_none);
            if !is_empty {
                return;
            }
            self.forget(id);
            let Some(node) = self.nodes.get_mut(id as usize) else { return };
            node.is_live = false;
            at = node.parent;
            let (tokens, root, parent) = (node.tokens.clone(), node.root.clone(), node.parent);
            match parent.and_then(|p| self.node_mut(p)) {
                Some(parent) => {
                    parent.children.remove(&tokens);
                }
                None => {
                    if let Some(children) = self.roots.get_mut(&root) {
                        children.remove(&tokens);
                        if children.is_empty() {
                            self.roots.remove(&root);
                        }
                    }
                }
            }
            self.free.push(id);
        }
    }

    /// Frees the host's pages of the leaf there that was used longest ago. False if there is none.
    pub fn evict_host(
        &mut self,
        pages: &Pages,
        dropped: &mut Vec<HostPage>,
        is_locked: impl Fn(HostPage) -> bool,
    ) -> bool {
        let free = |id: &NodeId| self.node(*id).is_some_and(|n| !n.host.iter().flatten().any(|h| is_locked(*h)));
        let Some(id) = self.host_leaves.iter().map(|(_, id)| *id).find(free) else { return false };
        self.drop_copies(id, pages, dropped, |_| true);
        true
    }

    /// Takes copies on the host from whoever has them: what could not be read once is not looked for again.
    pub fn lose_copies(&mut self, lost: &HashSet<HostPage>, pages: &Pages, dropped: &mut Vec<HostPage>) {
        for id in 0..self.nodes.len() as NodeId {
            if self.node(id).is_some_and(|n| n.host.iter().flatten().any(|h| lost.contains(h))) {
                self.drop_copies(id, pages, dropped, |h| lost.contains(&h));
            }
        }
    }

    /// Takes some of a node's copies on the host from it, of which it has at least one.
    fn drop_copies(
        &mut self,
        id: NodeId,
        pages: &Pages,
        dropped: &mut Vec<HostPage>,
        which: impl Fn(HostPage) -> bool,
    ) {
        self.forget(id);
        let Some(node) = self.node_mut(id) else { return };
        dropped.extend(node.host.iter_mut().filter_map(|place| place.take_if(|h| which(*h))));
        let (parent, has_more) = (node.parent, node.host.iter().any(Option::is_some));
        self.refresh(id, pages);
        if has_more {
            return;
        }
        if let Some(parent) = parent {
            if let Some(node) = self.node_mut(parent) {
                node.on_host = node.on_host.saturating_sub(1);
            }
            self.refresh(parent, pages);
        }
        self.prune(id);
    }

    /// Empties the tree of everything that nobody else holds.
    pub fn clear(&mut self, pages: &mut Pages, dropped: &mut Vec<HostPage>) {
        while self.evict_host(pages, dropped, |_| false) {}
        while let Some((_, id)) = self.leaves.first().copied() {
            self.drop_page(id, pages);
        }
    }

    /// Counts what the tree holds: pages, and windows by kind.
    pub fn count(&self, holders: &mut [u32], windows: &mut [Vec<u32>]) {
        for node in self.nodes.iter().filter(|n| n.is_live) {
            let Some(page) = node.page.map(|p| p as usize) else { continue };
            if let Some(n) = holders.get_mut(page) {
                *n += 1;
            }
            for (kind, _) in node.windows.iter().enumerate().filter(|(_, held)| **held) {
                if let Some(n) = windows.get_mut(kind).and_then(|w| w.get_mut(page)) {
                    *n += 1;
                }
            }
        }
    }

    /// Every copy on the host that a node names.
    pub fn host_pages(&self) -> impl Iterator<Item = HostPage> + '_ {
        self.nodes.iter().filter(|n| n.is_live).flat_map(|n| n.host.iter().copied().flatten())
    }

    /// What is wrong with the tree, if anything.
    pub fn check(&self, pages: &Pages) -> Result<(), String> {
        let (mut leaves, mut loose, mut host_leaves) = (0, 0, 0);
        let mut windows = vec![0; self.windows.len()];
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.is_live) {
            let id = i as NodeId;
            let children: Vec<&Node> = node.children.values().filter_map(|c| self.node(*c)).collect();
            if children.len() != node.children.len() {
                return Err(format!("node {id} has a child that is gone"));
            }
            let on_device = children.iter().filter(|c| c.page.is_some()).count();
            let has_host = |n: &Node| n.host.iter().any(Option::is_some);
            let on_host = children.iter().filter(|c| has_host(c)).count();
            if (on_device, on_host) != (node.on_device as usize, node.on_host as usize) {
                return Err(format!(
                    "node {id} counts {} and {} children, has {on_device} and {on_host}",
                    node.on_device, node.on_host
                ));
            }
            if node.page.is_none() && on_device > 0 {
                return Err(format!("node {id} has no page and {on_device} children with one"));
            }
            if node.page.is_none() && !has_host(node) && node.children.is_empty() {
                return Err(format!("node {id} is empty"));
            }
            let Some(page) = node.page else {
                host_leaves += usize::from(has_host(node) && on_host == 0);
                continue;
            };
            if self.by_page.get(&page) != Some(&id) {
                return Err(format!("page {page} of node {id} is not found by its number"));
            }
            let is_loose = pages.holders(page) == 1;
            loose += usize::from(is_loose);
            leaves += usize::from(is_loose && on_device == 0);
            host_leaves += usize::from(has_host(node) && on_host == 0);
            if is_loose != self.loose.contains(&id)
                || (is_loose && on_device == 0) != self.leaves.contains(&(node.used, id))
            {
                return Err(format!("node {id} stands in the wrong order"));
            }
            if is_loose && children.iter().filter_map(|c| c.page).any(|p| pages.holders(p) > 1) {
                return Err(format!("node {id} is free and a child of it is held"));
            }
            for (k, order) in windows.iter_mut().enumerate() {
                let is_free = node.windows[k] && pages.window_holders(k, page) == 1;
                *order += usize::from(is_free);
                if is_free != self.windows[k].contains(&(node.window_used, id)) {
                    return Err(format!("window {k} of node {id} stands in the wrong order"));
                }
                if node.windows[k] && pages.physical(k, page) < 0 {
                    return Err(format!("node {id} holds a window of kind {k} that has no memory"));
                }
            }
        }
        let sizes: Vec<usize> = self.windows.iter().map(BTreeSet::len).collect();
        let orders = (self.leaves.len(), self.loose.len(), self.host_leaves.len(), sizes);
        if orders != (leaves, loose, host_leaves, windows.clone()) {
            return Err(format!("the orders have {orders:?}, the nodes {leaves}, {loose}, {host_leaves}, {windows:?}"));
        }
        if self.by_page.len() != self.nodes.iter().filter(|n| n.is_live && n.page.is_some()).count() {
            return Err("pages are found by number that no node has".to_owned());
        }
        Ok(())
    }
}
