//! `--require`: names of controls, or all of them.

use sandcrate_backend::Strictness;
use sandcrate_protocol::Control;

/// One word of `--require`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Required {
    All,
    One(Control),
}

pub(crate) fn parse(word: &str) -> Result<Required, String> {
    if word == "all" {
        return Ok(Required::All);
    }
    Control::ALL.into_iter().find(|control| control.name() == word).map(Required::One).ok_or_else(|| {
        let names: Vec<_> = Control::ALL.iter().map(|control| control.name()).collect();
        format!("expected `all` or a list of {}", names.join(", "))
    })
}

pub(crate) fn strictness(words: &[Required]) -> Strictness {
    let mut controls: Vec<Control> = Vec::new();
    for word in words {
        match word {
            Required::All => controls.extend(Control::ALL),
            Required::One(control) => controls.push(*control),
        }
    }
    controls.sort_unstable();
    controls.dedup();
    if controls.is_empty() { Strictness::BestEffort } else { Strictness::Require(controls) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_can_be_required_by_its_name() {
        for control in Control::ALL {
            assert_eq!(parse(control.name()), Ok(Required::One(control)));
        }
        assert!(parse("memroy").unwrap_err().contains("memory"));
    }

    #[test]
    fn words_add_up_without_repeats() {
        assert_eq!(strictness(&[]), Strictness::BestEffort);
        let both =
            [Required::One(Control::Pids), Required::One(Control::Memory), Required::One(Control::Pids)];
        assert_eq!(strictness(&both), Strictness::Require(vec![Control::Memory, Control::Pids]));
        assert_eq!(strictness(&[Required::All, both[0]]), Strictness::Require(Control::ALL.to_vec()));
    }
}
