//! Nothing but its manifest, so that programs and tests are made of the same translations.
//!
//! A library is translated once for each set of its features, and with it all that stands on it. What one program needs of a
//! library is less than what the whole workspace with its tests needs; without this crate `cargo run -p` behind `cargo test`, which the
//! test of the documents is, would translate half of everything again. Programs depend on this crate and so ask for what tests ask for.
