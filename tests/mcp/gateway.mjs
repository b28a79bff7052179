// The gateway as the official TypeScript SDK sees it: lists, a call, and the notice that a list has changed.
//
//   node gateway.mjs REQUEST     a JSON object with url and token
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.SANDCRATE_NODE_CLIENT}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}.js`)).href);
const { Client } = await load("client/index");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp");
const { ToolListChangedNotificationSchema } = await load("types");

const { url, token } = JSON.parse(process.argv[2]);
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
const client = new Client({ name: "sandcrate-tests", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } }));
const heard = new Promise((resolve) => client.setNotificationHandler(ToolListChangedNotificationSchema, () => resolve(true)));

const tools = (await client.listTools()).tools.map((tool) => tool.name);
const result = await client.callTool({ name: "everything__echo", arguments: { message: "through the gateway" } });
// A restart takes the server's tools away, and brings them back.
await fetch(`${url}/v1/mcp/servers/time/restart`, { method: "POST", headers, body: "{}" });
const late = new Promise((resolve) => setTimeout(() => resolve(false), 60000));
const changed = await Promise.race([heard, late]);
console.log(JSON.stringify({ tools, result, changed }));
await client.close();
process.exit(0);
