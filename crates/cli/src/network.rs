//! The flags that say what a box reaches and what reaches it; `run` and `session create` share them.

use clap::Args;
use sandcrate_protocol::network::{Base, NetworkRequest, Policy, PortRequest, Rule};

use crate::failure::Failure;

#[derive(Debug, Default, Args)]
pub(crate) struct NetworkArgs {
    /// What the box may reach: `off`; `on`, the Internet but not this host and its networks; `host`, all that the
    /// host reaches; or a policy such as 'allow index.example.org, allow *.example.com:443' [default: off]
    #[arg(long, value_name = "off|on|host|POLICY")]
    network: Option<String>,

    /// Let the box reach this name, address or range and nothing else: [tcp/|udp/]NAME|CIDR[:PORT[-PORT]]
    #[arg(long, value_name = "RULE")]
    allow_net: Vec<String>,

    /// Keep the box from this name, address or range, with `--network on` or `--allow-net`
    #[arg(long, value_name = "RULE")]
    deny_net: Vec<String>,

    /// Reach a TCP port of the box by a port of the host, on 127.0.0.1 unless ADDR says otherwise; HOST 0 is any
    /// free one
    #[arg(short, long, value_name = "[ADDR:]HOST:BOX")]
    publish: Vec<String>,
}

impl NetworkArgs {
    /// What is asked for; `None` when nothing is said.
    pub(crate) fn request(&self) -> anyhow::Result<Option<NetworkRequest>> {
        let allow = rules("--allow-net", &self.allow_net)?;
        let deny = rules("--deny-net", &self.deny_net)?;
        let named = self.network.as_deref().map(parse).transpose()?;
        let refuse = |text: &str, hint: &str| Err(Failure::invalid(text.to_owned()).hint(hint).into());
        let policy = match (named, allow.is_empty()) {
            (None, true) if deny.is_empty() => return Ok(None),
            (None, true) => {
                return refuse(
                    "--deny-net without anything that is allowed",
                    "add --network on, for the Internet without it, or --allow-net RULE",
                );
            }
            (None, false) => Policy::new(Base::Nothing, allow, deny),
            (Some(NetworkRequest::Policy(list)), _) if list.is_list() => {
                let allow = list.allow().iter().cloned().chain(allow).collect();
                Policy::new(Base::Nothing, allow, list.deny().to_vec()).and_then(|list| list.without(&deny))
            }
            (Some(other), false) => {
                return refuse(
                    &format!(
                        "--allow-net beside --network {other}: allow rules are a list of what is reached"
                    ),
                    "leave out --network to reach only what --allow-net names",
                );
            }
            (Some(NetworkRequest::On { deny: had }), true) => {
                let deny = had.into_iter().chain(deny).collect();
                return Ok(Some(NetworkRequest::On { deny }));
            }
            (Some(NetworkRequest::Policy(policy)), true) => policy.without(&deny),
            (Some(other), true) if deny.is_empty() => return Ok(Some(other)),
            (Some(other), true) => {
                return refuse(
                    &format!("--deny-net beside --network {other}: there is nothing that rules hold"),
                    "use --network on, for the Internet without what is denied",
                );
            }
        };
        let policy = policy.map_err(|error| Failure::invalid(format!("--allow-net, --deny-net: {error}")))?;
        Ok(Some(policy.into()))
    }

    pub(crate) fn ports(&self) -> anyhow::Result<Vec<PortRequest>> {
        ports("--publish", &self.publish)
    }
}

/// What a flag or an argument says of a network.
pub(crate) fn parse(text: &str) -> anyhow::Result<NetworkRequest> {
    text.parse().map_err(|error| {
        Failure::invalid(format!("--network {text}: {error}"))
            .hint("`off`, `on`, `host`, or a policy: 'public, deny ads.example', 'allow index.example.org:443, allow 192.0.2.0/24'")
            .into()
    })
}

pub(crate) fn ports(flag: &str, texts: &[String]) -> anyhow::Result<Vec<PortRequest>> {
    let read =
        |text: &String| text.parse().map_err(|error| Failure::invalid(format!("{flag}: {error}")).into());
    texts.iter().map(read).collect()
}

fn rules(flag: &str, texts: &[String]) -> anyhow::Result<Vec<Rule>> {
    let read = |text: &String| {
        text.parse().map_err(|error| {
            Failure::invalid(format!("{flag} {text}: {error}"))
                .hint("a rule is such as example.com, *.example.com:443, 192.0.2.0/24 or udp/192.0.2.1:53")
                .into()
        })
    };
    texts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::failure::Shown;

    #[derive(Debug, Parser)]
    struct Parsed {
        #[command(flatten)]
        args: NetworkArgs,
    }

    fn request(flags: &[&str]) -> anyhow::Result<Option<NetworkRequest>> {
        Parsed::try_parse_from(["x"].iter().chain(flags))?.args.request()
    }

    #[test]
    fn flags_are_one_policy() {
        for (flags, policy) in [
            (&["--network", "off"][..], "off"),
            (&["--network", "on"], "on"),
            (&["--network", "host"], "host"),
            (&["--network", "on", "--deny-net", "a.example"], "on, deny a.example"),
            (&["--network", "public", "--deny-net", "a.example"], "public, deny a.example"),
            (
                &["--allow-net", "a.example:443", "--allow-net", "192.0.2.0/24"],
                "allow a.example:443, allow 192.0.2.0/24",
            ),
            (
                &["--allow-net", "*.example.com", "--deny-net", "x.example.com"],
                "allow *.example.com, deny x.example.com",
            ),
            (
                &["--network", "allow a.example", "--allow-net", "b.example"],
                "allow a.example, allow b.example",
            ),
        ] {
            assert_eq!(request(flags).unwrap().unwrap().to_string(), policy, "{flags:?}");
        }
        assert_eq!(request(&[]).unwrap(), None);
    }

    #[test]
    fn every_refusal_names_the_flag() {
        for (flags, words) in [
            (&["--network", "maybe"][..], &["--network maybe", "`off`"][..]),
            (&["--allow-net", "*"], &["--allow-net *", "`public`"]),
            (&["--deny-net", "https://x.example/"], &["--deny-net", "write `x.example`"]),
            (&["--deny-net", "x.example"], &["--deny-net without"]),
            (&["--network", "on", "--allow-net", "x.example"], &["--allow-net beside --network on"]),
            (&["--network", "host", "--deny-net", "x.example"], &["--deny-net beside --network host"]),
            (&["--network", "off", "--deny-net", "x.example"], &["--deny-net beside --network off"]),
        ] {
            let shown = Shown::of(&request(flags).unwrap_err());
            for word in words {
                assert!(shown.message.contains(word), "{flags:?}: {}", shown.message);
            }
        }
        let port = Parsed::try_parse_from(["x", "-p", "web:80"]).unwrap().args.ports().unwrap_err();
        assert!(Shown::of(&port).message.contains("--publish: port `web:80`"), "{port}");
    }
}
