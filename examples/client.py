"""A client in the standard library: asks a question and prints the answer as it streams, the reasoning on the error stream.

    python3 examples/client.py "What element is C?" [http://127.0.0.1:8000]
"""

import json
import sys
import urllib.request

question = sys.argv[1]
base = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000"
body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
request = urllib.request.Request(
    base + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
)
with urllib.request.urlopen(request) as answer:
    for line in answer:
        data = line.decode().strip().removeprefix("data: ")
        if not data or data == "[DONE]":
            continue
        delta = json.loads(data)["choices"][0]["delta"]
        if "reasoning_content" in delta:
            print(delta["reasoning_content"], end="", flush=True, file=sys.stderr)
        print(delta.get("content", ""), end="", flush=True)
print()
