//! The interleavings of what threads share without a lock, by loom: the modules themselves, with loom's atomics.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pmd --test loom --release`.
#![cfg(loom)]

mod doorbells;
mod ordered_writes;
mod sleep;
mod sync;
mod tokens;

#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../src/memory/copy.rs"]
mod copy;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../src/doorbell.rs"]
mod doorbell;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../src/sleepers.rs"]
mod sleepers;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../src/token.rs"]
mod token;

/// Explores what up to so many preemptions at the worst moments can do; loops that wait have no end of
/// interleavings without such a bound.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
