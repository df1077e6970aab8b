//! Contract: the symbol table is filled from the first place that has all mandatory symbols;
//! optional ones are taken one by one, kernels all or none; a failure is an error that lists
//! everything that was tried.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use seqshift::device::{DeviceError, Runtime, RuntimeOptions};
use seqshift::ffi::{self, LibraryOptions, LoadError, Symbols};

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("seqshift-symbols-{name}-{}", process::id()));
        fs::create_dir_all(path.join("lib64")).expect("a temporary directory can be made");
        Self(path)
    }

    /// Compiles a library that exports the names, each of which returns `value`, and `more`.
    fn library(&self, file: &str, names: &[String], value: i32, more: &str) {
        let code: String = names
            .iter()
            .map(|name| format!("int {name}(void) {{ return {value}; }}\n"))
            .collect();
        let source = self.0.join("library.c");
        fs::write(&source, code + more).expect("the source can be written");
        let status = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-shared", "-fPIC", "-o"])
            .args([self.0.join(file), source])
            .status()
            .expect("there is a C compiler");
        assert!(status.success());
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Names of one library's symbols, of one group.
fn names(library: i32, mandatory: bool) -> Vec<String> {
    let mut count = 0;
    // SAFETY: the shim returns a static array and its length.
    let all = unsafe { std::slice::from_raw_parts(ffi::seqshiftSymbolList(&mut count), count) };
    let group = all.iter().filter(|symbol| {
        i32::from(symbol.library) == library && (symbol.mandatory != 0) == mandatory
    });
    // SAFETY: the names are static C strings.
    let name = |symbol: &ffi::SeqshiftSymbol| unsafe { CStr::from_ptr(symbol.name) };
    group
        .map(|symbol| name(symbol).to_string_lossy().into_owned())
        .collect()
}

fn from_directory(path: &Path) -> LibraryOptions {
    LibraryOptions {
        directory: Some(path.into()),
        toolkit: None,
    }
}

fn failure(options: &LibraryOptions) -> LoadError {
    Symbols::load(options).expect_err("there is nothing to load")
}

#[test]
fn a_missing_directory_is_named_and_nothing_else_is_tried() {
    let directory = Directory::new("empty");
    let options = LibraryOptions {
        directory: Some(directory.0.clone()),
        toolkit: Some(directory.0.clone()),
    };
    let error = failure(&options);
    assert_eq!(error.library, "libascendcl.so");
    assert_eq!(error.attempts.len(), 1);
    let place = directory.0.join("libascendcl.so").display().to_string();
    assert_eq!(error.attempts[0].place, place);
    assert!(error.to_string().contains(&place), "{error}");
}

#[test]
fn without_a_directory_process_soname_and_toolkit_are_tried_in_this_order() {
    let directory = Directory::new("toolkit");
    let error = failure(&LibraryOptions {
        directory: None,
        toolkit: Some(directory.0.clone()),
    });
    let places: Vec<_> = error
        .attempts
        .iter()
        .map(|attempt| attempt.place.as_str())
        .collect();
    let toolkit = directory
        .0
        .join("lib64/libascendcl.so")
        .display()
        .to_string();
    assert_eq!(
        places,
        ["the process itself", "libascendcl.so", toolkit.as_str()]
    );
    assert!(error.attempts[0].reason.contains("aclInit"), "{error}");
}

#[test]
fn one_missing_mandatory_symbol_makes_a_library_useless_and_is_named() {
    let directory = Directory::new("lacking");
    let mut acl = names(ffi::SEQSHIFT_LIBRARY_ACL, true);
    let missing = acl.remove(5);
    directory.library("libascendcl.so", &acl, 0, "");
    let error = failure(&from_directory(&directory.0));
    assert_eq!(error.attempts[0].reason, format!("lacks {missing}"));
}

#[test]
fn a_toolkit_serves_and_optional_symbols_stay_empty() {
    let directory = Directory::new("complete");
    let acl = names(ffi::SEQSHIFT_LIBRARY_ACL, true);
    let mut hccl = names(ffi::SEQSHIFT_LIBRARY_HCCL, true);
    // From CANN 9 on a second library has part of HCCL.
    let second = hccl.split_off(4);
    directory.library("lib64/libascendcl.so", &acl, 0, "");
    directory.library("lib64/libhccl.so", &hccl, 0, "");
    directory.library("lib64/libhcomm.so", &second, 0, "");
    let symbols = Symbols::load(&LibraryOptions {
        directory: None,
        toolkit: Some(directory.0.clone()),
    })
    .expect("all mandatory symbols are there");
    let table = symbols.table();
    assert!(table.aclrtFree.is_some() && table.HcclBarrier.is_some());
    assert!(table.aclrtMemcpyBatchAsync.is_none());
    assert!(table.seqshiftMockRegisterDeviceMemory.is_none());
    assert!(
        symbols.places().0.ends_with("lib64/libascendcl.so"),
        "{:?}",
        symbols.places()
    );
}

/// A directory with all that is mandatory.
fn complete(name: &str) -> Directory {
    let directory = Directory::new(name);
    for (library, soname) in [
        (ffi::SEQSHIFT_LIBRARY_ACL, "libascendcl.so"),
        (ffi::SEQSHIFT_LIBRARY_HCCL, "libhccl.so"),
    ] {
        directory.library(soname, &names(library, true), 0, "");
    }
    directory
}

fn kernels(directory: &Directory) -> (Option<String>, [bool; 3]) {
    let symbols =
        Symbols::load(&from_directory(&directory.0)).expect("all mandatory symbols are there");
    let table = symbols.table();
    let present = [
        table.aclCreateTensor.is_some(),
        table.aclnnIndexSelect.is_some(),
        table.aclnnInplaceIndexCopy.is_some(),
    ];
    (symbols.kernels().map(str::to_owned), present)
}

#[test]
fn kernels_are_found_under_their_newer_and_their_older_name() {
    let (base, ops) = (
        names(ffi::SEQSHIFT_LIBRARY_NNOPBASE, false),
        names(ffi::SEQSHIFT_LIBRARY_OPAPI, false),
    );
    for (name, libraries) in [
        ("newer", vec![("libopapi_nn.so", &ops[..])]),
        ("older", vec![("libopapi.so", &ops[..])]),
        // A first library that lacks some of them is no reason to do without.
        (
            "split",
            vec![("libopapi_nn.so", &ops[..1]), ("libopapi.so", &ops[1..])],
        ),
    ] {
        let directory = complete(name);
        directory.library("libnnopbase.so", &base, 0, "");
        for (soname, names) in libraries {
            directory.library(soname, names, 0, "");
        }
        let (place, present) = kernels(&directory);
        assert!(
            place.is_some_and(|place| place.ends_with("libopapi_nn.so")),
            "{name}"
        );
        assert_eq!(present, [true; 3], "{name}");
    }
}

#[test]
fn without_all_of_both_libraries_there_are_no_kernels() {
    let (base, ops) = (
        names(ffi::SEQSHIFT_LIBRARY_NNOPBASE, false),
        names(ffi::SEQSHIFT_LIBRARY_OPAPI, false),
    );
    for (name, base, ops) in [
        ("nothing", &base[..0], &ops[..0]),
        ("no-tensors", &base[..0], &ops[..]),
        ("no-kernels", &base[..], &ops[..0]),
        ("one-missing", &base[..], &ops[..3]),
    ] {
        let directory = complete(name);
        for (soname, names) in [("libnnopbase.so", base), ("libopapi.so", ops)] {
            if !names.is_empty() {
                directory.library(soname, names, 0, "");
            }
        }
        assert_eq!(kernels(&directory), (None, [false; 3]), "{name}");
    }
}

#[test]
fn a_code_that_aclinit_returns_is_kept_and_names_the_symbol() {
    let directory = Directory::new("refusing");
    let acl: Vec<_> = names(ffi::SEQSHIFT_LIBRARY_ACL, true)
        .into_iter()
        .filter(|name| name != "aclGetRecentErrMsg")
        .collect();
    let message = "const char *aclGetRecentErrMsg(void) { return \"no driver\"; }\n";
    directory.library("libascendcl.so", &acl, ffi::CANN_FAILURE, message);
    directory.library(
        "libhccl.so",
        &names(ffi::SEQSHIFT_LIBRARY_HCCL, true),
        0,
        "",
    );
    let options = RuntimeOptions {
        libraries: from_directory(&directory.0),
        device: 0,
    };
    let error = Runtime::open(&options).expect_err("aclInit refuses");
    assert!(
        matches!(&error, DeviceError::Call { symbol: "aclInit", code: ffi::CANN_FAILURE, message }
            if message == "no driver"),
        "{error:?}"
    );
}
