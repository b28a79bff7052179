// The code interpreter's JavaScript SDK against our server.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { load } from "./sdk.mjs";

const { Sandbox } = await load("@e2b/code-interpreter");
const { NotFoundError, TimeoutError } = await load("e2b");

const sandbox = await Sandbox.create({ envs: { GREETING: "hello" } });
after(() => sandbox.kill());

test("code has output, a result, and keeps what it defined", async () => {
  const out = [];
  const first = await sandbox.runCode("x = 41\nprint('sagt grüße')", { onStdout: (message) => out.push(message.line) });
  assert.equal(out.join(""), "sagt grüße\n");
  assert.deepEqual(first.logs.stdout.join(""), "sagt grüße\n");
  const second = await sandbox.runCode("x + 1");
  assert.equal(second.text, "42");
  assert.equal(second.executionCount, first.executionCount + 1);
  assert.equal((await sandbox.runCode("import os; os.environ['GREETING']")).text, "hello");
});

test("an error has a name, a value and a traceback", async () => {
  const ran = await sandbox.runCode("1 / 0");
  assert.equal(ran.error.name, "ZeroDivisionError");
  assert.equal(ran.error.value, "division by zero");
  assert.match(ran.error.traceback, /1 \/ 0/);
});

test("results have formats", async () => {
  const ran = await sandbox.runCode("class S:\n    def _repr_html_(self): return '<b>x</b>'\nS()");
  assert.equal(ran.results[0].html, "<b>x</b>");
  assert.ok(ran.results[0].formats().includes("html"));
});

test("contexts are made, listed, restarted and removed", async () => {
  const context = await sandbox.createCodeContext({ cwd: "/tmp", language: "python" });
  await sandbox.runCode("mine = 1", { context });
  assert.equal((await sandbox.runCode("mine")).error.name, "NameError");
  assert.ok((await sandbox.listCodeContexts()).some((known) => known.id === context.id));
  await sandbox.restartCodeContext(context);
  assert.equal((await sandbox.runCode("mine", { context })).error.name, "NameError");
  await sandbox.removeCodeContext(context);
  await assert.rejects(sandbox.runCode("1", { context }), NotFoundError);
});

test("code past its time is interrupted and the context goes on", async () => {
  await sandbox.runCode("kept = 1");
  await assert.rejects(sandbox.runCode("while True: pass", { timeoutMs: 1000 }), TimeoutError);
  assert.equal((await sandbox.runCode("kept")).text, "1");
});

test("text outside ASCII stays whole in a large stream", async () => {
  const ran = await sandbox.runCode("print('ü' * 500_000)");
  assert.equal(ran.logs.stdout.join(""), `${"ü".repeat(500_000)}\n`);
});
