"""Kernels of an artifact at their full shapes, one by one, beside PyTorch on the same device in the same run.

    python3 benches/kernels.py ARTIFACT OUT.json [dense] [picked] [route] [decode] [prompt]

Every kernel is first compared with a product in binary64 of some of its rows (attention: with all of it in binary32), on random
data and a poisoned result; then both are timed: medians of graph replays over weights and caches that pass the L2 several times.
"""
import ctypes
import json
import os
import re
import statistics
import sys

import torch

CU = ctypes.CDLL("libcuda.so.1")
torch.manual_seed(7)
torch.zeros(1, device="cuda")
READ_BYTES_PER_US = 4.70e6
FLOPS_PER_US = 790e6
RESULTS = []


def check(code, what):
    if code != 0:
        raise RuntimeError(f"{what}: CUDA error {code}")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
    _fields_ += [("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


EARLY = Attribute(6, 0, (ctypes.c_int * 16)(1))


class Kernel:
    def __init__(self, folder, code):
        self.threads, self.shared, self.name = code["threads"], code.get("dynamic_bytes", 0), code["name"]
        self.text = open(f"{folder}/kernels/{self.name}.cu").read()
        image = open(f"{folder}/kernels/{self.name}.cubin", "rb").read()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(CU.cuModuleLoadData(ctypes.byref(module), image), self.name)
        check(CU.cuModuleGetFunction(ctypes.byref(self.function), module, self.name.encode()), self.name)
        if self.shared:
            check(CU.cuFuncSetAttribute(self.function, 8, self.shared), self.name)

    def numbers(self, template):
        found = re.search(template + r"<([^>]*)>", self.text)
        if not found:
            return None
        words = found.group(1).split(", ")
        return [int(w) if w.lstrip("-").isdigit() else w == "true" for w in words]

    def others(self, known, q=None):
        """Arguments behind the `known` first: what is computed from a core's numbers reads zeros and writes where nobody looks."""
        signature = re.search(re.escape(self.name) + r"\((.*)\) \{", self.text).group(1).split(", ")
        found = []
        for declared in signature[known:]:
            kind, name = declared.rsplit(" ", 1)
            if kind == "const Steps*":
                found.append(Others.steps())
            elif kind.endswith("*"):
                before = name.endswith("_before")
                found.append(q if before and "bf16" in kind else Others.ones() if before else Others.zeros() if kind.startswith("const") else Others.sink())
            else:
                found.append(1.0 if kind == "const float" else ctypes.c_int64(0) if kind == "const i64" else ctypes.c_int(0))
        return found

    def start(self, grid, arguments, early=True):
        cells = []
        for a in arguments:
            if isinstance(a, ctypes.Array):
                cells.append(a)
            elif isinstance(a, torch.Tensor):
                cells.append(ctypes.c_uint64(a.data_ptr()))
            elif isinstance(a, float):
                cells.append(ctypes.c_float(a))
            else:
                cells.append(a)
        pointers = (ctypes.c_void_p * len(cells))(*[ctypes.cast(ctypes.byref(c), ctypes.c_void_p) for c in cells])
        stream = torch.cuda.current_stream().cuda_stream
        config = Config(grid[0], grid[1], 1, self.threads, 1, 1, self.shared, stream, ctypes.pointer(EARLY), 1 if early else 0)
        check(CU.cuLaunchKernelEx(ctypes.byref(config), self.function, pointers, None), self.name)


class Others:
    """Memory of what stands around a core."""

    kept = {}

    @classmethod
    def zeros(cls):
        if "zeros" not in cls.kept:
            cls.kept["zeros"] = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
        return cls.kept["zeros"]

    @classmethod
    def sink(cls):
        if "sink" not in cls.kept:
            cls.kept["sink"] = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
        return cls.kept["sink"]

    @classmethod
    def ones(cls):
        return cls.kept.setdefault("ones", torch.ones(1 << 16, device="cuda"))

    @classmethod
    def steps(cls):
        if "steps" not in cls.kept:
            words = torch.tensor([cls.zeros().data_ptr()] * 10 + [1], dtype=torch.int64)
            cls.kept["steps"] = words.cuda()
        return cls.kept["steps"]


def weight_map(tensor, columns, rows, box_rows):
    raw = (ctypes.c_uint64 * 32)()
    address = (ctypes.addressof(raw) + 127) // 128 * 128
    call = CU.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address), 9, 2, ctypes.c_void_p(tensor.data_ptr()), (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(columns * 2), (ctypes.c_uint32 * 2)(64, box_rows), (ctypes.c_uint32 * 2)(1, 1), 0, 3, 3, 0)
    check(call, "a map of a weight")
    return (ctypes.c_uint64 * 16).from_buffer_copy((ctypes.c_char * 128).from_address(address))


def timed(calls, repeats=15):
    """Median time in us of one of `calls`, which run behind each other in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        for _ in range(3):
            graph.replay()
        times = []
        for _ in range(repeats):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            torch.cuda.synchronize()
            times.append(a.elapsed_time(b) * 1e3 / len(calls))
    return statistics.median(times)


def report(what, shape, rows, own, peer, floor, error):
    RESULTS.append({"what": what, "shape": shape, "rows": rows, "us": own, "torch_us": peer, "floor_us": floor, "error": error})
    share = f"{own / peer:5.2f} x torch" if peer else "            "
    print(f"{what:22} {shape:18} {rows:>14} {own:9.1f} us  torch {peer or 0:9.1f}  floor {floor:8.1f} ({floor / own:4.0%})  {share}  error {error:.2g}", flush=True)


def logical(columns, cuts, granule):
    """Which logical column a row of the weight is."""
    run = columns // cuts
    if cuts <= 1:
        return torch.arange(columns, device="cuda")
    at = torch.arange(columns, device="cuda")
    full = run // granule * granule
    inside = (at // granule % cuts) * run + at // (granule * cuts) * granule + at % granule
    rest = at - full * cuts
    left = max(run - full, 1)
    return torch.where(at < full * cuts, inside, rest // left * run + full + rest % left)


def uniform(*shape, scale=1.0):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).uniform_(-scale, scale)


def worst(found, wanted, size, terms):
    """Largest error as a share of the bound 2 (sqrt n + 1) 2^-24 of the sum of magnitudes; NaN shows as such."""
    bound = 2 * (terms**0.5 + 1) * 2**-24 * size
    return ((found.double() - wanted).abs() / bound).max().item()


def serves(start, tokens, kind=None):
    served = start.get("buckets")
    fits = served is None or served["least"] <= tokens <= served["most"]
    return fits and (kind is None or served is None or served.get("rows") == kind)


def dense(code, kernels, counts):
    seen = set()
    for start in starts(code):
        kernel = kernels[start["kernel"]]
        numbers = kernel.numbers("Stream")
        key = (start["kernel"], json.dumps(start.get("buckets")))
        if not numbers or "Dense" not in kernel.text or key in seen:
            continue
        seen.add(key)
        columns, k, cuts, granule, tile, _, split = numbers[:7]
        copies = max(2, min(8, int(6e8 // (columns * k * 2))))
        weights = [uniform(columns, k) for _ in range(copies)]
        maps = [weight_map(w, k, columns, 128) for w in weights]
        tickets = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
        across = (columns + 127) // 128
        shares = torch.full((across * split * tile * 128 if split > 1 else 4,), float("nan"), device="cuda")
        order = logical(columns, cuts, granule)
        for rows in [n for n in counts if serves(start, n)]:
            x = uniform(rows, k)
            out = torch.full((rows, columns), float("nan"), device="cuda")
            x_map = weight_map(x, k, rows, tile)
            others = kernel.others(6)
            go = lambda m, to=out: kernel.start((start["grid"][0]["factor"], 1), [m, x_map, ctypes.c_int(rows), to, shares, tickets] + others)
            # Where more is computed, the core's own numbers stay in the kernel.
            none = ctypes.c_uint64(0) if others else out
            go(maps[0])
            torch.cuda.synchronize()
            some = torch.randperm(rows, device="cuda")[:8]
            wanted = x[some].double() @ weights[0].double().T
            size = x[some].double().abs() @ weights[0].double().abs().T
            error = worst(out[some][:, order], wanted, size, k)
            written = not torch.isnan(out).any().item()
            first = out.clone()
            go(maps[0])
            same = torch.equal(first, out) and written and tickets.abs().sum().item() == 0
            own = timed([lambda m=m: go(m, none) for m in maps])
            peer = timed([lambda w=w: torch.nn.functional.linear(x, w) for w in weights])
            floor = max((columns * k + rows * (columns + k)) * 2 / READ_BYTES_PER_US, 2 * rows * columns * k / FLOPS_PER_US)
            report(kernel.name.rsplit("_", 2)[0] + ("" if same else " UNEQUAL"), f"{columns}x{k}", rows, own, peer, floor, error)
        del weights, maps


def picked(code, kernels, counts):
    groups_seen = set()
    for before, start in pairs(code):
        kernel = kernels[start["kernel"]]
        numbers = kernel.numbers("Stream")
        key = (start["kernel"], json.dumps(start.get("buckets")))
        found = re.search(r"Picked\(plan, (\d+)\)", kernel.text)
        gathers = "Gathered(plan)" in kernel.text
        if not numbers or not (found or gathers) or key in groups_seen:
            continue
        groups_seen.add(key)
        columns, k, cuts, granule, tile, _, split = numbers[:7]
        # Rows that are put side by side by a kernel before are timed with it.
        gather = kernels[before["kernel"]] if gathers else None
        each = int(found.group(1) if found else re.search(r"Core::run\(x, plan, (\d+), out\)", gather.text).group(1))
        per_row = next(p["picks"]["per_row"] for p in start["params"] if isinstance(p, dict) and "picks" in p)
        total = next(p["map"]["rows"] for p in start["params"] if isinstance(p, dict) and "map" in p)
        groups = total // columns
        sort = sorter(code, kernels, groups, tile)
        weights = uniform(total, k)
        w_map = weight_map(weights, k, total, 128)
        tickets = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
        order = logical(columns, cuts, granule)
        for rows in [n for n in counts if serves(start, n)]:
            picks = rows * per_row
            ids = [torch.stack([torch.randperm(groups, device="cuda")[:per_row] for _ in range(rows)]).int() for _ in range(4)]
            x = uniform(picks // each, k)
            out = torch.full((picks, columns), float("nan"), device="cuda")
            plans = [torch.zeros(4 + 5 * picks, dtype=torch.int32, device="cuda") for _ in ids]
            across = (columns + 127) // 128
            shares = torch.empty(picks * across * split * tile * 128 if split > 1 else 4, device="cuda")
            for of, plan in zip(ids, plans):
                sort(of, picks, plan)
            others = kernel.others(6)
            side = torch.full((picks, k), float("nan"), device="cuda", dtype=torch.bfloat16) if gathers else x
            rows_of_x = weight_map(side, k, picks, tile) if gathers else x

            def go(plan, to=out, x=x, side=side, rows_of_x=rows_of_x, others=others):
                if gathers:
                    gather.start(((picks + before["grid"][0]["per_block"] - 1) // before["grid"][0]["per_block"], 1), [x, plan, side])
                kernel.start((start["grid"][0]["factor"], 1), [w_map, rows_of_x, plan, to, shares, tickets] + others)

            none = ctypes.c_uint64(0) if others else out
            go(plans[0])
            torch.cuda.synchronize()
            some = torch.randperm(picks, device="cuda")[:8]
            blocks = weights.view(groups, columns, k)[ids[0].flatten()[some].long()].double()
            rows_of = x[some // each].double()
            wanted, size = torch.einsum("nck,nk->nc", blocks, rows_of), torch.einsum("nck,nk->nc", blocks.abs(), rows_of.abs())
            error = worst(out[some][:, order], wanted, size, k)
            if torch.isnan(out).any().item():
                error = float("nan")
            own = timed([lambda p=p: go(p, none) for p in plans])
            gathering = f", gather {timed([lambda: gather.start((picks // before['grid'][0]['per_block'], 1), [x, plans[0], side])] * 4):.1f}" if gathers else ""
            sorting = 0.0 if sort.__name__ == "here" else timed([lambda: sort(ids[0], picks, plans[0])] * 4)
            distinct = sum(len(i.unique()) for i in ids) / len(ids)
            floor = max(distinct * columns * k * 2 / READ_BYTES_PER_US, 2 * picks * columns * k / FLOPS_PER_US)
            peer = 0.0
            try:
                flat = ids[0].flatten().long()
                place = flat.argsort(stable=True)
                ends = torch.bincount(flat, minlength=groups).cumsum(0).int()
                sorted_x, turned = x[place // each].contiguous(), weights.view(groups, columns, k).transpose(1, 2)
                peer = timed([lambda: torch._grouped_mm(sorted_x, turned, offs=ends)] * 2)
            except Exception as e:  # not every build has it
                print("torch._grouped_mm:", str(e)[:80])
            report(f"{kernel.name.rsplit('_', 2)[0]} (sort {sorting:.1f}{gathering})", f"{groups}x{columns}x{k}", rows, own, peer, floor, error)
        del weights


def selected(logits, bias, groups=8, kept=4, picks=8):
    """Which columns a route of the full model selects from logits, and their weights; equal numbers by the lower column."""
    score = logits.sigmoid()
    choice = (score + bias).view(len(logits), groups, -1)
    best = choice.topk(2).values.sum(-1)
    inside = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.sort(dim=1, descending=True, stable=True).indices[:, :kept], True)
    choice = choice.masked_fill(~inside[:, :, None], float("-inf")).flatten(1)
    ids = choice.sort(dim=1, descending=True, stable=True).indices[:, :picks]
    weights = score.gather(1, ids)
    return ids.int(), weights / weights.sum(1, keepdim=True)


def route(code, kernels, counts):
    """Routes: logits within their bound, and what is selected from them as here; beside a product in binary32 and the same selection of PyTorch."""
    seen = set()
    for start in starts(code):
        kernel = kernels[start["kernel"]]
        key = (start["kernel"], json.dumps(start.get("buckets")))
        if "using Own = Route" not in kernel.text or key in seen:
            continue
        seen.add(key)
        columns, k = (int(n) for n in re.search(r"(?:Product<[^,]*, [^,]*, [^,]*|Split<[^,]*), (\d+), (\d+),", kernel.text).groups())
        sorts = "int* plan" in kernel.text
        weights = [torch.empty(columns, k, device="cuda").uniform_(-0.03, 0.03) for _ in range(20)]
        bias = torch.empty(columns, device="cuda").uniform_(-0.1, 0.1)
        tickets = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
        for rows in [n for n in counts if serves(start, n)]:
            x = uniform(rows, k)
            out = torch.full((rows, columns), float("nan"), device="cuda")
            ids, shares = torch.full((rows, 8), -7, dtype=torch.int32, device="cuda"), torch.full((rows, 8), float("nan"), device="cuda")
            plan = torch.zeros(4 + 5 * rows * 8, dtype=torch.int32, device="cuda")
            blocks = [b["factor"] * (rows if b.get("rows") else 1) for b in start["grid"]]
            grid = tuple((n + b["per_block"] - 1) // b["per_block"] for n, b in zip(blocks, start["grid"]))
            behind = [ids, ctypes.c_int(rows * 8), plan] if sorts else []

            def go(w, x=x):
                kernel.start(grid, [x, w, out, ctypes.c_int(rows), tickets] + behind + [bias, shares, ids])

            go(weights[0])
            torch.cuda.synchronize()
            some = torch.randperm(rows, device="cuda")[:64]
            wanted = x[some].double() @ weights[0].double().T
            error = worst(out[some], wanted, x[some].double().abs() @ weights[0].double().abs().T, k)
            chosen, parts = selected(out, bias)
            rare = (chosen != ids).any(1).float().mean().item()
            if rare > 0.001 or not (parts - shares)[(chosen == ids).all(1)].abs().max() < 1e-5:
                error = float("nan")
            own = timed([lambda w=w: go(w) for w in weights])
            wide = x.float()
            peer = timed([lambda w=w: selected(torch.nn.functional.linear(wide, w), bias) for w in weights])
            floor = max((columns * k * 4 + rows * k * 2) / READ_BYTES_PER_US, 2 * rows * columns * k / 67e6)
            report(kernel.name.rsplit("_", 1)[0], f"{columns}x{k}", rows, own, peer, floor, error)
            if os.environ.get("NOT_NUMBERS"):
                none = torch.full_like(x, float("nan"))
                report("the same of NaN", f"{columns}x{k}", rows, timed([lambda w=w: go(w, none) for w in weights[:4]]), 0, floor, 0)


def sorter(code, kernels, groups, tile):
    """What sorts picks into tiles of so many rows: a kernel of the artifact, or the same here where it is part of another."""
    for start in starts(code):
        kernel = kernels[start["kernel"]]
        if "using Core = Sorted" in kernel.text and kernel.numbers("Sorted")[:2] == [groups, tile]:
            return lambda ids, picks, plan: kernel.start((1, 1), [ids, ctypes.c_int(picks), plan])

    def here(ids, picks, plan):
        flat = ids.flatten().long()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=groups).tolist()
        entries, begin = [], 0
        for group, count in enumerate(counts):
            entries += [[group, begin + at, min(tile, count - at), 0] for at in range(0, count, tile)]
            begin += count
        places = 4 + 4 * picks
        head = torch.tensor([len(entries), places, picks, 0] + sum(entries, []), dtype=torch.int32, device="cuda")
        plan[: len(head)] = head
        plan[places : places + picks] = order.int()

    return here


def pairs(code):
    """Every start with the one before it in its region."""
    for entry in code["entries"]:
        for graph in entry:
            for region in graph["regions"]:
                own = region.get("starts", [])
                yield from zip([None] + own, own)


def starts(code):
    for entry in code["entries"]:
        for graph in entry:
            for region in graph["regions"]:
                yield from region.get("starts", [])


class Cache:
    """A paged cache of random rows, pages in another order, with the tables of a step."""

    def __init__(self, numbers, layout, context, sequences, rows):
        heads, share, d, window, _ = numbers[:5]
        self.page_tokens, page, token, head, value = layout
        self.kv = heads // share
        pages = (context + self.page_tokens - 1) // self.page_tokens
        self.pool = uniform((sequences * pages + 1) * page)
        self.table = (torch.randperm(sequences * pages, device="cuda") + 1).int().view(sequences, pages)
        self.sequence = torch.arange(sequences, device="cuda").repeat_interleave(rows).int()
        self.at = torch.cat([torch.arange(context - rows, context, device="cuda")] * sequences).int()
        self.ends = torch.full((sequences,), context - 1, device="cuda", dtype=torch.int32)
        words = [self.sequence.data_ptr(), self.ends.data_ptr()] + [self.table.data_ptr()] * 8
        head_words = torch.tensor(words, dtype=torch.int64)
        tail = torch.tensor([pages, 0], dtype=torch.int32).view(torch.int64)
        self.steps = torch.cat([head_words, tail]).cuda()
        view = self.pool.view(-1, page)
        at = torch.arange(context, device="cuda")
        self.first = self.table[-1].long()[at // self.page_tokens] * page + (at % self.page_tokens) * token
        self.value, self.d = value, d

    def first_head(self):
        """Keys and values of the last sequence's first KV head."""
        index = self.first[:, None] + torch.arange(self.d, device="cuda")
        return self.pool[index], self.pool[index + self.value]


def attention(code, kernels, cases, template):
    done = set()
    for start in starts(code):
        kernel = kernels[start["kernel"]]
        numbers = kernel.numbers(template)
        if not numbers or (template == "Decode" and numbers[5] != 1):
            continue
        layout = kernel.numbers("CacheLayout")
        heads, share, d, window, _ = numbers[:5]
        for context, sequences, rows in cases:
            if window and context > 16 * window and rows == 1:
                continue
            if template == "Decode" and start["buckets"]["most"] != sequences or (kernel.name, context, sequences) in done:
                continue
            done.add((kernel.name, context, sequences))
            cache = Cache(numbers, layout, context, sequences, rows)
            q = uniform(sequences * rows, heads, d)
            out = torch.full((sequences * rows, heads, d), float("nan"), device="cuda")
            scale = d**-0.5
            none = ctypes.c_uint64(0)
            arguments = [q, cache.pool, cache.steps, none, cache.at, none, scale, out, ctypes.c_int(sequences * rows)]
            if template == "Decode":
                grid = (start["grid"][0]["factor"], start["grid"][1]["factor"])
                parts = torch.full((grid[0] * grid[1] * 16 * (d + 2),), float("nan"), device="cuda")
                arguments += [parts, torch.zeros(1 << 18, dtype=torch.int32, device="cuda")]
                arguments += kernel.others(11, q)
            else:
                grid = ((sequences * rows * share + 127) // 128, heads // share)
            kernel.start(grid, arguments)
            torch.cuda.synchronize()
            keys, values = cache.first_head()
            mine = q.view(sequences, rows, heads, d).transpose(1, 2)
            error = compare(mine[-1, :share], keys, values, out.view(sequences, rows, heads, d).transpose(1, 2)[-1, :share], window, scale)
            arguments[7] = none if len(arguments) > 11 else out
            own = timed([lambda: kernel.start(grid, arguments)] * 4)
            seen = min(context, window) if window and rows == 1 else context
            k, v = (uniform(sequences, cache.kv, seen, d) for _ in range(2))
            sdpa = torch.nn.functional.scaled_dot_product_attention
            if rows == 1:
                peer = timed([lambda: sdpa(mine.contiguous(), k, v, enable_gqa=True)] * 4)
                floor = sequences * seen * cache.kv * d * 4 / READ_BYTES_PER_US
            else:
                full = mine.contiguous()
                peer = 0.0 if window else timed([lambda: sdpa(full, k, v, is_causal=True, enable_gqa=True)] * 2)
                pairs = rows * (rows + 1) // 2 if not window or rows <= window else window * rows - window * (window - 1) // 2
                floor = 4 * sequences * pairs * heads * d / FLOPS_PER_US
            report(kernel.name.rsplit("_", 1)[0], f"{context} x {sequences}", f"window {window}", own, peer, floor, error)
            del cache


def compare(q, k, v, found, window, scale):
    """Largest error over the largest number, in 2^-24, of the query heads of one KV head."""
    n, m = q.shape[1], k.shape[0]
    pick = torch.randperm(n, device="cuda")[:64].sort().values
    scores = (q[:, pick].double() @ k.double().T) * scale
    at = torch.arange(m - n, m, device="cuda")[pick][:, None]
    key = torch.arange(m, device="cuda")[None, :]
    hidden = key > at
    if window:
        hidden |= key <= at - window
    scores.masked_fill_(hidden, float("-inf"))
    wanted = scores.softmax(-1) @ v.double()
    return ((found[:, pick].double() - wanted).abs().max() / wanted.abs().max()).item() * 2**24


def main():
    folder, out, *which = sys.argv[1:]
    code = json.load(open(f"{folder}/device.json"))
    kernels = [Kernel(folder, k) for k in code["kernels"]]
    which = which or ["dense", "picked", "route", "decode", "prompt"]
    if "dense" in which:
        dense(code, kernels, [1, 2, 8, 16, 32, 64, 128, 256, 1024, 4096])
    if "picked" in which:
        picked(code, kernels, [1, 2, 4, 8, 32, 64, 256, 1024, 4096])
    if "route" in which:
        route(code, kernels, [int(n) for n in os.environ.get("ROWS", "1 16 64 256 1024 4096 8192").split()])
    if "decode" in which:
        attention(code, kernels, [(c, s, 1) for c in (512, 8192, 65536) for s in (1, 8, 32) if c * s <= 600_000], "Decode")
    if "prompt" in which:
        attention(code, kernels, [(4096, 1, 4096), (16384, 1, 16384)], "Prompt")
    json.dump(RESULTS, open(out, "w"), indent=1)


if __name__ == "__main__":
    main()
