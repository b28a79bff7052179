//! An agent in the terminal: a scripted model, and the tools of real boxes.
//!
//! What the model says is written down below; no network is needed. The runtime is `sandcrate box -s`, a child of this
//! program: build it first, then run `cargo run -p sandcrate-host --example agent`. `SANDCRATE_BIN` names another program.

use std::io::Write;
use std::sync::Arc;

use sandcrate_host::policy::Policy;
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::{ToolFormat, Toolbox, message_text};
use sandcrate_host::{ChildCommand, Deployment, Query, Service, SkillPackage};
use serde_json::{Value, json};

/// Rounds of tool calls in one turn, however long the model would go on.
const ROUNDS: usize = 128;
/// Of either end of a result on the screen.
const SHOWN_CHARS: usize = 120;

/// What the model answers: calls, or a last word.
enum Answer {
    Call(&'static str, Value),
    Say(&'static str),
}

/// A model that has learned its part by heart.
struct ScriptedModel {
    lines: std::vec::IntoIter<Answer>,
}

impl ScriptedModel {
    fn new(lines: Vec<Answer>) -> Self {
        Self { lines: lines.into_iter() }
    }

    /// A real one would be sent the tools and the messages.
    fn next(&mut self, _tools: &[Value], _messages: &[Value]) -> Answer {
        self.lines.next().unwrap_or(Answer::Say("(the script has ended)"))
    }
}

async fn turn(
    toolbox: &Toolbox,
    query: &mut Query,
    model: &mut ScriptedModel,
    user: &str,
) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut messages = Vec::new();
    if let Some(prompt) = toolbox.skills().prompt(query) {
        messages.push(json!({"role": "system", "content": prompt}));
    }
    messages.push(json!({"role": "user", "content": user}));
    writeln!(out, "\nuser: {user}")?;
    for _ in 0..ROUNDS {
        // Asked in every round: skills come and go.
        let tools = toolbox.list(query, ToolFormat::OpenAi).await;
        match model.next(&tools, &messages) {
            Answer::Say(text) => {
                writeln!(out, "agent: {text}")?;
                return Ok(());
            }
            Answer::Call(tool, arguments) => {
                writeln!(out, "  {tool} {arguments}")?;
                let text = message_text(&toolbox.call(tool, &arguments, query).await);
                writeln!(out, "    {}", shown(&text))?;
                messages.push(json!({"role": "tool", "content": text}));
            }
        }
    }
    writeln!(out, "agent: (too many rounds)")
}

/// The beginning and the end of a long text.
fn shown(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= 2 * SHOWN_CHARS {
        return text.to_owned();
    }
    let (head, tail) = (&chars[..SHOWN_CHARS], &chars[chars.len() - SHOWN_CHARS..]);
    head.iter().chain(" ... ".chars().collect::<Vec<_>>().iter()).chain(tail).collect()
}

fn asked_by(launcher: &str) -> Query {
    Query { launcher_id: Some(launcher.into()), ..Query::default() }
}

/// A service over a child of ours, whose files are all below `root`.
async fn service(root: &std::path::Path) -> Result<Service, Box<dyn std::error::Error>> {
    let beside = std::env::current_exe()?.with_file_name("../sandcrate");
    let program = std::env::var_os("SANDCRATE_BIN").unwrap_or_else(|| beside.into());
    let args = ["box", "-s", "--ws-control-port", "0"].map(Into::into).into();
    let deployment = Deployment { child: ChildCommand { program, args }, ..Deployment::default() };
    let config = json!({"box": {"local": {"host_root": root, "workspace_per_session": true}}});
    let service = Service::builder().config(&config).deployment(deployment).build()?;
    service.initialize().await;
    if service.is_available() {
        Ok(service)
    } else {
        Err(service.availability().borrow().reason.clone().into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = tempfile::tempdir()?;
    let service = service(&place.path().canonicalize()?).await?;
    let skill =
        json!({"name": "report", "description": "Writes reports from tables.", "instructions": "sh run.sh"});
    service.create_skill(skill).await?;
    service.write_skill_file("report", "run.sh", "seq 1 3000; echo report of $(pwd)").await?;
    let skills = Arc::new(SkillsView::new(Filesystem::Shared));
    skills.reload(&**service.client()).await;
    service.set_skills(Some(skills.all().iter().map(SkillPackage::from).collect()));
    let policy = Policy { deny: vec!["register_skill".to_owned()], ..Policy::default() };
    let toolbox = Toolbox::new(Arc::new(service.clone()), skills, policy);

    // Files: a long list is cut, and says so.
    let make = "for n in $(seq 1 150); do printf 'name,amount\nrent,%s\n' $n > part-$n.csv; done";
    let mut model = ScriptedModel::new(vec![
        Answer::Call("exec", json!({"command": make})),
        Answer::Call("glob", json!({"pattern": "*.csv"})),
        Answer::Call("grep", json!({"pattern": "rent,\\d+", "path": "/workspace/part-7.csv"})),
        Answer::Call("read", json!({"path": "/workspace/../etc/passwd"})),
        Answer::Say("There are 150 tables, and part 7 has a rent of 7."),
    ]);
    turn(&toolbox, &mut asked_by("alice"), &mut model, "What is in my data?").await?;

    // Skills and scopes: what was not activated is not run, and bob's box has none of alice's files.
    let mut model = ScriptedModel::new(vec![
        Answer::Call("glob", json!({"pattern": "*.csv"})),
        Answer::Call("exec", json!({"command": "sh /workspace/.skills/report/run.sh"})),
        Answer::Call("activate", json!({"skill_name": "report"})),
        Answer::Call("exec", json!({"command": "sh run.sh", "workdir": "/workspace/.skills/report"})),
        Answer::Call("register_skill", json!({"path": "/workspace"})),
        Answer::Say("The report is written."),
    ]);
    turn(&toolbox, &mut asked_by("bob"), &mut model, "Make the report.").await?;
    service.dispose().await;
    Ok(())
}
