// Drives one stdio server with the official TypeScript SDK: lists its tools, calls one, prints what came of it.
//
//   node client.mjs REQUEST     a JSON object with command, args, env, tool, arguments
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.SANDCRATE_NODE_CLIENT}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/client/${name}.js`)).href);
const { Client } = await load("index");
const { StdioClientTransport } = await load("stdio");

const request = JSON.parse(process.argv[2]);
const transport = new StdioClientTransport({
  command: request.command,
  args: request.args,
  env: request.env,
  stderr: "inherit",
});
const client = new Client({ name: "sandcrate-tests", version: "1" });
await client.connect(transport, { timeout: 300000 });
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const result = await client.callTool({ name: request.tool, arguments: request.arguments });
console.log(JSON.stringify({ tools, result }));
await client.close();
