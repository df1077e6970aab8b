//! Gears, group load, planner and trigger. Pure.
