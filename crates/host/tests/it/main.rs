//! The service, its connector and its runtime.
