//! Unix sockets of the host, by abstract name and by path.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::report::{AttackResult, Report, Usage};
use crate::sys::{SysResult, close, syscall, zeroed};

const KINDS: [(&str, i32); 3] =
    [("stream", libc::SOCK_STREAM), ("datagram", libc::SOCK_DGRAM), ("packet", libc::SOCK_SEQPACKET)];
const OFFSET: usize = 2;

/// The address of a socket file, and its length.
pub(crate) fn pathname(path: &str) -> (libc::sockaddr_un, usize) {
    address(path.as_bytes(), 0)
}

/// `lead` NUL bytes before the name make it abstract.
fn address(name: &[u8], lead: usize) -> (libc::sockaddr_un, usize) {
    let mut address = zeroed::<libc::sockaddr_un>();
    address.sun_family = libc::AF_UNIX as u16;
    for (slot, byte) in address.sun_path.iter_mut().skip(lead).zip(name) {
        *slot = *byte as libc::c_char;
    }
    (address, OFFSET + lead + name.len().min(108 - lead) + usize::from(lead == 0))
}

fn connect(kind: i32, address: &libc::sockaddr_un, size: usize) -> SysResult {
    let fd = syscall!(libc::SYS_socket, libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)?;
    let result = syscall!(libc::SYS_connect, fd, address as *const libc::sockaddr_un, size.min(110));
    close(fd);
    result
}

/// NT-05: the host's abstract socket of the given name, and usual ones.
pub(crate) fn abstract_name(arguments: &[String]) -> AttackResult {
    let [name] = arguments else {
        return Err(Usage("needs one argument: the name of the host's abstract socket".into()));
    };
    let mut report = Report::default();
    let usual = [
        "/tmp/.X11-unix/X0",
        "/tmp/.ICE-unix/1",
        "/containerd-shim/",
        "/org/kernel/linux/storage/multipathd",
    ];
    let listed = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.split(" @").nth(1)).collect();
    println!("attempt: abstract names in /proc/net/unix -> {listed:?}");
    let names = [name.trim_start_matches('@')].into_iter().chain(usual).chain(listed);
    for name in names {
        for (kind_name, kind) in KINDS {
            let (exact, size) = address(name.as_bytes(), 1);
            // A name may also be bound with its terminating NUL or with the whole field.
            for length in [size, size + 1, 110] {
                let what = format!("connect(@{name}, {kind_name}, length {length})");
                let result = connect(kind, &exact, length);
                report.held();
                if result.is_ok() {
                    report.breach(what);
                } else if length == size {
                    report.attempt(&what, result);
                }
            }
        }
    }
    report.verdict("no abstract socket of the host answers")
}

const HOST_SOCKETS: [&str; 22] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/socket",
    "/run/systemd/journal/stdout",
    "/run/systemd/journal/dev-log",
    "/dev/log",
    "/run/dbus/system_bus_socket",
    "/var/run/dbus/system_bus_socket",
    "/run/udev/control",
    "/run/snapd.socket",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/libvirt/libvirt-sock",
    "/tmp/.X11-unix/X0",
    "/run/user/0/bus",
    "/run/user/1000/bus",
];

/// NT-52: socket files: usual ones, those given, and every one found.
pub(crate) fn pathnames(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut paths: Vec<String> = HOST_SOCKETS.iter().map(|path| (*path).to_owned()).collect();
    paths.extend(arguments.iter().cloned());
    let direct: Vec<String> = paths.clone();
    paths.extend(direct.iter().map(|path| format!("/proc/1/root{path}")));
    let deadline = Instant::now() + Duration::from_secs(6);
    find_sockets(Path::new("/"), 6, deadline, &mut paths);
    if Instant::now() >= deadline {
        report.remark("no time left to look for every socket file");
    }
    for path in paths {
        let (target, size) = pathname(&path);
        for (kind_name, kind) in KINDS {
            let result = connect(kind, &target, size);
            report.held();
            let absent = matches!(result, Err(errno) if errno.0 == libc::ENOENT);
            if result.is_ok() {
                report.breach(format!("{path} takes a {kind_name} connection"));
            } else if !absent {
                report.attempt(&format!("connect({path}, {kind_name})"), result);
            }
        }
    }
    report.verdict("no socket file leads out")
}

fn find_sockets(directory: &Path, depth: usize, deadline: Instant, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let skipped = ["/proc", "/sys", "/usr"].iter().any(|root| path == Path::new(root));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 && !skipped && Instant::now() < deadline {
            find_sockets(&path, depth - 1, deadline, found);
        } else if kind.is_socket() {
            found.push(path.display().to_string());
        }
    }
}
