"""Token ids from a validation file, and comparisons of what two executors made of them. Standard library only."""
import array
import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import struct
import sys
import urllib.request


def tensors(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in about["data_offsets"])
        code = {"F32": "f", "I32": "i", "U8": "B"}[about["dtype"]]
        yield name, about["shape"], array.array(code, data[start:end])


def tokens(validation, out, count=12, longest=300):
    found = {name: values for name, _, values in tensors(validation)}
    ends = list(found["offsets"])
    lists = [list(found["tokens"][a:b])[:longest] for a, b in zip(ends, ends[1:])]
    json.dump({"tokens": [t for t in lists if len(t) > 8][:count]}, open(out, "w"))


def prompts(given, out):
    lists = json.load(open(given))["tokens"]
    json.dump({"tokens": [t[: max(8, len(t) // 2)] for t in lists]}, open(out, "w"))


def logits(reference, found):
    rows = clear = agree = same = 0
    largest = 0.0
    other = {name: values for name, _, values in tensors(found)}
    for name, shape, a in tensors(reference):
        b, width = other[name], shape[-1]
        for row in range(shape[0]):
            x, y = a[row * width : (row + 1) * width], b[row * width : (row + 1) * width]
            rows += 1
            same += x == y
            largest = max(largest, max(abs(p - q) for p, q in zip(x, y)))
            first, second = sorted(range(width), key=lambda i: -x[i])[:2]
            if x[first] - x[second] > 0.5:
                clear += 1
                agree += max(range(width), key=lambda i: y[i]) == first
    print(f"{rows} rows, {same} with equal bits, largest difference of a logit {largest:.3f}")
    print(f"choices whose lead exceeds 0.5: {agree} of {clear} agree")
    return agree == clear


def answers(reference, found):
    a, b = json.load(open(reference))["tokens"], json.load(open(found))["tokens"]
    same = sum(x == y for x, y in zip(a, b))
    print(f"greedy continuations: {same} of {len(a)} are the same")
    # Sums in another order round differently, and a choice between near equals may fall the other way once in a while; a wrong
    # executor changes nearly all of them.
    return len(a) == len(b) and 4 * same >= 3 * len(a)


def served(address, given, reference, count=48):
    """All prompts at once over HTTP, greedy, against the continuations that one process made of them one by one."""
    lists, wanted = json.load(open(given))["tokens"], json.load(open(reference))["tokens"]

    def ask(prompt):
        body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": count}}
        request = urllib.request.Request(f"{address}/generate", json.dumps(body).encode(), {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=120))["output_ids"]

    with concurrent.futures.ThreadPoolExecutor(len(lists)) as pool:
        found = list(pool.map(ask, lists))
    same = sum(x == y for x, y in zip(found, wanted))
    print(f"over HTTP, {len(lists)} at once: {same} of {len(lists)} continuations are those made one by one")
    for at, (x, y) in enumerate(zip(found, wanted)):
        if x != y:
            same_tokens = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            print(f"prompt {at}: {len(x)} tokens, {len(y)} one by one, the first {same_tokens} are the same", file=sys.stderr)
    # Steps of another bucket add in another order, so the same allowance holds as between executors.
    return len(lists) == len(wanted) and 4 * same >= 3 * len(lists)


# Ways to choose a token that kernels know: one of each kernel's kinds of rows.
WAYS = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 300, "min_p": 0.02},
]


def without_choice(artifact, out):
    """The same artifact without the kernels that choose tokens, so that the host chooses."""
    shutil.copytree(artifact, out, dirs_exist_ok=True)
    code = json.loads(pathlib.Path(out, "device.json").read_bytes())
    del code["choice"]
    data = json.dumps(code).encode()
    pathlib.Path(out, "device.json").write_bytes(data)
    manifest = json.loads(pathlib.Path(out, "manifest.json").read_bytes())
    manifest["files"]["device.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    pathlib.Path(out, "manifest.json").write_text(json.dumps(manifest))


def sampled(address, other, given, count=60):
    """Tokens that two servers draw for the same prompts and seeds, one prompt after the other."""
    lists, right = json.load(open(given))["tokens"], True

    def ask(at, prompt, params):
        body = {"input_ids": prompt, "sampling_params": {**params, "max_new_tokens": count}}
        request = urllib.request.Request(f"{at}/generate", json.dumps(body).encode(), {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=120))["output_ids"]

    for way in WAYS:
        pairs = [[ask(at, p, {**way, "sampling_seed": 17 + i}) for at in (address, other)] for i, p in enumerate(lists)]
        same = sum(a == b for a, b in pairs)
        right = right and same == len(lists)
        print(f"{way}: {same} of {len(lists)} answers, {sum(len(a) for a, _ in pairs)} tokens, are the same")
    return right


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    done = {"tokens": tokens, "prompts": prompts, "logits": logits, "answers": answers, "served": served, "without_choice": without_choice, "sampled": sampled}[command](*arguments)
    sys.exit(0 if done in (None, True) else 1)
