//! `sandcrate session network` and `sandcrate session ports`.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use hyper::Method;
use serde_json::{Value, json};

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::{Client, Payload};
use crate::client::{answer, table, text};
use crate::network;

/// Show or change what a session may reach
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session network demo
  sandcrate session network demo 'allow index.example.org, allow files.example.org'
  sandcrate session network demo off

A change is in force at once: connections that no longer pass are reset. From `off` to a network, or to
the host's, the box has to be made anew, and nothing may run in it.")]
pub(crate) struct NetworkArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// The new one: off, on, host, or a policy
    #[arg(value_name = "POLICY")]
    policy: Option<String>,

    /// The policy alone, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: NetworkArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let path = text::path(&["v1", "sessions", &args.session, "network"]);
    let document: Value = match &args.policy {
        None => client.get(&path).await?,
        Some(policy) => {
            let body = json!({"network": network::parse(policy)?}).to_string();
            client.ask(Method::PUT, &path, Payload::Whole(Some(body.into()))).await?
        }
    };
    let policy = document["policy"].as_str().ok_or_else(|| client.garbled("a network without a policy"))?;
    Ok(answer(args.output, &document, &format!("{}\n", table::clean(policy))))
}

/// Show, publish and close ports of a session
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session ports demo                    where its ports are reached
  sandcrate session ports demo -p 8080:80         port 80 of the box at 127.0.0.1:8080
  sandcrate session ports demo -p 0:80            any free port of the host
  sandcrate session ports demo --close 8080")]
pub(crate) struct PortsArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// Publish a port of the box, on 127.0.0.1 unless the server allows other addresses
    #[arg(short, long, value_name = "[ADDR:]HOST:BOX")]
    publish: Vec<String>,

    /// Close a published port
    #[arg(long, value_name = "HOST")]
    close: Vec<u16>,

    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn ports(args: PortsArgs) -> anyhow::Result<ExitCode> {
    let wanted = network::ports("--publish", &args.publish)?;
    let client = Client::new(&args.target)?;
    let path = text::path(&["v1", "sessions", &args.session, "ports"]);
    for port in &args.close {
        let _: Value = client.delete(&format!("{path}?host_port={port}")).await?;
    }
    for port in &wanted {
        let _: Value = client.post(&path, &json!({ "port": port })).await?;
    }
    let document: Value = client.get(&path).await?;
    let rows: Vec<_> = document["ports"].as_array().into_iter().flatten().map(row).collect();
    Ok(answer(args.output, &document, &table::render(["ADDRESS", "HOST", "BOX"], &rows)))
}

fn row(port: &Value) -> [String; 3] {
    let number = |key: &str| port[key].as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string());
    [port["address"].as_str().unwrap_or("-").to_owned(), number("host_port"), number("box_port")]
}
