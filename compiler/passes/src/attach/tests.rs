//! Tests of the pass.
