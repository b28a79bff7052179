//! The flags of `sandcrate serve` and `sandcrate box`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::config::{Asked, Listen, LogFormat, Outside, Role, parse_host};

const SERVE_HELP: &str = "\
Examples:
  sandcrate serve                                       loopback and a unix socket, for you alone
  sandcrate serve --listen 127.0.0.1:0                  a free port, named when it is ready
  openssl rand -hex 32 > token && chmod 600 token
  sandcrate serve --listen 0.0.0.0:5410 --token-file token
  sandcrate tls init && sandcrate serve --listen tls:0.0.0.0:8443 --token-file token \\
    --tls-cert DIR/cert.pem --tls-key DIR/key.pem       as `tls init` prints it
  curl -s http://127.0.0.1:5410/v1/sessions/demo/exec \\
    -H 'Content-Type: application/json' -d '{\"cmd\": \"echo hello\"}'

Configuration: --config, $SANDCRATE_CONFIG, ./sandcrate.toml or /etc/sandcrate/sandcrate.toml; above it
the environment, such as SANDCRATE__NATIVE__POOL=8; above that the flags. `sandcrate config show`
prints what is in force and why. A token is taken from SANDCRATE_TOKEN, LANGBOT_BOX_CONTROL_TOKEN or a
file, never from an argument.

Signals: SIGTERM and SIGINT let commands end for the grace time, end the rest, and exit 0; a second one
does not wait. Exit code 125: the configuration is not valid, or an address or the state is taken.";

/// Serve boxes over REST, LangBot's RPC and WebSockets
#[derive(Debug, Default, Args)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Listen there; may be given more than once [127.0.0.1:5410 and unix:STATE/sandcrate.sock]
    #[arg(long, value_name = "ADDRESS:PORT|tls:ADDRESS:PORT|unix:/PATH")]
    listen: Vec<Listen>,

    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where sessions and private files of boxes live
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// A file with the token that clients must show
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// The certificate of addresses that begin with `tls:`, in PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// How the log on stderr is written; text unless said otherwise
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// Admit everybody who can reach us
    #[arg(long)]
    insecure_no_auth: bool,
}

impl ServeArgs {
    pub(crate) fn asked(self, outside: &Outside) -> Asked {
        let mut flags = Vec::new();
        if !self.listen.is_empty() {
            flags.push(("--listen", "server.listen", json!(self.listen)));
        }
        // A flag's path starts where the person is.
        let path = |path: PathBuf| json!(outside.cwd.join(path));
        flags.extend(self.state_dir.map(|dir| ("--state-dir", "runtime.state_dir", path(dir))));
        flags.extend(self.token_file.map(|file| ("--token-file", "server.token_file", path(file))));
        flags.extend(self.tls_cert.map(|file| ("--tls-cert", "server.tls.cert", path(file))));
        flags.extend(self.tls_key.map(|file| ("--tls-key", "server.tls.key", path(file))));
        flags.extend(self.log_format.map(|format| ("--log-format", "log.format", json!(format))));
        if self.insecure_no_auth {
            flags.push(("--insecure-no-auth", "server.insecure_no_auth", json!(true)));
        }
        Asked { config: self.config, flags, role: Role::Serve }
    }
}

const BOX_HELP: &str = "\
Examples:
  sandcrate box                                 for a LangBot on this machine: --standalone-box
  SANDCRATE__SERVER__LEGACY=172.16.0.0/12 sandcrate box --host 0.0.0.0
                                                for a LangBot in a container
  sandcrate box -s --ws-control-port 5410       as a LangBot's own child: RPC on stdin and stdout

Without a token and without networks in server.legacy it listens on loopback, whatever --host says.
The rest of the configuration is that of `sandcrate serve`: $SANDCRATE_CONFIG, ./sandcrate.toml,
/etc/sandcrate/sandcrate.toml, SANDCRATE__SECTION__KEY. LangBot's own is read from LANGBOT_BOX_CONFIG
and from its first message.";

/// Stand in for LangBot's Box runtime, with its options
#[derive(Debug, Args)]
#[command(after_help = BOX_HELP)]
pub(crate) struct BoxArgs {
    /// Listen on this address [0.0.0.0]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_host)]
    host: Option<IpAddr>,

    /// Speak the RPC on stdin and stdout; its end is our end
    #[arg(short, long)]
    stdio_control: bool,

    /// Listen on this port; 5410 unless said otherwise
    #[arg(long, value_name = "PORT")]
    ws_control_port: Option<u16>,
}

impl BoxArgs {
    pub(crate) fn asked(&self) -> Asked {
        let role = Role::Box { host: self.host, port: self.ws_control_port, stdio: self.stdio_control };
        Asked { config: None, flags: Vec::new(), role }
    }
}
