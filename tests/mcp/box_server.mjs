// Our box server as the official TypeScript SDK sees it: over stdio, and over Streamable HTTP.
//
//   node box_server.mjs BIN        (in a directory whose node_modules has @modelcontextprotocol/sdk)

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// The SDK is where we are called from, not beside this file.
const require = createRequire(join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)).href);
const { Client } = await load("client/index.js");
const { StdioClientTransport } = await load("client/stdio.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");

const BIN = process.argv[2];
const state = mkdtempSync(join(tmpdir(), "sandcrate-mcp-ts-"));
const env = { ...process.env, SANDCRATE_STATE_DIR: state };

async function connected(transport, check) {
  const client = new Client({ name: "ts", version: "1" });
  await client.connect(transport);
  try {
    await check(client);
  } finally {
    if (transport.terminateSession) await transport.terminateSession();
    await client.close();
  }
}

async function work(client) {
  assert.equal(client.getServerVersion().name, "sandcrate");
  const { tools } = await client.listTools();
  assert.equal(tools.length, 8);
  assert.equal(tools.find((tool) => tool.name === "read").annotations.readOnlyHint, true);
  await client.callTool({ name: "write", arguments: { path: "/workspace/a.txt", content: "hello\n" } });
  // The SDK checks structured content against the tool's output schema.
  const ran = await client.callTool({ name: "exec", arguments: { command: "tr a-z A-Z < a.txt" } });
  assert.equal(ran.structuredContent.stdout, "HELLO");
  assert.equal(ran.structuredContent.exit_code, 0);
  const failed = await client.callTool({ name: "exec", arguments: { command: "exit 4" } });
  assert.equal(failed.isError, true);
  assert.equal(failed.structuredContent.exit_code, 4);
  const { resources } = await client.listResources();
  const { contents } = await client.readResource({ uri: resources[0].uri });
  assert.equal(contents[0].text, "hello\n");
  await assert.rejects(client.callTool({ name: "nope", arguments: {} }));
  const words = [];
  const options = { onprogress: (word) => words.push(word) };
  await client.callTool({ name: "exec", arguments: { command: "sleep 3" } }, undefined, options);
  assert.ok(words.length > 0, "progress");
  const stop = new AbortController();
  setTimeout(() => stop.abort(), 500);
  const cancelled = client.callTool({ name: "exec", arguments: { command: "sleep 778" } }, undefined, { signal: stop.signal });
  await assert.rejects(cancelled);
  const left = await client.callTool({ name: "exec", arguments: { command: "ps -e -o args | grep -c '[s]leep 778'" } });
  assert.equal(left.structuredContent.stdout, "0");
  const reset = await client.callTool({ name: "session_reset", arguments: {} });
  assert.equal(reset.structuredContent.existed, true);
}

const server = spawn(BIN, ["serve", "--listen", "127.0.0.1:0"], { env, stdio: ["ignore", "ignore", "pipe"] });
try {
  await connected(new StdioClientTransport({ command: BIN, args: ["mcp", "serve"], env }), work);
  console.log("ok: TypeScript SDK over stdio");
  const url = await new Promise((resolve, reject) => {
    let said = "";
    server.stderr.on("data", (data) => {
      said += data;
      const found = said.match(/listening on (http:\/\/[\d.:]+)/);
      if (found) resolve(found[1]);
    });
    server.on("exit", () => reject(new Error(said)));
  });
  await connected(new StreamableHTTPClientTransport(new URL(`${url}/mcp/box`)), work);
  console.log("ok: TypeScript SDK over HTTP");
  const deadline = Date.now() + 30_000;
  while ((await (await fetch(`${url}/v1/sessions`)).json()).sessions.length > 0) {
    assert.ok(Date.now() < deadline, "a box is left");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await connected(new StdioClientTransport({ command: BIN, args: ["mcp", "serve", "--url", url], env }), work);
  console.log("ok: TypeScript SDK over stdio and a server behind it");
} finally {
  server.kill("SIGTERM");
  await new Promise((resolve) => (server.exitCode === null ? server.on("exit", resolve) : resolve()));
  rmSync(state, { recursive: true, force: true });
}
