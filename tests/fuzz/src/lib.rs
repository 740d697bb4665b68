//! What is demanded of any bytes whatever, one body for each fuzz target.
//!
//! A body panics where a promise is broken: nothing here panics for being wrong input. The same bodies run under
//! libFuzzer (`fuzz_targets`) and over the kept inputs under `cargo test` (`tests/kept.rs`). The library itself has
//! no code for this.

pub mod body;
pub mod history;
pub mod message;
pub mod meter;
pub mod policy;
pub mod record;
pub mod scan;
pub mod tree;
mod world;

pub use world::{verify, verify_with};

/// Demands of any bytes what is promised of them.
pub type Body = fn(&[u8]);

/// Names and bodies of all targets.
pub const TARGETS: &[(&str, Body)] = &[
    ("scan", scan::run),
    ("record", record::run),
    ("history", history::run),
    ("tree", tree::run),
    ("policy", policy::run),
    ("message", message::run),
    ("body", body::run),
];

/// What a body may use whatever its input is: batches and buffers of a fixed size.
const FIXED_BYTES: usize = 16 << 20;
/// What it may use for each byte of its input.
const BYTES_PER_BYTE: usize = 400;

/// Runs one body over some bytes and bounds its memory by their length.
///
/// # Panics
/// Where a promise is broken.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, body) = TARGETS.iter().find(|(target, _)| *target == name).expect("a target");
    let peak = meter::peak(|| body(bytes));
    let allowed = FIXED_BYTES + BYTES_PER_BYTE * bytes.len();
    assert!(peak <= allowed, "{name}: {peak} bytes of memory for {} of input", bytes.len());
}
