//! The stack with real programs, in network namespaces of its own.
//!
//! The binary starts itself again in a fresh network namespace before anything else happens: that one plays the
//! host. A second namespace plays the Internet and is the host's only neighbour; boxes are namespaces with
//! nothing but a tun device. No packet of any test can leave the machine.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program with a main of its own: the lints do not see that all of it is test"
)]

mod attacks;
mod basics;
mod internet;
mod names;
mod numbers;
mod world;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

const INSIDE: &str = "SANDCRATE_NET_WORLD";

fn main() -> ExitCode {
    if let Some(code) = sandcrate_net::dispatch_role(|_| Ok("not at all".to_owned())) {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("net-test-box") => return world::box_role(),
        Some("net-test-internet") => return internet::role(),
        _ => {}
    }
    if arguments.iter().any(|argument| argument == "--list") || std::env::var_os(INSIDE).is_some() {
        return run();
    }
    if let Some(why) = world::missing() {
        assert!(!internet::required("isolated-network"), "`isolated-network` is required here: {why}");
        eprintln!("SKIP: needs network namespaces and a tun device: {why}");
        return ExitCode::SUCCESS;
    }
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--kill-child", "--fork"])
        .arg(std::env::current_exe().unwrap())
        .args(&arguments[1..])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A name and what it checks.
type Test = (&'static str, fn(&world::World));

fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The suites share two cores with others; times are part of what is tested.
    arguments.test_threads = Some(1);
    let list = arguments.list;
    let world = if list { None } else { Some(world::World::start()) };
    let world: &'static Option<world::World> = Box::leak(Box::new(world));
    let tests: &[Test] = &[
        ("allowed_programs_reach_servers", basics::allowed_programs_reach_servers),
        ("datagrams_and_echo_pass", basics::datagrams_and_echo_pass),
        ("bulk_data_arrives_unchanged_both_ways", basics::bulk_data_arrives_unchanged_both_ways),
        ("each_side_may_close_first", basics::each_side_may_close_first),
        ("refused_and_silent_peers_look_so", basics::refused_and_silent_peers_look_so),
        ("connections_into_the_box", basics::connections_into_the_box),
        ("forbidden_addresses_are_refused_at_once", attacks::forbidden_addresses_are_refused_at_once),
        ("the_hosts_own_addresses_are_refused", attacks::the_hosts_own_addresses_are_refused),
        ("other_name_servers_are_refused", attacks::other_name_servers_are_refused),
        ("limits_hold", attacks::limits_hold),
        ("hostile_packets_do_no_harm", attacks::hostile_packets_do_no_harm),
        ("a_killed_helper_is_noticed_and_replaced", attacks::a_killed_helper_is_noticed_and_replaced),
        ("names_are_resolved_and_bound", names::names_are_resolved_and_bound),
        ("rebinding_is_refused", names::rebinding_is_refused),
        ("the_shown_name_must_be_allowed", names::the_shown_name_must_be_allowed),
        ("a_new_policy_holds_at_once", names::a_new_policy_holds_at_once),
        ("numbers", numbers::print),
    ];
    let trials = tests
        .iter()
        .map(|(name, test)| {
            Trial::test(*name, move || {
                test(world.as_ref().expect("started"));
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
