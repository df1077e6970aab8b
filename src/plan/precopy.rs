//! Whether it pays to copy KV in the background before sequences move, and for how
//! many steps.

/// Steps that a stop-and-copy must be predicted to last before a copy in the background
/// is worth the second check. It saves the pause, but puts the lower gear off by about
/// as many steps as the pause would have lasted: a gain as long as the lower gear takes
/// more than a fifth of the time per step.
const LEAST_PAUSE_STEPS: f64 = 3.0;

/// Bytes below which a copy's time says nothing about bandwidth: it is all latency.
const LEAST_BYTES: u64 = 32 << 20;

/// Bandwidth while none has been measured: a quarter of what the slowest path in use
/// (RoCE at 200 Gbit/s) carries.
const ASSUMED_BYTES_PER_SECOND: f64 = 6.0e9;

/// The copy shares memory and links with the decoding that goes on.
const BACKGROUND: f64 = 1.25;

/// Most steps until the next look.
const MOST_STEPS: f64 = 1000.0;

/// What the decision depends on. All ranks hold the same values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Background {
    /// KV blocks that the busiest rank sends or receives.
    pub blocks: u32,
    /// Bytes of a block over all layers.
    pub block_bytes: u64,
    /// Seconds of a decode step, if measured.
    pub step_seconds: Option<f64>,
    /// Seconds per KV block, if measured.
    pub seconds_per_block: Option<f64>,
    /// The most tokens that a sequence may still generate, if known.
    pub remaining: Option<u32>,
}

impl Background {
    /// Steps that decoding goes on while the blocks are copied, at least 1; `None` where
    /// stopping for the copy is as good.
    ///
    /// ```
    /// let long = seqshift::plan::Background {
    ///     blocks: 4000,
    ///     block_bytes: 1 << 20,
    ///     step_seconds: Some(0.05),
    ///     seconds_per_block: Some(1e-4),
    ///     remaining: None,
    /// };
    /// assert_eq!(long.steps(), Some(11));
    /// let short = seqshift::plan::Background { blocks: 40, ..long };
    /// assert_eq!(short.steps(), None);
    /// ```
    pub fn steps(&self) -> Option<u32> {
        let bytes = u64::from(self.blocks) * self.block_bytes;
        if bytes < LEAST_BYTES {
            return None;
        }
        let step = self.step_seconds.filter(|s| *s > 0.0)?;
        let seconds = match self.seconds_per_block {
            Some(per_block) => f64::from(self.blocks) * per_block,
            None => bytes as f64 / ASSUMED_BYTES_PER_SECOND,
        };
        let pause = seconds / step;
        let steps = (BACKGROUND * pause).ceil() + 1.0;
        // Sequences that end soon are not worth it; rather too early than after their end.
        let ends = self.remaining.is_some_and(|r| f64::from(r) < 2.0 * steps);
        (pause >= LEAST_PAUSE_STEPS && steps <= MOST_STEPS && !ends).then_some(steps as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Background = Background {
        blocks: 1024,
        block_bytes: 1 << 20,
        step_seconds: Some(0.05),
        seconds_per_block: Some(1e-3),
        remaining: None,
    };

    #[test]
    fn only_what_stops_decoding_for_several_steps_is_copied_in_the_background() {
        assert_eq!(LARGE.steps(), Some(27));
        let fast = Background {
            seconds_per_block: Some(1e-4),
            ..LARGE
        };
        assert_eq!(fast.steps(), None);
        let slow_steps = Background {
            step_seconds: Some(1.0),
            ..LARGE
        };
        assert_eq!(slow_steps.steps(), None);
    }

    #[test]
    fn few_bytes_do_not_count_however_long_they_took() {
        let small = Background {
            block_bytes: 1 << 10,
            seconds_per_block: Some(1.0),
            ..LARGE
        };
        assert_eq!(small.steps(), None);
    }

    #[test]
    fn sequences_that_end_soon_are_left_alone() {
        let ending = |remaining| Background {
            remaining: Some(remaining),
            ..LARGE
        };
        assert_eq!(ending(53).steps(), None);
        assert_eq!(ending(54).steps(), Some(27));
    }

    #[test]
    fn without_measurements_bandwidth_is_assumed_but_a_step_is_not() {
        let fresh = Background {
            seconds_per_block: None,
            ..LARGE
        };
        assert_eq!(fresh.steps(), Some(6));
        let unknown = Background {
            step_seconds: None,
            ..LARGE
        };
        assert_eq!(unknown.steps(), None);
        let endless = Background {
            seconds_per_block: Some(1.0),
            ..LARGE
        };
        assert_eq!(endless.steps(), None);
    }
}
