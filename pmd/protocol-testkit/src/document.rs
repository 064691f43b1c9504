//! Tables in `docs/spec` that tests write and compare.

use std::path::Path;

/// Compares `found` with a file of `docs/spec`, or writes the file if `VIPL_WRITE_DOCUMENTS` is
/// set. `tests`: the package and the filter of the test that writes it.
///
/// # Panics
/// If they differ.
pub fn compare(file: &str, tests: &str, found: &str) {
    let specifications = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec");
    let path = specifications.join(file);
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, found).expect("a writable source tree");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == found,
        "{file} is out of date; update it: VIPL_WRITE_DOCUMENTS=1 cargo test -p {tests}\n{found}"
    );
}
