#!/usr/bin/env python3
"""Greedy continuations of 20 prompts by Hugging Face Transformers in float32, for examples/smollm2/golden.json.

    pip install torch transformers==5.24.0 safetensors
    python3 tests/scripts/smollm2_golden.py MODEL_DIR examples/smollm2/golden.json

MODEL_DIR is what examples/smollm2/convert.py wrote. Ten prompts are chats, rendered by the checkpoint's template, ten are
raw texts. `gap` is the smallest distance between the two largest logits among the tokens of a continuation: what
another order of the sums would have to reach to change it.
"""

import json
import pathlib
import sys

import torch
import transformers

TOKENS = 48
CHATS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "What is 7 times 8?",
    "Name three colours.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a short recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "Write a haiku about rain.",
    "Explain what a compiler does.",
]
TEXTS = [
    "Once upon a time",
    "The largest planet of the solar system is",
    "def fibonacci(n):\n    ",
    "In 1969, the first humans",
    "Water boils at 100 degrees",
    "#include <stdio.h>\n\nint main(void) {",
    "Dear Sir or Madam,\n\n",
    "The quick brown fox",
    "1, 2, 3, 4, 5, 6,",
    "Überraschung! Das Wetter ist",
]


def main(folder, out):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    stop = model.generation_config.eos_token_id
    prompts = []
    for kind, texts in (("chat", CHATS), ("text", TEXTS)):
        for text in texts:
            if kind == "chat":
                messages = [{"role": "user", "content": text}]
                ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            else:
                ids = tokenizer(text)["input_ids"]
            found, gap = continued(model, ids, stop)
            plain = [i for i in found if i != stop]
            prompts.append({
                "kind": kind,
                "prompt": text,
                "prompt_ids": list(ids),
                "ids": found,
                "text": tokenizer.decode(plain, skip_special_tokens=False),
                "gap": round(gap, 4),
            })
            print(f"{gap:.4f} {text!r} -> {prompts[-1]['text']!r}")
    document = {
        "made_by": f"transformers {transformers.__version__}, float32, eager attention, greedy, {TOKENS} tokens at most",
        "prompts": prompts,
    }
    lines = json.dumps(document, ensure_ascii=False)
    lines = lines.replace('{"kind"', '\n{"kind"').replace("}]}", "}\n]}\n")
    pathlib.Path(out).write_text(lines)


@torch.no_grad()
def continued(model, ids, stop):
    """Greedy ids up to and with the stop token, and the smallest gap."""
    cache, found, gap = None, [], float("inf")
    step = torch.tensor([ids])
    while len(found) < TOKENS:
        out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        found.append(int(best.indices[0]))
        if found[-1] == stop:
            break
        step = torch.tensor([[found[-1]]])
    return found, gap


if __name__ == "__main__":
    main(*sys.argv[1:])
