"""The kernels of an artifact that choose tokens, at the length of its rows, beside the same in PyTorch.

    python3 benches/choices.py ARTIFACT OUT.json

Rows are of three kinds: logits as a model has them (normal, 3 wide), nearly even ones, and ones of which many are equal. Every token must be among those
that a sort in binary64 keeps. Times are medians of graph replays over rows that pass the L2.
"""
import ctypes
import json
import struct
import sys

import torch

from kernels import READ_BYTES_PER_US, Kernel, timed

CHOOSES, WEIGHS, DRAWS, SELECTS = 1, 2, 4, 8
WAYS = [
    ("greedy", 0, 1.0, 0, 1.0, 0.0),
    ("temperature 1", DRAWS | WEIGHS, 1.0, 0, 1.0, 0.0),
    ("min-p 0.05", DRAWS | WEIGHS, 1.0, 0, 1.0, 0.05),
    ("top-k 20, top-p 0.95", SELECTS, 0.8, 20, 0.95, 0.0),
    ("top-k 300", SELECTS, 1.0, 300, 1.0, 0.0),
    ("top-p 0.5", SELECTS, 1.0, 0, 0.5, 0.0),
    ("top-p 0.95", SELECTS, 1.0, 0, 0.95, 0.0),
    ("top-p 0.9999", SELECTS, 1.0, 0, 0.9999, 0.0),
    ("20 alternatives", WEIGHS, 1.0, 0, 1.0, 0.0),
]


def logits(kind, rows, vocab):
    x = torch.randn(rows, vocab, device="cuda") * 3
    return {"wide": x, "flat": x * 0.01, "equal": x.floor()}[kind]


def kept(x, way):
    """How many tokens of each row may be drawn, and each token's place among its row's, most probable first."""
    _, _, temperature, top_k, top_p, min_p = way
    order = x.double().argsort(dim=1, descending=True, stable=True)
    place = torch.empty_like(order).scatter_(1, order, torch.arange(x.shape[1], device="cuda").expand_as(order))
    weight = ((x.double() - x.double().max(1, keepdim=True).values) / temperature).exp().gather(1, order)
    count = torch.full((x.shape[0],), x.shape[1] if way[1] else 1, device="cuda")
    if top_k:
        count = count.clamp(max=top_k)
        weight = weight * (torch.arange(x.shape[1], device="cuda") < top_k)
    if top_p < 1:
        sums = weight.cumsum(1)
        count = torch.minimum(count, (sums < sums[:, -1:] * top_p * (1 + 1e-9)).sum(1) + 1)
    if min_p > 0:
        count = torch.minimum(count, (weight >= min_p * (1 - 1e-6)).sum(1))
    return count, place


def peer(x, way):
    """The same by sorting."""
    _, does, temperature, top_k, top_p, min_p = way
    if not does:
        return x.argmax(1)
    if does == WEIGHS:
        return x.log_softmax(1).topk(20)
    p = (x / temperature).softmax(1)
    if top_k or top_p < 1:
        p, ids = p.topk(top_k) if top_k else p.sort(1, descending=True)
        p = p / p.sum(1, keepdim=True)
        p = torch.where(p.cumsum(1) - p < top_p, p, 0)
    else:
        ids = None
        p = torch.where(p >= min_p * p.max(1, keepdim=True).values, p, 0)
    # A draw without a word to the host, which a graph forbids.
    drawn = (p / torch.empty_like(p).exponential_()).argmax(1, keepdim=True)
    return drawn if ids is None else ids.gather(1, drawn)


def main():
    folder, out = sys.argv[1:]
    code = json.load(open(f"{folder}/device.json"))
    own = code["choice"]
    kernels = {name: Kernel(folder, code["kernels"][own[name]]) for name in ("best", "weigh", "select")}
    vocab, parts, results, wrong = own["vocab"], own["parts"], [], 0
    for rows in (1, 64):
        sets = max(1, (200 << 20) // (rows * vocab * 4)) if rows > 1 else 64
        tickets = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
        left = torch.zeros(rows * parts * 2, dtype=torch.int64, device="cuda")
        named = torch.zeros(rows * 32, dtype=torch.int64, device="cuda")
        for kind in ("wide", "flat", "equal"):
            all_logits = [logits(kind, rows, vocab) for _ in range(sets)]
            for way in WAYS:
                title, does, temperature, top_k, top_p, min_p = way
                ranked = 20 if does == WEIGHS else 0
                coins = torch.rand(rows).tolist()
                row = lambda coin: struct.pack("<IifIfffI", CHOOSES | does, -1, temperature, top_k, top_p, min_p, coin, ranked)
                choices = torch.frombuffer(bytearray(b"".join(row(c) for c in coins)), dtype=torch.int32).cuda()
                # Each set has answers of its own: `weigh` and `select` by themselves read what `best` found in the same row.
                answers = [torch.full((rows, 8), -1, dtype=torch.int32, device="cuda") for _ in range(sets)]
                masks = torch.zeros(8, dtype=torch.int32, device="cuda")

                def step(of, which=("best", "weigh", "select")):
                    common = [all_logits[of], choices, masks, answers[of]]
                    if "best" in which:
                        kernels["best"].start((parts, rows), common + [left, tickets])
                    if does & WEIGHS and "weigh" in which:
                        kernels["weigh"].start((parts, rows), common + [left, tickets])
                    if (does & SELECTS or ranked) and "select" in which:
                        kernels["select"].start((rows, 1), common + [named, ctypes.c_int(32)])

                for of in range(sets):
                    step(of)
                torch.cuda.synchronize()
                for x, chosen in list(zip(all_logits, answers))[:3]:
                    count, place = kept(x, way)
                    at = place.gather(1, chosen[:, :1].long().clamp(0, vocab - 1))[:, 0]
                    # Thresholds are sums of rounded weights here, so the last one or two may differ.
                    slack = 1 + count // 10000 if top_p < 1 or min_p > 0 else 0
                    wrong += int(((at >= count + slack) | (chosen[:, 0] < 0)).sum())
                times = {"all": timed([lambda of=of: step(of) for of in range(sets)])}
                for name in kernels:
                    used = {"best": True, "weigh": does & WEIGHS, "select": does & SELECTS or ranked}[name]
                    if used:
                        times[name] = timed([lambda of=of: step(of, (name,)) for of in range(sets)])
                torch_us = timed([lambda x=x: peer(x, way) for x in all_logits])
                floor = rows * vocab * 4 / READ_BYTES_PER_US
                results.append({"rows": rows, "logits": kind, "way": title, "us": times, "torch_us": torch_us, "floor_us": floor})
                each = ", ".join(f"{n} {t:.1f}" for n, t in times.items())
                print(f"{rows:3} rows of {vocab}, {kind:5} {title:22} {each} us; torch {torch_us:.1f}; bytes once {floor:.1f}", flush=True)
            del all_logits
    json.dump(results, open(out, "w"), indent=1)
    print(f"{wrong} tokens are not among those that are kept")
    sys.exit(1 if wrong else 0)


main()
