//! Proptest configuration with a fixed seed: the same cases in every run.

use proptest::test_runner::{Config, RngSeed};

const SEED: u64 = 0x8420_2000_0714_0001;

/// Returns the configuration with [`SEED`], or the seed of PROPTEST_RNG_SEED.
pub(crate) fn config() -> Config {
    let default = Config::default();
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(SEED),
        fixed => fixed,
    };
    std::println!("seed {rng_seed:?}");
    Config {
        rng_seed,
        failure_persistence: None,
        ..default
    }
}
