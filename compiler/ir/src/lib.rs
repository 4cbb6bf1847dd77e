//! The intermediate representation of a compiled model, at every level it passes through.
//!
//! A value is a tensor with *named* axes and a storage dtype. Operations compute in IEEE binary32
//! and leave an `f32` value; only [`Op::Round`] narrows one, so every rounding point of a model is
//! a node that can be seen, counted, moved and compared. A reduction names its [`Order`].
//! An [`Op`] widens narrower operands exactly, broadcasts by axis name, and means the same at each
//! level; levels differ in what they may contain:
//!
//! * [`Model`]: entries and blocks that call each other, the layer schedule unresolved;
//! * [`Module`]: one flat graph per layer class plus the first and the last, the seam rotated; with a [`Sharding`] the
//!   same on a [`Mesh`], collectives explicit;
//! * [`KernelModule`]: the same graphs with every operation in exactly one region;
//! * [`Plan`]: launches in order and buffers at fixed offsets, per bucket.
//!
//! This crate knows no other crate of the workspace: it computes nothing on tensors, reads no spec
//! and touches no device.

mod anatomy;
mod bucket;
mod constexpr;
mod dtype;
mod facts;
mod graph;
mod holds;
mod json;
mod kernel;
mod mesh;
mod model;
mod module;
mod op;
mod plan;
mod sharding;
mod speculation;
mod stored;
mod text;
mod types;
mod verify;

pub use anatomy::{Anatomy, Strand, core_kind, effect_order, mixed_axes};
pub use bucket::{ALL_ROWS, Bucket, RowsPerSequence, SEQUENCE_ROWS, TOKEN_ROWS, WANTED_ROWS, block_rows};
pub use constexpr::{ConstBinary, ConstExpr, ConstUnary};
pub use dtype::DType;
pub use facts::{
    Capture, DiskForm, Facts, KvKind, LayerKinds, MOST_PARAMETERS, RuntimeFacts, WEIGHT_ALIGN_BYTES, Weight, When,
};
pub use graph::{Graph, GraphBuilder, Node, Span, ValueId, free_name};
pub use kernel::{KernelEntry, KernelGraph, KernelKind, KernelModule, Layout, Region, WeightLayout};
pub use mesh::{Mesh, MeshError};
pub use model::{Block, Model};
pub use module::{Class, Entry, Instance, Module};
pub use op::{Binary, KvRef, Mask, Op, Order, ReduceOp, Scope, TopWhat, Unary, WeightRef};
pub use plan::{BucketPlan, Buffer, Captured, KvLayout, Launch, Place, Plan, PlanEntry, Program, Variant};
pub use sharding::{PlacedWeight, Placement, Sharding};
pub use speculation::{AcceptRule, AcceptWhat, WalkWhat};
pub use stored::{DiskLayout, Stored, StoredFormat, StoredInputs, StoredKv, StoredNames, StoredPlain};
pub use text::{
    ParseError, parse_kernels, parse_module, print_graph, print_kernels, print_model, print_module, print_plan,
};
pub use types::{Axis, Extent, TensorType, Type};
pub use verify::{
    CODES, VerifyError, check_operation, explain, verify_kernels, verify_model, verify_module, verify_plan,
};
