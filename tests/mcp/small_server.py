"""An MCP server of the standard library alone, with one tool."""

import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    if request.get("id") is None:
        continue
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "small", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}
        case _:
            result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
