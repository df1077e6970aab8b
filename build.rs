//! Compiles the C shim into the library.

fn main() {
    let sources = ["copy", "runtime", "symbols"].map(|name| format!("cann_shim/src/{name}.c"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cann_shim/include/seqshift_cann.h");
    for source in &sources {
        println!("cargo::rerun-if-changed={source}");
    }
    cc::Build::new()
        .std("c11")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .include("cann_shim/include")
        .files(&sources)
        .compile("seqshift_shim");
}
