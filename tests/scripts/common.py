"""What the scripts that make fixtures share: synthetic weights, plain attention, the values of a case."""

import contextlib
import json

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
PROMPT, GREEDY = 20, 12


# ---- weights by name -------------------------------------------------------------------------------------------------


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_name(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = (h ^ b) * 0x100000001B3 & MASK64
    return h


def synthetic(seed, name, shape):
    """The weight that `--synthetic seed` gives this name: vectors lie around 1, matrices around 0 with deviation 1/√K."""
    h = hash_name(name)
    key = seed ^ ((h << 32 | h >> 32) & MASK64)
    with np.errstate(over="ignore"):
        base = mix(np.array([(key + GOLDEN) & MASK64], dtype=np.uint64))
        index = np.arange(int(np.prod(shape)), dtype=np.uint64)
        word = mix(base + (index + np.uint64(1)) * np.uint64(GOLDEN))
    quarters = sum((word >> np.uint64(s) & np.uint64(0xFFFF)).astype(np.int64) for s in (0, 16, 32, 48))
    z = (quarters - 2 * 0xFFFF).astype(np.float32) * np.uint32(0x37DDB3D7).view(np.float32)
    if len(shape) == 1:
        mean, spread = np.float32(1), np.float32(0.1)
    else:
        mean, spread = np.float32(0), np.float32(1) / np.sqrt(np.float32(shape[-1]))
    return (mean + spread * z).reshape(shape)


# ---- attention with one rounding -------------------------------------------------------------------------------------


def plain_attention(module, query, key, value, attention_mask, scaling, sliding_window=None, **_):
    """softmax(q k^T scale) v over the causal window in float32, rounded once; with the module's sinks if it has any."""
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key.shape[1]
    q, k, v = query.to(wide), key.to(wide).repeat_interleave(groups, 1), value.to(wide).repeat_interleave(groups, 1)
    scores = q @ k.transpose(2, 3) * scaling
    row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    seen = column <= row
    if sliding_window is not None:
        seen = seen & (column > row - sliding_window)
    scores = scores.masked_fill(~seen, float("-inf"))
    sinks = getattr(module, "sinks", None)
    if sinks is not None:
        column = sinks.to(wide).reshape(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[2]]
    return (weights @ v).to(query.dtype).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("plain", plain_attention)


def converted(model, dtype):
    """The model in another dtype; frequencies, which are buffers, stay float32 as where a checkpoint is loaded."""
    frequencies = {n: b.clone() for n, b in model.named_buffers() if "inv_freq" in n}
    model.to(dtype)
    for name, frequency in frequencies.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, frequency)
    return model


# ---- values ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def binary64():
    """Whatever the library widens to float32 becomes float64."""
    float32, short, method = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = lambda x: x.double()
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = float32, short, method


def prompt_ids(vocab):
    return [(7 * i * i + 3 * i + 5) % vocab for i in range(PROMPT)]


class Streams:
    """What each layer and the head take."""

    def __init__(self, model, layers):
        self.seen = {}
        self.hooks = []
        for l, layer in enumerate(layers):
            self.hooks.append(layer.register_forward_hook(self.keeper(f"stream.{l}", 0), with_kwargs=True))
            norm = getattr(layer, "input_layernorm", None)
            self.hooks.append(norm.register_forward_hook(self.keeper(f"normed.{l}", None), with_kwargs=True))
        last = len(layers)
        self.hooks.append(model.model.norm.register_forward_hook(self.keeper(f"stream.{last}", 0), with_kwargs=True))
        self.hooks.append(model.model.norm.register_forward_hook(self.keeper(f"normed.{last}", None), with_kwargs=True))

    def keeper(self, name, argument):
        def keep(_, args, kwargs, out):
            if argument is None:
                value = out
            else:
                value = args[0] if args else kwargs["hidden_states"]
            self.seen[name] = value.detach()[0].clone()

        return keep

    def close(self):
        for hook in self.hooks:
            hook.remove()
        return self.seen


@torch.no_grad()
def record(make, layers_of, vocab, around=contextlib.nullcontext):
    """Runs the model that `make(dtype)` builds in three dtypes; returns the tensors of a case and a line about them."""
    prompt = torch.tensor([prompt_ids(vocab)])

    def logits(model, ids):
        with around(model) if around is not contextlib.nullcontext else around():
            return model(ids, use_cache=False).logits[0]

    exact_model = make(torch.float64)
    with binary64():
        exact = logits(exact_model, prompt)
    model = make(torch.float32)
    single = logits(model, prompt)
    ids, gap = prompt, float("inf")
    for _ in range(GREEDY):
        best = logits(model, ids)[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids = torch.cat([ids, best.indices[:1][None]], dim=1)
    narrow = make(torch.bfloat16)
    streams = Streams(narrow, layers_of(narrow))
    half = logits(narrow, prompt)
    values = {
        "prompt": prompt[0].to(torch.int32),
        "exact": exact.to(torch.float32),
        "f32": single.to(torch.float32),
        "bf16": half.to(torch.float32),
        "greedy": ids[0, PROMPT:].to(torch.int32),
        **streams.close(),
    }
    noise = float((single.double() - exact).abs().max())
    rms = float((half.double() - exact).pow(2).mean().sqrt())
    report = f"largest logit {float(exact.abs().max()):.2f}, f32 off by {noise:.1e}, bf16 by {rms:.1e} rms, gap {gap:.1e}"
    return values, report


def write_case(path, sizes, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".json").write_text(json.dumps(sizes) + "\n")
    save_torch({name: value.contiguous() for name, value in values.items()}, str(path) + ".safetensors")
