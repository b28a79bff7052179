//! Which dialect a connection speaks, and whom a call of the newer ones is for.

use sandcrate_protocol::rpc::{Context, Request};
use sandcrate_runtime::Placement;

use super::answer::ActionError;
use crate::tenancy::Tenancy;

/// Told by the handshake, for the whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// LangBot 4.10.0 to 4.10.6: no instance, no workspaces.
    First,
    /// LangBot 4.10.7 and later.
    Tenant,
}

/// What a host may ask of the runtime itself, without a workspace.
const CONTROL: [&str; 9] = [
    "__ping",
    "__file_chunk",
    "box_health",
    "box_get_backend_info",
    "box_init",
    "box_upsert_sandbox_admission_grant",
    "box_revoke_sandbox_admission_grant",
    "box_verify_shared_workspace",
    "box_shutdown",
];

/// Short ones that find room where others do not.
pub(super) fn is_brief(action: &str) -> bool {
    matches!(action, "__ping" | "__cancel_action" | "__stream_ack")
}

/// The context of a call, as far as it is trusted. A call that needs one and has none, or has that of another
/// instance, is refused.
pub(super) fn context(tenancy: &Tenancy, request: &Request) -> Result<Option<Context>, ActionError> {
    let context =
        request.context.as_ref().map(Context::from_json).transpose().map_err(ActionError::Context)?;
    if let Some(context) = &context
        && tenancy.instance().is_none_or(|ours| ours.as_str() != context.instance_uuid)
    {
        return Err(ActionError::Permission("Box action context does not match the trusted instance"));
    }
    if context.is_none() && !CONTROL.contains(&request.action.as_str()) {
        return Err(ActionError::Permission("Box tenant action requires a trusted Workspace context"));
    }
    Ok(context)
}

/// Whether a call changes or shows what one workspace has, and so must be of its newest generation.
pub(super) fn is_fenced(action: &str) -> bool {
    !CONTROL.contains(&action)
}

/// Whether a call is for a workspace's sessions, and so needs a grant where those are required.
pub(super) fn needs_grant(action: &str) -> bool {
    matches!(
        action,
        "box_status"
            | "box_exec"
            | "box_create_session"
            | "box_get_session"
            | "box_get_sessions"
            | "box_delete_session"
            | "box_start_managed_process"
            | "box_get_managed_process"
            | "box_stop_managed_process"
    )
}

pub(super) fn placement(context: &Context) -> Placement {
    Placement::new(&context.instance_uuid, &context.workspace_uuid, context.placement_generation)
}
