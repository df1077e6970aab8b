//! KV-cache layout, gather and scatter of blocks.
