#!/usr/bin/env python3
"""Greedy ids of all prompts against golden.json, then every chat over HTTP: same text, same number of tokens.

    python3 tests/scripts/smollm2_compare.py ARTIFACT MODEL_DIR golden.json

Standard library only. Exits 1 if anything differs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

RUN = os.environ.get("BEAM_RUN", os.path.join("target", "release", "beam-run"))


def generated(artifact, model, prompts):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"tokens": [p["prompt_ids"] for p in prompts]}, file)
        file.flush()
        longest = str(max(len(p["ids"]) for p in prompts))
        command = [RUN, "generate", artifact, "--model", model, "--tokens", file.name, "--max-tokens", longest]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["tokens"]


def ask(address, prompt):
    body = {
        "messages": [{"role": "user", "content": prompt["prompt"]}],
        "temperature": 0,
        "max_tokens": len(prompt["ids"]),
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def main(artifact, model, golden):
    prompts = json.load(open(golden))["prompts"]
    wrong = 0
    for prompt, found in zip(prompts, generated(artifact, model, prompts), strict=True):
        same = found[: len(prompt["ids"])] == prompt["ids"]
        wrong += not same
        print("same " if same else "OTHER", len(prompt["ids"]), repr(prompt["prompt"]), "gap", prompt["gap"])
    print(f"greedy ids: {len(prompts) - wrong} of {len(prompts)} prompts equal")

    server = subprocess.Popen(
        [RUN, "serve", artifact, "--model", model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        found = (re.search(r"http://[0-9.:]+", line) for line in server.stdout)
        address = next(m.group(0) for m in found if m)
        chats = [p for p in prompts if p["kind"] == "chat"]
        for prompt in chats:
            answer = ask(address, prompt)
            text = answer["choices"][0]["message"]["content"]
            usage = answer["usage"]
            same = text.removesuffix("<|im_end|>") == prompt["text"] and usage["prompt_tokens"] == len(prompt["prompt_ids"])
            wrong += not same
            print("same " if same else "OTHER", repr(prompt["prompt"]), "->", repr(text))
    finally:
        server.terminate()
        server.wait()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
