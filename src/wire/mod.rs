//! Manifests and replies: versioned, framed, bounds-checked. Pure.
