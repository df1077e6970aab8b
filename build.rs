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
    #[cfg(feature = "mock-core")]
    build_mock_core();
}

/// The memory tracker of the mock and the bridge to it.
#[cfg(feature = "mock-core")]
fn build_mock_core() {
    let sources =
        ["call", "control", "tracker"].map(|name| format!("cann_shim/mock/acl/{name}.cpp"));
    println!("cargo::rerun-if-changed=cann_shim/mock/acl");
    println!("cargo::rerun-if-changed=cann_shim/include/seqshift_mock.h");
    println!("cargo::rerun-if-changed=ffi/mock_core.cpp");
    println!("cargo::rerun-if-changed=ffi/mock_core.hpp");
    cxx_build::bridge("ffi/mock_core.rs")
        .std("c++20")
        .warnings_into_errors(true)
        .define("SEQSHIFT_DECLARE_CANN", None)
        .includes(["cann_shim/include", "cann_shim/mock/acl", "ffi"])
        .files(&sources)
        .file("ffi/mock_core.cpp")
        .compile("seqshift_mock_core");
}
