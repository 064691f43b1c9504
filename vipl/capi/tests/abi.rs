//! The header conforms to the guide, and the library to the header.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::guide::CALLS;
use common::{Installation, Linkage, declared_calls, succeed, tests_directory};

/// The supported languages.
const LANGUAGES: [&[&str]; 5] = [
    &["cc", "-std=c89"],
    &["cc", "-std=c99"],
    &["cc", "-std=c11"],
    &["c++", "-x", "c++", "-std=c++98"],
    &["c++", "-x", "c++", "-std=c++17"],
];

/// The header has the guide's sizes, offsets, values and prototypes in each language, without compiler warnings.
#[test]
fn layout_and_values() {
    let installation = Installation::new("abi");
    for language in LANGUAGES {
        let program = installation.compile("abi", &["c/abi.c"], language, Linkage::Shared);
        let output = succeed(&mut installation.command(&program));
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(
            printed.ends_with(" passed, 0 failed\n"),
            "{language:?}: {printed}"
        );
    }
}

/// Returns the identifiers and numbers of C code without comments.
fn tokens(text: &str) -> Vec<String> {
    let mut code = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    code.push_str(rest);
    code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// `abi.c` checks all structure and union members, types, constants and calls of the header.
#[test]
fn abi_table_covers_every_header_name() {
    let directory = tests_directory();
    let header = fs::read_to_string(directory.join("../include/vipl.h")).expect("the header");
    let table = fs::read_to_string(directory.join("c/abi.c")).expect("the table");
    let (declarations, prototypes) = header.split_once("extern VIP_RETURN").expect("calls");
    // Include guard, parameter directions and structure tags.
    let internal = [
        "IN",
        "OUT",
        "VIP_KERNEL",
        "_VIPL_",
        "_VIP_DESCRIPTOR",
        "_VIP_ERROR_CODE",
        "_VIP_ERROR_DESCRIPTOR",
        "_VIP_MEM_ATTRIBUTES",
        "_VIP_RESOURCE_CODE",
    ];
    let language = [
        "C",
        "__cplusplus",
        "char",
        "const",
        "define",
        "endif",
        "enum",
        "extern",
        "if",
        "ifdef",
        "ifndef",
        "include",
        "int",
        "h",
        "long",
        "short",
        "stdint",
        "struct",
        "typedef",
        "uint16_t",
        "uint32_t",
        "uint64_t",
        "uint8_t",
        "union",
        "unsigned",
        "void",
        "VINIC",
    ];
    let asserted: BTreeSet<String> = tokens(&table).into_iter().collect();
    let required: BTreeSet<String> = tokens(declarations)
        .into_iter()
        .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|word| !internal.contains(&word.as_str()) && !language.contains(&word.as_str()))
        .collect();
    assert!(
        required.len() > 150,
        "{} names in the header",
        required.len()
    );
    let missing: Vec<&String> = required.difference(&asserted).collect();
    assert!(missing.is_empty(), "not in abi.c: {missing:?}");
    assert!(!prototypes.is_empty());
    for call in declared_calls() {
        assert!(
            table.contains(&format!("PROTOTYPE({call},")),
            "no prototype of {call} in abi.c"
        );
    }
}

/// A C++ program links with the C symbols.
#[test]
fn calls_from_cxx() {
    let installation = Installation::new("cxx");
    let source = installation.file("calls.cc");
    fs::write(
        &source,
        "#include <vipl.h>\nint main() { return VipCloseNic(0) == VIP_INVALID_PARAMETER ? 0 : 1; }\n",
    )
    .expect("the source");
    let source = source.to_str().expect("a UTF-8 path");
    let program = installation.compile("calls", &[source], &["c++"], Linkage::Shared);
    succeed(&mut installation.command(&program));
}

/// `viaduct.h` compiles in each language, alone and after `vipl.h`.
#[test]
fn extensions_in_every_language() {
    let installation = Installation::new("extensions");
    let source = installation.file("extensions.c");
    for others in ["", "#include <vipl.h>\n"] {
        let text = format!(
            "{others}#include <viaduct.h>\n#include <viaduct.h>\n\
             void *(*allocate)(size_t) = viaduct_alloc;\nvoid (*release)(void *) = viaduct_free;\n\
             int main(void) {{ void *m = allocate(1); release(m); return m == 0; }}\n"
        );
        fs::write(&source, text).expect("the source");
        let source = source.to_str().expect("a UTF-8 path");
        for language in LANGUAGES {
            let program = installation.compile("extensions", &[source], language, Linkage::Shared);
            succeed(&mut installation.command(&program));
        }
    }
}

/// Returns the functions that `viaduct.h` declares.
fn declared_extensions() -> BTreeSet<String> {
    let header = tests_directory().join("../include/viaduct.h");
    let header = fs::read_to_string(header).expect("the header");
    let prototypes = header.lines().filter(|line| line.starts_with("extern "));
    prototypes
        .filter_map(|line| line.split_once('(')?.0.split_whitespace().next_back())
        .map(|name| name.trim_start_matches('*').to_owned())
        .collect()
}

/// The shared library exports exactly the declared functions.
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
    let calls: BTreeSet<String> = CALLS.iter().map(|call| call.name.to_owned()).collect();
    assert_eq!(calls.len(), CALLS.len());
    assert_eq!(declared_calls(), calls);
    let extensions = declared_extensions();
    assert_eq!(
        extensions,
        [
            "viaduct_alloc",
            "viaduct_free",
            "viaduct_get_agreement",
            "viaduct_get_choices",
            "viaduct_get_connection_options",
            "viaduct_get_negotiated_options",
            "viaduct_get_peer_user",
            "viaduct_get_request_security",
            "viaduct_get_request_user",
            "viaduct_set_choices",
            "viaduct_set_connection_options",
        ]
        .map(str::to_owned)
        .into(),
        "programs may use each of them"
    );
    assert_eq!(exported, calls.union(&extensions).cloned().collect());

    let output = succeed(Command::new("readelf").arg("-d").arg(&library));
    let dynamic = String::from_utf8(output.stdout).expect("text");
    assert!(dynamic.contains("soname: [libvipl.so.0]"), "{dynamic}");
}

/// pkg-config reports the workspace's version.
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
