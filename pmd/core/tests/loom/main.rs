//! Loom models of the lock-free modules: the modules themselves, with loom's atomics.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p vi-core --test loom --release`.
#![cfg(loom)]

mod biased_locks;
mod direct_access;
mod doorbells;
mod ordered_writes;
mod sleep;
mod sync;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of it, in this crate"
)]
#[path = "../../src/biased_lock.rs"]
mod biased_lock;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of it, in this crate"
)]
#[path = "../../src/memory/copy.rs"]
mod copy;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of it, in this crate"
)]
#[path = "../../src/doorbell.rs"]
mod doorbell;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of it, in this crate"
)]
#[path = "../../src/memory/direct_access/gate.rs"]
mod gate;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of it, in this crate"
)]
#[path = "../../src/waiters.rs"]
mod waiters;

/// Explores all interleavings with at most this many preemptions; loops that wait have an unbounded
/// number of interleavings without such a limit.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
