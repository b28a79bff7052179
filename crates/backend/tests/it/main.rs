//! Tests of what the crate gives to the layers above: the fold over a command's events, and the fake.

mod fake;
mod fold;
mod suite;
