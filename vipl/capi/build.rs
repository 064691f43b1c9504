//! Linker arguments of the shared object.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The ABI version: it changes only when programs must be recompiled.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.0");
    // Threads of an open NIC run code of this object, so it must not be unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
