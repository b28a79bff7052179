//! What travels between an E2B SDK and whoever answers it: the control plane's JSON, the two services of `envd`
//! as Connect with JSON, the framing of their streams, and signed file addresses. No I/O, and both directions:
//! the same types serve our server and our client.
//!
//! Unknown fields are tolerated, absent ones have protobuf's defaults: the SDKs and their servers grow apart.

pub mod connect;
pub mod control;
pub mod filesystem;
mod json;
pub mod process;
mod signal;
pub mod signature;

pub use json::Base64;

/// The port of `envd`, which is not a port of the box.
pub const ENVD_PORT: u16 = 49983;
/// The port of the code interpreter.
pub const INTERPRETER_PORT: u16 = 49999;
/// What SDKs take for the version of `envd`: it decides which of its features they use.
pub const ENVD_VERSION: &str = "0.6.6";

/// Names of headers, as HTTP/2 writes them.
pub mod header {
    /// Of the control plane.
    pub const API_KEY: &str = "x-api-key";
    /// The sandbox's own token, for the data plane.
    pub const ACCESS_TOKEN: &str = "x-access-token";
    /// The token that opens ports of a sandbox whose traffic is not public.
    pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
    /// Which sandbox a request to a shared address is for.
    pub const SANDBOX_ID: &str = "e2b-sandbox-id";
    pub const SANDBOX_PORT: &str = "e2b-sandbox-port";
    /// Seconds between two signs of life on a stream.
    pub const KEEPALIVE: &str = "keepalive-ping-interval";
    /// Ours: whoever sends it goes on after output that was lost, and is told how much at the end.
    pub const COUNT_LOST: &str = "sandcrate-count-lost";
    /// Where the next page of a list starts.
    pub const NEXT_TOKEN: &str = "x-next-token";
    /// Before the names of a file's metadata.
    pub const METADATA_PREFIX: &str = "x-metadata-";
}
