//! Tables in `docs/spec` that tests write and compare.

use std::path::Path;

/// What was found must be what a file of `docs/spec` says; `VIPL_WRITE_DOCUMENTS` has the file say it. `tests`: the filter
/// of the tests that do.
///
/// # Panics
/// If it is not.
pub(crate) fn compare(file: &str, tests: &str, found: &str) {
    let specifications = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec");
    let path = specifications.join(file);
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, found).expect("a writable tree");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == found,
        "write {file} again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine {tests}\n{found}"
    );
}
