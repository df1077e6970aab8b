//! Contract: `ffi/bindings.rs` is exactly what bindgen makes of the shim header.
//!
//! After a change of the header: `SEQSHIFT_UPDATE_BINDINGS=1 make test`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The wheel of libclang has no compiler headers; the C compiler's own serve.
fn compiler_include() -> Option<String> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(compiler)
        .arg("-print-file-name=include")
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    Path::new(path.trim())
        .is_absolute()
        .then(|| format!("-I{}", path.trim()))
}

fn generate() -> String {
    bindgen::Builder::default()
        .header(root().join("cann_shim/include/seqshift_cann.h").display().to_string())
        .clang_arg("-std=c11")
        .clang_args(compiler_include())
        .allowlist_file(".*/seqshift_cann\\.h")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .derive_default(true)
        .disable_header_comment()
        .generate_comments(false)
        .merge_extern_blocks(true)
        .rust_target(bindgen::RustTarget::stable(88, 0).expect("the crate's oldest Rust is known"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .raw_line("// @generated from cann_shim/include/seqshift_cann.h by bindgen; tests/bindings.rs compares.")
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .expect("bindgen reads the header")
        .to_string()
}

#[test]
fn committed_bindings_are_those_of_the_header() {
    if env::var_os("LIBCLANG_PATH").is_none() {
        eprintln!(
            "SKIPPED: LIBCLANG_PATH is not set; `make test` sets it to the libclang in .venv"
        );
        return;
    }
    let path = root().join("ffi/bindings.rs");
    let generated = generate();
    if env::var_os("SEQSHIFT_UPDATE_BINDINGS").is_some() {
        fs::write(&path, &generated).expect("the bindings can be written");
    }
    let committed = fs::read_to_string(&path).expect("ffi/bindings.rs is there");
    let difference = generated
        .lines()
        .zip(committed.lines())
        .position(|(new, old)| new != old)
        .map(|line| line + 1);
    assert!(
        generated == committed,
        "ffi/bindings.rs differs from the header's bindings, first in line {difference:?}; \
         with SEQSHIFT_UPDATE_BINDINGS=1 this test writes it anew"
    );
}
