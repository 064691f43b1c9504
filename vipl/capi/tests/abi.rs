//! The header against the guide, and the library against the header.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::{Installation, Linkage, declared_calls, succeed};

/// The header gives the guide's sizes, offsets and values in every language it is read in.
#[test]
fn layout_and_values() {
    let installation = Installation::new("abi");
    let languages: [&[&str]; 4] = [
        &["cc", "-std=c99"],
        &["cc", "-std=c11"],
        &["c++", "-x", "c++", "-std=c++98", "-Wno-long-long"],
        &["c++", "-x", "c++", "-std=c++17"],
    ];
    for compiler in languages {
        let program = installation.compile("abi", &["c/abi.c"], compiler, Linkage::Shared);
        let output = succeed(&mut installation.command(&program));
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(
            printed.ends_with(" passed, 0 failed\n"),
            "{compiler:?}: {printed}"
        );
    }
}

/// A C++ program links against the C names.
#[test]
fn calls_from_cxx() {
    let installation = Installation::new("cxx");
    let source = installation.file("calls.cc");
    fs::write(
        &source,
        "#include <vipl.h>\nint main() { return VipCloseNic(0) == VIP_INVALID_PARAMETER ? 0 : 1; }\n",
    )
    .expect("the source");
    let source = source.to_str().expect("a path that is text");
    let program = installation.compile("calls", &[source], &["c++"], Linkage::Shared);
    succeed(&mut installation.command(&program));
}

/// The shared object exports what the header declares, and nothing else.
#[test]
fn exports_are_the_declarations() {
    let installation = Installation::new("exports");
    let library = installation.prefix().join("lib/libvipl.so.0");
    let output = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library),
    );
    let symbols = String::from_utf8(output.stdout).expect("text");
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned()))
        .collect();
    assert_eq!(declared_calls().len(), 31);
    assert_eq!(exported, declared_calls());

    let output = succeed(Command::new("readelf").arg("-d").arg(&library));
    let dynamic = String::from_utf8(output.stdout).expect("text");
    assert!(dynamic.contains("soname: [libvipl.so.0]"), "{dynamic}");
}

/// pkg-config knows the library by the workspace's version.
#[test]
fn package_config() {
    let installation = Installation::new("pc");
    let mut query = Command::new("pkg-config");
    query.env(
        "PKG_CONFIG_PATH",
        installation.prefix().join("lib/pkgconfig"),
    );
    let output = succeed(query.args(["--modversion", "vipl"]));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        env!("CARGO_PKG_VERSION")
    );
}
