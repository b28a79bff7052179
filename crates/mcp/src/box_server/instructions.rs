//! What a model is told about its sandbox when it connects.

use super::{BoxFacts, Workspace};

pub(super) fn text(facts: &BoxFacts) -> String {
    let workspace = match facts.workspace {
        Workspace::Private => {
            "Files under /workspace are private to this session: they stay between calls and are lost with it."
        }
        Workspace::Kept => "Files under /workspace belong to this session and are kept for the next time.",
        Workspace::Mounted => {
            "/workspace is a directory of the user's machine: changes there are real and stay. Everything else of \
             that machine is out of reach."
        }
        Workspace::MountedReadOnly => {
            "/workspace is a directory of the user's machine, read-only. Write to /tmp, or to the home directory."
        }
    };
    let network = match facts.network.as_str() {
        "off" => {
            "It has no network: packages cannot be downloaded, and addresses cannot be reached.".to_owned()
        }
        "on" => "It reaches the Internet, but not the user's machine and its networks.".to_owned(),
        "host" => "It reaches all that the user's machine reaches.".to_owned(),
        policy => {
            format!("Its network is held to this policy: {policy}. What is refused is said in the result.")
        }
    };
    format!(
        "A Linux sandbox for commands and files. Use `exec` to run code, tests and programs, and read, write, edit, \
         glob and grep for files; all of them work on the same box, whose working directory is /workspace. \
         {workspace} Installed programs are those of the image or the host's /usr; processes that a command \
         leaves in the background go on between calls, environment variables and the working directory do not. \
         {network} Limits: {} MiB of memory, {} CPUs, {} processes; a command is ended after {} s unless \
         timeout_sec says otherwise, at most {} s. Long output is cut in the middle: write it to a file and read \
         parts of it. A result with `ok: false` says what went wrong. `session_reset` begins anew with an empty \
         box. The files are resources too: sandcrate://SESSION/workspace/PATH.",
        facts.memory_mb, facts.cpus, facts.pids_limit, facts.timeout_sec, facts.max_timeout_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_this_box_is() {
        let facts = BoxFacts {
            network: "off".to_owned(),
            memory_mb: 256,
            cpus: 2.0,
            pids_limit: 64,
            timeout_sec: 30,
            max_timeout_sec: 120,
            workspace: Workspace::Mounted,
        };
        let told = text(&facts);
        for word in
            ["no network", "256 MiB", "2 CPUs", "64 processes", "30 s", "120 s", "changes there are real"]
        {
            assert!(told.contains(word), "`{word}` is not in: {told}");
        }
        let open =
            text(&BoxFacts { network: "allow a.example".to_owned(), workspace: Workspace::Kept, ..facts });
        assert!(open.contains("policy: allow a.example") && open.contains("kept for the next time"));
    }
}
