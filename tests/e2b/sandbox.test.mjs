// The JavaScript SDK against our server, which the environment names as the SDK's documentation has it.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";

import { load, until } from "./sdk.mjs";

const { Sandbox, CommandExitError, NotFoundError, SandboxNotFoundError, AuthenticationError, TimeoutError } =
  await load("e2b");

const made = [];
async function make(options) {
  const sandbox = await Sandbox.create(options);
  made.push(sandbox);
  return sandbox;
}
after(() => Promise.all(made.map((sandbox) => sandbox.kill())));

test("a sandbox has what it was made with", async () => {
  const sandbox = await make({ metadata: { purpose: "a test" }, envs: { GREETING: "hello" }, timeoutMs: 120_000 });
  assert.equal(await sandbox.isRunning(), true);
  assert.equal((await sandbox.commands.run('echo "$GREETING"')).stdout, "hello\n");
  const info = await sandbox.getInfo();
  assert.deepEqual(info.metadata, { purpose: "a test" });
  assert.equal(info.state, "running");
  const given = info.endAt - info.startedAt;
  assert.ok(given >= 120_000 && given < 125_000, given);
});

test("a command has output, callbacks and an exit code", async () => {
  const sandbox = await make();
  const out = [];
  const err = [];
  const ended = await sandbox.commands.run("echo out; echo err >&2; pwd", {
    onStdout: (text) => out.push(text),
    onStderr: (text) => err.push(text),
    cwd: "/tmp",
  });
  assert.equal(ended.stdout, "out\n/tmp\n");
  assert.equal(out.join(""), ended.stdout);
  assert.equal(err.join(""), "err\n");
  await assert.rejects(sandbox.commands.run("echo why >&2; exit 9"), (error) => {
    assert.ok(error instanceof CommandExitError);
    assert.equal(error.exitCode, 9);
    assert.equal(error.stderr, "why\n");
    return true;
  });
});

test("a command in the background takes input and is found and killed", async () => {
  const sandbox = await make();
  const handle = await sandbox.commands.run("tr a-z A-Z", { background: true, stdin: true });
  await sandbox.commands.sendStdin(handle.pid, "shout\n");
  await sandbox.commands.closeStdin(handle.pid);
  assert.equal((await handle.wait()).stdout, "SHOUT\n");
  const sleeper = await sandbox.commands.run("sleep 776", { background: true });
  assert.ok((await sandbox.commands.list()).some((info) => info.pid === sleeper.pid));
  const again = await sandbox.commands.connect(sleeper.pid);
  assert.equal(await sandbox.commands.kill(sleeper.pid), true);
  await assert.rejects(again.wait(), CommandExitError);
  await assert.rejects(sleeper.wait(), CommandExitError);
  assert.equal(await sandbox.commands.kill(sleeper.pid), false);
});

test("a command past its time is ended", async () => {
  const sandbox = await make();
  await assert.rejects(sandbox.commands.run("sleep 777", { timeoutMs: 500 }), TimeoutError);
  await until("the command to end", async () => (await sandbox.commands.list()).length === 0);
});

test("files", async () => {
  const sandbox = await make();
  const written = await sandbox.files.write("dir/a.txt", "grüße");
  assert.equal(written.path, "/home/user/dir/a.txt");
  assert.equal(await sandbox.files.read("dir/a.txt"), "grüße");
  const raw = new Uint8Array(300_000).map((_, index) => index % 251);
  await sandbox.files.write("dir/raw", raw.buffer);
  assert.deepEqual(await sandbox.files.read("dir/raw", { format: "bytes" }), raw);
  assert.deepEqual(new Uint8Array(await (await sandbox.files.read("dir/raw", { format: "blob" })).arrayBuffer()), raw);
  const several = await sandbox.files.write([
    { path: "dir/b", data: "b" },
    { path: "dir/c", data: "c" },
  ]);
  assert.deepEqual(several.map((info) => info.name), ["b", "c"]);
  const listed = await sandbox.files.list("dir");
  assert.deepEqual(listed.map((entry) => entry.name).sort(), ["a.txt", "b", "c", "raw"]);
  assert.equal((await sandbox.files.getInfo("dir/raw")).size, 300_000);
  assert.equal(await sandbox.files.makeDir("dir/new"), true);
  assert.equal(await sandbox.files.makeDir("dir/new"), false);
  assert.equal((await sandbox.files.rename("dir/b", "dir/new/b")).path, "/home/user/dir/new/b");
  assert.equal(await sandbox.files.exists("dir/b"), false);
  await sandbox.files.remove("dir");
  assert.equal(await sandbox.files.exists("dir"), false);
  await assert.rejects(sandbox.files.read("dir/a.txt"), NotFoundError);
});

test("a watcher tells by itself", async () => {
  const sandbox = await make();
  await sandbox.files.makeDir("watched");
  const seen = [];
  const watcher = await sandbox.files.watchDir("watched", (event) => seen.push(`${event.type} ${event.name}`));
  await sandbox.files.write("watched/a", "1");
  await until("the file to be told of", () => seen, () => seen.includes("create a") && seen.includes("write a"));
  await sandbox.files.remove("watched/a");
  await until("its removal to be told of", () => seen, () => seen.includes("remove a"));
  await watcher.stop();
});

test("a terminal has a size and takes another", async () => {
  const sandbox = await make();
  let said = "";
  const decoder = new TextDecoder();
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => void (said += decoder.decode(data)) });
  const type = (text) => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(text));
  await type("stty size\n");
  await until("the first size", () => said, () => said.includes("24 80"));
  await sandbox.pty.resize(terminal.pid, { cols: 120, rows: 40 });
  await type("stty size; exit 4\n");
  await assert.rejects(terminal.wait(), (error) => error.exitCode === 4);
  assert.match(said, /40 120/);
});

test("a sandbox ends when its time is over", async () => {
  const sandbox = await make();
  await sandbox.setTimeout(600_000);
  const left = (await sandbox.getInfo()).endAt - Date.now();
  assert.ok(left > 590_000 && left <= 600_000, left);
  await sandbox.setTimeout(1000);
  await until("the sandbox to end", async () => !(await sandbox.isRunning()));
  await assert.rejects(sandbox.commands.run("true"), SandboxNotFoundError);
  await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), SandboxNotFoundError);
});

test("a sandbox is connected to, listed, paused, and killed", async () => {
  const mark = randomUUID();
  const sandbox = await make({ metadata: { mark } });
  const second = await make({ metadata: { mark } });
  await sandbox.files.write("note", "kept");
  const again = await Sandbox.connect(sandbox.sandboxId);
  assert.equal(await again.files.read("note"), "kept");
  const pages = [];
  const listed = Sandbox.list({ query: { metadata: { mark } }, limit: 1 });
  while (listed.hasNext) pages.push((await listed.nextItems()).map((info) => info.sandboxId));
  assert.deepEqual(pages.flat().sort(), [sandbox.sandboxId, second.sandboxId].sort());
  assert.ok(pages.every((page) => page.length <= 1));
  assert.equal(await sandbox.pause(), true);
  assert.equal((await sandbox.getInfo()).state, "paused");
  assert.equal(await (await Sandbox.connect(sandbox.sandboxId)).files.read("note"), "kept");
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await sandbox.isRunning(), false);
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError);
});

test("signed URLs", async () => {
  const sandbox = await make();
  const headers = { "E2b-Sandbox-Id": sandbox.sandboxId };
  const form = new FormData();
  form.append("file", new Blob(["posted"]), "up");
  const put = await fetch(await sandbox.uploadUrl("up"), { method: "POST", body: form, headers });
  assert.equal(put.status, 200);
  const url = await sandbox.downloadUrl("up", { useSignatureExpiration: 60_000 });
  assert.equal(await (await fetch(url, { headers })).text(), "posted");
  assert.equal((await fetch(url.replace("v1_", "v1_x"), { headers })).status, 401);
});

test("metrics", async () => {
  const sandbox = await make();
  const [metric] = await until("a measurement", () => sandbox.getMetrics(), (metrics) => metrics.length > 0);
  assert.ok(metric.cpuCount >= 1 && metric.memTotal > 0 && metric.memUsed >= 0);
});

test("an unknown template and a wrong key", async () => {
  await assert.rejects(Sandbox.create("no-such-template"), /no-such-template/);
  await assert.rejects(Sandbox.create({ apiKey: "e2b_wrong" }), AuthenticationError);
});
