//! Completions and the manual page, both made from the one argument tree.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::output;

pub(crate) fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sandcrate", &mut script);
    output::exit_code_after(output::print_bytes(&script), 0)
}

/// One page with a section for each subcommand, so that `man sandcrate` answers everything.
pub(crate) fn man() -> ExitCode {
    let mut page = Vec::new();
    let written = render(&mut page).and_then(|()| output::print_bytes(&page));
    output::exit_code_after(written, 0)
}

fn render(page: &mut Vec<u8>) -> io::Result<()> {
    let mut root = Cli::command();
    root.build();
    let man = Man::new(root.clone()).section("1");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_options_section(page)?;
    examples(page, "SH", &root)?;
    for verb in shown(&root) {
        section(page, verb.get_name(), verb)?;
        for below in shown(verb) {
            section(page, &format!("{} {}", verb.get_name(), below.get_name()), below)?;
        }
    }
    Ok(())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

fn section(page: &mut Vec<u8>, name: &str, verb: &Command) -> io::Result<()> {
    writeln!(page, ".SH \"SANDCRATE {}\"", name.to_uppercase())?;
    writeln!(page, "{}.", verb.get_about().map(ToString::to_string).unwrap_or_default())?;
    let man = Man::new(verb.clone());
    let mut body = Vec::new();
    man.render_synopsis_section(&mut body)?;
    man.render_options_section(&mut body)?;
    // One section per subcommand: its own sections become subsections.
    page.extend(String::from_utf8_lossy(&body).replace(".SH ", ".SS ").bytes());
    examples(page, "SS", verb)
}

/// The text after the help, line by line as it stands there.
fn examples(page: &mut Vec<u8>, level: &str, command: &Command) -> io::Result<()> {
    let Some(text) = command.get_after_help() else { return Ok(()) };
    writeln!(page, ".{level} NOTES\n.nf")?;
    for line in text.to_string().lines() {
        // A backslash starts an escape, a dot or quote at the start of a line a request.
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(page, "{guard}{line}")?;
    }
    writeln!(page, ".fi")
}
