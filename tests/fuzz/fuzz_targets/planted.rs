//! A target with a mistake in it, so that a run shows that mistakes are found.
//!
//! It does not believe in a policy that parks a turn after ten attempts or more; what it begins with says five.
#![no_main]

use turnkeep::policy::Policy;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let attempts = Policy::parse(bytes, "planted").map_or(0, |policy| policy.attempts_max());
    assert!(attempts < 10, "planted: found, {attempts} attempts");
});
