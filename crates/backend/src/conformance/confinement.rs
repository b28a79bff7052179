//! What a box with the defaults cannot do, and what it still can.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use sandcrate_protocol::Control;
use tokio::net::{TcpListener, TcpStream};

use super::bench::{Bench, TestBox, text_of};
use super::{Check, Need};
use crate::{ExecRequest, ExitStatus, RootAccess, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("confinement" {
        [Need::Enforced(Control::Network)] only_loopback_is_there,
            the_hosts_loopback_is_not_reached,
            the_hosts_abstract_sockets_are_not_reached,
            the_boxs_own_loopback_works;
        [Need::Enforced(Control::Filesystem)] the_root_is_read_only_and_home_and_tmp_are_not,
            another_session_is_not_visible;
        [Need::WritableRoot] a_writable_root_is_the_sessions_own;
        [Need::Enforced(Control::Capabilities)] commands_have_no_capabilities_and_gain_none;
        [Need::Enforced(Control::Seccomp)] a_seccomp_filter_is_in_force;
    })
}

async fn only_loopback_is_there(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let table = session.text("cat /proc/net/dev").await?;
    let names: Vec<&str> = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    ensure_eq!(names, ["lo"], "the interfaces");
    Ok(())
}

/// What `socket` says to a connect from the box.
async fn connect(session: &TestBox, address: &str) -> Result<String, String> {
    let program = format!(
        "import socket\naddress = {address}\nfamily = socket.AF_INET if type(address) is tuple else socket.AF_UNIX\n\
         s = socket.socket(family)\ns.settimeout(3)\n\
         try:\n    s.connect(address)\n    print('connected')\nexcept OSError:\n    print('refused')"
    );
    text_of(&session.run(ExecRequest::argv(["python3", "-c", &program])).await?)
}

async fn the_hosts_loopback_is_not_reached(bench: &Bench) -> Check {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    TcpStream::connect(address).await.map_err(|error| format!("the host's own connect: {error}"))?;
    let session = bench.start().await?;
    let seen = connect(&session, &format!("('127.0.0.1', {})", address.port())).await?;
    ensure_eq!(seen, "refused", "a connect to the host's loopback");
    Ok(())
}

async fn the_hosts_abstract_sockets_are_not_reached(bench: &Bench) -> Check {
    let name = format!("sandcrate-{}", bench.harness.fresh_session()?);
    let address = SocketAddr::from_abstract_name(&name).map_err(|error| error.to_string())?;
    let _listener = UnixListener::bind_addr(&address).map_err(|error| error.to_string())?;
    let session = bench.start().await?;
    ensure_eq!(
        connect(&session, &format!("'\\0{name}'")).await?,
        "refused",
        "a connect to the host's socket"
    );
    Ok(())
}

async fn the_boxs_own_loopback_works(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let program = "import socket\nl = socket.socket()\nl.bind(('127.0.0.1', 0))\nl.listen()\n\
                   c = socket.create_connection(l.getsockname(), 3)\nc.sendall(b'through')\nc.close()\n\
                   print(l.accept()[0].recv(100).decode())";
    let seen = text_of(&session.run(ExecRequest::argv(["python3", "-c", program])).await?)?;
    ensure_eq!(seen, "through", "what came through the box's loopback");
    Ok(())
}

async fn the_root_is_read_only_and_home_and_tmp_are_not(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for place in ["/", "/usr", "/usr/bin", "/etc", "/proc/sys/kernel"] {
        let status = session.sh(&format!("echo x > {place}/new")).await?.exit.status;
        ensure!(status != ExitStatus::Code(0), "{place} can be written");
    }
    for place in ["~", "/tmp", "/workspace", "/dev/shm"] {
        let seen = session.text(&format!("echo x > {place}/new && cat {place}/new")).await;
        ensure_eq!(seen.map_err(|error| format!("{place}: {error}"))?, "x", place);
    }
    Ok(())
}

/// AP-26.
async fn another_session_is_not_visible(bench: &Bench) -> Check {
    let (one, other) = (bench.start().await?, bench.start().await?);
    one.text("sleep 54321 > /dev/null 2>&1 &").await?;
    let find = "for f in /proc/[0-9]*/cmdline; do { tr '\\0' ' ' < $f; } 2> /dev/null; echo; done; true";
    let own = one.text(find).await?;
    ensure!(own.contains("sleep 54321"), "a session does not see its own process: {own}");
    let foreign = other.text(find).await?;
    ensure!(!foreign.contains("sleep 54321"), "another session's process is visible: {foreign}");
    Ok(())
}

async fn a_writable_root_is_the_sessions_own(bench: &Bench) -> Check {
    let spec = || Ok::<_, String>(SessionSpec { root: RootAccess::Writable, ..bench.spec()? });
    let one = bench.start_spec(spec()?).await?;
    let script =
        "echo x > /usr/local/new && echo y >> /etc/hosts && mkdir -p /opt/tool && cat /usr/local/new";
    ensure_eq!(one.text(script).await?, "x", "a write to the root");
    let other = bench.start_spec(spec()?).await?;
    ensure_eq!(
        other.text("ls -d /usr/local/new /opt/tool 2> /dev/null | wc -l").await?,
        "0",
        "in another session"
    );
    ensure!(!std::path::Path::new("/usr/local/new").exists(), "the host's /usr/local was written");
    Ok(())
}

async fn status_field(session: &TestBox, field: &str) -> Result<String, String> {
    let status = session.text("cat /proc/self/status").await?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned()).ok_or_else(|| format!("no {field} in {status}"))
}

async fn commands_have_no_capabilities_and_gain_none(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure_eq!(status_field(&session, field).await?, "0000000000000000", field);
    }
    ensure_eq!(status_field(&session, "NoNewPrivs").await?, "1", "NoNewPrivs");
    Ok(())
}

async fn a_seccomp_filter_is_in_force(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure_eq!(status_field(&session, "Seccomp").await?, "2", "Seccomp");
    Ok(())
}
