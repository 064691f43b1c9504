//! Dependencies between crates: each crate depends only on the lower crates that its layer allows.

use toml::{Table, Value};

use crate::finding::Finding;
use crate::rule::Rule;
use crate::rust_source::line_of;
use crate::tables::{Layer, TABLES_PATH, Tables};
use crate::tree::{TextFile, Tree};

/// The rule `crate-layers`.
pub const RULE: Rule = Rule {
    name: "crate-layers",
    check,
};

const ADVICE: &str =
    "depend only on lower crates, or change the layers in ci/tidy/tidy.toml and ARCHITECTURE.md";

/// Kind of a dependency, by its manifest section.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DependencyKind {
    Normal,
    Dev,
}

const SECTIONS: [(&str, DependencyKind); 3] = [
    ("dependencies", DependencyKind::Normal),
    ("build-dependencies", DependencyKind::Normal),
    ("dev-dependencies", DependencyKind::Dev),
];

fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut packages = Vec::new();
    for file in tree.files().iter().filter(|f| f.name() == "Cargo.toml") {
        let finding = |line, message| Finding::new(RULE.name, &file.path, line, message, ADVICE);
        let manifest: Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(finding(0, format!("is not TOML: {error}")));
                continue;
            }
        };
        let Some(name) = package_name(&manifest) else {
            continue;
        };
        packages.push(name.to_owned());
        let Some(layer) = tables.layer(name) else {
            findings.push(finding(0, format!("crate `{name}` has no layer")));
            continue;
        };
        for (used, kind) in workspace_dependencies(&manifest, tables) {
            if !allows(layer, &used, kind) {
                let line = line_of_key(file, &used);
                findings.push(finding(
                    line,
                    format!("`{name}` may not depend on `{used}`"),
                ));
            }
        }
    }
    for layer in &tables.layers {
        if !packages.contains(&layer.name) {
            let message = format!("there is no crate `{}`", layer.name);
            findings.push(Finding::new(
                RULE.name,
                TABLES_PATH,
                0,
                message,
                "remove its layer",
            ));
        }
    }
    findings
}

fn package_name(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

fn allows(layer: &Layer, used: &str, kind: DependencyKind) -> bool {
    let is_in = |names: &[String]| names.iter().any(|name| name == used);
    let is_dev = kind == DependencyKind::Dev;
    // A crate's tests may enable its own features.
    is_in(&layer.uses) || (is_dev && (is_in(&layer.test_uses) || used == layer.name))
}

/// Returns the crates of the layer table that a manifest depends on, also below `[target.*]` and renamed.
fn workspace_dependencies(manifest: &Table, tables: &Tables) -> Vec<(String, DependencyKind)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let of_targets = targets.into_iter().flatten();
    let parents = std::iter::once(manifest).chain(of_targets.filter_map(|(_, v)| v.as_table()));
    let mut dependencies = Vec::new();
    for parent in parents {
        for (section, kind) in SECTIONS {
            let entries = parent.get(section).and_then(Value::as_table);
            for (key, value) in entries.into_iter().flatten() {
                let renamed = value.get("package").and_then(Value::as_str);
                let used = renamed.unwrap_or(key);
                if tables.layer(used).is_some() {
                    dependencies.push((used.to_owned(), kind));
                }
            }
        }
    }
    dependencies
}

fn line_of_key(manifest: &TextFile, used: &str) -> usize {
    let text = &manifest.text;
    let at = text.match_indices(used).map(|(at, _)| at).find(|&at| {
        let before = &text[..at];
        before.ends_with('\n') || before.ends_with('"')
    });
    at.map_or(0, |at| line_of(text, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    const LAYERS: &str = "[[layer]]\ncrate = 'low'\n\
                          [[layer]]\ncrate = 'mid'\nuses = ['low']\ntest_uses = ['kit']\n\
                          [[layer]]\ncrate = 'kit'\n";

    fn found(manifest: &str) -> Vec<String> {
        let tree = samples::tree(&[
            ("low/Cargo.toml", "[package]\nname = 'low'\n"),
            ("kit/Cargo.toml", "[package]\nname = 'kit'\n"),
            ("mid/Cargo.toml", manifest),
        ]);
        let findings = check(&tree, &samples::tables(LAYERS));
        findings
            .into_iter()
            .map(|f| format!("{}:{}", f.line, f.message))
            .collect()
    }

    #[test]
    fn allowed_dependencies_pass() {
        let manifest = "[package]\nname = 'mid'\n[dependencies]\nlow.workspace = true\nlibc = '1'\n\
                        [dev-dependencies]\nkit.workspace = true\nmid = { path = '.' }\n";
        assert_eq!(found(manifest), [""; 0]);
    }

    #[test]
    fn forbidden_dependency_is_found_in_every_section() {
        for section in [
            "dependencies",
            "build-dependencies",
            "target.'cfg(x)'.dependencies",
        ] {
            let manifest = format!("[package]\nname = 'mid'\n[{section}]\nkit.workspace = true\n");
            assert_eq!(
                found(&manifest),
                ["4:`mid` may not depend on `kit`"],
                "{section}"
            );
        }
        let renamed =
            "[package]\nname = 'mid'\n[dependencies]\nx = { package = \"kit\", path = '.' }\n";
        assert_eq!(found(renamed), ["4:`mid` may not depend on `kit`"]);
    }

    #[test]
    fn crates_without_layer_and_layers_without_crate_are_found() {
        let unknown = found("[package]\nname = 'new'\n");
        assert_eq!(
            unknown,
            ["0:crate `new` has no layer", "0:there is no crate `mid`"]
        );
        assert!(found("[package")[0].contains("is not TOML"));
    }
}
