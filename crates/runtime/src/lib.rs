//! The service below every face: sessions that live, commands and processes in them, limits, and the record of
//! what happened.
//!
//! [`Runtime`] is the one handle. It owns the session table, the reaper and the managed processes, chooses the
//! backend, and knows the mount policy. Faces translate their wire to its calls and its errors by
//! [`RuntimeError::kind`]; nothing here knows of a wire.

mod admission;
mod artifacts;
mod backends;
mod box_limits;
mod config;
mod error;
mod exec;
mod images;
mod langbot;
mod life;
mod lookout;
mod metrics;
mod mounts;
mod network;
mod output_log;
mod ports;
mod presented;
mod process;
mod processes;
mod reaper;
mod records;
mod relay;
mod relay_stdin;
mod runtime;
mod session;
mod skills;
mod storage;
mod streams;
mod table;
mod tenant;

pub use admission::{Admitted, Readiness, ReadyBackend};
pub use backends::BackendView;
pub use box_limits::BoxLimits;
pub use config::{
    BackendChoice, HostNetwork, InitSource, LangbotConfig, NetworkConfig, OnNetwork, PublishOn,
    ReportedBackend, RuntimeConfig, RuntimeLimits,
};
pub use error::RuntimeError;
pub use exec::{ExecOutcome, OnTimeout};
pub use images::{ImageImport, ImageView};
pub use metrics::Metrics;
pub use network::SessionUsage;
pub use output_log::{LogEvent, Subscription};
pub use ports::{InUse, PortView, carry_port};
pub use relay::{Attachment, RelayEvent, RelayReader, RelayWriter};
pub use relay_stdin::RelayStdin;
pub use runtime::{Capacity, Runtime, TenantStatus};
pub use sandcrate_backend::StartNotice;
pub use session::{SessionOptions, SessionState, SessionView};
pub use storage::{SharedProbe, StorageAnalysis, StorageDirectory};
pub use streams::{CommandId, CommandView};
pub use tenant::{Placement, owner};
