//! Link arguments of the shared object.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The ABI's name: it changes only when a program would have to be compiled again.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.0");
    // Threads of an open NIC run code of this object; unloading it under them would be fatal.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
