//! Finds the system's DPDK, generates the bindings and compiles the shim; does nothing without the feature `system`.

#[cfg(feature = "system")]
#[path = "build/system.rs"]
mod system;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "system")]
    if let Err(error) = system::build() {
        println!("cargo::error={error}");
    }
}
