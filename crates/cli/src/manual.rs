//! Completions and the manual page, both made from the one argument tree.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::Cli;
use crate::output;

pub(crate) fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sandcrate", &mut script);
    output::exit_code_after(output::print_bytes(&script), 0)
}

/// The page of `sandcrate` with a section for each subcommand, so that `man sandcrate` answers everything.
pub(crate) fn man() -> ExitCode {
    let mut page = Vec::new();
    let written = render(&mut page).and_then(|()| output::print_bytes(&page));
    output::exit_code_after(written, 0)
}

fn render(page: &mut Vec<u8>) -> io::Result<()> {
    let mut root = Cli::command();
    root.build();
    clap_mangen::Man::new(root.clone()).section("1").render(page)?;
    for verb in root.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        let man = clap_mangen::Man::new(verb.clone().display_name(format!("sandcrate {}", verb.get_name())));
        writeln!(page, ".SH \"SANDCRATE {}\"", verb.get_name().to_uppercase())?;
        let mut body = Vec::new();
        man.render_description_section(&mut body)?;
        man.render_synopsis_section(&mut body)?;
        man.render_options_section(&mut body)?;
        man.render_extra_section(&mut body)?;
        // One section per subcommand: its own sections become subsections.
        for line in String::from_utf8_lossy(&body).lines() {
            writeln!(page, "{}", line.replacen(".SH ", ".SS ", 1))?;
        }
    }
    Ok(())
}
