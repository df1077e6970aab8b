//! Counters, log and profile lines.

mod counters;
mod profile;

pub use counters::{CheckRecord, Counters, MoveRecord};
pub use profile::Profile;

use tracing_subscriber::EnvFilter;

/// Environment variable that filters the log, in the syntax of
/// `tracing_subscriber::EnvFilter`; "info" without it.
pub const LOG_VARIABLE: &str = "SEQSHIFT_LOG";

/// Sends log lines to standard error. A second call, or a subscriber that the
/// process already has, leaves everything as it is.
pub fn init_log() {
    let text = std::env::var(LOG_VARIABLE).unwrap_or_default();
    let text = if text.is_empty() { "info" } else { &text };
    let parsed = EnvFilter::try_new(text);
    let why = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    // An error says that somebody else has set a subscriber; ours is not needed then.
    if lines.try_init().is_ok()
        && let Some(why) = why
    {
        tracing::warn!("{LOG_VARIABLE}={text:?} is not a filter, \"info\" it is: {why}");
    }
}
