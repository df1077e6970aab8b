//! The migration protocol as a state machine over traits.
