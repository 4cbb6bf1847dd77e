//! Rules of a plan: places, lifetimes, launches.

use super::{Report, VerifyError};
use crate::{
    Anatomy, Bucket, BucketPlan, Buffer, Graph, KernelEntry, KernelGraph, KernelKind, KernelModule, Launch, Place,
    Plan, Program, Type, ValueId,
};
use std::collections::HashMap;

pub(super) const CODE: &str = "V0205";

pub(super) fn verify(plan: &Plan, kernels: &KernelModule) -> Result<(), Vec<VerifyError>> {
    super::kernels::verify(kernels)?;
    let mut report = Report::default();
    super::kv::verify(&plan.kv, kernels, &mut report);
    let names = plan.entries.iter().map(|e| &e.name).eq(kernels.entries.iter().map(|e| &e.name));
    report.check(names, CODE, "entries", || "they are not those of the model".to_owned());
    let mut largest = 0;
    for (entry, kernel_entry) in plan.entries.iter().zip(&kernels.entries) {
        let same = entry.instances == kernel_entry.instances;
        report.check(same, CODE, &entry.name, || "its instances are not those of the kernel level".to_owned());
        let ascending = entry.buckets.windows(2).all(|w| w[0].bucket.tokens <= w[1].bucket.tokens);
        report.check(ascending, CODE, &entry.name, || "its buckets do not ascend by tokens".to_owned());
        super::captures::planned(entry, kernel_entry, &kernels.facts, &mut report);
        for bucket in &entry.buckets {
            largest = largest.max(bucket.arena_bytes);
            verify_bucket(bucket, kernel_entry, &mut report);
        }
    }
    report.check(plan.arena_bytes == largest, CODE, "arena", || {
        format!("it has {} bytes, the largest bucket uses {largest}", plan.arena_bytes)
    });
    report.finish()
}

fn end(buffer: &Buffer) -> u64 {
    buffer.offset_bytes.saturating_add(buffer.bytes)
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.offset_bytes < end(b) && b.offset_bytes < end(a)
}

fn verify_bucket(plan: &BucketPlan, entry: &KernelEntry, report: &mut Report) {
    let place = plan.bucket.to_string();
    report.check(plan.bucket.entry == entry.name, CODE, &place, || format!("it is not of entry `{}`", entry.name));
    let shared: Vec<(&String, &Buffer)> = plan.shared.iter().collect();
    for (i, (name, buffer)) in shared.iter().enumerate() {
        fits_arena(buffer, plan, &format!("{place} shared {name}"), report);
        for (other, b) in shared.iter().take(i) {
            report.check(!overlap(buffer, b), CODE, &place, || format!("shared `{name}` and `{other}` overlap"));
        }
    }
    let names = plan.programs.iter().map(|p| &p.graph).eq(entry.graphs.iter().map(|g| &g.name));
    report.check(names, CODE, &place, || "its programs are not the graphs of the kernel level".to_owned());
    // Any of these may run before a class or the last graph; a program that launches nothing leaves what came before it.
    let kernels_before =
        plan.programs.iter().rev().skip(1).all(|p| matches!(p.launches.last(), Some(Launch::Region { .. })));
    for (index, (program, graph)) in plan.programs.iter().zip(&entry.graphs).enumerate() {
        let place = format!("{place} {}", program.graph);
        let leaving = graph.leaving();
        ProgramCheck {
            plan,
            program,
            kernel_graph: graph,
            place: &place,
            leaving,
            behind_kernel: index > 0 && kernels_before,
            report: &mut *report,
        }
        .verify();
    }
}

fn fits_arena(buffer: &Buffer, plan: &BucketPlan, place: &str, report: &mut Report) {
    report.check(buffer.offset_bytes.is_multiple_of(64), CODE, place, || {
        format!("starts at {}, no multiple of 64", buffer.offset_bytes)
    });
    report.check(end(buffer) <= plan.arena_bytes, CODE, place, || {
        format!("ends at {}, the arena at {}", end(buffer), plan.arena_bytes)
    });
}

struct ProgramCheck<'a> {
    plan: &'a BucketPlan,
    program: &'a Program,
    kernel_graph: &'a KernelGraph,
    place: &'a str,
    leaving: Vec<bool>,
    /// Whether a kernel stands before the program, whatever program a step runs before it.
    behind_kernel: bool,
    report: &'a mut Report,
}

/// When roots are made and last read, by launch.
#[derive(Default)]
struct Lives {
    made: HashMap<ValueId, usize>,
    read: HashMap<ValueId, usize>,
}

impl ProgramCheck<'_> {
    fn fail(&mut self, message: String) {
        self.report.add(CODE, self.place, message);
    }

    fn graph(&self) -> &Graph {
        &self.kernel_graph.graph
    }

    fn bucket(&self) -> &Bucket {
        &self.plan.bucket
    }

    fn verify(mut self) {
        if self.program.places.len() != self.graph().len() {
            let (found, wanted) = (self.program.places.len(), self.graph().len());
            return self.fail(format!("has {found} places for {wanted} values"));
        }
        let mut whole = true;
        for id in self.kernel_graph.graph.ids() {
            if let Err(message) = self.place_of(id) {
                self.fail(format!("{id} {message}"));
                whole = false;
            }
        }
        if whole && let Some(lives) = self.launches() {
            self.locals_apart(&lives);
            self.outputs(&lives);
        }
    }

    /// Whether a value lies where a value of its kind lies.
    fn place_of(&mut self, id: ValueId) -> Result<(), String> {
        let graph = &self.kernel_graph.graph;
        let node = graph.node(id);
        match &self.program.places[id.0 as usize] {
            Place::Alias(of) => {
                let viewed = self.root_in_graph(id);
                let fits = node.op.is_view() && *of == viewed;
                if fits { Ok(()) } else { Err(format!("is an alias of {of} and a view of {viewed}")) }
            }
            Place::Inside => {
                let inside = node.ty.tensor().is_some() && !node.op.is_leaf() && !node.op.is_view();
                if inside && !self.leaving[id.0 as usize] {
                    Ok(())
                } else {
                    Err("is read outside its region and has no place".to_owned())
                }
            }
            Place::Elsewhere => {
                let elsewhere = (node.op.is_leaf() && graph.input_name(id).is_none()) || node.ty == Type::Cache;
                if elsewhere { Ok(()) } else { Err("has no place in the arena".to_owned()) }
            }
            Place::Arena(buffer) => {
                let Some(ty) = node.ty.tensor() else { return Err("is no tensor and lies in the arena".to_owned()) };
                if node.op.is_view() || (node.op.is_leaf() && graph.input_name(id).is_none()) {
                    return Err("lies in the arena by itself".to_owned());
                }
                let bytes = self.bucket().bytes(ty).ok_or_else(|| format!("has a row axis that steps lack: {ty}"))?;
                if buffer.bytes < bytes || buffer.dtype != ty.dtype {
                    return Err(format!(
                        "needs {bytes} bytes of {} and has {} of {}",
                        ty.dtype, buffer.bytes, buffer.dtype
                    ));
                }
                fits_arena(buffer, self.plan, &format!("{} {id}", self.place), self.report);
                match graph.input_name(id) {
                    Some(name) if self.plan.shared.get(name) != Some(buffer) => {
                        Err(format!("is input `{name}` and does not lie in its shared place"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The value whose memory a view shows.
    fn root_in_graph(&self, id: ValueId) -> ValueId {
        let mut root = id;
        while self.graph().node(root).op.is_view() {
            match self.graph().operands(root).first() {
                Some(operand) => root = *operand,
                None => break,
            }
        }
        root
    }

    /// Checks the order of launches; returns lifetimes, moves counted as reads.
    fn launches(&mut self) -> Option<Lives> {
        let kernel_graph = self.kernel_graph;
        let wanted = kernel_graph.regions.iter().enumerate().filter(|(_, r)| r.kind != KernelKind::View);
        let wanted: Vec<(usize, KernelKind)> = wanted.map(|(i, r)| (i, r.kind)).collect();
        let mut found = Vec::new();
        let mut lives = Lives::default();
        for (launch, step) in self.program.launches.iter().enumerate() {
            match step {
                Launch::Region { region, kernel, reads, dependent, .. } => {
                    found.push((*region, *kernel));
                    let values = kernel_graph.regions.get(*region).map_or(&[][..], |r| &r.values);
                    let mut from: Vec<usize> = Vec::new();
                    for id in values {
                        lives.made.insert(*id, launch);
                        let viewed = kernel_graph.graph.node(*id).op.is_view();
                        for operand in kernel_graph.graph.operands(*id).into_iter().filter(|_| !viewed) {
                            let root = self.root_in_graph(operand);
                            lives.read.insert(root, launch);
                            from.extend(lives.made.get(&root).filter(|made| **made < launch));
                        }
                    }
                    from.sort_unstable();
                    from.dedup();
                    if from != *reads {
                        self.fail(format!(
                            "launch {launch} reads what launches {from:?} make, the plan says {reads:?}"
                        ));
                    }
                    let behind_kernel = match launch.checked_sub(1).and_then(|before| self.program.launches.get(before))
                    {
                        Some(before) => matches!(before, Launch::Region { .. }),
                        None => self.behind_kernel,
                    };
                    if *dependent && !behind_kernel {
                        self.fail(format!("launch {launch} starts early and no kernel is before it"));
                    }
                }
                Launch::Move { from, to } if !kernel_graph.graph.outputs.contains(&(to.clone(), *from)) => {
                    self.fail(format!("moves {from} to `{to}`, which is no output of the graph"));
                    return None;
                }
                Launch::Move { from, .. } => {
                    lives.read.insert(self.root_in_graph(*from), launch);
                }
            }
        }
        let moves_last = self.program.launches.iter().skip(found.len()).all(|l| matches!(l, Launch::Move { .. }));
        if found != wanted || !moves_last {
            self.fail("its launches are not the regions in order, followed by moves".to_owned());
            return None;
        }
        for (id, launch) in &lives.read {
            let made_here = !kernel_graph.graph.node(*id).op.is_leaf();
            if made_here && lives.made.get(id).is_none_or(|made| made > launch) {
                self.fail(format!("launch {launch} reads {id} before it is made"));
                return None;
            }
        }
        Some(lives)
    }

    /// Values that are not shared, with their lives.
    fn locals_apart(&mut self, lives: &Lives) {
        let mut locals: Vec<(ValueId, Buffer, usize, usize)> = Vec::new();
        let mut ids: Vec<(&ValueId, &usize)> = lives.made.iter().collect();
        ids.sort_unstable();
        for (id, made) in ids {
            let Place::Arena(buffer) = self.program.places[id.0 as usize] else { continue };
            if !self.leaving[id.0 as usize] {
                self.fail(format!("{id} has a place and is read inside its region alone"));
            }
            let is_output = self
                .kernel_graph
                .graph
                .outputs
                .iter()
                .any(|(name, v)| self.root_in_graph(*v) == *id && self.plan.shared.get(name) == Some(&buffer));
            if is_output {
                continue;
            }
            let read = lives.read.get(id).copied().unwrap_or(*made);
            if let Some((name, _)) = self.plan.shared.iter().find(|(_, b)| overlap(b, &buffer)) {
                self.fail(format!("{id} overlaps shared `{name}`"));
            }
            for (other, b, other_made, other_read) in &locals {
                let together = made <= other_read && other_made <= &read;
                if !overlap(&buffer, b) || !together {
                    continue;
                }
                // The one that ends in the launch that makes the other may be written over by it.
                let passed_on = (other_read == made && self.overwrites(*other, *id))
                    || (read == *other_made && self.overwrites(*id, *other));
                if !(passed_on && buffer.offset_bytes == b.offset_bytes) {
                    self.report.add(CODE, self.place, format!("{id} and {other} overlap and are alive together"));
                }
            }
            locals.push((*id, buffer, *made, read));
        }
    }

    /// Every output reaches its shared place, and destroys nothing that is still read.
    fn outputs(&mut self, lives: &Lives) {
        let graph = &self.kernel_graph.graph;
        for (name, value) in &graph.outputs {
            let Some(shared) = self.plan.shared.get(name) else {
                self.fail(format!("output `{name}` has no shared place"));
                continue;
            };
            let root = self.root_in_graph(*value);
            let moved = self
                .program
                .launches
                .iter()
                .position(|l| matches!(l, Launch::Move { from, to } if from == value && to == name));
            let in_place = self.program.places[root.0 as usize] == Place::Arena(*shared);
            let written = match (moved, in_place) {
                (Some(launch), false) => launch,
                // The old value passes through.
                (None, true) if graph.input_name(root) == Some(name) => continue,
                (None, true) => lives.made.get(&root).copied().unwrap_or(0),
                _ => {
                    self.fail(format!("output `{name}` is neither made in its shared place nor moved there"));
                    continue;
                }
            };
            let old = graph.inputs.iter().copied().find(|v| graph.input_name(*v) == Some(name));
            let Some((old, read)) = old.and_then(|v| Some((v, *lives.read.get(&v)?))) else { continue };
            let passed_on = read == written && moved.is_none() && self.overwrites(old, root);
            if read > written || (read == written && !passed_on) {
                self.fail(format!("output `{name}` is written at launch {written}, its old value read at {read}"));
            }
        }
    }

    /// Whether the region that makes `new` may write it where `old` lies, which it reads.
    fn overwrites(&self, old: ValueId, new: ValueId) -> bool {
        let graph = self.graph();
        let viewed = graph.users(old).into_iter().any(|u| graph.node(u).op.is_view());
        let region = self.kernel_graph.regions.iter().find(|r| r.values.contains(&new));
        let anatomy = region.and_then(|r| Anatomy::of(graph, &r.values).ok());
        !viewed && anatomy.is_some_and(|a| a.overwrites(graph, old, new))
    }
}
