//! A stand-in for nsjail on machines that lack it: reads the same configuration and applies it with our own calls,
//! in nsjail's order. It knows what our configurations say and refuses the rest; the kafel text it compares with the
//! policy it was made from, and loads the filter that our own compiler made of that.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, open, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups,
};
use sandcrate_jail::identity::become_ids;
use sandcrate_jail::seccomp::{Features, Network, command_filter, command_policy, kafel};
use sandcrate_sys::process::{ArgList, Fork, SingleThreaded, WaitStatus, execve, exit_now, fork, reap};

/// Where the new root is put together.
const ROOT: &str = "/tmp/nsjail.root";

/// In a process that was started as nsjail, does not return.
pub(crate) fn dispatch() {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["nsjail", "--config", path, "--execute_fd", "--", program, role] = words[..] {
        let result = fs::read_to_string(path).and_then(|text| run(&Message::parse(&text)?, program, role));
        eprintln!(
            "[F][stand-in][1] {}",
            result.map_or_else(|error| error.to_string(), |never| match never {})
        );
        exit_now(255);
    }
}

enum Never {}

fn run(config: &Message, program: &str, role: &str) -> io::Result<Never> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let executable = open(program, flags, Mode::empty())?;
    if config.word("mode") == "ONCE" {
        enter_namespaces(config)?;
        make_root(config)?;
        rustix::system::sethostname(config.word("hostname").as_bytes())?;
        sandcrate_sys::loopback::bring_up()?;
    }
    give_up(config)?;
    sandcrate_sys::fd::close_on_exec_from_3()?;
    let list =
        |words: &[&str]| ArgList::new(words.iter().filter_map(|word| CString::new(*word).ok()).collect());
    let path = CString::new(format!("/proc/self/fd/{}", executable.as_raw_fd()))?;
    let error = execve(&path, &list(&[program, role]), &list(&[]));
    Err(io::Error::new(error.kind(), format!("execve: {error}")))
}

/// The parent writes the maps, waits for the child and ends with its code.
fn enter_namespaces(config: &Message) -> io::Result<()> {
    let proof = SingleThreaded::prove()?;
    let names = [
        ("net", libc::CLONE_NEWNET),
        ("user", libc::CLONE_NEWUSER),
        ("ns", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
    ];
    let wanted = names.iter().filter(|(name, _)| config.word(&format!("clone_new{name}")) == "true");
    let flags: libc::c_int = wanted.map(|(_, flag)| flag).sum();
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match fork(&proof, flags as u64, None)? {
        Fork::Child(_) => {
            drop(go);
            let mut word = [0];
            if rustix::io::read(&wait, &mut word)? == 0 {
                exit_now(255);
            }
            become_ids(0, 0)?;
            Ok(set_thread_groups(&[])?)
        }
        Fork::Parent { pid, pidfd } => {
            for (key, file) in [("uidmap", "uid_map"), ("gidmap", "gid_map")] {
                let lines = config.all(key).map(|map| {
                    format!("{} {} {}\n", map.word("inside_id"), map.word("outside_id"), map.word("count"))
                });
                let mut file = fs::File::options().write(true).open(format!("/proc/{pid}/{file}"))?;
                file.write_all(lines.collect::<String>().as_bytes())?;
            }
            rustix::io::write(&go, b"D")?;
            let status = rustix::process::WaitId::PidFd(pidfd.as_fd());
            let only = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            rustix::process::waitid(status, only)?;
            exit_now(match reap()?.map(|ended| ended.status) {
                Some(WaitStatus::Code(code)) => code,
                Some(WaitStatus::Signal(signal)) => 128 + signal,
                None => 255,
            })
        }
    }
}

fn make_root(config: &Message) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    fs::create_dir_all(ROOT)?;
    let named = |error: io::Error, dst: &str| io::Error::new(error.kind(), format!("mount {dst}: {error}"));
    for entry in config.all("mount") {
        let dst = entry.word("dst");
        let at = format!("{ROOT}{}", dst.trim_end_matches('/'));
        if fs::symlink_metadata(&at).is_err() {
            match entry.word("is_dir") {
                "true" => fs::create_dir_all(&at)?,
                _ => fs::write(&at, "")?,
            }
        }
        let made = if entry.word("is_bind") == "true" {
            mount_bind_recursive(entry.word("src"), at.as_str())
        } else {
            let options = CString::new(entry.word("options"))?;
            mount("none", at.as_str(), entry.word("fstype"), MountFlags::empty(), options.as_c_str())
        };
        made.map_err(|error| named(error.into(), dst))?;
    }
    rustix::process::chdir(ROOT)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    for entry in config.all("mount") {
        let dst = entry.word("dst");
        let kept = statvfs(dst)?.f_flag;
        let mut flags = MountFlags::BIND;
        for (key, bit, kept_bit) in [
            ("nosuid", MountFlags::NOSUID, StatVfsMountFlags::NOSUID),
            ("nodev", MountFlags::NODEV, StatVfsMountFlags::NODEV),
            ("noexec", MountFlags::NOEXEC, StatVfsMountFlags::NOEXEC),
            ("", MountFlags::RELATIME, StatVfsMountFlags::RELATIME),
        ] {
            flags.set(bit, kept.contains(kept_bit) || entry.word(key) == "true");
        }
        flags.set(MountFlags::RDONLY, entry.word("rw") != "true");
        mount_remount(dst, flags, c"").map_err(|error| named(error.into(), dst))?;
    }
    Ok(())
}

/// Limits, identity, capabilities, filter: what is left is what the command has.
fn give_up(config: &Message) -> io::Result<()> {
    for (name, resource, unit) in [
        ("core", Resource::Core, 1 << 20),
        ("nofile", Resource::Nofile, 1),
        ("nproc", Resource::Nproc, 1),
        ("memlock", Resource::Memlock, 1024),
        ("rtprio", Resource::Rtprio, 1),
        ("msgqueue", Resource::Msgqueue, 1),
    ] {
        let value = config.word(&format!("rlimit_{name}")).parse::<u64>().map_err(io::Error::other)? * unit;
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
    }
    for (name, resource) in [("as", Resource::As), ("cpu", Resource::Cpu), ("fsize", Resource::Fsize)] {
        let hard = getrlimit(resource).maximum;
        if config.word(&format!("rlimit_{name}_type")) != "HARD" {
            return Err(io::Error::other(format!("rlimit_{name} is not as expected")));
        }
        setrlimit(resource, Rlimit { current: hard, maximum: hard })?;
    }
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            Err(rustix::io::Errno::INVAL) => {}
            other => other?,
        }
    }
    set_thread_groups(&[])?;
    let id = |key: &str| config.all(key).next().map_or("", |map| map.word("inside_id")).parse::<u32>();
    become_ids(id("uidmap").map_err(io::Error::other)?, id("gidmap").map_err(io::Error::other)?)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    sandcrate_sys::signal::unblock_all()?;
    let text: String = config.words("seccomp_string").map(|line| format!("{line}\n")).collect();
    let policy = command_policy().map_err(io::Error::other)?;
    if text != kafel(&policy, Features { network: Network::Off }) {
        return Err(io::Error::other("the policy is not the one that the filter is made from"));
    }
    sandcrate_sys::seccomp::load(&command_filter(Network::Off).map_err(io::Error::other)?)
}

/// A message of the text format.
#[derive(Debug, Default)]
struct Message {
    fields: BTreeMap<String, Vec<Value>>,
}

#[derive(Debug)]
enum Value {
    Word(String),
    Message(Message),
}

impl Message {
    fn parse(text: &str) -> io::Result<Self> {
        let mut tokens = tokens(text)?.into_iter().peekable();
        let message = Self::read(&mut tokens, false)?;
        Ok(message)
    }

    fn read(tokens: &mut std::iter::Peekable<std::vec::IntoIter<Token>>, inner: bool) -> io::Result<Self> {
        let odd = |what: &str| io::Error::other(format!("a configuration with {what}"));
        let mut message = Self::default();
        loop {
            let key = match tokens.next() {
                None if !inner => return Ok(message),
                Some(Token::Sign('}')) if inner => return Ok(message),
                Some(Token::Word(key)) => key,
                other => return Err(odd(&format!("{other:?} for a key"))),
            };
            tokens.next_if(|token| matches!(token, Token::Sign(':')));
            let value = match tokens.next() {
                Some(Token::Sign('{')) => Value::Message(Self::read(tokens, true)?),
                Some(Token::Word(word)) => Value::Word(word),
                other => return Err(odd(&format!("{other:?} for a value"))),
            };
            message.fields.entry(key).or_default().push(value);
        }
    }

    fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        self.fields.get(key).into_iter().flatten().filter_map(|value| match value {
            Value::Word(word) => Some(word.as_str()),
            Value::Message(_) => None,
        })
    }

    /// The field's last value, as protobuf has it; empty without one.
    fn word(&self, key: &str) -> &str {
        self.words(key).last().unwrap_or("")
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &Self> {
        self.fields.get(key).into_iter().flatten().filter_map(|value| match value {
            Value::Message(message) => Some(message),
            Value::Word(_) => None,
        })
    }
}

#[derive(Debug)]
enum Token {
    Word(String),
    Sign(char),
}

fn tokens(text: &str) -> io::Result<Vec<Token>> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b' ' | b'\n' => at += 1,
            sign @ (b':' | b'{' | b'}') => {
                found.push(Token::Sign(char::from(sign)));
                at += 1;
            }
            b'"' => {
                let mut word = Vec::new();
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    if bytes[at] != b'\\' {
                        word.push(bytes[at]);
                        at += 1;
                    } else if let Some(octal) = text.get(at + 1..at + 4)
                        && let Ok(byte) = u8::from_str_radix(octal, 8)
                    {
                        word.push(byte);
                        at += 4;
                    } else {
                        word.extend(bytes.get(at + 1));
                        at += 2;
                    }
                }
                at += 1;
                found.push(Token::Word(String::from_utf8(word).map_err(io::Error::other)?));
            }
            _ => {
                let end = text[at..].find([' ', '\n', ':', '{', '}']).map_or(text.len(), |end| at + end);
                found.push(Token::Word(text[at..end].to_owned()));
                at = end;
            }
        }
    }
    Ok(found)
}
