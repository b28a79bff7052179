//! The table of attacks from inside: id, what must hold, the attack's name and arguments, and what it may say.
//!
//! Ids up to 49 are those of the project's security table, from 50 on the probe's own. Words in braces are filled
//! in by [`super::host::Host::fill`].

use sandcrate_backend::LimitHit;
use sandcrate_backend::conformance::Check;

use super::stage::{Attacked, PIDS, ensure};

/// What the attack may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Safe,
    /// A matter of policy: the attack tells, and only UNSAFE is wrong.
    Told,
}

#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) id: &'static str,
    pub(crate) fact: &'static str,
    pub(crate) probe: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) expect: Expect,
    /// A further look at the result.
    pub(crate) also: fn(&Attacked) -> Check,
}

impl Attack {
    /// `fs_01_dotdot_never_reaches_the_host`.
    pub(crate) fn name(&self) -> String {
        format!("{}_{}", self.id.to_lowercase().replace('-', "_"), self.fact)
    }

    /// Files and processes: what a writable root might weaken.
    pub(crate) fn concerns_the_root(&self) -> bool {
        self.id.starts_with("FS") || self.id.starts_with("PR")
    }
}

const fn safe(
    id: &'static str,
    fact: &'static str,
    probe: &'static str,
    arguments: &'static [&'static str],
) -> Attack {
    Attack { id, fact, probe, arguments, expect: Expect::Safe, also: |_| Ok(()) }
}

const fn told(
    id: &'static str,
    fact: &'static str,
    probe: &'static str,
    arguments: &'static [&'static str],
) -> Attack {
    Attack { id, fact, probe, arguments, expect: Expect::Told, also: |_| Ok(()) }
}

const fn with(attack: Attack, also: fn(&Attacked) -> Check) -> Attack {
    Attack { also, ..attack }
}

/// Attacks that need more than a verdict have trials of their own, elsewhere.
pub(crate) const ELSEWHERE: [&str; 6] =
    ["fs_ro", "fs_suidfile", "rs_deep", "rs_names", "tm_ignore", "tm_daemon"];

pub(crate) const READ_ONLY_ROOT: Attack = safe("FS-16", "system_directories_are_read_only", "fs_ro", &[]);

/// Where a box has mounts of its own making, whose roots are no paths of the host; [`shows_no_host_path`] looks at
/// them more closely than the attack could.
pub(crate) const OWN_TARGETS: &[&str] =
    &["/workspace", "/home/box", "/root", "/usr", "/etc", "/var", "/opt", "/srv", "/opt/probe"];

pub(crate) const ATTACKS: &[Attack] = &[
    safe("FS-01", "dotdot_never_reaches_the_host", "fs_dotdot", &["{canary}"]),
    safe("FS-02", "no_link_of_a_process_leads_to_the_host", "fs_procroots", &["{canary}"]),
    safe("FS-03", "no_descriptor_leaks_in", "fs_fdleak", &["{canary}"]),
    safe("FS-04", "streams_are_no_files_of_the_host", "fs_stdio", &[]),
    safe("FS-05", "no_running_program_opens_for_writing", "fs_procexe", &[]),
    safe("FS-06", "nothing_can_be_mounted", "fs_mount", &[]),
    safe("FS-07", "a_nested_user_namespace_is_refused", "fs_nsmount", &[]),
    safe("FS-09", "chroot_is_refused", "fs_chroot", &["{canary}"]),
    safe("FS-10", "pivot_root_is_refused", "fs_pivot", &[]),
    safe("FS-11", "no_namespace_can_be_joined", "fs_setns", &[]),
    safe("FS-12", "no_file_opens_by_handle", "fs_handle", &[]),
    safe("FS-13", "no_device_node_can_be_made", "fs_mknod", &["/workspace"]),
    safe("FS-14", "dev_holds_the_allow_list_only", "fs_dev", &[]),
    safe("FS-19", "no_kernel_setting_opens_for_writing", "fs_procsys", &[]),
    safe("FS-20", "kernel_facts_are_masked", "fs_masked", &[]),
    with(
        safe("FS-22", "mounts_are_private_and_show_no_host_path", "fs_prop", OWN_TARGETS),
        shows_no_host_path,
    ),
    safe("FS-24", "no_device_node_works_in_the_workspace", "fs_workspace_dev", &["/workspace"]),
    safe("FS-51", "the_new_mount_calls_are_refused", "fs_newmount", &[]),
    safe("FS-52", "sys_and_control_groups_are_not_there", "fs_sys", &[]),
    safe("FS-53", "the_magic_request_key_does_not_open", "fs_sysrq", &[]),
    safe("FS-54", "memory_of_init_and_others_is_closed", "fs_procmem", &[]),
    safe("PR-01", "no_capability_is_held_or_raised", "pr_caps", &[]),
    safe("PR-02", "the_bounding_set_is_empty", "pr_bnd", &[]),
    safe("PR-03", "no_new_privs_is_set", "pr_nnp", &[]),
    safe("PR-04", "a_filter_is_active_and_stays", "pr_seccomp", &[]),
    safe("PR-05", "root_of_the_host_is_not_mapped", "pr_uidmap", &[]),
    with(told("PR-06", "there_are_no_supplementary_groups", "pr_groups", &[]), |seen| {
        ensure!(seen.verdict().contains("no supplementary groups"), "{}", seen.told());
        Ok(())
    }),
    told("PR-07", "tracing_an_own_child_is_told", "pr_ptrace", &[]),
    safe("PR-08", "init_cannot_be_traced", "pr_ptrace1", &[]),
    safe("PR-10", "the_key_store_is_refused", "pr_keyctl", &[]),
    safe("PR-11", "bpf_is_refused", "pr_bpf", &[]),
    safe("PR-13", "kexec_is_refused", "pr_kexec", &[]),
    safe("PR-14", "modules_are_refused", "pr_module", &[]),
    safe("PR-16", "io_uring_is_refused", "pr_iouring", &[]),
    safe("PR-17", "rare_personalities_are_refused", "pr_personality", &[]),
    safe("PR-19", "clocks_cannot_be_set", "pr_clock", &[]),
    safe("PR-20", "reboot_is_refused", "pr_reboot", &[]),
    safe("PR-21", "swap_is_refused", "pr_swap", &[]),
    safe("PR-23", "ports_are_refused", "pr_iopl", &[]),
    safe("PR-24", "quotas_cannot_be_controlled", "pr_quotactl", &[]),
    safe("PR-25", "fanotify_is_refused", "pr_fanotify", &[]),
    safe("PR-27", "clone3_is_not_there", "pr_clone3", &[]),
    safe("PR-29", "x32_numbers_are_refused", "pr_x32", &[]),
    safe("PR-30", "real_time_classes_are_refused", "pr_rt", &[]),
    safe("PR-31", "priority_cannot_be_raised", "pr_nice", &[]),
    safe("PR-32", "core_dumps_are_off", "pr_core", &[]),
    told("PR-33", "dumpability_is_told", "pr_dump", &[]),
    safe("PR-51", "int_0x80_is_refused", "pr_int80", &[]),
    safe("PR-52", "no_namespace_can_be_unshared", "pr_unshare", &[]),
    safe("PR-53", "no_namespace_can_be_cloned", "pr_clone", &[]),
    safe("PR-54", "id_maps_cannot_be_written", "pr_mapwrite", &[]),
    safe("PR-55", "user_and_group_stay", "pr_setid", &[]),
    safe("PR-56", "memory_of_init_is_out_of_reach", "pr_vmread1", &[]),
    safe("PR-57", "init_cannot_be_signalled_or_limited", "pr_control1", &[]),
    safe("PR-58", "the_oom_score_cannot_go_below_zero", "pr_oom", &[]),
    safe("PR-59", "accounting_is_refused", "pr_acct", &[]),
    safe("PR-60", "the_kernel_log_is_closed", "pr_syslog", &[]),
    safe("PR-61", "vhangup_is_refused", "pr_vhangup", &[]),
    safe("PR-62", "the_host_name_stays", "pr_hostname", &[]),
    safe("PR-63", "userfaultfd_is_refused", "pr_userfaultfd", &[]),
    safe("PR-64", "memfd_secret_is_refused", "pr_memfd_secret", &[]),
    safe("PR-65", "performance_events_are_refused", "pr_perf", &[]),
    told("PR-66", "obsolete_calls_are_told", "pr_obsolete", &[]),
    safe("PR-67", "nothing_loads_a_module", "pr_autoload", &[]),
    safe("PR-68", "no_input_is_pushed_into_a_terminal", "pr_tiocsti", &[]),
    told("PR-69", "init_outlives_every_signal", "pr_signal1", &[]),
    safe("NT-01", "there_is_only_loopback", "nt_ifaces", &[]),
    safe("NT-02", "the_hosts_ipv4_listener_is_out_of_reach", "nt_tcp4", &["{port4}"]),
    safe("NT-03", "the_hosts_ipv6_listener_is_out_of_reach", "nt_tcp6", &["{port6}"]),
    safe("NT-04", "there_is_no_route_and_no_name_server", "nt_udp", &["{udp}"]),
    safe("NT-05", "the_hosts_abstract_socket_is_out_of_reach", "nt_abstract", &["{abstract}"]),
    safe("NT-07", "netlink_is_refused", "nt_netlink", &[]),
    safe("NT-08", "raw_and_packet_sockets_are_refused", "nt_raw", &[]),
    safe("NT-51", "vsock_is_refused", "nt_vsock", &[]),
    safe("NT-52", "no_socket_file_leads_out", "nt_unix", &["{socket}"]),
    safe("NT-53", "no_service_of_the_host_answers", "nt_egress", &["{address}"]),
    safe("NT-54", "rare_address_families_are_refused", "nt_families", &[]),
    with(safe("RS-01", "forks_stop_at_the_pids_limit", "rs_fork", &["400"]), stopped_by_pids),
    with(safe("RS-02", "threads_stop_at_the_pids_limit", "rs_threads", &["400"]), stopped_by_pids),
    with(safe("RS-03", "memory_stops_at_the_limit_and_says_oom", "rs_mem", &["300"]), says_oom),
    with(safe("RS-04", "memory_is_limited_over_processes", "rs_memmulti", &["400"]), says_oom),
    safe("RS-07", "bytes_stop_at_the_quota", "rs_disk", &["/workspace,200"]),
    safe("RS-08", "inodes_stop_at_the_quota", "rs_inode", &["/workspace,30000"]),
    safe("RS-09", "descriptors_end", "rs_fds", &[]),
    safe("RS-13", "processor_time_is_limited", "rs_cpu", &["1.0"]),
    safe("RS-18", "little_memory_can_be_locked", "rs_mlock", &[]),
    with(safe("RS-19", "shared_memory_is_charged_to_the_box", "rs_shm", &["300"]), says_oom),
    safe("RS-51", "memory_backed_directories_are_bounded", "rs_tmpfs", &["300"]),
    safe("RS-52", "pipes_are_charged_to_the_box", "rs_pipe", &["300"]),
    safe("RS-53", "socket_buffers_are_charged_to_the_box", "rs_socket", &["300"]),
    safe("RS-54", "message_queues_are_charged_to_the_box", "rs_msg", &["300"]),
    with(safe("RS-55", "memory_without_an_owner_is_charged_to_the_box", "rs_memfd", &["300"]), says_oom),
];

/// The attack prints how many it started; the probe itself takes a few of the limit.
fn stopped_by_pids(seen: &Attacked) -> Check {
    let count = seen.output.lines().find_map(|line| line.strip_prefix("spawned ")?.parse::<u32>().ok());
    let near = PIDS - 14..=PIDS + 2;
    ensure!(
        count.is_some_and(|count| near.contains(&count)),
        "started {count:?}, not {near:?}: {}",
        seen.told()
    );
    Ok(())
}

pub(crate) fn says_oom(seen: &Attacked) -> Check {
    let hit =
        seen.result.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Memory { oom_kills: 1.., .. }));
    ensure!(hit, "no memory limit is reported: {}", seen.told());
    Ok(())
}

/// Names of the launcher's and of the storage's own, the same on every machine.
const OWN_NAMES: [&str; 6] = ["/template", "/disk", "/empty", "/files", "/workspace", "/instance/"];

/// Beside the requested mount, no line may name a place of the host: the test's own scratch directory, which holds
/// the state directory, or any layer of an overlay but those the launcher always names alike.
pub(crate) fn shows_no_host_path(seen: &Attacked) -> Check {
    let lines = seen.output.lines().filter_map(|line| line.strip_prefix("attempt: mount "));
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("/opt/probe ")).collect();
    ensure!(lines.len() > 10, "the attack saw only {lines:?}");
    for line in lines {
        ensure!(
            !line.contains("sandcrate-it-") && !line.contains("instances"),
            "a mount shows the state directory: {line}"
        );
        let layers =
            line.split(['(', ')', ',']).filter_map(|option| option.split_once("dir=")).map(|(_, path)| path);
        for layer in layers.flat_map(|layers| layers.split(':')).filter(|layer| layer.starts_with('/')) {
            ensure!(OWN_NAMES.iter().any(|own| layer.starts_with(own)), "a mount shows {layer}: {line}");
        }
    }
    Ok(())
}
