//! Raw layer: generated bindings of the shim header and the run-time symbol table.
