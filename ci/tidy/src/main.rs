//! Prints the import graph of a crate: `cargo run -p tidy -- imports CRATE`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use tidy::import_graph::ImportGraph;
use tidy::packages::Package;
use tidy::tables::{TABLES_PATH, Tables};
use tidy::tree::Tree;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["imports", name] => print_imports(name),
        _ => Err("usage: cargo run -p tidy -- imports CRATE".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn print_imports(name: &str) -> Result<(), Box<dyn Error>> {
    let tree = Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    let tables = tree.file(TABLES_PATH).ok_or("the tables are missing")?;
    let tables = Tables::parse(&tables.text)?;
    let mut packages = tree.packages();
    let package = packages.find(|(other, _)| other == name);
    let (_, source) = package.ok_or_else(|| format!("there is no crate `{name}`"))?;
    let package = Package::read(&tree, name, &source)?;
    let text = ImportGraph::new(&package).describe(tables.import_circle_files);
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
