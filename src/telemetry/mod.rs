//! Counters, spans and profile lines.
