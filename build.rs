//! Compiles the C shim into the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
