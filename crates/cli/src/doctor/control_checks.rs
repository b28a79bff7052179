//! The enforcement record of a real box as lines of the report, with what to do about each gap.

use sandcrate_protocol::{Control, Enforcement, State};

use super::check::{Check, CheckState, Fix};
use super::machine::Machine;

/// One line per control, in the order of all reports; a control that the box does not speak of is missing.
pub(super) fn all(machine: &Machine, enforcement: &Enforcement) -> Vec<Check> {
    Control::ALL
        .into_iter()
        .map(|control| {
            let name = format!("box {control}");
            let (state, detail) = match enforcement.get(control) {
                Some(finding) => (state(finding.state), finding.by.clone()),
                None => (CheckState::Missing, "the box does not report it".to_owned()),
            };
            let fix = (state != CheckState::Ok).then(|| fix(machine, control));
            Check { name, state, detail, fix }
        })
        .collect()
}

fn state(state: State) -> CheckState {
    match state {
        State::Enforced => CheckState::Ok,
        State::Degraded => CheckState::Weak,
        State::Absent => CheckState::Missing,
    }
}

fn fix(machine: &Machine, control: Control) -> Fix {
    let require = format!("`--require {control}` makes such a box fail instead of starting");
    let as_root = "run as root";
    let steps: Vec<String> = match control {
        Control::Memory | Control::Pids | Control::Cpu if machine.is_root() => {
            vec!["see `cgroups` in this report: the controller has to be there for root".to_owned()]
        }
        Control::Memory | Control::Pids | Control::Cpu => {
            vec![format!("see `cgroups` in this report: have it delegated to {}, or {as_root}", machine.user)]
        }
        Control::CommandKill => vec![
            "beside v1: mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"
                .to_owned(),
            "on v2 only: Linux 5.14 or later, and for ordinary users a delegated cgroup".to_owned(),
        ],
        Control::Disk => vec!["see `disk quota` and `state directory` in this report".to_owned()],
        Control::Landlock => {
            vec![
                "without it: Linux 5.13 or later with `landlock` in the kernel's `lsm=` list".to_owned(),
                "to cover signals and abstract sockets too: Linux 6.12 or later".to_owned(),
            ]
        }
        Control::Identity | Control::NoSetuid | Control::Filesystem if !machine.is_root() => {
            vec![format!("{as_root}: one user cannot give a box ids beside its own")]
        }
        Control::Rlimits => {
            vec!["give the service CAP_SYS_RESOURCE, or raise its own limits (LimitNOFILE=)".to_owned()]
        }
        Control::ProcMasks => vec!["see `/proc` in this report".to_owned()],
        _ => vec!["see the reason beside it; report it with this output if it makes no sense".to_owned()],
    };
    Fix::new(steps, format!("{}; {require}", until_then(control)))
}

/// What is so while the control is weak or absent.
fn until_then(control: Control) -> &'static str {
    match control {
        Control::Identity => {
            "commands share the identity of the user who started them, inside namespaces of their own"
        }
        Control::Namespaces => "commands see more of the machine than their own processes",
        Control::Filesystem => "commands may see more of the file system than they should",
        Control::ProcMasks => "commands can read about the machine in /proc",
        Control::Capabilities => "commands hold privileges inside their namespaces",
        Control::Seccomp => "the whole system call surface of the kernel is open to commands",
        Control::Landlock => "files are guarded by mounts and namespaces alone",
        Control::NoSetuid => "do not mount directories of privileged users read-write",
        Control::Network => "the box shares a network that is not its own",
        Control::Memory => "one command can take the machine's memory",
        Control::Pids => "one command can take the machine's process table",
        Control::Cpu => "one command can keep all CPUs busy",
        Control::Disk => "a box can grow beyond its bound before it is ended",
        Control::Tmpfs => "/tmp of a box can take memory beyond its size",
        Control::Rlimits => "single processes have the limits of whoever started sandcrate",
        Control::CommandKill => "a time limit ends background processes of other commands too",
        Control::Cleanup => "something may stay behind when sandcrate is killed",
        _ => "the box is weaker than it could be",
    }
}
