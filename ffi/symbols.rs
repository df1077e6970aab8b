//! Finds CANN's functions at run time.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::bindings::{
    SEQSHIFT_LIBRARY_ACL, SEQSHIFT_LIBRARY_HCCL, SEQSHIFT_LIBRARY_NNOPBASE, SEQSHIFT_LIBRARY_OPAPI,
    SeqshiftSymbol, SeqshiftSymbols, seqshiftSymbolList,
};

/// A library, under the names it may have.
struct Wanted {
    library: i32,
    sonames: &'static [&'static str],
    flags: i32,
}

const ACL: Wanted = Wanted {
    library: SEQSHIFT_LIBRARY_ACL,
    sonames: &["libascendcl.so"],
    flags: RTLD_LOCAL,
};
/// From CANN 9 on part of it lives in the second library.
const HCCL: Wanted = Wanted {
    library: SEQSHIFT_LIBRARY_HCCL,
    sonames: &["libhccl.so", "libhcomm.so"],
    flags: RTLD_LOCAL,
};
/// The kernels' libraries expect to find its symbols in the process.
const NNOPBASE: Wanted = Wanted {
    library: SEQSHIFT_LIBRARY_NNOPBASE,
    sonames: &["libnnopbase.so"],
    flags: RTLD_GLOBAL,
};
/// From CANN 8.5 on the kernels are in the first library, before in the second.
const OPAPI: Wanted = Wanted {
    library: SEQSHIFT_LIBRARY_OPAPI,
    sonames: &["libopapi_nn.so", "libopapi.so"],
    flags: RTLD_LOCAL,
};

/// Where to look for the libraries.
///
/// With [`directory`](Self::directory) set, there and nowhere else. Otherwise, in this order:
/// symbols already loaded into the process, the dynamic linker's own search by soname,
/// `toolkit/lib64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryOptions {
    /// A directory that holds `libascendcl.so` and `libhccl.so`.
    pub directory: Option<PathBuf>,
    /// The root of an installed CANN toolkit.
    pub toolkit: Option<PathBuf>,
}

impl LibraryOptions {
    /// `SEQSHIFT_CANN_LIB_DIR` and `ASCEND_HOME_PATH`; an empty value counts as unset.
    pub fn from_env() -> Self {
        let path = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            directory: path("SEQSHIFT_CANN_LIB_DIR"),
            toolkit: path("ASCEND_HOME_PATH"),
        }
    }

    fn places(&self) -> Vec<Place> {
        if let Some(directory) = &self.directory {
            return vec![Place::Directory(directory.clone())];
        }
        let toolkit = self
            .toolkit
            .iter()
            .map(|root| Place::Directory(root.join("lib64")));
        [Place::Process, Place::Soname]
            .into_iter()
            .chain(toolkit)
            .collect()
    }
}

/// One place that was tried in vain, and why it did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The file name, the path, or "the process itself".
    pub place: String,
    /// The dynamic linker's message, or the missing symbols.
    pub reason: String,
}

/// A library, or a mandatory symbol of it, was found nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The library's soname.
    pub library: &'static str,
    /// All that was tried, in order.
    pub attempts: Vec<Attempt>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no usable {}; tried", self.library)?;
        for (index, Attempt { place, reason }) in self.attempts.iter().enumerate() {
            let separator = if index == 0 { ":" } else { ";" };
            write!(formatter, "{separator} {place} ({reason})")?;
        }
        formatter.write_str(
            "; set SEQSHIFT_CANN_LIB_DIR or ASCEND_HOME_PATH, or use the backend \"mock\"",
        )
    }
}

impl std::error::Error for LoadError {}

#[derive(Clone, Debug)]
enum Place {
    Process,
    Soname,
    Directory(PathBuf),
}

impl Place {
    fn describe(&self, soname: &str) -> String {
        match self {
            Self::Process => "the process itself".into(),
            Self::Soname => soname.into(),
            Self::Directory(directory) => directory.join(soname).display().to_string(),
        }
    }

    fn open(&self, soname: &str, flags: i32) -> Result<Library, libloading::Error> {
        let file = match self {
            Self::Process => return Ok(Library::this()),
            Self::Soname => PathBuf::from(soname),
            Self::Directory(directory) => directory.join(soname),
        };
        // SAFETY: the initialisers of CANN, or of the stand-in that the user names, are trusted.
        unsafe { Library::open(Some(file), RTLD_NOW | flags) }
    }
}

/// The filled symbol table. The libraries stay loaded until the process ends, since CANN does not
/// survive unloading.
#[derive(Debug)]
pub struct Symbols {
    table: Box<SeqshiftSymbols>,
    acl: String,
    hccl: String,
    kernels: Option<String>,
}

impl Symbols {
    /// Finds the libraries and looks up all symbols: the mandatory ones of a library all in one
    /// place, the optional ones one by one. The kernels need two libraries; without both, complete,
    /// there are none.
    pub fn load(options: &LibraryOptions) -> Result<Self, LoadError> {
        let mut table = Box::<SeqshiftSymbols>::default();
        let places = options.places();
        let acl = fill(&mut table, &places, &ACL)?;
        let hccl = fill(&mut table, &places, &HCCL)?;
        let kernels = kernels(&mut table, &places);
        Ok(Self {
            table,
            acl,
            hccl,
            kernels,
        })
    }

    /// Where the kernels that select and write rows were found, if they were.
    pub fn kernels(&self) -> Option<&str> {
        self.kernels.as_deref()
    }

    /// The table, for calls and for the shim. Mandatory members are never `None`.
    pub fn table(&self) -> &SeqshiftSymbols {
        &self.table
    }

    /// Where AscendCL and HCCL were found.
    pub fn places(&self) -> (&str, &str) {
        (&self.acl, &self.hccl)
    }
}

/// The shim's list of table members.
fn members() -> &'static [SeqshiftSymbol] {
    let mut count = 0;
    // SAFETY: the shim returns a static array and its length.
    unsafe {
        let first = seqshiftSymbolList(&mut count);
        std::slice::from_raw_parts(first, count)
    }
}

fn fill(
    table: &mut SeqshiftSymbols,
    places: &[Place],
    wanted: &Wanted,
) -> Result<String, LoadError> {
    let mut attempts = Vec::new();
    for place in places {
        let found = open(place, wanted, true).and_then(|libraries| {
            let found = find(&libraries, wanted.library, |member| member.mandatory != 0)?;
            keep(libraries);
            Ok(found)
        });
        match found {
            Ok(found) => {
                set(table, found);
                return Ok(place.describe(wanted.sonames[0]));
            }
            Err(reason) => attempts.push(Attempt {
                place: place.describe(wanted.sonames[0]),
                reason,
            }),
        }
    }
    Err(LoadError {
        library: wanted.sonames[0],
        attempts,
    })
}

/// Fills the members of the kernels' two libraries, all or none, from the first place that has
/// them.
fn kernels(table: &mut SeqshiftSymbols, places: &[Place]) -> Option<String> {
    let complete = |place: &Place, wanted: &Wanted| {
        let libraries = open(place, wanted, false)?;
        let found = find(&libraries, wanted.library, |_| true)?;
        keep(libraries);
        Ok::<_, String>(found)
    };
    for place in places {
        let found = complete(place, &NNOPBASE)
            .and_then(|base| complete(place, &OPAPI).map(|kernels| (base, kernels)));
        match found {
            Ok((base, kernels)) => {
                set(table, base);
                set(table, kernels);
                return Some(place.describe(OPAPI.sonames[0]));
            }
            Err(reason) => {
                let place = place.describe(OPAPI.sonames[0]);
                tracing::debug!(place, reason, "no kernels to move rows here");
            }
        }
    }
    None
}

/// The libraries of a place, under the names it has; at least the first one if it must be there.
fn open(place: &Place, wanted: &Wanted, first: bool) -> Result<Vec<Library>, String> {
    let mut libraries = Vec::new();
    let mut reason = None;
    for (index, soname) in wanted.sonames.iter().enumerate() {
        match place.open(soname, wanted.flags) {
            Ok(library) => libraries.push(library),
            Err(error) if index == 0 && first => return Err(error.to_string()),
            Err(error) => {
                reason.get_or_insert_with(|| error.to_string());
            }
        }
    }
    match reason {
        Some(reason) if libraries.is_empty() => Err(reason),
        _ => Ok(libraries),
    }
}

/// Offsets and addresses of a library's symbols, or which of the needed ones are missing.
fn find(
    libraries: &[Library],
    library: i32,
    needed: impl Fn(&SeqshiftSymbol) -> bool,
) -> Result<Vec<(usize, *mut c_void)>, String> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for member in members()
        .iter()
        .filter(|member| i32::from(member.library) == library)
    {
        // SAFETY: the shim's names are static C strings.
        let name = unsafe { CStr::from_ptr(member.name) };
        match libraries.iter().find_map(|library| address(library, name)) {
            Some(address) => found.push((member.offset as usize, address)),
            None if needed(member) => missing.push(name.to_string_lossy().into_owned()),
            None => {}
        }
    }
    if missing.is_empty() {
        Ok(found)
    } else {
        Err(format!("lacks {}", missing.join(", ")))
    }
}

fn set(table: &mut SeqshiftSymbols, found: Vec<(usize, *mut c_void)>) {
    for (offset, address) in found {
        // SAFETY: the shim's offsets are those of the table's members, all of which are nullable
        // pointers.
        unsafe {
            std::ptr::from_mut(table)
                .byte_add(offset)
                .cast::<*mut c_void>()
                .write(address);
        }
    }
}

/// Until the process ends, since CANN does not survive unloading.
fn keep(libraries: Vec<Library>) {
    libraries.into_iter().for_each(std::mem::forget);
}

fn address(library: &Library, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: only the address is taken here; the table gives it the type that the header has for
    // the name.
    unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) }
        .ok()
        .map(|symbol| symbol.into_raw())
        .filter(|address| !address.is_null())
}
