//! An agent in the terminal: a scripted model, and the tools of a box.
//!
//! Neither a model nor a runtime is needed: what the model says is written down below, and the box is a fake (see
//! `fake.rs`). With a real service in place of `FakeExecutor` the loop stays the same.
//!
//! Run with `cargo run -p sandcrate-host --example agent`.

mod fake;

use std::io::Write;
use std::sync::Arc;

use sandcrate_host as host;
use sandcrate_host::policy::Policy;
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::{ToolFormat, Toolbox, message_text};
use sandcrate_host::{Client, Query};
use serde_json::{Value, json};

use fake::{FakeClient, FakeExecutor};

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let runtime = Arc::new(FakeClient::new());
    runtime.skill("report", "Writes reports from tables.");
    for n in 0..150 {
        runtime.put(&format!("/workspace/data/part-{n:03}.csv"), "name,amount\nrent,1200\n");
    }
    let skills = Arc::new(SkillsView::new(Filesystem::Separate));
    skills.reload(&*runtime as &dyn Client).await;
    let policy = Policy { deny: vec!["register_skill".to_owned()], ..Policy::default() };
    let toolbox = Toolbox::new(Arc::new(FakeExecutor::new(runtime)), skills, policy);

    // Files: a long list is cut, and says so.
    let mut model = ScriptedModel::new(vec![
        Answer::Call("glob", json!({"pattern": "*.csv"})),
        Answer::Call("grep", json!({"pattern": "rent,\\d+", "path": "/workspace/data/part-007.csv"})),
        Answer::Call("read", json!({"path": "/workspace/../etc/passwd"})),
        Answer::Say("There are 150 tables, and part 7 has a rent of 1200."),
    ]);
    turn(&toolbox, &mut asked_by("alice"), &mut model, "What is in my data?").await?;

    // Skills: what was not activated is not run. The session is another one, by its launcher.
    let mut model = ScriptedModel::new(vec![
        Answer::Call("exec", json!({"command": "sh /workspace/.skills/report/run.sh"})),
        Answer::Call("activate", json!({"skill_name": "report"})),
        Answer::Call("exec", json!({"command": "sh run.sh", "workdir": "/workspace/.skills/report"})),
        Answer::Call("register_skill", json!({"path": "/workspace/data"})),
        Answer::Say("The report is written."),
    ]);
    turn(&toolbox, &mut asked_by("bob"), &mut model, "Make the report.").await
}
