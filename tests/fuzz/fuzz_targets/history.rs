//! See `src/history.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnkeep_fuzz::run("history", bytes));
